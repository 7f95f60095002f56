"""A run as one page of HTML, which needs nothing but a browser.

``model`` reads the record of a run. ``rows`` makes tables of it, whose figures ``figures`` draws; ``links`` has its
artifacts, ``graph`` and ``timeline`` draw the run as a whole, and ``page`` fills the template.
"""

from __future__ import annotations

import os
from pathlib import Path

from torchx_kfp.execution.runs.source import RunSource


class ReadableRun(RunSource):
    """A run that can be read by people, also while it is in progress."""

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the run as one HTML page, as ``torchx-kfp report`` does, and return the page's path.

        Args:
            path: the file. Default: ``report.html`` in the run's folder; of a run on KFP, ``<pipeline>-<run id>.html``.

        Raises:
            ArgumentError: the file cannot be written, or the run has no event yet.
        """
        from torchx_kfp.execution.report.model import read_for_page
        from torchx_kfp.execution.report.page import write_report  # loads what draws it

        return write_report(read_for_page(self), path)
