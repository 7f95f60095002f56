"""A KFP host for tests, and what a test may switch."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from torchx_kfp_dev_host.answers import proxy_error
from torchx_kfp_dev_host.host import Answer, DevHost, Handler

from tests.fake_kfp.faults import Fault, Request
from tests.fake_kfp.made import MadeRun, large_pipeline
from tests.fake_kfp.runs import ClusterApi
from torchx_kfp.execution.pipeline.load import pipeline_from_documents


class _Handler(Handler):
    """Lets faults happen, and logs requests."""

    def respond(self) -> None:
        host: KfpHost = self.server.host
        began, headers = time.monotonic(), {name.lower(): value for name, value in self.headers.items()}
        if headers.get("content-length", "0") != "0":
            self.rfile.peek(1)  # from now on, the client may be killed: its body is here
        fault = next((each for each in list(host.faults) if each.takes(self.command, self.path)), None)
        cut = fault.cut if fault is not None else None
        if fault is not None and fault.seconds:
            time.sleep(fault.seconds)
        if fault is not None and (fault.status or cut == 0):
            self.rfile.read(int(headers.get("content-length", 0)))
            text = json.dumps(proxy_error(fault.status or 502)) if fault.body is None else fault.body
            answer = Answer(fault.status, text, "application/json")
        else:
            try:
                answer = self.answer()
            except Exception as error:  # a mistake of the host: tests fail with it
                host.problems.append(f"{self.command} {self.path}: {type(error).__name__}: {error}")
                raise
        parts, status = urlsplit(self.path), answer.status if cut is None else 0
        host.requests.append(Request(self.command, parts.path, dict(parse_qsl(parts.query)), began, status, headers))
        self.close_connection |= cut is not None
        if cut != 0:
            self.send(answer, fault.headers if fault is not None else None, 1 if cut is None else cut)


class KfpHost(DevHost):
    """KFP's API on a free port of this machine, for as long as the context lasts.

    At its end, a request that it could not answer is an AssertionError, and so is a run that this machine cannot run.
    """

    handler = _Handler
    api = ClusterApi
    _api: ClusterApi

    def __init__(
        self,
        folder: Path | str,
        *,
        directory: Path | str | None = None,
        options: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        store: str = "",
    ) -> None:
        """Make a host that does not answer yet.

        Args:
            folder: the folder for the runs, which share a cache.
            directory: where the stages run. Default: the current directory.
            options: more options for ``torchx_kfp.local.run``.
            secrets: the secrets of the cluster, by name and key.
            store: the address at which stages find the S3 store of the cluster, which has another name there.
        """
        of_cluster = {"secrets": dict(secrets or {}), "store": store}
        given = {"parallelism": 8, "grace": 5, "directory": str(directory or Path.cwd()), **(options or {})}
        super().__init__(Path(folder), options={**given, **of_cluster})
        #: The versions of the API that are served.
        self.served = {"v2beta1", "v1beta1", "v1alpha1"}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        #: Mistakes of the host.
        self.problems: list[str] = []

    def __exit__(self, kind: object, *_: object) -> None:
        super().__exit__(kind)
        self.problems += [run.record.error for run in self.runs.values() if run.record.error]
        if kind is None:
            assert not self.problems, "\n".join(self.problems)

    # What a test switches

    def fail(self, status: int, times: float = 1, **more: Any) -> Fault:
        """Answer the next requests with an error: see ``Fault``."""
        return self.add(Fault(status=status, times=times, **more))

    def add(self, fault: Fault) -> Fault:
        """Let a fault happen to the next requests; the one that was added first comes first."""
        self.faults.append(fault)
        return fault

    def make_run(self, stages: int, *, chains: int = 0, name: str = "large") -> MadeRun:
        """Add a run whose stages do not run: the test says what happens to them.

        Args:
            stages: how many stages it has.
            chains: how many of them can run at once; each of the others depends on one. By default, all of them.
            name: the name of the pipeline, and of the run.
        """
        spec = large_pipeline(name, stages, chains)
        return self._api.add_run(MadeRun, pipeline_from_documents([spec], name), spec)

    def set_version(self, version: str) -> None:
        """Say from now on that this is the version of KFP."""
        self._api.version = version

    def hide_pods(self) -> None:
        """Give the logs of pods from now on only as Argo has archived them, as KFP's stock role does."""
        self._api.reads_pods = False

    def delete(self, run_id: str) -> None:
        """Delete a run, as another user would."""
        self._api.delete(run_id)

    def count(self, pattern: str = "", method: str = "") -> int:
        """Return how many requests there were so far for paths that contain the pattern."""
        return sum(bool(re.search(pattern, each.path)) and method in ("", each.method) for each in self.requests)

    # Requests

    def refuse(self, headers: Mapping[str, str]) -> Answer | None:
        """Refuse nothing: tests reach the host by other names."""
        return None

    def handle(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Answer:
        """Return the answer to a request."""
        if re.match(f"/apis/({'|'.join(self.served)})/", target):
            return super().handle(method, target, headers, data)
        return Answer.json(404, proxy_error(404))
