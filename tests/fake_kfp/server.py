"""A KFP host for tests, and what a test may switch."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.fake_kfp.api import Api
from tests.fake_kfp.errors import Refused, proxy_error
from tests.fake_kfp.faults import Fault, Request
from tests.fake_kfp.made import MadeRun, large_pipeline
from tests.fake_kfp.runs import Run
from tests.fake_kfp.schema import answer_problems, request_problems
from tests.fake_kfp.serving import Answer, Server
from torchx_kfp.execution.pipeline.load import pipeline_from_documents


class KfpHost:
    """KFP's API on a free port of this machine, for as long as the context lasts.

    At its end, a request or an answer that is not as KFP's API has it is an AssertionError, and so is a run that cannot
    be run on this machine.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        directory: Path | str | None = None,
        options: Mapping[str, Any] | None = None,
        secrets: Mapping[str, Mapping[str, str]] | None = None,
        config_maps: Mapping[str, Mapping[str, str]] | None = None,
        store: str = "",
    ) -> None:
        """Make a host that does not listen yet.

        Args:
            folder: the folder for the runs, which share a cache.
            directory: where the stages run. Default: the current directory.
            options: more options for ``torchx_kfp.local.run``.
            secrets: the secrets of the cluster, by name and key.
            config_maps: its config maps, likewise.
            store: the address at which stages find the S3 store of the cluster, which has another name there.
        """
        #: The token that requests must have, if any; it may change at any time.
        self.token: str | None = None
        #: What comes before ``/apis`` in paths.
        self.prefix = ""
        #: The versions of the API that are served.
        self.served = {"v2beta1", "v1beta1", "v1alpha1"}
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        #: Whether requests and answers are compared with the description of the API; it takes 0.7 s for 1,000 stages.
        self.checks = True
        #: What was not as KFP's API has it.
        self.problems: list[str] = []
        self._api = Api(
            Path(folder).absolute(),
            {
                "options": {"parallelism": 8, "grace": 5, "directory": str(directory or Path.cwd()), **(options or {})},
                "secrets": dict(secrets or {}),
                "config_maps": dict(config_maps or {}),
                "store": store,
            },
        )
        #: The last answers by their paths: an answer that is the same again is not compared again.
        self._sent: dict[str, tuple[Any, Answer]] = {}
        self._server = Server(("127.0.0.1", 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        """The host's URL, as users give it to ``kfp.Client``."""
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    @property
    def runs(self) -> Mapping[str, Run]:
        """The runs by their ids."""
        return self._api.runs

    def __enter__(self) -> KfpHost:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.close()
        for run in self.runs.values():
            run.close()
        self.problems += [run.problem for run in self.runs.values() if run.problem]
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
        run = self._api.add_run(MadeRun, pipeline_from_documents([spec], name), spec)
        assert isinstance(run, MadeRun)
        return run

    def fire(self, when: float) -> None:
        """Let all recurring runs that are not paused start a run, which is for this time."""
        self._api.fire(when)

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

    def handle(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Answer:
        """Return the answer to a request."""
        parts = urlsplit(target)
        path = parts.path.removeprefix(self.prefix)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        version = [*path.split("/"), "", "", ""][2]
        if self.token is not None and headers.get("authorization") != f"Bearer {self.token}":
            return Answer.json(401, proxy_error(401))
        if version not in self.served or not path.startswith("/apis/"):
            return Answer.json(404, proxy_error(404))
        try:
            body = json.loads(data) if data else None
        except ValueError as error:
            return Answer.json(400, {"code": 3, "message": f"proto: syntax error: {error}"})
        if self.checks and version != "v1alpha1" and (wrong := request_problems(method, path, query, body)):
            self.problems += wrong
            return Answer.json(400, {"code": 3, "message": " ".join(wrong)})
        try:
            status, content = 200, self._api.answer(method, path, query, body)
        except Refused as refused:
            status, content = refused.status, refused.answer
        if isinstance(content, str):
            return Answer(status, content, "text/plain")
        known, answer = self._sent.get(path, (None, None))
        if answer is None or known is not content:
            answer = Answer.json(status, content)
            if self.checks and version != "v1alpha1":
                self.problems += answer_problems(method, path, status, json.loads(answer.text))
            self._sent[path] = content, answer
        return answer
