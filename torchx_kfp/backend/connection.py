"""The connection to a KFP host: requests with ``kfp.Client``'s credentials, repeated where that is safe."""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urljoin

import urllib3
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    InsecureRequestWarning,
    MaxRetryError,
    NewConnectionError,
    ProxyError,
    ReadTimeoutError,
    SSLError,
)

from torchx_kfp.backend.answers import MAYBE_ACCEPTED, Answer, error_of
from torchx_kfp.backend.client import POD_NAMESPACE, client_namespace, make_client
from torchx_kfp.backend.settings import CREDENTIALS, Settings, flag, variable
from torchx_kfp.errors import HostError, HostRefusedError, HostUnreachableError
from torchx_kfp.text import joined, printable, shorten

# urllib3 logs each connection that breaks; without a handler, Python would write that to stderr.
logging.getLogger("urllib3").addHandler(logging.NullHandler())

V2BETA1, V1BETA1, V1ALPHA1 = "/apis/v2beta1", "/apis/v1beta1", "/apis/v1alpha1"
#: The reason in what Python's ssl says: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: ... (_ssl.c:1006)
_TLS_REASON = re.compile(r"\[SSL[^\]]*\] (.*?)(?: \(_ssl\.c:\d+\)|'\)|$)")


@dataclass(frozen=True)
class Patience:
    """How long a request may take, in seconds.

    ``retries`` is how often it is repeated, after waits that begin with ``wait`` and double. ``longest_wait`` also
    limits the wait that the host asks for (Retry-After).
    """

    connect: float = 10.0
    read: float = 60.0
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

    def post(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a JSON object and return the one that answers.

        The request is repeated only if the host cannot have accepted it. The errors are those of ``get``.
        """
        return self._request("POST", path, {}, body).json()

    def content(self, path: str) -> bytes:
        """Return what is at a path that does not have JSON, such as a log. The errors are those of ``get``."""
        return self._request("GET", path, {}, is_text=True).body

    def link(self, run_id: str) -> str:
        """Return the page of a run in KFP's UI; empty if its address is not known, as inside of a cluster."""
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
        patience = self._patience
        # A log that cannot be read is answered with 500, and so it stays.
        again = {502, 503, 504} if is_text else {500, 502, 503, 504}
        retry = _Retry(
            total=patience.retries,
            connect=min(2, patience.retries),
            read=min(2, patience.retries),
            other=0,
            status_forcelist=again,
            allowed_methods={"GET"},
            backoff_factor=patience.wait,
            raise_on_status=False,
        )
        retry.longest_wait = patience.longest_wait
        url = f"{self._base(client)}{where}"
        # A filter in the query is long, and says nothing to a user.
        request = f"{method} {printable(url.partition('?')[0])}"
        try:
            answer = api.rest_client.pool_manager.request(
                method,
                url,
                body=content,
                headers=headers,
                # A body is for the host that the user has named.
                redirect=method == "GET",
                retries=retry,
                timeout=urllib3.Timeout(connect=patience.connect, read=patience.read),
            )
            where_to = urljoin(url, str(answer.get_redirect_location() or answer.geturl() or ""))
        except (HTTPError, ValueError) as error:  # a redirect to something that is not a URL is a ValueError
            raise self._unreachable(error, method, request) from error
        kind = answer.headers.get("Content-Type", "").lower()
        return Answer(request, where_to, answer.status, kind, answer.data)

    def _base(self, client: Any) -> str:
        """Return the client's host; inside of a cluster, it has no scheme."""
        host = str(client._run_api.api_client.configuration.host).rstrip("/")
        return host if "://" in host else f"http://{host}"

    def _unreachable(self, error: Exception, method: str, request: str) -> HostError:
        reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
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
        else:
            why = f"the connection broke ({_short(reason)})"
        if method != "GET" and not isinstance(reason, NewConnectionError | ConnectTimeoutError):
            return HostUnreachableError(f"{text}{why}. {MAYBE_ACCEPTED}")
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


class _Retry(urllib3.Retry):  # type: ignore[misc]
    """Repeats requests after 429 whatever their method: the host has not accepted them."""

    longest_wait = 20.0

    def new(self, **changes: Any) -> _Retry:
        """Return the state for the next attempt."""
        following: _Retry = super().new(**changes)
        following.longest_wait = self.longest_wait
        return following

    def is_retry(self, method: str, status_code: int, has_retry_after: bool = False) -> bool:
        if status_code == 429:
            return bool(self.total)
        return bool(super().is_retry(method, status_code, has_retry_after))

    def get_retry_after(self, response: Any) -> float | None:
        try:
            wait = super().get_retry_after(response)
        except HTTPError:  # it is neither seconds nor a date
            return None
        return None if wait is None else min(wait, self.longest_wait)

    def get_backoff_time(self) -> float:
        return min(float(super().get_backoff_time()), self.longest_wait)


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
    given = [name for name in CREDENTIALS if getattr(settings, name)]
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
