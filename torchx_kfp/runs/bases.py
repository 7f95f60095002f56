"""Which of the tracker bases that runs name are read on this machine.

A run's author and its host name the tracker base, and a run's folder may come from somebody else. So a server is read
only if the user has named that base, too: it could be a service that only this machine reaches. The same holds for a
directory that a host names: it could have the user's own files. Runs in folders record in directories of this machine.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection

from torchx_kfp.text import printable, shorten, shown

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: URLs of object stores. They name a bucket, and neither a server nor, with ``::``, another URL.
_OBJECT_STORE = re.compile(
    r"(?:(?:s3a?|gs|gcs|az|abfss?)://[\w.-]+|(?:az|abfss?)://[\w.$-]+@\w+\.(?:dfs|blob)\.core\.windows\.net)(?:/.*)?",
    re.ASCII,
)


def missing(base: str, why: str) -> str:
    """Return the sentence about a base that cannot be read."""
    return f"Results are missing: the tracker base {shown(base)} cannot be read here: {why}."


def why_not_read(base: str, named: Collection[str], *, ran_here: bool = False) -> str:
    """Say why a base that a run names is not read on this machine; empty if it is.

    Args:
        base: the base.
        named: the bases that the user has named.
        ran_here: whether the run is in a folder, so that directories are those of this machine.
    """
    scheme = _SCHEME.match(base)
    protocol = scheme[1].lower() if scheme else "file"
    is_chained = "::" in base
    if _OBJECT_STORE.fullmatch(base) and not is_chained:
        return ""
    is_local = protocol in ("file", "local") and not is_chained and "://" not in _place(base)
    if ran_here and (is_local or (protocol == "memory" and not is_chained)):
        return ""
    if protocol == "memory":
        return "it is in the memory of the stages' processes"
    if is_local and not os.path.isabs(_place(base)):
        return "it is relative to the directory in which the stages run"
    if _place(base) not in map(_place, named):
        where = "a directory of the pods" if is_local else "not in an object store"
        when = "this machine has the same volume there" if is_local else "you trust it"
        command = shorten(printable(shlex.join(["export", f"TORCHX_KFP_TRACKER_BASE={base}"])), 300)
        return f"it is {where}, and only the run names it. Use s3://bucket/results or, if {when}, name it: {command}"
    if is_local and not os.path.isdir(_place(base)):
        return "there is no such directory. Mount the same volume here at this path, or use s3://bucket/results"
    return ""


def _place(base: str) -> str:
    """Return a base so that two ways to write it are the same."""
    return re.sub(r"^(?:file|local)://", "", base).rstrip("/")
