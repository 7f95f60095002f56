"""The process of a run, on a cluster that differs from this machine."""

from __future__ import annotations

import os

from torchx_kfp_dev_host import run_process

from torchx_kfp.execution.local import attempt, dag_scheduler
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.spec import Importer

#: What KFP's importer says of an artifact without a type before it ends (metadata/client.go). Its log was not recorded.
_NO_TITLE = "No title specified"
#: Has the address at which stages find the S3 store of the cluster.
STORE = "FAKE_KFP_STORE"


def _import(name: str, importer: Importer, *given: object) -> Artifact:
    """Import an artifact as KFP does, which needs its type."""
    if not importer.type.title:
        raise ValueError(_NO_TITLE)
    return _import_here(name, importer, *given)


_import_here = dag_scheduler.import_artifact


def main() -> None:
    """Run the pipeline of a request."""
    dag_scheduler.import_artifact = _import
    if STORE not in os.environ:
        # In a cluster, an address that a stage names counts.
        attempt.own_endpoints = lambda *_, **__: {}
    run_process.main()
