"""Send requests to the API server of the cluster, as a pod reaches it."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.request

from torchx_kfp.carried.log import say
from torchx_kfp.carried.replica_roles import Failure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
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
