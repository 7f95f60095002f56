"""Runs on a KFP host: submitted through its API, and read from it as the events that local runs have.

from torchx_kfp.backend import submit

run = submit("pipeline.yaml", {"tracker_base": "s3://bucket/results"}, host="https://kfp.example.com")
run.wait().raise_for_failure()
"""

# ruff: noqa: E402 (the imports come after the check: they fail without the extra)
from __future__ import annotations

from torchx_kfp.extras import require

require("pipelines", __name__)

from torchx_kfp.backend.api import HostKeywords, attach, submit
from torchx_kfp.backend.host import Host, RunSummary
from torchx_kfp.backend.run import HostRun

__all__ = ["Host", "HostKeywords", "HostRun", "RunSummary", "attach", "submit"]
