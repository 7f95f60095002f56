"""Runs of this machine for programs and notebooks."""

from __future__ import annotations

import os

from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.report.readable import ReadableRun
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.history import RunReader, find_run, find_runs


class LocalRun(RunReader, ReadableRun):
    """A run of this machine, of this process or another one, that may be in progress."""

    def __repr__(self) -> str:
        return f"<LocalRun {self.run_id}>"


def attach(run: str = LATEST, *, output_dir: str | os.PathLike[str] = OUTPUT_DIR) -> LocalRun:
    """Return a run of this machine.

    Args:
        run: its id, the beginning or the end of it, ``latest``, or its folder.
        output_dir: the folder with the folders of runs.

    Raises:
        UnknownRunError: there is no such run.
        ArgumentError: it cannot be read.
    """
    return LocalRun(find_run(output_dir, os.fspath(run)))


def runs(*, output_dir: str | os.PathLike[str] = OUTPUT_DIR) -> list[str]:
    """Return the ids of the runs of this machine, the newest first.

    Raises:
        ArgumentError: ``output_dir`` is not a folder.
    """
    return [folder.name for folder in find_runs(output_dir)]
