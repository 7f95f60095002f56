"""Addresses of KFP hosts, in the forms in which people have them: without a scheme, or copied from the browser."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, urlsplit

from torchx_kfp.errors import HostSettingsError
from torchx_kfp.text import shown

#: ``host``, ``host:8080/pipeline`` and the like; ``localhost:8080`` is not a URL with the scheme ``localhost``.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Kubeflow's dashboard shows KFP's UI in a frame at this path; the API is at the path of the frame's content.
_FRAME = re.compile(r"^/_(/pipeline)(?:/.*)?$")
#: What may follow in a URL copied from a browser or from a request.
_BELOW = re.compile(r"/(?:apis(?:/.*)?|index\.html)$")


def host_address(text: str, source: str = "the host") -> str:
    """Return the URL below which a host has its API, without a slash at its end.

    Args:
        text: a URL or the name of a host. The rest of a URL that was copied from KFP's UI is ignored. Without a scheme,
            it is http for this machine and for services of a cluster, and https otherwise.
        source: what gives the host, for messages.

    Raises:
        HostSettingsError: it is not the address of a host.
    """
    given = text.strip()
    scheme = _SCHEME.match(given)
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise HostSettingsError(
            f"{source} is {shown(without_password(text))}, but a KFP host has a URL that begins with https:// or http://."
        )
    try:
        parts = urlsplit(given if scheme else f"//{given}")
        name, _ = parts.hostname, parts.port
    except ValueError as error:
        raise _not_a_host(text, source, str(error)) from None
    if not name or re.search(r"[\s\\]", given):
        raise _not_a_host(text, source, "there is no host in it" if not name else "it contains a space or a backslash")
    if parts.username is not None or parts.password is not None:
        raise HostSettingsError(
            f"{source} contains a user or a password before {name!r}, which KFP does not use. Remove it, and give "
            "credentials as a token (existing_token, token_file) or as cookies."
        )
    protocol = scheme[1].lower() if scheme else "http" if is_near(name) else "https"
    return f"{protocol}://{parts.netloc}{_path(parts)}"


def without_password(text: str) -> str:
    """Return the text of a URL, which may be wrong, without what may be a user and a password in it."""
    return f"...{text[text.rindex('@') :]}" if "@" in text else text


def is_this_machine(name: str) -> bool:
    """Tell whether a host's name means the machine that uses it."""
    name = name.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def is_near(name: str) -> bool:
    """Tell whether a host's name is that of this machine or of a service in a cluster: they rarely have TLS."""
    return is_this_machine(name) or name.lower().rstrip(".").endswith((".svc", ".svc.cluster.local"))


def _path(parts: SplitResult) -> str:
    path = _BELOW.sub("", parts.path.rstrip("/")).rstrip("/")
    frame = _FRAME.match(path)
    return frame[1] if frame else path


def _not_a_host(text: str, source: str, why: str) -> HostSettingsError:
    # What is wrong may quote a part of the password.
    reason = "something like a user or a password stands before the host" if "@" in text else why
    return HostSettingsError(
        f"{source} is {shown(without_password(text))}, which is not the address of a KFP host: {reason}. Give the URL "
        "with which you open KFP's UI, such as https://kfp.example.com or http://localhost:8080."
    )
