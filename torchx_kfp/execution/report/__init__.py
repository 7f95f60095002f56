"""A run as one page of HTML, which needs nothing but a browser.

``model`` turns the record of a run into plain data. ``graph``, ``timeline``, ``plots`` and ``searches`` turn that into
drawings (those of ``searches`` are in ``trials``), and ``page`` fills the template.
"""

from __future__ import annotations

from torchx_kfp.execution.report.model import RunView, read_model, view
from torchx_kfp.execution.report.page import render, write_report

__all__ = ["RunView", "read_model", "render", "view", "write_report"]
