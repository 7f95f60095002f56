"""The second mode of the tests' host: KFP for several users, behind a proxy that signs them in.

What KFP refuses, it refuses with the recorded texts (``several-users`` in ``tests/recorded/kfp``, KFP 2.17.0), with the
names of this host in place of theirs. The endpoint of logs looks at no right, as on KFP.
"""

from __future__ import annotations

import functools
import gzip
import json
import re
from collections.abc import Mapping
from contextvars import ContextVar
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any

from torchx_kfp_dev_host.answers import Refused, shown_time
from torchx_kfp_dev_host.host import Answer
from torchx_kfp_dev_host.lists import page_of

from tests.fake_kfp.runs import ClusterApi
from tests.fake_kfp.server import KfpHost

_RECORDED = Path(__file__).parents[1] / "recorded" / "kfp"
#: The namespaces of the users' profiles.
NAMESPACES = {"alice@example.com": "team-a", "bob@example.com": "team-b"}
#: The path of KFP below the address of Kubeflow.
_PREFIX = "/pipeline"
_COOKIE = "oauth2_proxy_kubeflow"
_RUN = re.compile(r"/apis/(v2beta1|v1beta1)/runs/([^/:]+)(?::(\w+))?")
#: The names in the recordings.
_USER, _NAMESPACE, _WORKFLOW = "bob@example.com", "team-a", "training-p98d4"
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_user: ContextVar[str] = ContextVar("user")


@functools.cache
def _refusals() -> dict[str, Any]:
    content = json.loads(gzip.decompress((_RECORDED / "several-users.json.gz").read_bytes()))
    return dict(content["answer"])


@functools.cache
def _lines(name: str) -> list[str]:
    """Return the lines of Argo's executor in the log of a pod, as Kubernetes gave it."""
    recorded = json.loads(gzip.decompress((_RECORDED / f"several-users-log-{name}.json.gz").read_bytes()))
    text: str = recorded["answer"]
    return [line for line in text.splitlines(keepends=True) if "argo=true" in line or line.startswith("Error: ")]


def refused(name: str, namespace: str = "", workflow: str = "", run_id: str = "") -> Refused:
    """Return a recorded refusal, with the names of this host."""
    recorded = _refusals()[name]
    text = json.dumps(recorded["answer"])
    # The last of these was recorded with the token of a service account.
    for theirs, ours in (
        (_USER, _user.get("")),
        ("system:serviceaccount:team-a:default-viewer", _user.get("")),
        ("alice@example.com", _user.get("")),
        ("team-zzz", namespace),
        (_NAMESPACE, namespace),
        (_WORKFLOW, workflow),
    ):
        text = text.replace(theirs, ours)
    answer = Refused(recorded["status"], 0, "")
    answer.answer = json.loads(_ID.sub(run_id, text) if run_id else text)
    return answer


class UsersApi(ClusterApi):
    """The API of a host where experiments, and with them runs, belong to namespaces."""

    version = "2.17.0"

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        super().__init__(folder, options)
        [default] = self._experiments.values()
        self._experiments = {}
        for namespace in NAMESPACES.values():
            made = self._add_experiment(default["display_name"], default["description"])
            made.update(namespace=namespace, created_at=shown_time(0))

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Any:
        self._authorize(method, path, query, body or {})
        return super().answer(method, path, query, body)

    def _authorize(self, method: str, path: str, query: Mapping[str, str], body: Any) -> None:
        """Refuse what the user may not do, as KFP does before it looks at anything else."""
        mine = NAMESPACES[_user.get()]
        if path == "/apis/v2beta1/runs" and method == "GET":
            namespace = query.get("namespace") or self._namespace(query.get("experiment_id", ""))
            self._list(namespace, mine, "runs-without-namespace", "list")
        elif path == "/apis/v2beta1/runs":
            if (namespace := self._namespace(body.get("experiment_id", ""))) not in ("", mine):
                raise refused("create-viewer", namespace)
        elif path == "/apis/v2beta1/experiments":
            namespace = (query if method == "GET" else body).get("namespace", "")
            self._list(namespace, mine, "experiments-without-namespace", "experiments")
        elif found := _RUN.fullmatch(path):
            version, run_id, verb = found.groups()
            if run_id not in self.runs:
                raise refused("get-unknown", run_id=run_id)
            record = self.runs[run_id].record
            if (namespace := self._namespace(record.experiment_id)) != mine:
                name = verb or ("get-v1beta1" if version == "v1beta1" else "get")
                raise refused(name, namespace, record.workflow, run_id)

    @staticmethod
    def _list(namespace: str, mine: str, without: str, of_another: str) -> None:
        if not namespace:
            raise refused(without)
        if namespace != mine:
            raise refused(of_another, namespace)

    def _namespace(self, experiment: str) -> str:
        return str(self._experiments.get(experiment, {}).get("namespace", ""))

    def _health(self, **more: Any) -> Any:
        return {**super()._health(**more), "multi_user": True}

    def _list_runs(self, *, query: Mapping[str, str], **_: Any) -> Any:
        namespace = query.get("namespace")
        experiment = query.get("experiment_id")
        runs = [
            run.describe()
            for run in list(self.runs.values())
            if (experiment in (None, "", run.record.experiment_id))
            and namespace in (None, "", self._namespace(run.record.experiment_id))
        ]
        return page_of(runs, query, "runs")

    def _create_run(self, *, body: Any, **more: Any) -> Any:
        return super()._create_run(body={"service_account": "default-editor", **body}, **more)

    def _list_experiments(self, *, query: Mapping[str, str], **_: Any) -> Any:
        found = [each for each in self._experiments.values() if each["namespace"] == query["namespace"]]
        return page_of(found, query, "experiments")

    def _create_experiment(self, *, body: Any, **more: Any) -> Any:
        made = self._add_experiment(body["display_name"], body.get("description", ""))
        made["namespace"] = body["namespace"]
        return made

    def _log(self, run_id: str, pod: str, **more: Any) -> Any:
        """Return the log as the pod has it: what Argo archives has no lines of its executor."""
        text, run = super()._log(run_id, pod, **more), self.runs[run_id]
        node = next(each for each in run.nodes().values() if run.names.pod(each.name, each.template) == pod)
        begin = "".join(_lines("prepare")[:2])
        if node.ended is None:
            return begin + text
        has_failed = "failed to execute component" in text.rpartition("main.go")[2]
        return begin + text + "".join(_lines("failed" if has_failed else "prepare")[2:])


class SharedHost(KfpHost):
    """The host of several users, each of whom has a token and a cookie."""

    api = UsersApi

    @property
    def url(self) -> str:
        return super().url + _PREFIX

    def handle(self, method: str, target: str, headers: Mapping[str, str], data: bytes) -> Answer:
        """Answer as the user whom the proxy has signed in."""
        token = _user.set(_user_of(headers))
        try:
            return super().handle(method, target.removeprefix(_PREFIX), headers, data)
        finally:
            _user.reset(token)


def _user_of(headers: Mapping[str, str]) -> str:
    given = headers.get("authorization", "").removeprefix("Bearer ").removesuffix("-token")
    cookie = SimpleCookie(headers.get("cookie", "")).get(_COOKIE)
    name = given or (cookie.value.removesuffix("-cookie") if cookie else "")
    return next(user for user in NAMESPACES if user.partition("@")[0] == name)
