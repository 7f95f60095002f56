"""Convert users' names to names that KFP, Kubernetes and the tracker accept."""

from __future__ import annotations

import functools
import hashlib
import keyword
import re
from collections.abc import Container

from torchx_kfp.contract.inputs import identifier

#: The longest Kubernetes label. KFP uses task names in labels and names of templates.
_LONGEST_NAME = 63


def _shorten(name: str, original: str) -> str:
    """Shorten a name to the limit. A shortened or empty name gets a hash of the original."""
    if name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: _LONGEST_NAME - 9].rstrip('-._')}-{digest}" if name else f"stage-{digest}"


def stage_name(name: str) -> str:
    """Return the stage's part of execution ids and tracker keys: ``[A-Za-z0-9._-]``, up to 63 characters."""
    return _shorten(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._"), name)


def component_name(name: str) -> str:
    """Return the name of the KFP component: ``[a-z0-9-]``. KFP appends a number to names of tasks that are taken."""
    return _shorten(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), name)


def is_input_name(name: str) -> bool:
    """Return whether an input can have this name. KFP uses inputs as parameters of functions and of a method."""
    return is_shell_variable(name) and not keyword.iskeyword(name) and name != "self"


def is_shell_variable(name: str) -> bool:
    """Return whether shells pass on a variable with this name; dash drops others."""
    return name.isascii() and name.isidentifier()


@functools.lru_cache(1024)  # stages of a pipeline have the same inputs
def output_name(name: str) -> str:
    """Return KFP's output name for a result or an artifact; empty if no character of the name is left.

    Each run of characters other than ASCII letters, digits and ``_`` becomes one ``_``; leading and trailing ``_`` are
    dropped. A name that begins with a digit is prefixed with ``n``, and a Python keyword is followed by ``_``.
    ``l2norm/mean`` becomes ``l2norm_mean``.
    """
    name = identifier(name)
    if name[:1].isdigit():
        name = f"n{name}"
    return f"{name}_" if name and not is_input_name(name) else name


def input_name(name: str, taken: Container[str]) -> str:
    """Return a Python identifier for an input that is not taken."""
    name = output_name(name) or "input"
    number, candidate = 2, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate
