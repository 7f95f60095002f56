"""Send requests to the API server of the cluster, as a pod reaches it, and follow the pods of a distributed stage."""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque

from torchx_kfp.contract.carried.replica_roles import KEPT, Failure, say, show

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

#: Where a pod finds its token, the cluster's certificate and its namespace.
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Seconds for which the API server may not answer.
PATIENCE = 600


def account_file(name: str, /) -> str:
    """Return the path of a file of the pod's service account."""
    return f"{FOLDER}/{name}"


class Cluster:
    """The API server, as a pod reaches it."""

    def __init__(self, rights: str, /) -> None:
        host = os.environ["KUBERNETES_SERVICE_HOST"]
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{os.environ['KUBERNETES_SERVICE_PORT']}/"
        #: The options of ``torchx-kfp rbac``.
        self.rights = rights
        #: The signal that ends the stage.
        self.stopped = 0
        context = ssl.create_default_context(cafile=account_file("ca.crt"))
        # Python 3.13 rejects the authorities of many clusters otherwise: they lack key identifiers.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        # An empty ProxyHandler keeps the environment's proxies away: the cluster is not reached through them.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        #: The requests that were allowed, and the warnings that were said.
        self.allowed: set[tuple[str, str]] = set()
        self.warned: set[str] = set()

    def open(self, method: str, path: str, body: Any = None, /, timeout: float = 30) -> Any:
        """Send one request. The token is read each time, because it is replaced now and then."""
        with open(account_file("token")) as file:
            token = file.read().strip()
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(
            self.url + path,
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": kind, "Accept": "application/json"},
            method=method,
        )
        return self.opener.open(request, timeout=timeout)

    def call(self, method: str, path: str, body: Any = None, /, patience: float = PATIENCE) -> tuple[int, Any]:
        """Send a request until it is answered; return the status and the answer.

        Servers that are away, busy or changing tokens are asked again, and so are those that refuse what they have
        allowed before: authorizers have bad moments, too. 404 and 409 are answers; others end the stage.
        """
        began = time.monotonic()
        pause = 0.25
        while True:
            if method == "POST" and self.stopped:
                raise Failure("stopped")  # nothing is created then
            try:
                with self.open(method, path, body) as answer:
                    found = json.loads(answer.read())
                    for warning in set(answer.headers.get_all("Warning") or ()) - self.warned:
                        self.warned.add(warning)  # of a version that is deprecated, each answer has one
                        say("the API server warns:", warning)
                    self.allowed.add((method, path))
                    return answer.status, found
            except urllib.error.HTTPError as error:
                code, problem = error.code, reason(error)
                if code in (404, 409):
                    self.allowed.add((method, path))
                    return code, problem
                if code not in (401, 408, 429) and code < 500 and (code != 403 or (method, path) not in self.allowed):
                    hint = ""
                    if code == 403 and 'User "' in problem and " cannot " in problem:
                        hint = f"; an administrator can grant it: torchx-kfp rbac {self.rights} | kubectl apply -f -"
                    raise Failure(f"{method} {path}: {code} {problem}{hint}") from None
                problem = f"{code} {problem}"
            except (OSError, http.client.HTTPException, ValueError) as error:
                cause = getattr(error, "reason", error)
                if isinstance(cause, ssl.SSLCertVerificationError):
                    raise Failure(f"{self.url}: {cause}") from None
                problem = str(cause) or repr(error)
            passed = time.monotonic() - began
            if passed + pause > patience:
                raise Failure(f"{method} {path}: no answer from the API server for {passed:.0f} s: {problem}")
            if pause == 4:
                say(f"the API server does not answer ({problem}); trying for {patience - passed:.0f} s more")
            time.sleep(pause)
            pause = min(2 * pause, 15)


def reason(error: urllib.error.HTTPError, /) -> str:
    """Return the API server's message."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return error.reason
    try:
        return str(json.loads(text)["message"])
    except (ValueError, LookupError, TypeError):
        return text.strip()[:1000] or error.reason


def stamped(line: bytes, /) -> tuple[bytes, bytes]:
    """Return the time of a line of a log, so that times compare, and the text.

    Raises:
        ValueError: it is not a line of a log.
    """
    stamp, _, text = line.partition(b" ")
    if not re.match(rb"[0-9T:-]{19}(\.\d+)?(Z|[+-]\d\d:\d\d)$", stamp):
        raise ValueError(line.decode(errors="replace").strip())
    return stamp.replace(b"Z", b"+00:00"), text


def pieces(stream: Any, /) -> Iterator[bytes]:
    """Yield the lines of an answer, long ones in pieces of at least 64 KiB.

    Its own ``readline`` takes a connection that breaks between two chunks for the end of the answer.
    """
    rest = b""
    while True:
        data = stream.read1(1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if rest and (not data or len(rest) >= 1 << 16):
            yield rest
            rest = b""
        if not data:
            return


class Replica:
    """A pod of the stage, as far as it has been seen."""

    def __init__(self, stage: Any, item: Any, /) -> None:
        meta = item["metadata"]
        role = meta["labels"]["torchx-kfp/role"]
        self.stage = stage
        self.uid = meta["uid"]
        self.pod = meta["name"]
        self.container = role
        index = (meta.get("annotations") or {}).get(stage.spec["index"], "?")
        self.label = f"{role}/{index}"
        first = role == stage.spec["roles"][0]["name"] and index == "0"
        self.follows = {"all": True, "first": first, "none": False}[stage.spec["logs"]]
        self.reader: threading.Thread | None = None
        self.lines: deque[bytes] = deque(maxlen=KEPT)
        self.node = ""
        self.ended = ""
        self.code = 0
        self.why = ""
        self.gone = False
        self.deleted = False
        self.runs = False
        #: The reason why it does not run, and a message; or nothing.
        self.waiting: tuple[str, ...] = ()
        self.problem = ""

    def update(self, item: Any, /) -> None:
        """Take note of the pod's state."""
        status = item.get("status") or {}
        self.node = item["spec"].get("nodeName", "")
        states = [one["state"] for one in status.get("containerStatuses") or () if one["name"] == self.container]
        state = states[0] if states else {}
        deleted = "deletionTimestamp" in item["metadata"]
        if not self.ended:
            self.deleted = deleted
        self.runs = "running" in state and not deleted
        self.waiting = ()
        conditions = [
            one for one in status.get("conditions") or () if one["type"] == "PodScheduled" and one["status"] == "False"
        ]
        for one in (
            *(each["state"].get("waiting") or {} for each in status.get("initContainerStatuses") or ()),
            state.get("waiting") or {},
            *conditions,
        ):
            if one.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                self.waiting = one["reason"], one.get("message") or ""
        if "terminated" in state:
            self.end(state["terminated"].get("finishedAt"), state["terminated"]["exitCode"], state["terminated"])
        elif status.get("phase") == "Failed":
            # It was evicted, or its node is lost: only newer causes are in a condition.
            causes = [one for one in status.get("conditions") or () if one["type"] == "DisruptionTarget"]
            self.end(None, 1, {**causes[0], **status} if causes else status)
        if self.follows and not self.reader and (self.runs or "terminated" in state):
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()

    def end(self, when: str | None, code: int, details: Mapping[str, Any], /) -> None:
        if not self.ended:
            self.ended = when or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            self.code = code
            words = [details.get("reason"), details.get("message")]
            said = ": ".join(word.strip() for word in words if word and word != "Error")
            self.why = f" ({said})" if said else ""
            if code:
                say(f"{self.label} failed with exit code {code}{self.why}; it was the pod {self.pod}")

    def is_there(self) -> bool:
        """Tell whether the pod is still there, and not another one of its name."""
        path = f"{self.stage.path('api/v1', 'pods')}?fieldSelector=metadata.name%3D{self.pod}"
        return any(one["metadata"]["uid"] == self.uid for one in self.stage.cluster.call("GET", path)[1]["items"])

    def read(self) -> None:
        """Copy the log, and go on where a broken connection has ended it."""
        path = f"{self.stage.path('api/v1', 'pods')}/{self.pod}/log?container={self.container}"
        path += "&follow=true&timestamps=true"
        #: The latest time of a line that was shown. A new connection repeats the lines of that second.
        last = b""
        tries = 0
        while True:
            ended = bool(self.ended)
            since = f"&sinceTime={last.decode()}".replace("+", "%2B") if last else ""
            problem = ""
            try:
                with self.stage.cluster.open("GET", path + since, timeout=60) as stream:
                    if tries and not self.is_there():
                        return  # the stream is that of another pod of this name
                    before, begins, shown = last, True, True
                    for piece in pieces(stream):
                        whole = piece.endswith(b"\n")
                        if not whole and len(piece) < 1 << 16 and not ended:
                            break  # the connection has broken: the line is read again
                        if begins:
                            stamp, piece = stamped(piece)
                            shown = stamp > before
                            last = max(last, stamp)
                        begins = whole
                        if shown:
                            tries = min(tries, 1)
                            show(self.label, piece)
                            self.lines.append(piece)
                if ended:
                    return
            except urllib.error.HTTPError as error:
                if error.code == 404 or (ended and error.code == 400):
                    return
                problem = f"{error.code} {reason(error)}"
            except (ValueError, Failure) as error:  # not a line of a log, or nobody says whose log it is
                problem = str(error)
            except (OSError, http.client.HTTPException):
                pass
            if problem and self.problem != problem:
                self.problem = problem
                say(f"{self.label}: its log cannot be read: {problem}")
            tries += 1
            if problem.startswith("403") or (ended and tries > 5):
                return
            time.sleep(min(0.3 * tries, 3))
