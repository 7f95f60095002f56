"""Run compiled KFP v2 pipelines locally, with stages as plain processes or in containers.

from torchx_kfp.local import run

result = run("pipeline.yaml", {"lr": 0.1})
result.raise_for_failure()
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

import os

from torchx_kfp.common.extras import require

require("pipelines", __name__)

from torchx_kfp.execution.local.executors.mounts import Mount
from torchx_kfp.execution.local.replay import ReplayResult, replay
from torchx_kfp.execution.local.run_options import RunOptions
from torchx_kfp.execution.local.runner import run
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import LATEST
from torchx_kfp.execution.report import ReadableRun
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.events import (
    Event,
    LoopStarted,
    PipelineRetried,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePending,
    StageReplicas,
    StageRetried,
    StageStarted,
    StageWaiting,
)
from torchx_kfp.execution.runs.history import RunReader, find_run, find_runs
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Lines, Watch

__all__ = [
    "Artifact",
    "Event",
    "Lines",
    "LocalRun",
    "LoopStarted",
    "Mount",
    "Pipeline",
    "PipelineRetried",
    "ReplayResult",
    "RunEnding",
    "RunFinished",
    "RunOptions",
    "RunResult",
    "RunStarted",
    "StageFinished",
    "StagePending",
    "StageReplicas",
    "StageResult",
    "StageRetried",
    "StageStarted",
    "StageWaiting",
    "State",
    "Watch",
    "attach",
    "load_pipeline",
    "replay",
    "run",
    "runs",
]


class LocalRun(RunReader, ReadableRun):
    """A local run, of this process or another one, which may be in progress."""

    def __repr__(self) -> str:
        return f"<LocalRun {self.run_id}>"


def attach(run: str = LATEST, *, output_dir: str | os.PathLike[str] = OUTPUT_DIR) -> LocalRun:
    """Return a local run.

    Args:
        run: its id, the beginning or the end of it, ``latest``, or its folder.
        output_dir: the folder with the folders of runs.

    Raises:
        UnknownRunError: there is no such run.
        ArgumentError: it cannot be read.
    """
    return LocalRun(find_run(output_dir, os.fspath(run)))


def runs(*, output_dir: str | os.PathLike[str] = OUTPUT_DIR) -> list[str]:
    """Return the ids of local runs, newest first.

    Raises:
        ArgumentError: ``output_dir`` is not a folder.
    """
    return [folder.name for folder in find_runs(output_dir)]
