"""The API and the runs of the tests' host, with the moods of a cluster."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from torchx_kfp_dev_host.answers import Refused
from torchx_kfp_dev_host.api import Api
from torchx_kfp_dev_host.runs import LocalRun

from tests.fake_kfp.child import STORE
from tests.programs import Process, Program, imported

_PACKAGE = str(Path(__file__).parents[2] / "packages" / "torchx-kfp-dev-host")
#: The modules that runs import sooner or later.
_MODULES = ("torchx_kfp.execution.local.*",)
_starting = threading.Lock()


@functools.cache
def _imported() -> str:
    """Start the process that has imported the program of a run. It ends with this one."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    environ = {**os.environ, "PYTHONPATH": _PACKAGE}
    return stack.enter_context(imported("tests.fake_kfp.child:main", _MODULES, program=sys.executable, environ=environ))


class ClusterRun(LocalRun):
    """A run in a fork of a process that has imported its program."""

    #: The address at which stages find the S3 store of the cluster.
    store = ""
    #: Whether the host has lost the workflow's manifest.
    manifest_is_gone = False
    #: The answer in v1beta1 as it was before a retry, which is given once more.
    _stale: dict[str, Any] | None = None

    def start(self, folder: Path, options: Mapping[str, Any]) -> None:
        self.store = options["store"]
        # A cluster also has those that no stage uses, which a run on this machine refuses.
        used = {name: it for name, it in options["secrets"].items() if name in self.pipeline.text}
        super().start(folder, {**{name: it for name, it in options.items() if name != "store"}, "secrets": used})

    def spawn(self, words: Sequence[str], output: BinaryIO) -> Process:
        with _starting:
            program = Program(_imported(), Path.cwd(), program=sys.executable)
        store = {"AWS_ENDPOINT_URL": self.store, STORE: self.store} if self.store else {}
        with open(os.devnull) as nothing:
            return program.fork(words, [nothing, output, output], {**os.environ, **store})

    def retry(self) -> None:
        self._stale = self.describe_v1()
        super().retry()

    def describe_v1(self) -> dict[str, Any]:
        stale, self._stale = self._stale, None
        return stale or super().describe_v1()


class ClusterApi(Api):
    """The API of a host that may read less than it should."""

    run = ClusterRun
    #: Whether the API server may read the logs of pods: its role in single-user mode lacks that.
    reads_pods = True
    #: What it says of its version.
    version = "unknown"

    def _health(self, **more: Any) -> Any:
        return {**super()._health(**more), "tag_name": self.version}

    def _log(self, run_id: str, pod: str, **more: Any) -> Any:
        text, run = super()._log(run_id, pod, **more), self.runs[run_id]
        ended = {run.names.pod(node.name, node.template) for node in run.nodes().values() if node.ended is not None}
        if self.reads_pods or pod in ended:
            return text
        cause = f"Failed to read logs from archive {pod} due to error fetching the log file: InternalServerError"
        message = f"BadRequestError: Failed to read logs for run {run_id}: InternalServerError: {cause}"
        return json.dumps({"error_message": message, "error_details": message})

    def _retry(self, run_id: str, **more: Any) -> Any:
        # This was not recorded; it is in the source of KFP's API server.
        if getattr(self.runs.get(run_id), "manifest_is_gone", False):
            cause = "Workflow manifest cannot be empty"
            before = f"Failed to retry a run: BadRequestError: Failed to retry run {run_id} due to error fetching"
            raise Refused(400, 3, f"{before} workflow manifest: Invalid input error: {cause}", cause)
        return super()._retry(run_id, **more)
