"""The connection to a KFP host: requests with ``kfp.Client``'s credentials, repeated where that is safe.

``kfp.Client`` supplies the credentials; its prints, warnings and waits are suppressed. Responses are limited in size
and time. Redirects are not followed: credentials are only for the host that the user has named.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import re
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
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

from torchx_kfp.common.text import duration, printable, shorten, shown
from torchx_kfp.errors import (
    HostAnswerLostError,
    HostError,
    HostRefusedError,
    HostSettingsError,
    HostUnreachableError,
    TorchxKfpError,
)
from torchx_kfp.execution.host.answers import MAYBE_ACCEPTED, Answer, error_of
from torchx_kfp.execution.host.settings import (
    CONFIG,
    SETTINGS,
    Settings,
    config_file,
    refuse_in_header,
    variable,
    way_to_give,
)

# urllib3 logs broken connections; without a handler, Python would write that to stderr.
logging.getLogger("urllib3").addHandler(logging.NullHandler())

#: The most bytes of an unpacked answer. The largest ones of KFP are 50 runs with their pipelines (1 MB each), and the
#: workflow of a run of 1,000 stages.
MOST_BYTES = 128 << 20
#: The bytes that are read at once; unpacked, they may be a thousand times as many.
_PIECE = 1 << 13
#: Exceptions of urllib3 and http.client for a server that does not speak HTTP; a chunk's size raises OverflowError.
_BROKEN = (HTTPError, HTTPException, ValueError, OverflowError, OSError)
V2BETA1, V1BETA1, V1ALPHA1 = "/apis/v2beta1", "/apis/v1beta1", "/apis/v1alpha1"
#: The reason in a message of ssl: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: ... (_ssl.c:1006)
_TLS_REASON = re.compile(r"\[SSL[^\]]*\] (.*?)(?: \(_ssl\.c:\d+\)|'\)|$)")
#: The host of a kfp.Client that has found none.
_NONE = "http://localhost"
#: In a pod, the file with the pod's namespace.
POD_NAMESPACE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Timeouts:
    """The limits of a request, in seconds.

    ``connect`` and ``read`` limit the time without data, ``whole`` the total time, including up to ``retries`` retries
    after waits of ``wait`` times 0, 2, 4.
    """

    connect: float = 10.0
    read: float = 60.0
    whole: float = 120.0
    retries: int = 3
    wait: float = 0.5


class Connection:
    """A connection to a KFP host, opened by the first request. It is thread-safe."""

    def __init__(self, settings: Settings, timeouts: Timeouts = Timeouts()) -> None:
        """Take the settings. Nothing is read or sent before the first request."""
        self.settings = settings
        self._timeouts = timeouts
        self._client: Any = None
        self._lock = threading.Lock()

    def get(self, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON object at a path, such as ``/apis/v2beta1/runs``.

        Args:
            query: the parameters of the query, without empty ones.

        Raises:
            HostSettingsError: there is no host, or its settings are wrong.
            HostUnreachableError: the host does not answer, or the response is not from KFP.
            HostCredentialsError: the host rejects the credentials.
            HostNotFoundError: there is nothing at this path.
            HostError: the host reports another error.
        """
        return self._request("GET", path, query).json()

    def post(
        self, path: str, body: Mapping[str, Any] | None = None, *, if_lost: str = MAYBE_ACCEPTED
    ) -> dict[str, Any]:
        """Send a JSON object and return the JSON object of the response.

        The request is only repeated if the host cannot have accepted it.

        Args:
            if_lost: advice if the host may have accepted the request.

        Raises:
            HostAnswerLostError: the host may have accepted it.
            HostError: see ``get``.
        """
        try:
            return self._request("POST", path, {}, _json_body(body)).json()
        except HostAnswerLostError as error:
            raise HostAnswerLostError(f"{error} {if_lost}") from error.__cause__

    def log(self, path: str) -> bytes:
        """Return the log at a path.

        Raises:
            HostRefusedError: the host cannot read it now.
            HostError: see ``get``.
        """
        answer = self._request("GET", path, {}, is_text=True)
        if answer.is_failed_log:
            raise HostRefusedError(f"{answer.request} failed: {answer.message}.")
        return answer.body

    def link(self, run_id: str) -> str:
        """Return the URL of a run in KFP's UI; empty if it is unknown, as inside a cluster."""
        base = self.settings.ui_host or self.settings.host
        return f"{base}/#/runs/details/{quote(run_id, safe='')}" if base else ""

    @property
    def name(self) -> str:
        """The host for messages: its URL."""
        if self.settings.host or self._client is None:
            return self.settings.host or "KFP"
        return self._base(self._client)

    @property
    def pods(self) -> str:
        """The namespace of the pods of runs, for messages."""
        return self.settings.namespace or self.settings.service_namespace

    @cached_property
    def namespace(self) -> str:
        """The user's namespace; empty in a single-user installation."""
        if self.settings.namespace:
            return self.settings.namespace
        # From kfp.Client's own settings file. With another service namespace, the client takes that for the user's.
        found = self._connected().get_user_namespace() if self.settings.service_namespace == "kubeflow" else ""
        if found:
            return str(found)
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
                    # It is the user's choice.
                    urllib3.disable_warnings(InsecureRequestWarning)
            return self._client

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object],
        body: bytes | None = None,
        *,
        is_text: bool = False,
    ) -> Answer:
        words = {name: str(value) for name, value in query.items() if value not in (None, "")}
        where = f"{path}?{urlencode(words, quote_via=quote, errors='replace')}" if words else path
        answer = self._send(self._connected(), method, where, body, is_text)
        # 403 means missing permissions, unless a proxy answers with its login page.
        if answer.asks_to_sign_in and (answer.status != 403 or answer.is_page):
            # A token, a cookie or the settings file may have changed since the client was made.
            answer = self._send(self._connected(anew=True), method, where, body, is_text)
        if answer.is_success and not (answer.asks_to_sign_in if is_text else answer.is_page):
            return answer
        raise error_of(answer, self.settings)

    def _send(self, client: Any, method: str, where: str, body: bytes | None, is_text: bool) -> Answer:
        api = client._run_api.api_client
        headers = {"Accept": "text/plain, */*" if is_text else "application/json", **api.default_headers}
        if api.cookie:
            headers["Cookie"] = api.cookie
        api.update_params_for_auth(headers, [], ["Bearer"])
        if body is not None:
            headers["Content-Type"] = "application/json"
        # KFP answers 500 for a log that it cannot read; a retry would not help.
        again = {429} if method != "GET" else {429, 502, 503, 504} if is_text else {429, 500, 502, 503, 504}
        url = f"{self._base(client)}{where}"
        # The filter in the query is long and meaningless to users.
        request = f"{method} {printable(url.partition('?')[0])}"
        timeouts, began = self._timeouts, time.monotonic()
        options = {
            "body": body,
            "headers": headers,
            "timeout": urllib3.Timeout(connect=timeouts.connect, read=timeouts.read),
            "retries": _Retry(
                total=timeouts.retries,
                connect=2,
                read=2 if method == "GET" else 0,
                other=0,
                allowed_methods={method},
                status_forcelist=again,
                backoff_factor=timeouts.wait,
                respect_retry_after_header=False,
                raise_on_status=False,
            ),
        }
        # The limit also holds for a host that sends byte by byte.
        manager = api.rest_client.pool_manager
        try:
            return within(timeouts.whole, lambda: _exchange(manager, method, url, request, options))
        except _BROKEN as error:
            reason = error.reason if isinstance(error, MaxRetryError) and error.reason else error
            raise self._unreachable(reason, method, request, time.monotonic() - began) from reason

    def _base(self, client: Any) -> str:
        """Return the client's host; inside a cluster, it has no scheme."""
        host = str(client._run_api.api_client.configuration.host).rstrip("/")
        return host if "://" in host else f"http://{host}"

    def _unreachable(self, reason: Exception, method: str, request: str, waited: float) -> HostError:
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
            why = f"the host did not answer within {duration(waited)}"
        elif isinstance(reason, ReadTimeoutError):
            why = f"the host accepted the connection, but did not answer within {duration(waited)}"
        elif isinstance(reason, TimeoutError):
            why = f"the answer was not complete within {self._timeouts.whole:g} s"
        else:
            why = f"the connection broke ({_short(reason)})"
        if method != "GET" and not isinstance(reason, NewConnectionError | ConnectTimeoutError):
            return HostAnswerLostError(f"{text}{why}.")
        return HostUnreachableError(f"{text}{why}. Check the host, its port, and your network or kubectl port-forward.")

    def _about_tls(self, text: str) -> str:
        match = _TLS_REASON.search(text)
        why = match[1] if match else shorten(printable(text), 200)
        if "WRONG_VERSION_NUMBER" in text or "record layer" in text.lower():
            return f"the host does not use TLS at this port ({why}). Use http:// in its URL, not https://."
        given = self.settings.ssl_ca_cert
        which = f"the certificates in {given!r} of {self.settings.source('ssl_ca_cert')}" if given else "public ones"
        return (
            f"its TLS certificate was rejected ({why}). It was checked against {which}. Give the certificate of the "
            f"authority that signed it: {way_to_give('ssl_ca_cert')}. On a network that you trust, "
            f"{variable('verify_ssl')}=false skips the check."
        )


def within(seconds: float, ask: Callable[[], _Result]) -> _Result:
    """Call a function in a thread and return its result; the thread is abandoned after this time.

    Raises:
        TimeoutError: the function takes longer.
    """
    outcome: Future[_Result] = Future()

    def call() -> None:
        try:
            outcome.set_result(ask())
        except Exception as error:  # the caller handles it
            outcome.set_exception(error)

    threading.Thread(target=call, name=__name__, daemon=True).start()
    if not wait([outcome], seconds).done:
        raise TimeoutError
    return outcome.result()


class _Retry(urllib3.Retry):  # type: ignore[misc]  # mypy does not read its types
    """Retry policy. Bodies of intermediate responses are skipped because they may be endless."""

    def increment(self, *request: Any, response: Any = None, **options: Any) -> Any:
        following = super().increment(*request, response=response, **options)
        if response is not None:
            response.close()
        return following


def _exchange(manager: Any, method: str, url: str, request: str, options: Mapping[str, Any]) -> Answer:
    """Send a request, which messages call ``request``, and return the answer."""
    answer = manager.request(method, url, preload_content=False, enforce_content_length=True, redirect=False, **options)
    try:
        pieces, size = [], 0
        for piece in answer.stream(_PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > MOST_BYTES:
                error = HostError if method == "GET" else HostAnswerLostError
                raise error(f"{request} failed: the answer is larger than {MOST_BYTES >> 20} MiB.")
        leads = urljoin(url, answer.get_redirect_location() or "")
    except BaseException:
        answer.close()
        raise
    answer.release_conn()
    return Answer(request, leads, answer.status, answer.headers, b"".join(pieces))


def _json_body(body: Mapping[str, Any] | None) -> bytes | None:
    if body is None:
        return None
    try:
        # Values from YAML may be dates.
        return json.dumps(body, allow_nan=False, default=str).encode()
    except ValueError as error:
        raise HostRefusedError(
            f"The request cannot be written as JSON: {error}. KFP takes neither NaN nor infinite numbers."
        ) from None


def _short(error: object) -> str:
    """Return the end of urllib3's message, without object reprs and the host."""
    while isinstance(error, Exception) and error.args and isinstance(error.args[-1], Exception):
        error = error.args[-1]
    return shorten(printable(str(error).rpartition(": ")[2]) or type(error).__name__, 200)


def make_client(settings: Settings) -> Any:
    """Return a ``kfp.Client`` with these settings.

    Raises:
        HostSettingsError: there is no host, or a file that the settings name cannot be read.
    """
    for name in ("ssl_ca_cert", "token_file"):
        if path := getattr(settings, name):
            _read(path, settings.source(name))
    ours = {"service_namespace", "token_file", "ui_host"}
    of_client = {name for name, setting in SETTINGS.items() if setting.kind != "runs"} - ours
    given = {name: getattr(settings, name) or None for name in of_client}
    given |= {"namespace": settings.service_namespace, "verify_ssl": settings.verify_ssl}
    # kfp.Client prints how to sign in.
    signs_in = bool(settings.client_id and settings.other_client_id and settings.other_client_secret)
    with _silence(sys.stderr if signs_in else io.StringIO()):
        from kfp.client import Client

        class Quick(Client):  # type: ignore[misc]  # kfp has no types
            def get_kfp_healthz(self, sleep_duration: int = 5) -> Any:
                """Do nothing: the constructor would wait for a host that does not answer, and write a file."""
                return SimpleNamespace(multi_user=False)

            def _load_config(self, host: Any, client_id: Any, *others: Any) -> Any:
                """Sign in to IAP only if the settings say so for this host: the constructor takes kfp's variables."""
                return super()._load_config(host, settings.client_id or None, *others)

        try:
            client = Quick(**given, credentials=_TokenFile(settings) if settings.token_file else None)
        except TorchxKfpError:
            raise
        # kfp.Client raises what google.auth, json and others raise.
        except Exception as error:
            # Messages of libraries about a wrong URL contain the password.
            said = str(error).replace(settings.proxy, "...") if settings.proxy else str(error)
            raise HostSettingsError(
                f"The connection to {settings.host or 'KFP'} could not be set up: {type(error).__name__}: "
                f"{shown(said, 300)}. kfp.Client itself fails with these settings."
            ) from (None if settings.proxy else error)
    if not settings.host and client._run_api.api_client.configuration.host == _NONE:
        raise HostSettingsError(_no_host(settings))
    return client


class _TokenFile:
    """Reads the token before each request; kfp.Client calls this its credentials."""

    def __init__(self, settings: Settings) -> None:
        self._path, self._source = settings.token_file, settings.source("token_file")

    def refresh_api_key_hook(self, config: Any) -> None:
        token = _read(self._path, self._source).strip()
        if not token or len(token.split()) > 1:
            what = "is empty" if not token else "contains more than a token"
            raise HostSettingsError(f"The file {self._path!r} of {self._source} {what}. It must have only the token.")
        refuse_in_header(token, f"The file {self._path!r} of {self._source}")
        config.api_key["authorization"] = token


def _read(path: str, source: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise HostSettingsError(f"The file {path!r} of {source} cannot be read: {why}.") from None


def _no_host(settings: Settings) -> str:
    files = (os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)
    context = f"its context {settings.kube_context!r}" if settings.kube_context else "its current context"
    why = f"{context} in {' or '.join(files)} does not exist or cannot be used ('kubectl config get-contexts')."
    if not any(Path(file).expanduser().exists() for file in files):
        why = f"there is no file {' or '.join(files)}."
    return (
        f"No KFP host is given. Give one of these:\n"
        f"- --host https://kfp.example.com, or the variable {variable('host')} or KF_PIPELINES_ENDPOINT;\n"
        f"- a line 'host = https://kfp.example.com' below [kfp] in {config_file()}\n"
        f"  ({CONFIG} names another file);\n"
        f"- http://localhost:8080 as the host, while this runs:\n"
        f"  kubectl port-forward -n {settings.service_namespace} svc/ml-pipeline-ui 8080:80\n"
        f"Without a host, KFP's service is used inside a cluster, and elsewhere the Kubernetes API server of the "
        f"kubeconfig. Neither was found: {why}"
    )


@contextlib.contextmanager
def _silence(output: Any) -> Iterator[None]:
    """Suppress the output, warnings and logs of kfp and the libraries below it."""
    root, handler = logging.getLogger(), logging.NullHandler()
    # logging.warning() would set up a handler that writes to stderr from then on.
    added = not root.handlers
    if added:
        root.addHandler(handler)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(output):
            warnings.simplefilter("ignore")
            yield
    finally:
        if added:
            root.removeHandler(handler)
