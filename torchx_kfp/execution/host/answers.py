"""Responses of a KFP host: JSON, a ``google.rpc.Status``, or a page that is not KFP's."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import UUID, joined, printable, shorten, shown
from torchx_kfp.errors import (
    HostAnswerLostError,
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostRefusedError,
    HostUnreachableError,
)
from torchx_kfp.execution.host.settings import SETTINGS, Settings, config_file, variable
from torchx_kfp.execution.pipeline.load import verify_depth

#: How many characters of a message are shown: KFP repeats messages for each layer of the server.
_LONGEST = 600
#: How many characters of it are looked at.
_MOST_OF_MESSAGE = 20_000
#: Parts of the addresses of pages that ask for a password.
_SIGN_IN = ("/dex/", "oauth", "/login", "signin", "sign_in", "accounts.google.com", "/auth")
#: Parts of such pages.
_SIGN_IN_PAGE = re.compile(rb"type=[\"']?password|\b(?:sign|log)[ _-]?in\b")
#: The advice after a POST whose answer was lost.
MAYBE_ACCEPTED = "The host may have accepted it: check there before you try again."
#: The sentence for a host with several users if the settings name no namespace.
NO_NAMESPACE = (
    "The host is multi-user, and no namespace is given. Give that of your profile: --namespace NAME, "
    f"{variable('namespace')}, or namespace in the settings file."
)
_EMPTY_NAMESPACE = re.compile(r"an? [\w ]+ cannot have an empty namespace in multi-user mode", re.IGNORECASE)
#: KFP's message about a permission that the user lacks (code 7).
_LACKING = re.compile(r"User '([^']*)' is not authorized .*?Namespace:([^,}]*),Verb:([^,}]*),.*?Resource:([^,}]*)")
_PERMISSION_DENIED = 7
#: The prefixes with which layers of the server repeat a message.
_LAYERS = ("InternalServerError: ", "InvalidInputError: ", "ResourceNotFoundError: ", "BadRequestError: ")
#: What follows an error that KFP's API server prints with its stack, from the first frame on.
_STACK = re.compile(r"(?:\n[^\n\t]+){1,2}\n\t/.*", re.DOTALL)
_NONE: Mapping[str, Any] = {}


def read_json(text: str | bytes) -> Any:
    """Return the JSON in a response.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has numbers that JSON lacks or that are too large.
    """
    try:
        content = json.loads(text, parse_constant=_number, parse_float=_number, parse_int=_number)
    except RecursionError:
        raise ValueError("nested too deep") from None
    verify_depth(content)
    return content


def refuse_run_id(found: object, request: str, wanted: str = "") -> None:
    """Raise HostError if a response has another run id than the requested one, or one that is not a UUID."""
    if isinstance(found, str) and UUID.fullmatch(found) and wanted in ("", found):
        return
    what = f"with the run id {shown(found)}" if found else "without a run id"
    instead = f"instead of {wanted}" if wanted else "but KFP's are UUIDs"
    raise HostError(f"{request} was answered {what}, {instead}. Is this a KFP host?")


def _number(text: str) -> float | int:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:20]} is not a number of JSON")
    return int(text) if text.removeprefix("-").isdigit() else number


@dataclass(frozen=True)
class Answer:
    """A response of a server. ``request`` names the request, ``url`` is its origin, or where it redirects."""

    request: str
    url: str
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def is_page(self) -> bool:
        """Whether it is a web page, which KFP's API never returns."""
        content_type = self.headers.get("Content-Type", "").lower()
        if content_type.startswith("text/plain"):
            return False  # a log, which may contain anything
        start = self.body[:200].lstrip().lower()
        return content_type.startswith("text/html") or start.startswith((b"<!doctype html", b"<html"))

    @property
    def asks_to_sign_in(self) -> bool:
        """Whether the server asks for other credentials."""
        if self.status in (401, 403):
            return True
        if self.status >= 500:
            return False  # a proxy's error page may mention how to sign in
        page = self.body[:20_000].lower()
        leads_there = any(part in self.url.lower() for part in _SIGN_IN)
        return (leads_there and (self.is_page or self.is_redirect)) or (
            self.is_page and _SIGN_IN_PAGE.search(page) is not None
        )

    @property
    def is_redirect(self) -> bool:
        """Whether it is a redirect; none is followed."""
        return 300 <= self.status < 400

    def json(self) -> dict[str, Any]:
        """Return the JSON object.

        Raises:
            HostUnreachableError: the answer is something else.
        """
        try:
            content = read_json(self.body)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            what = f"{printable(shorten(self.text.strip(), 120))!r}" if self.body.strip() else "nothing"
            raise self.unreachable(
                f"{self.request} was answered by something other than KFP's API, with {what} instead of a JSON "
                "object. Check the host and its port."
            )
        return content

    @property
    def is_failed_log(self) -> bool:
        """Whether it reports an unreadable log, which KFP does with status 200."""
        if not self.body.startswith(b'{"error_message":'):
            return False
        try:
            content = read_json(self.body)
        except ValueError:
            return False
        return isinstance(content, dict) and content.keys() == {"error_message", "error_details"}

    @property
    def text(self) -> str:
        """The start of the text, for messages."""
        return self.body[:10_000].decode("utf-8", "replace")

    @property
    def unreachable(self) -> type[HostUnreachableError]:
        """The error if this is not a response of KFP's API, which may have received the request anyway."""
        return HostAnswerLostError if self.request.startswith("POST ") else HostUnreachableError

    @property
    def lacking_right(self) -> str:
        """The permission that the user lacks according to KFP, as a clause; empty if KFP did not refuse the request."""
        try:
            status = read_json(self.body)
        except ValueError:
            return ""
        if self.status != 403 or not isinstance(status, Mapping) or status.get("code") != _PERMISSION_DENIED:
            return ""
        match = _LACKING.search(str(status.get("message"))[:_MOST_OF_MESSAGE])
        if match is None:
            return self.message
        user, namespace, verb, resource = (shorten(printable(part), _LONGEST) for part in match.groups())
        return f"the user {user!r} may not {verb} {resource} in the namespace {namespace!r}"

    @property
    def message(self) -> str:
        """The server's own error message, without repetitions."""
        try:
            status = read_json(self.body)
        except ValueError:
            return f"HTTP status {self.status}"
        if not isinstance(status, Mapping):
            return f"HTTP status {self.status}"
        details = status.get("details")
        inner = [
            str(item["message"])[:_MOST_OF_MESSAGE]
            for item in (details if isinstance(details, list) else [])
            if isinstance(item, Mapping) and item.get("message")
        ]
        said = status.get("message") or status.get("error") or status.get("error_message")
        whole = str(said or f"HTTP status {self.status}")[:_MOST_OF_MESSAGE]
        whole, inner = _STACK.sub("", whole), [_STACK.sub("", text) for text in inner]
        for layer in _LAYERS:
            whole = whole.replace(layer, "")
        # The details have the reason, or only the name of the status.
        reason = next((text for text in inner if text in whole), whole)
        return shorten(printable(reason).strip().rstrip("."), _LONGEST)


def error_of(answer: Answer, settings: Settings) -> HostError:
    """Return the error for an unsuccessful response, or one not from KFP."""
    if right := answer.lacking_right:
        return HostCredentialsError(
            f"{answer.request} failed: {right}. Ask the owner of this namespace's profile to add the user as a "
            f"contributor, or give another namespace: --namespace NAME, {variable('namespace')}."
        )
    if answer.asks_to_sign_in:
        how = f"HTTP status {answer.status}" if answer.status in (401, 403) else "a page to sign in"
        # A proxy may write plain text.
        plain = printable(shorten(answer.text.strip(), _LONGEST)).rstrip(".")
        said = plain if answer.message.startswith("HTTP") else answer.message
        said = f": {said}" if said and not answer.is_page else ""
        return HostCredentialsError(f"{answer.request} was answered with {how}{said}. {_about_credentials(settings)}")
    if answer.is_redirect:
        # The server may have carried out the POST before it redirects.
        lost = HostAnswerLostError if answer.request.startswith("POST ") else HostRefusedError
        return lost(
            f"{answer.request} was redirected to {printable(shorten(answer.url, _LONGEST))}, which was not followed. "
            "If that is KFP, give it as the host."
        )
    if answer.is_page:
        return answer.unreachable(
            f"{answer.request} was answered with a web page (HTTP status {answer.status}), not by KFP's API. Give the "
            "URL of KFP's UI as the host, with its port and, in Kubeflow, its path: "
            "https://kubeflow.example.com/pipeline"
        )
    text = f"{answer.request} failed: {answer.message}."
    if answer.status == 404:
        # KFP names what it did not find, unless the path is unknown.
        is_unknown = answer.message in ("Not Found", "HTTP status 404")
        return HostNotFoundError(f"{text} Is this the URL of a KFP host?" if is_unknown else text)
    if answer.request.startswith("POST ") and (answer.status == 408 or answer.status >= 500):
        return HostAnswerLostError(text)
    if _EMPTY_NAMESPACE.fullmatch(answer.message):
        return HostRefusedError(f"{answer.request} failed. {NO_NAMESPACE}")
    if answer.status in (408, 429, 502, 503, 504):
        return HostUnreachableError(f"{text} The host is busy or restarting: try again later.")
    if answer.status < 500:
        return HostRefusedError(text)
    return HostError(text)


def _about_credentials(settings: Settings) -> str:
    """Return messages about the credentials that were sent, and how to change them."""
    credentials = [
        name for name, setting in SETTINGS.items() if setting.kind == "credential" and getattr(settings, name)
    ]
    where = f"in the namespace {settings.namespace!r}" if settings.namespace else "here"
    lack = f"They may have expired, or lack the permission to do this {where}."
    if credentials:
        sent = f"The request was sent with {joined(settings.source(name) for name in credentials)}. {lack}"
    elif settings.host:
        sent = "The request was sent without credentials."
    else:
        sent = f"The request was sent with the cluster's credentials. {lack}"
    return (
        f"{sent} Give a token ({variable('existing_token')}), a file with one ({variable('token_file')}), or the "
        f"cookies of a browser that is signed in ({variable('cookies')}='authservice_session=...'): in the "
        f"environment, or in {config_file()}."
    )


def as_object(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return a JSON object, or the one at these keys; {} for anything else."""
    for key in keys:
        value = as_object(value).get(key)
    return value if type(value) is dict or isinstance(value, Mapping) else _NONE


def as_text(value: Any) -> str:
    """Return text or a number as text; empty for anything else."""
    if type(value) is str:
        return value
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
