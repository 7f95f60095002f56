"""Keys: what may be one, and the text under which a store knows it.

A key is a path of names below the tracker base. No character of it means anything to a store but ``/``,
which parts its names.
"""

from __future__ import annotations

import re

from torchx_kfp.errors import KeyRefusedError
from torchx_kfp.text import shown

Key = int | str

#: Folder of what the tracker keeps beside results (``entries``), and of a local store's temporary files. No key may use
#: the name, and no listing shows it.
PRIVATE = ".torchx_kfp"

#: TorchX's own runner sets TORCHX_JOB_ID to an app handle, ``local_cwd://session/app``: an empty name may stand there.
_APP_HANDLE = re.compile(r"[A-Za-z][A-Za-z0-9_.+-]*://")


def key_text(key: Key) -> str:
    """The key as text: an int key works like its string.

    Raises:
        KeyRefusedError: the key is no str or int, is empty or absolute, would leave the tracker base, or
            cannot be the same text on every store.
    """
    if isinstance(key, bool) or not isinstance(key, (str, int)):
        raise KeyRefusedError(f"A key is a str or an int. Got {type(key).__name__}: {shown(key)}.")
    try:
        # The base classes' own methods: a member of an enum of str or int is its value, not its name.
        text = str.__str__(key) if isinstance(key, str) else int.__repr__(key)
    except ValueError:
        raise KeyRefusedError("The key is an int of thousands of digits, which no store can hold.") from None
    problem = _problem(text)
    if problem:
        raise KeyRefusedError(f"The key {shown(text)} {problem}.")
    return text


def run_id_parts(key: str) -> tuple[str, str, str] | None:
    """Pipeline run, stage and execution in the run id of a stage; None for another key."""
    parts = key.split("/")
    # A folder does not keep the two slashes of an app handle apart: local_cwd://session/app.
    return None if len(parts) != 3 or not all(parts) or parts[0].endswith(":") else (parts[0], parts[1], parts[2])


def _problem(text: str) -> str | None:
    if not text:
        return "is empty: name what the results belong to, for example a run id"
    if text.startswith("/"):
        return "is absolute: keys are paths below the tracker base, without a leading '/'"
    if "\0" in text:
        return "holds a NUL character, which no store can keep in a name"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair, which cannot be written as UTF-8"
    handle = _APP_HANDLE.match(text)
    for name in text[handle.end() :].split("/") if handle else text.split("/"):
        if name == "..":
            return "would leave its place below the tracker base: '..' may not be part of a key"
        if name == ".":
            return "has '.' for a part, which stores read differently: leave it out"
        if not name:
            return "has an empty part: single slashes part the names of a key, and none may end it"
        if name == PRIVATE:
            return f"uses the name {PRIVATE!r}, where the tracker keeps files that are being written"
    return None
