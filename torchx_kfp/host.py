"""Runs on a KFP host: submitted through its API, with the events of local runs.

from torchx_kfp.host import submit

run = submit("pipeline.yaml", {"tracker_base": "s3://bucket/results"}, host="https://kfp.example.com")
run.wait().raise_for_failure()
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

from torchx_kfp.common.extras import require

require("pipelines", __name__)

from torchx_kfp.execution.host.host_runs import Host, RunFilter, RunSummary
from torchx_kfp.execution.host.run import HostRun
from torchx_kfp.execution.host.submission import attach, connect, submit

__all__ = [
    "Host",
    "HostRun",
    "RunFilter",
    "RunSummary",
    "attach",
    "connect",
    "submit",
]
