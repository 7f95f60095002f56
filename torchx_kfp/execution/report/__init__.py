"""A run as one page of HTML, which needs nothing but a browser.

``model`` reads the record of a run. ``rows`` and ``searches`` make tables of it, whose figures ``figures`` draws;
``graph`` and ``timeline`` draw the run as a whole, and ``page`` fills the template.
"""

from __future__ import annotations

from torchx_kfp.execution.report.model import RunView, read_model, view
from torchx_kfp.execution.report.page import render, write_report

__all__ = ["RunView", "read_model", "render", "view", "write_report"]
