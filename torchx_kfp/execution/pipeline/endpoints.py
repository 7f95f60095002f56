"""The address of a stage's S3 server, and whether it means the machine that uses it.

In a local run, the user's address replaces the cluster's.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from torchx_kfp.contract.command import ASIDE

#: The variables with which s3fs, boto3 and others find a server of S3 other than AWS.
S3_ENDPOINT = re.compile(r"AWS_ENDPOINT_URL(?:_S3)?|FSSPEC_S3A?_ENDPOINT_URL", re.IGNORECASE)


def s3_endpoints(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the variables with which a stage finds S3."""
    return {name: value for name, value in variables if S3_ENDPOINT.fullmatch(name) and value}


def is_of_this_machine(url: str) -> bool:
    """Return whether a URL's host means the machine, pod or container that uses it."""
    try:
        return is_this_machine(urlsplit(url).hostname or "")
    except ValueError:
        return False


def is_this_machine(name: str) -> bool:
    """Return whether a host's name means the machine that uses it."""
    name = name.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


def own_endpoints(environ: Mapping[str, str], *, in_container: bool) -> dict[str, str]:
    """Return the variables of an environment with which stages find S3. They replace the stages' own.

    For a container, an address such as ``localhost`` would be its own.
    """
    found = s3_endpoints(environ.items())
    return {} if in_container and any(map(is_of_this_machine, found.values())) else found


def described(variables: Iterable[tuple[str, str]], environ: Mapping[str, str], *, in_container: bool) -> str:
    """Describe the ignored address, the stage's or this machine's; empty if they are equal.

    Args:
        variables: the variables that the stage sets.
        environ: the local ones.
        in_container: whether the stage runs in a container.
    """
    others = s3_endpoints((name.removeprefix(ASIDE), value) for name, value in variables)
    own = s3_endpoints(environ.items())
    if not own or not others or own == others:
        return ""
    if own_endpoints(environ, in_container=in_container):
        return f"{_listed(others)} (your own {', '.join(own)} is used)"
    return f"your own {_listed(own)} (in a container, it would mean the container itself: {_listed(others)} is used)"


def _listed(variables: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in variables.items())
