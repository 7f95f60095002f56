"""The runs of a schedule, and their times."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchx_kfp.entrypoints.cli.selection import last_attempts

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.tracking.recorder import Recorder


def keys_of_runs(recorder: Recorder, runs: Iterable[RunSummary]) -> dict[str, RunSummary]:
    """Return the run ids of stages with results, with the runs that they belong to, without earlier attempts."""
    found: dict[str, RunSummary] = {}
    for run in runs:
        keys = recorder.keys(run.run_id)
        found |= dict.fromkeys(last_attempts(recorder, keys, run.run_id) if keys else (), run)
    return found


def at(seconds: float) -> str:
    """Return the local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
