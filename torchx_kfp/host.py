"""Runs on a KFP host: submitted through its API, and read from it as the events that local runs have.

from torchx_kfp.host import submit

run = submit("pipeline.yaml", {"tracker_base": "s3://bucket/results"}, host="https://kfp.example.com")
run.wait().raise_for_failure()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from torchx_kfp.common.extras import require

if TYPE_CHECKING:
    from torchx_kfp.execution.host.submission import (
        Host,
        HostKeywords,
        HostRun,
        RunFilter,
        RunSummary,
        Schedule,
        Schedules,
        Timing,
        attach,
        connect,
        schedule,
        submit,
    )

__all__ = [
    "Host",
    "HostKeywords",
    "HostRun",
    "RunFilter",
    "RunSummary",
    "Schedule",
    "Schedules",
    "Timing",
    "attach",
    "connect",
    "schedule",
    "submit",
]


def __getattr__(name: str) -> object:
    """Import what needs libraries when it is used: the command line reads the list of settings first."""
    if name in __all__:
        require("pipelines", __name__)
        return getattr(import_module("torchx_kfp.execution.host.submission"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
