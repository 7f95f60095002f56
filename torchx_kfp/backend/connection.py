"""The connection to a KFP host: requests with ``kfp.Client``'s credentials, repeated where that is safe."""

from __future__ import annotations

import itertools
import json
import logging
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    NewConnectionError,
    ProtocolError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from torchx_kfp.backend.answers import MAYBE_ACCEPTED, Answer, error_of
from torchx_kfp.backend.client import POD_NAMESPACE, client_namespace, make_client
from torchx_kfp.backend.settings import SETTINGS, Settings, flag, variable
from torchx_kfp.backend.transport import (
    BROKEN,
    LONGEST,
    MOST_BYTES,
    Exchange,
    Received,
    TooLargeError,
    TooSlowError,
)
from torchx_kfp.errors import HostAnswerLostError, HostError, HostRefusedError, HostUnreachableError
from torchx_kfp.text import joined, printable, shorten

# urllib3 logs each connection that breaks; without a handler, Python would write that to stderr.
logging.getLogger("urllib3").addHandler(logging.NullHandler())

#: How many times in a row a request is redirected.
_MOST_REDIRECTS = 4
V2BETA1, V1BETA1, V1ALPHA1 = "/apis/v2beta1", "/apis/v1beta1", "/apis/v1alpha1"
#: The reason in what Python's ssl says: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: ... (_ssl.c:1006)
_TLS_REASON = re.compile(r"\[SSL[^\]]*\] (.*?)(?: \(_ssl\.c:\d+\)|'\)|$)")


@dataclass(frozen=True)
class Patience:
    """How long a request may take, in seconds.

    ``connect`` and ``read`` limit the time in which nothing arrives, ``whole`` that from the request to the end of its
    answer. ``retries`` is how often it is repeated, after waits that begin with ``wait`` and double. ``longest_wait``
    also limits the wait that the host asks for (Retry-After).
    """

    connect: float = 10.0
    read: float = 60.0
    whole: float = LONGEST
    retries: int = 3
    wait: float = 0.5
    longest_wait: float = 20.0


class Connection:
    """Requests to a KFP host. It is made when it is first used. Several threads may use it."""

    def __init__(self, settings: Settings, patience: Patience = Patience()) -> None:
        """Take the settings. Nothing is read or sent before the first request."""
        self.settings = settings
        self._patience = patience
        self._client: Any = None
        self._lock = threading.Lock()

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON object at a path, such as ``/apis/v2beta1/runs``.

        Args:
            path: the path below the host.
            query: the parameters of the query; empty ones are left out.

        Raises:
            HostSettingsError: there is no host, or its settings are wrong.
            HostUnreachableError: it does not answer, or something else does.
            HostCredentialsError: it does not accept the credentials.
            HostNotFoundError: it has nothing at this path.
            HostError: it reports another error.
        """
        return self._request("GET", path, query).json()

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, if_lost: str = MAYBE_ACCEPTED
    ) -> dict[str, Any]:
        """Send a JSON object and return the one that answers.

        The request is repeated only if the host cannot have accepted it.

        Args:
            path: the path below the host.
            body: the object.
            if_lost: the sentence about what to do if the host may have accepted the request.

        Raises:
            HostAnswerLostError: the host may have accepted it.
            HostError: see ``get``.
        """
        try:
            return self._request("POST", path, {}, body).json()
        except HostAnswerLostError as error:
            raise HostAnswerLostError(f"{error} {if_lost}") from error.__cause__

    def content(self, path: str) -> bytes:
        """Return what is at a path that does not have JSON, such as a log. The errors are those of ``get``."""
        return self._request("GET", path, {}, is_text=True).body

    def link(self, run_id: str) -> str:
        """Return the page of a run in KFP's UI; empty if its address is not known, as inside a cluster."""
        base = self.settings.ui_host or self.settings.host
        return f"{base}/#/runs/details/{quote(run_id, safe='')}" if base else ""

    @property
    def name(self) -> str:
        """The host for messages: its URL."""
        if self.settings.host or self._client is None:
            return self.settings.host or "KFP"
        return self._base(self._client)

    @cached_property
    def namespace(self) -> str:
        """The user's namespace; empty in a single-user installation."""
        if self.settings.namespace:
            return self.settings.namespace
        client = self._connected()
        if found := client_namespace(client, self.settings):
            return found
        # In a notebook of Kubeflow, the namespace of the pod is the user's.
        path = Path(POD_NAMESPACE)
        if path.exists() and self.get(f"{V2BETA1}/healthz").get("multi_user"):
            return path.read_text(encoding="utf-8").strip()
        return ""

    def _connected(self, *, anew: bool = False) -> Any:
        with self._lock:
            if anew:
                self.settings = self.settings.read_again()
            if self._client is None or anew:
                self._client = make_client(self.settings)
                if not self.settings.verify_ssl:
                    # The user has chosen this.
                    urllib3.disable_warnings(InsecureRequestWarning)
            return self._client

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: Mapping[str, Any] | None = None,
        *,
        is_text: bool = False,
    ) -> Answer:
        words = {name: str(value) for name, value in query.items() if value not in (None, "")}
        where = f"{path}?{urlencode(words, quote_via=quote, errors='replace')}" if words else path
        answer = self._send(self._connected(), method, where, body, is_text)
        if answer.asks_to_sign_in:
            # A token, a cookie or the settings file may have changed since the client was made.
            answer = self._send(self._connected(anew=True), method, where, body, is_text)
        if answer.is_success and not answer.is_page:
            return answer
        if is_text and answer.is_success and not answer.asks_to_sign_in:
            return answer
        raise error_of(answer, _about_credentials(self.settings))

    def _send(self, client: Any, method: str, where: str, body: Mapping[str, Any] | None, is_text: bool) -> Answer:
        api = client._run_api.api_client
        headers = {"Accept": "text/plain, */*" if is_text else "application/json", **api.default_headers}
        if api.cookie:
            headers["Cookie"] = api.cookie
        api.update_params_for_auth(headers, [], ["Bearer"])
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = _encode(body)
        # A log that cannot be read is answered with 500, and so it stays.
        again = {429} if method != "GET" else {429, 502, 503, 504} if is_text else {429, 500, 502, 503, 504}
        url = f"{self._base(client)}{where}"
        # A filter in the query is long, and says nothing to a user.
        request = f"{method} {printable(url.partition('?')[0])}"
        for attempt in itertools.count():
            wait = None
            try:
                received, url = self._exchange(api.rest_client.pool_manager, method, url, headers, content)
            except BROKEN as error:
                if attempt >= self._retries_after(error, method):
                    raise self._unreachable(error, method, request) from error
            else:
                if attempt >= self._patience.retries or received.status not in again:
                    break
                wait = _retry_after(received.headers.get("Retry-After"))
            longest = self._patience.longest_wait
            time.sleep(min(self._patience.wait * 2**attempt if wait is None else wait, longest))
        kind = received.headers.get("Content-Type", "").lower()
        return Answer(request, url, received.status, kind, received.body)

    def _exchange(
        self, manager: Any, method: str, url: str, headers: Mapping[str, str], content: bytes | None
    ) -> tuple[Received, str]:
        """Send a request once, and return the answer and the URL that it is from, or leads to."""
        timeout = urllib3.Timeout(connect=self._patience.connect, read=self._patience.read)
        for _ in range(_MOST_REDIRECTS):
            exchange = Exchange(manager, method, url, MOST_BYTES, body=content, headers=headers, timeout=timeout)
            received = exchange.run(self._patience.whole)
            if not received.location:
                break
            before, url = url, urljoin(url, received.location)
            # A body is for the host that the user has named, and so are credentials.
            if method != "GET" or not _is_same_host(before, url):
                break
        return received, url

    def _retries_after(self, error: Exception, method: str) -> int:
        """Return how often a request is repeated that has failed."""
        if isinstance(error, ProxyError):
            error = error.original_error
        may_have_arrived = not isinstance(error, NewConnectionError | ConnectTimeoutError)
        if may_have_arrived and (method != "GET" or not isinstance(error, ReadTimeoutError | ProtocolError)):
            return 0
        return min(2, self._patience.retries)

    def _base(self, client: Any) -> str:
        """Return the client's host; inside a cluster, it has no scheme."""
        host = str(client._run_api.api_client.configuration.host).rstrip("/")
        return host if "://" in host else f"http://{host}"

    def _unreachable(self, reason: Exception, method: str, request: str) -> HostError:
        text = f"{request} failed: "
        if isinstance(reason, SSLError):
            return HostUnreachableError(text + self._about_tls(str(reason)))
        if isinstance(reason, ProxyError):
            return HostUnreachableError(
                f"{text}the proxy of {self.settings.source('proxy')} does not answer ({_short(reason)})."
            )
        # This is a ConnectTimeoutError in urllib3 1.
        if isinstance(reason, NewConnectionError):
            why = f"the host does not answer ({_short(reason)})"
        elif isinstance(reason, ConnectTimeoutError):
            why = f"the host does not answer within {self._patience.connect:g} s"
        elif isinstance(reason, ReadTimeoutError):
            why = f"the host has not answered within {self._patience.read:g} s"
        elif isinstance(reason, TooLargeError | TooSlowError):
            why = str(reason)
        else:
            why = f"the connection broke ({_short(reason)})"
        if method != "GET" and not isinstance(reason, NewConnectionError | ConnectTimeoutError):
            return HostAnswerLostError(f"{text}{why}.")
        if isinstance(reason, TooLargeError):
            return HostError(f"{text}{why}.")
        return HostUnreachableError(f"{text}{why}. Check the host, its port, and your network or kubectl port-forward.")

    def _about_tls(self, text: str) -> str:
        found = _TLS_REASON.search(text)
        why = found[1] if found else shorten(printable(text), 200)
        if "WRONG_VERSION_NUMBER" in text or "record layer" in text.lower():
            return f"the host does not use TLS at this port ({why}). Begin its URL with http:// in place of https://."
        given = self.settings.ssl_ca_cert
        which = f"the certificates in {given!r} of {self.settings.source('ssl_ca_cert')}" if given else "public ones"
        return (
            f"its TLS certificate is not accepted ({why}). It was checked with {which}. Give the certificate of the "
            f"authority that signed it: {flag('ssl_ca_cert')} ca.pem, {variable('ssl_ca_cert')}, or ssl_ca_cert in the "
            f"settings file. {flag('verify_ssl')} does without a check, on a network that you trust."
        )


def _retry_after(text: str | None) -> float | None:
    """Return for how many seconds a host asks a client to wait; None if it is neither seconds nor a date."""
    try:
        return max(0.0, float(urllib3.Retry().parse_retry_after(text))) if text else None
    except (HTTPError, ValueError, OverflowError):
        return None


def _is_same_host(one: str, other: str) -> bool:
    """Tell whether a redirect stays on a host; it may lead from http to https."""
    parts, others = urlsplit(one), urlsplit(other)
    if parts.hostname != others.hostname:
        return False
    return (parts.scheme, parts.port) == (others.scheme, others.port) or (
        (parts.scheme, others.scheme, others.port) == ("http", "https", None)
    )


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        # YAML has dates, too.
        return json.dumps(body, allow_nan=False, default=str).encode()
    except ValueError as error:
        raise HostRefusedError(
            f"The request cannot be written as JSON: {error}. KFP takes neither NaN nor infinite numbers."
        ) from None


def _short(error: object) -> str:
    """Return the end of what urllib3 says: its objects and the host are named before it."""
    while isinstance(error, Exception) and error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    return shorten(printable(str(error).rpartition(": ")[2]) or type(error).__name__, 200)


def _about_credentials(settings: Settings) -> str:
    """Say which credentials were sent, and how to give others."""
    given = [name for name, setting in SETTINGS.items() if setting.kind == "credential" and getattr(settings, name)]
    where = f"in the namespace {settings.namespace!r}" if settings.namespace else "here"
    lack = f"They may have expired, or lack the right to do this {where}."
    if given:
        sent = f"Sent were: {joined(settings.source(name) for name in given)}. {lack}"
    elif settings.host:
        sent = "No credentials were sent."
    else:
        sent = f"The credentials of the cluster were sent. {lack}"
    return (
        f"{sent} Give a token "
        f"({flag('existing_token')}, {variable('existing_token')}), a file with one ({flag('token_file')}, "
        f"{variable('token_file')}), or the cookies of a browser that is signed in "
        f"({flag('cookies')} 'authservice_session=...', {variable('cookies')})."
    )
