"""Facts of git about a folder. Without git, outside of a repository, or if git refuses, there are none."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

#: ``git@host:path``, as ssh and git have it.
_SCP = re.compile(r"(?:[\w.+-]+@)?[\w.-]+:(?!:)[^@]*")


@dataclass(frozen=True)
class GitState:
    """The state of a repository.

    Attributes:
        commit: the hash of the commit that is checked out.
        branch: the name of the branch; None without one (a detached head).
        remote: the URL of the remote that the branch follows, or of ``origin``, without credentials; None without one.
        changed: whether the files differ from those of the commit.
    """

    commit: str
    branch: str | None
    remote: str | None
    changed: bool


def run_git(folder: str, *words: str) -> bytes | None:
    """Return what git prints in a folder; None if it fails or is not installed."""
    # Without the variable, `git diff` would write to the index of the repository.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environ
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout


def read_git_state(folder: str, names: Collection[str]) -> GitState | None:
    """Return the state of the repository in which a folder is; None if there is none, or it has no commit.

    Args:
        folder: the folder, at the top of the repository or below.
        names: the files in the folder that count, relative to it. A submodule's files are those of its commit if git
            says that it has not changed.
    """
    commit = _line(folder, "rev-parse", "--verify", "HEAD")
    tree = run_git(folder, "ls-tree", "-r", "-z", "HEAD")
    # Git's own comparison, because filters (line ends, LFS) change what is in the folder.
    differing = run_git(folder, "diff", "--name-only", "--no-ext-diff", "--relative", "-z", "HEAD", "--", ".")
    if commit is None or tree is None or differing is None:
        return None
    branch = _line(folder, "symbolic-ref", "--short", "HEAD")
    upstream = _line(folder, "config", "--get", f"branch.{branch}.remote") if branch else None
    remote = _line(folder, "config", "--get", f"remote.{upstream or 'origin'}.url")
    entries = [entry.partition(b"\t") for entry in tree.split(b"\0") if entry]
    committed = {os.fsdecode(name) for _, _, name in entries}
    submodules = tuple(f"{os.fsdecode(name)}/" for head, _, name in entries if head.startswith(b"160000"))
    added = any(name not in committed and not name.startswith(submodules) for name in names)
    changed = added or any(
        # A file that is there, but does not count, was left out; one that is not there was removed.
        name in names or not os.path.lexists(os.path.join(folder, name)) or f"{name}/" in submodules
        for name in map(os.fsdecode, filter(None, differing.split(b"\0")))
    )
    return GitState(commit, branch, without_credentials(remote) if remote else None, changed)


def without_credentials(remote: str) -> str | None:
    """Return a remote's URL without user, password, query and fragment; None if it could hide credentials elsewhere.

    The user of ssh (``git@``) is kept: it is part of the address.
    """
    if "://" not in remote:
        is_path = remote.startswith(("/", "./", "../"))
        return remote if is_path or _SCP.fullmatch(remote) else None
    try:
        parts = urlsplit(remote)
        user, host, port = parts.username, parts.hostname, parts.port
    except ValueError:
        return None
    if "@" in parts.path or (host is None and parts.scheme != "file"):
        return None
    place = f"[{host}]" if host and ":" in host else host or ""
    place += f":{port}" if port is not None else ""
    if user and "ssh" in parts.scheme:
        place = f"{user}@{place}"
    return urlunsplit((parts.scheme, place, parts.path, "", ""))


def _line(folder: str, *words: str) -> str | None:
    found = run_git(folder, *words)
    return found.decode(errors="replace").strip() or None if found is not None else None
