"""A run as one self-contained HTML page.

``model`` reads the record of a run. ``rows`` makes tables of it, whose figures ``figures`` draws; ``links`` has its
artifacts, ``graph`` and ``timeline`` draw the run as a whole, and ``page`` fills the template.
"""

from __future__ import annotations

import os
from pathlib import Path

from torchx_kfp.execution.runs.source import RunSource


class ReadableRun(RunSource):
    """A run with an HTML report, even while it is in progress."""

    def report(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write the run as one HTML page, like ``torchx-kfp report``, and return the page's path.

        Args:
            path: the file. Default: ``report.html`` in the run's folder; of a run on KFP, ``<pipeline>-<run id>.html``.

        Raises:
            ArgumentError: the file cannot be written, or the run has not started.
        """
        from torchx_kfp.execution.report.model import read_for_page
        from torchx_kfp.execution.report.page import write_report  # loads what draws it

        return write_report(read_for_page(self), path)
