"""A run as one page of HTML, which needs nothing but a browser.

``model`` turns the record of a run into plain data. ``graph`` (with ``layout``), ``timeline``, ``plots``, ``curves``
and ``searches`` (with ``trials`` and ``parallel``) turn that into drawings, and ``page`` fills the template.
"""

from __future__ import annotations

from torchx_kfp.report.model import RunView, read_model, view
from torchx_kfp.report.page import render, write_report

__all__ = ["RunView", "read_model", "render", "view", "write_report"]
