"""What a notebook asks of a run, on this machine or on a host: the log of a stage, and the page."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.walk import safe_name
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.vocabulary import State

if TYPE_CHECKING:
    from torchx_kfp.execution.report.model import RunView

#: The longest part of a page's name that is made of the pipeline's.
_LONGEST = 150


class ReadableRun(RunSource):
    """A run that can be read by people, also while it is in progress."""

    def report(self, path: str | os.PathLike[str] | None = None, *, trusted_bases: Collection[str] = ()) -> Path:
        """Write the run as one HTML page, as ``torchx-kfp report`` does, and return the page's path.

        Args:
            path: the file. Default: ``report.html`` in the run's folder; of a run on KFP, ``<pipeline>-<run id>.html``.
            trusted_bases: tracker bases other than object stores from which results on a host are read.

        Raises:
            ArgumentError: the file cannot be written, or the run has no event yet.
        """
        from torchx_kfp.execution.report.page import write_report  # loads what draws it

        found = view_of(self)
        place = Path(path) if path is not None else page_of(found)
        write_report(replace(found, trusted_bases=tuple(trusted_bases)), place)
        return place


def view_of(source: RunSource) -> RunView:
    """Return a run as its page shows it, with the logs of stages that failed.

    Raises:
        ArgumentError: the run has no event yet.
    """
    from torchx_kfp.execution.report.model import read_model, view

    record = source.read()
    if record.folder is not None:
        return read_model(record.folder.absolute())
    source.fetch({end.name for end in record.run.ends if end.state is State.FAILED})
    return view(record)


def page_of(run: RunView) -> Path:
    """Return the usual place of a run's page.

    Raises:
        ArgumentError: something else is there. Somebody else may have made the run's folder.
    """
    record = run.record
    name = f"{safe_name(record.pipeline)[:_LONGEST]}-{record.run_id}.html"
    path = Path(name) if record.folder is None else record.folder.absolute() / "report.html"
    if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):  # a pipe would never end
        raise ArgumentError(
            f"{str(path)!r} is a symbolic link or a special file. Name another file for the report: -o report.html."
        )
    return path
