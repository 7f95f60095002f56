"""Recordings of a distributed stage's launcher with a real control plane, and a server that answers from them.

``tests/recorded/launcher`` has a recording for each engine and case. After a change of what the launcher is given, of
its requests, or of what it says, record them again and review the difference::

    dev/ci/with-cluster .venv/bin/python -m tests.kubernetes.record_launcher

That takes a minute. ``make goldens`` does not do it.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.kubernetes.certificates import Authority
from tests.kubernetes.tls_server import Handler, TlsServer

FOLDER = Path(__file__).resolve().parent / "recorded" / "launcher"
#: Programs of two replicas, for a shell.
CASES: Mapping[str, str] = {
    "succeeds": 'echo "$TORCHX_REPLICA_ID of $TORCHX_NUM_REPLICAS, rank 0 is $TORCHX_RANK0_HOST"; echo end; sleep 1',
    "fails": "[ $TORCHX_REPLICA_ID = 0 ] || { echo about to fail; exit 7; }; echo waits; sleep 1000",
    # The first attempt is killed while they run; the recording is that of the second one.
    "adopted": 'echo waits; until [ -e "$GO" ]; do sleep 0.1; done; echo goes on; sleep 1',
    "terminated": "echo waits; sleep 1000",
}
NAMES = [f"{engine}.{case}" for engine in ("job", "jobset", "trainjob") for case in CASES]
#: What is seen of it differs each time: its failed pod may be gone before its log is read. `tests/kubernetes` runs it.
NAMES.remove("trainjob.fails")
#: What is set on the task.
CONFIG = {
    "affinity": None,
    "env": [{"name": "EXTRA", "value": "$(HOME)"}],
    "nodeSelector": {},
    "resources": {"limits": {"memory": "96M"}},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
    "volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}],
}

_LINE = re.compile(r"( *[a-z0-9-]+/[0-9]+) \| (.*)")


@dataclass(frozen=True)
class Exchange:
    """A request and its answer: objects, or text that is not JSON. ``whole`` is false if the launcher ended first.

    With the status 0, the connection breaks; what has come of a log before that is the answer.
    """

    method: str
    path: str
    body: Any
    status: int
    answer: Any
    whole: bool = True

    @property
    def is_log(self) -> bool:
        """Whether it reads a log. Threads do that, so that their order and number depend on time."""
        return "/log?" in self.path

    @property
    def request(self) -> tuple[str, str, Any]:
        return self.method, self.path, self.body


@dataclass(frozen=True)
class Recording:
    """One attempt of a stage: what the launcher was given, its exchanges with the API server, and what came of it.

    ``said`` are the lines that are its own, ``shown`` those of replicas, by what is written before them.
    """

    spec: Any
    executor_input: Any
    words: list[str]
    environ: dict[str, str]
    namespace: str
    said: list[str]
    shown: dict[str, list[str]]
    code: int
    run_id: str
    exchanges: list[Exchange] = field(default_factory=list)

    def write(self, name: str) -> None:
        """Write the recording, with every answer once."""
        answers: list[str] = []
        rows = []
        for one in self.exchanges:
            text = compact(one.answer)
            if text not in answers:
                answers.append(text)
            rows.append([one.method, one.path, one.body, one.status, answers.index(text), one.whole])
        fields = {name: value for name, value in asdict(self).items() if name != "exchanges"}
        lines = [f'"{key}":{compact(value)}' for key, value in fields.items()]
        lines.append('"exchanges":[\n' + ",\n".join(map(compact, rows)) + "]")
        lines.append('"answers":[\n' + ",\n".join(answers) + "]")
        FOLDER.mkdir(parents=True, exist_ok=True)
        (FOLDER / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def read(name: str) -> Recording:
    """Return the recording of ``<engine>.<case>``."""
    found = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    answers = found.pop("answers")
    rows = found.pop("exchanges")
    exchanges = [Exchange(*row[:4], answers[row[4]], row[5]) for row in rows]
    return Recording(**found, exchanges=exchanges)


def split(log: str) -> tuple[list[str], dict[str, list[str]]]:
    """Return the lines of the launcher, and those of replicas by what is written before them."""
    said, shown = [], dict[str, list[str]]()
    for line in log.splitlines():
        found = _LINE.fullmatch(line)
        if found:
            shown.setdefault(found[1], []).append(found[2])
        else:
            said.append(line)
    return said, dict(sorted(shown.items()))


class Replay:
    """Answers from a recording: by method and path, in order, the last answer repeatedly.

    Attributes:
        requests: those that came, but for repetitions and logs.
        repeated: those that came more often than they were recorded, but for logs.
        logs: how many requests for logs there were.
        problems: what is wrong with requests. None of this kind was recorded, or they lack a token.
        before: is called before a request is answered, with its method and path.
        tokens: those that are valid.
        last_token: the one of the last request.
    """

    def __init__(self, exchanges: Iterable[Exchange], folder: Path, token: str) -> None:
        self.before: Callable[[str, str], object] = lambda *_: None
        self.requests: list[tuple[str, str, Any]] = []
        self.repeated: list[str] = []
        self.logs = 0
        self.problems: list[str] = []
        self._answers: dict[tuple[str, str], list[Exchange]] = {}
        for each in exchanges:
            self._answers.setdefault((each.method, each.path), []).append(each)
        self._given: Counter[tuple[str, str]] = Counter()
        self.tokens = [token]
        self.last_token = token
        self._lock = threading.Lock()
        self._ends = threading.Event()
        answering = self._answer

        class Answering(Handler):
            def handle_request(self) -> None:
                answering(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

        folder.mkdir()
        authority = Authority(folder).create()
        self.authority = authority.file
        self._server = TlsServer(authority.sign("server", "kubernetes"), Answering)
        self.port = self._server.port

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._server.end()

    def _answer(self, handler: Handler) -> None:
        text = handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        self.before(handler.command, handler.path.lstrip("/"))
        found = self._find(handler, json.loads(text) if text else None)
        if found is None:
            handler.begin(418, {}, 0)
            return
        content = found.answer if isinstance(found.answer, str) else json.dumps(found.answer)
        if not found.status and not content:
            handler.close_connection = True
        elif found.is_log:
            handler.begin(found.status or 200, {}, None)
            if content:
                handler.send_chunk(content.encode())
            if not found.whole:
                self._ends.wait()
            if found.status:
                handler.send_chunk(b"")
        else:
            handler.begin(found.status, {}, len(content.encode()))
            handler.wfile.write(content.encode())

    def _find(self, handler: Handler, body: Any) -> Exchange | None:
        method, path = handler.command, handler.path.lstrip("/")
        kind = "merge-patch+json" if method == "PATCH" else "json"
        with self._lock:
            self.last_token = handler.headers["Authorization"].removeprefix("Bearer ")
            if self.last_token not in self.tokens or handler.headers["Content-Type"] != f"application/{kind}":
                self.problems.append(f"{method} {path}: {handler.headers}")
            path, _, since = path.partition("&sinceTime=")
            key = method, path
            answers = self._answers.get(key)
            if not answers and "?fieldSelector=metadata.name%3D" in path:
                # The reader of a log asks whether the pod is still there.
                return self._pod(path)
            if not answers:
                self.problems.append(f"{method} {path} with {body} is not recorded")
                return None
            position = self._given[key]
            self._given[key] += 1
            found = answers[min(position, len(answers) - 1)]
            if found.is_log:
                self.logs += 1
                # The API server knows times to the second only.
                lines = str(found.answer).splitlines(keepends=True)
                found = replace(found, answer="".join(line for line in lines if line[:19] >= since[:19]))
            elif position >= len(answers):
                self.repeated.append(f"{method} {path}")
            else:
                self.requests.append((method, path, body))
            return found

    def _pod(self, path: str) -> Exchange:
        """Return the part of the last list of pods that a request for one pod asks for."""
        collection, _, name = path.partition("?fieldSelector=metadata.name%3D")
        (key,) = [key for key in self._answers if key[1].startswith(f"{collection}?labelSelector=")]
        answers = self._answers[key]
        last = answers[min(self._given[key], len(answers)) - 1]
        items = [item for item in last.answer["items"] if item["metadata"]["name"] == name]
        return Exchange("GET", path, None, 200, {**last.answer, "items": items})
