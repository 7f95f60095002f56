"""Runs on a KFP host: submitted through its API, and read from it as the events that local runs have.

from torchx_kfp.backend import submit

run = submit("pipeline.yaml", {"tracker_base": "s3://bucket/results"}, host="https://kfp.example.com")
run.wait().raise_for_failure()
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchx_kfp.backend.api import Host, HostKeywords, HostRun, RunSummary, attach, submit

__all__ = ["Host", "HostKeywords", "HostRun", "RunSummary", "attach", "submit"]


def __getattr__(name: str) -> object:
    """Import what needs libraries when it is used: the command line reads the list of settings first."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchx_kfp.extras import require

    require("pipelines", __name__)
    from torchx_kfp.backend import api

    return getattr(api, name)
