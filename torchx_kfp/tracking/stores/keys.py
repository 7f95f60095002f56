"""Keys: which values are accepted, and the text by which a store knows them.

A key is a path of names below the tracker base. Its only character with a meaning for stores is ``/``, which separates
the names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from torchx_kfp import files
from torchx_kfp.errors import KeyRefusedError
from torchx_kfp.text import shown

Key = int | str

#: The folder for everything that a tracker keeps besides results (``statements``), and for a local store's temporary
#: files. Keys must not contain the name, and listings do not show it.
PRIVATE = files.PRIVATE

#: TorchX's own runner sets TORCHX_JOB_ID to an app handle, ``local_cwd://session/app``, which has an empty name.
_APP_HANDLE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*://")


class File(NamedTuple):
    """A file below a tracker base: its key, its size in bytes, and its time of change in seconds since 1970."""

    key: str
    size: int
    modified: float


def key_text(key: Key) -> str:
    """Return the key as text. An int key is the same as its string.

    Raises:
        KeyRefusedError: the key is not a str or int, is empty or absolute, would leave the tracker base, or cannot be
            the same text on every store.
    """
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise KeyRefusedError(f"A key is a str or an int. Got {type(key).__name__}: {shown(key)}.")
    try:
        # For a member of an enum of str or int, the base classes' methods return its value rather than its name.
        text = str.__str__(key) if isinstance(key, str) else int.__repr__(key)
    except ValueError:
        raise KeyRefusedError(
            "The key is an int of thousands of digits, which no store can hold. Shorten it."
        ) from None
    problem = _problem(text)
    if problem:
        raise KeyRefusedError(f"The key {shown(text)} {problem}.")
    return text


def run_id_parts(key: str) -> tuple[str, str, str] | None:
    """Return the pipeline run, stage and execution in the run id of a stage, or None for any other key."""
    parts = key.split("/")
    # In a folder, the two slashes of an app handle become one: local_cwd://session/app.
    return None if len(parts) != 3 or not all(parts) or parts[0].endswith(":") else (parts[0], parts[1], parts[2])


def pipeline_run(key: str) -> str:
    """Return the pipeline run in a run id; for another key, its first part, and for an app handle, all of it."""
    return key if ":/" in key else key.partition("/")[0]


def _problem(text: str) -> str | None:
    if not text:
        return "is empty. Name what the results belong to, for example a run id"
    if text.startswith("/"):
        return "is absolute. Keys are paths below the tracker base, without a leading '/'"
    if "\0" in text:
        return "contains a NUL character, which stores cannot keep in a name"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "contains half of a surrogate pair, which cannot be written as UTF-8"
    handle = _APP_HANDLE.match(text)
    for name in text[handle.end() :].split("/") if handle else text.split("/"):
        if name == "..":
            return "would leave the tracker base: '..' cannot be a part of a key"
        if name == ".":
            return "has the part '.', which stores read differently. Leave it out"
        if not name:
            return "has an empty part. Separate the names with single slashes, without one at the end"
        if name == PRIVATE:
            return f"contains the name {PRIVATE!r}, which the tracker uses for its own files"
    return None
