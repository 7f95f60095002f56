"""Send requests to the API server of the cluster, as a pod reaches it, and follow the pods of a distributed stage."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.contract.carried.replica_roles import ENDING, KEPT, Failure, say, show

#: Where a pod finds its token, the cluster's certificate and its namespace.
FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
#: Seconds for which the API server may not answer.
PATIENCE = 600


class Cluster:
    """The API server, as the pod of a stage with an engine reaches it."""

    def __init__(self, engine: str, /) -> None:
        try:
            with open(f"{FOLDER}/namespace") as file:
                self.namespace = file.read().strip()
            host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
            context = ssl.create_default_context(cafile=f"{FOLDER}/ca.crt")
        except (OSError, KeyError) as error:
            raise Failure(f"the pod has no access to the cluster's API: {error!r}") from None
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{port}/"
        self.account = os.environ.get("KFP_SERVICE_ACCOUNT") or "default"
        #: The options of ``torchx-kfp rbac``.
        self.rights = f"--engine {engine} --namespace {self.namespace} --service-account {self.account}"
        # Python 3.13 rejects the authorities of many clusters otherwise: they lack key identifiers.
        context.verify_flags &= ~getattr(ssl, "VERIFY_X509_STRICT", 0)
        # An empty ProxyHandler keeps the environment's proxies away: the cluster is not reached through them.
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )
        #: The requests that were allowed.
        self.allowed: set[tuple[str, str]] = set()

    def path(self, api: str, plural: str, /) -> str:
        """Return the path of a collection in the namespace."""
        return f"{api}/namespaces/{self.namespace}/{plural}"

    def pods(self, query: str, /) -> Any:
        """Return the pods that a selector finds."""
        return self.call("GET", f"{self.path('api/v1', 'pods')}?{query}")[1]["items"]

    def open(self, method: str, path: str, body: Any = None, /, timeout: float = 30) -> Any:
        """Send one request. The token is read each time, because it is replaced now and then."""
        with open(f"{FOLDER}/token") as file:
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
        """Send a request until it is answered; return the status and the response.

        Requests to unreachable or busy servers are repeated, and so are requests refused after one was allowed:
        authorizers fail temporarily. 404 and 409 are answers; other errors end the stage.
        """
        began = time.monotonic()
        pause = 0.25
        while True:
            if method == "POST" and signal.sigpending() & ENDING:
                raise Failure("stopped")  # nothing is created then
            try:
                with self.open(method, path, body) as answer:
                    found = json.loads(answer.read())
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
    """Return the API server's error message."""
    text = ""
    try:
        text = error.read().decode(errors="replace")
        return str(json.loads(text)["message"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return text.strip()[:1000] or error.reason


def pieces(stream: Any, ended: bool, /) -> Iterator[tuple[bytes, bytes]]:
    """Yield the lines of a log, long ones in pieces of at least 64 KiB, each with its time, so that times compare.

    Until the pod has ``ended``, an incomplete last line means a broken connection, and is omitted.
    To the stream's ``readline``, a connection that breaks between two chunks is the end of the answer.

    Raises:
        ValueError: it is not a log.
    """
    stamp = rest = b""
    while True:
        data = stream.read1(1 << 16)
        *lines, rest = (rest + data).split(b"\n")
        found = [line + b"\n" for line in lines]
        if rest and (len(rest) >= 1 << 16 or (ended and not data)):
            found.append(rest)
            rest = b""
        for piece in found:
            text = piece
            if not stamp:
                stamp, _, text = piece.partition(b" ")
                if not re.match(rb"[0-9T:-]{19}(\.\d+)?(Z|[+-]\d\d:\d\d)$", stamp):
                    raise ValueError(piece.decode(errors="replace").strip())
                stamp = stamp.replace(b"Z", b"+00:00")
            yield stamp, text
            if piece.endswith(b"\n"):
                stamp = b""
        if not data:
            return


class Replica:
    """A pod of the stage, as last seen."""

    def __init__(self, cluster: Cluster, item: Any, label: str, container: str, follows: bool, /) -> None:
        self.cluster = cluster
        self.uid, self.pod, self.made = (item["metadata"][key] for key in ("uid", "name", "creationTimestamp"))
        #: ``<role>/<index>``.
        self.label = label
        self.container = container
        #: Whether its log is read, the thread that does so, and the last lines.
        self.follows = follows
        self.reader: threading.Thread | None = None
        self.lines: deque[bytes] = deque(maxlen=KEPT)
        self.node = ""
        #: When it ended, with which exit code, and why.
        self.ended = ""
        self.code = 0
        self.why = ""
        #: Whether the pod has vanished before its end or was evicted, and whether somebody was deleting it then.
        self.gone = False
        self.lost = False
        self.deleted = False
        self.runs = False
        #: The reason why it does not run, and a message; or nothing.
        self.waiting: tuple[str, ...] = ()

    def update(self, item: Any, /) -> None:
        """Record the pod's state."""
        status = item.get("status") or {}
        self.node = item["spec"].get("nodeName", "")
        containers = status.get("containerStatuses") or ()
        own: Mapping[str, Any] = next((one for one in containers if one["name"] == self.container), {})
        state: Mapping[str, Any] = own.get("state") or {}
        deleted = "deletionTimestamp" in item["metadata"]
        if not self.ended:
            self.deleted = deleted
        self.runs = "running" in state and not deleted
        conditions = status.get("conditions") or ()
        self.waiting = ()
        for one in (
            *(each["state"].get("waiting") or {} for each in status.get("initContainerStatuses") or ()),
            state.get("waiting") or {},
            *(one for one in conditions if one["type"] == "PodScheduled" and one["status"] == "False"),
        ):
            if one.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                self.waiting = one["reason"], one.get("message") or ""
        # The runtime of a TrainJob may have started it again.
        end = state.get("terminated") or (own.get("lastState") or {}).get("terminated")
        if end:
            self.end(end["exitCode"], end)
        elif status.get("phase") == "Failed":
            # It was evicted, or its node is lost: only newer causes are in a condition.
            self.lost = True
            causes = [one for one in conditions if one["type"] == "DisruptionTarget"]
            self.end(1, {**causes[0], **status} if causes else status)
        if self.follows and not self.reader and (self.runs or end):
            self.reader = threading.Thread(target=self.read, daemon=True)
            self.reader.start()

    def end(self, code: int, details: Mapping[str, Any], /) -> None:
        """Record its end, once."""
        if self.ended:
            return
        self.ended = details.get("finishedAt") or time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.code = code
        words = [details.get("reason"), details.get("message")]
        said = ": ".join(word.strip() for word in words if word and word != "Error")
        self.why = f" ({said})" if said else ""
        if code:
            say(f"{self.label} failed with exit code {code}{self.why}; it was the pod {self.pod}")

    def log(self, query: str, /) -> str:
        """Return the path of its log."""
        return f"{self.cluster.path('api/v1', 'pods')}/{self.pod}/log?container={self.container}&{query}"

    def read(self) -> None:
        """Copy the log, and continue after a broken connection."""
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # see ClusterStage.create
        path = self.log("follow=true&timestamps=true")
        #: The latest time of a line that was shown. A new connection repeats the lines of that second.
        last = b""
        tries = 0
        told = ""
        while True:
            ended = bool(self.ended)
            since = f"&sinceTime={last.decode()}".replace("+", "%2B") if last else ""
            problem = ""
            try:
                with self.cluster.open("GET", path + since, timeout=60) as stream:
                    named = self.cluster.pods(f"fieldSelector=metadata.name%3D{self.pod}") if tries else ()
                    if tries and not any(one["metadata"]["uid"] == self.uid for one in named):
                        return  # the stream is that of another pod of this name
                    before = last
                    for stamp, text in pieces(stream, ended):
                        if stamp > before:
                            last = max(last, stamp)
                            tries = min(tries, 1)
                            show(self.label, text)
                            self.lines.append(text)
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
            if problem and told != problem:
                told = problem
                say(f"{self.label}: its log cannot be read: {problem}")
            tries += 1
            if problem.startswith("403") or (ended and tries > 5):
                return
            time.sleep(min(0.3 * tries, 3))
