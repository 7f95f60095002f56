"""The process of a run, on a cluster that differs from this machine."""

from __future__ import annotations

import os

from torchx_kfp_dev_host import run_process

from torchx_kfp.execution.local import attempt

#: Has the address at which stages find the S3 store of the cluster.
STORE = "FAKE_KFP_STORE"


def main() -> None:
    """Run the pipeline of a request."""
    if STORE not in os.environ:
        # In a cluster, an address that a stage names counts.
        attempt.own_endpoints = lambda *_, **__: {}
    run_process.main()
