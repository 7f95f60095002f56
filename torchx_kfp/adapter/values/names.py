"""Names that KFP, Kubernetes and the tracker take, made from names that people give."""

from __future__ import annotations

import hashlib
import keyword
import re
from collections.abc import Container

#: A Kubernetes label holds 63 characters; KFP makes labels and template names of task names.
LONGEST_NAME = 63


def _shorten(name: str, original: str) -> str:
    """A name within the limit; where it says too little of the original, a hash tells it from others."""
    if name and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(original.encode(errors="surrogatepass")).hexdigest()[:8]
    return f"{name[: LONGEST_NAME - 9].rstrip('-._')}-{digest}" if name else f"stage-{digest}"


def stage_name(name: str) -> str:
    """The stage's part of a run id, which is a part of a tracker key too: ``[A-Za-z0-9._-]``, 63 characters."""
    return _shorten(re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._"), name)


def component_name(name: str) -> str:
    """The name of the KFP component and, with a number where it is taken, of the task: ``[a-z0-9-]``."""
    return _shorten(re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-"), name)


def label_value(value: str) -> str:
    """A value that Kubernetes takes for a label."""
    return re.sub(r"[^A-Za-z0-9._-]", ".", value)[:LONGEST_NAME].strip("-._")


def is_input_name(name: str) -> bool:
    """Whether an input may be called so. KFP's inputs are parameters of functions, of a method too."""
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name) and name != "self"


def is_shell_variable(name: str) -> bool:
    """Whether shells hand on a variable of this name to what they start; dash drops others."""
    return name.isascii() and name.isidentifier()


def output_name(name: str) -> str:
    """KFP's name of the output that a result or an artifact becomes; empty where nothing is left of the name.

    The rule: what is no ASCII letter, digit or ``_`` becomes ``_``, several of them one, and none stays at the ends; a
    name that begins with a digit gets an ``n`` before it, a keyword of Python a ``_`` behind it. ``l2norm/mean`` is
    ``l2norm_mean``.
    """
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
    if name[:1].isdigit():
        name = f"n{name}"
    return f"{name}_" if name and not is_input_name(name) else name


def input_name(name: str, taken: Container[str]) -> str:
    """An input's name: a Python identifier that is not taken."""
    name = output_name(name) or "input"
    number, candidate = 2, name
    while candidate in taken:
        candidate, number = f"{name}_{number}", number + 1
    return candidate
