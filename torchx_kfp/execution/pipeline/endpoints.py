"""The address of the S3 server that a stage uses, and whether it means the machine that uses it."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from urllib.parse import urlsplit

#: The variables with which s3fs, boto3 and others find a server of S3 other than AWS.
S3_ENDPOINT = re.compile(r"AWS_ENDPOINT_URL(?:_S3)?|FSSPEC_S3A?_ENDPOINT_URL", re.IGNORECASE)


def s3_endpoints(variables: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return those of some variables with which a stage finds S3."""
    return {name: value for name, value in variables if S3_ENDPOINT.fullmatch(name) and value}


def is_of_this_machine(url: str) -> bool:
    """Tell whether a URL's host means the machine that uses it; in a pod or a container, that is this itself."""
    try:
        return is_this_machine(urlsplit(url).hostname or "")
    except ValueError:
        return False


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
