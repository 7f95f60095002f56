"""Run compiled KFP v2 pipelines on this machine, with stages as plain processes or in containers.

from torchx_kfp.local import run

result = run("pipeline.yaml", {"lr": 0.1})
result.raise_for_failure()
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

from torchx_kfp.common.extras import require

require("pipelines", __name__)

from torchx_kfp.execution.local.executors.engine import remove_containers
from torchx_kfp.execution.local.executors.mounts import Mount
from torchx_kfp.execution.local.local_run import LocalRun, attach, runs
from torchx_kfp.execution.local.preflight import check_supported
from torchx_kfp.execution.local.replay import ReplayResult, replay
from torchx_kfp.execution.local.run_options import RunKeywords, RunOptions, default_parallelism
from torchx_kfp.execution.local.runner import run
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import describe_parameters, parse_arguments
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
from torchx_kfp.execution.runs.prepared_run import plan_run
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.resume_plan import ResumePlan, Step
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Lines, Watch

__all__ = [
    "OUTPUT_DIR",
    "Artifact",
    "Event",
    "Lines",
    "LocalRun",
    "LoopStarted",
    "Mount",
    "Pipeline",
    "PipelineRetried",
    "ReplayResult",
    "ResumePlan",
    "RunEnding",
    "RunFinished",
    "RunKeywords",
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
    "Step",
    "Watch",
    "attach",
    "check_supported",
    "default_parallelism",
    "describe_parameters",
    "load_pipeline",
    "parse_arguments",
    "plan_run",
    "remove_containers",
    "replay",
    "run",
    "runs",
]
