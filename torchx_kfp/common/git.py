"""Facts of git about a folder. Without git, outside of a repository, or if git refuses, there are none.

The folder may be somebody else's, so the programs that its own configuration names do not run: file system monitors,
and the transports of a remote from which git would fetch what is missing. Git would also run filters to compare files,
so they are compared here, as they are: what a filter has changed, such as that of LFS, differs from the commit.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass

from torchx_kfp.common.safe_files import read_bytes


@dataclass(frozen=True)
class GitState:
    """The state of a repository.

    Attributes:
        commit: the hash of the commit that is checked out.
        branch: the name of the branch; None without one (a detached head).
        changed: whether the files differ from those of the commit.
    """

    commit: str
    branch: str | None
    changed: bool


#: Options for which a repository's configuration does not count. A bare repository among the files is not the folder's.
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.bareRepository=explicit")
#: The bytes of a file that is compared, at most.
_LARGEST = 1 << 30


def run_git(folder: str, *words: str) -> bytes | None:
    """Return what git prints in a folder; None if it fails or is not installed."""
    import subprocess  # applications import the module, for its class only

    # Otherwise, `git diff` would write to the index of the repository, and other commands would ask its remote.
    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_ALLOW_PROTOCOL": "none"}
    try:
        done = subprocess.run(
            ["git", "-C", folder, *_SAFE, *words],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=environ,
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout


def _committed(folder: str, commit: str) -> dict[str, str] | None:
    """Return the modes and hashes of the files of a commit by their names in the folder, with those of submodules."""
    listed = run_git(folder, "ls-tree", "-r", "-z", commit)
    if listed is None:
        return None
    found: dict[str, str] = {}
    for entry in filter(None, listed.split(b"\0")):
        about, _, path = entry.partition(b"\t")
        mode, kind, digest = about.decode().split()
        name = os.fsdecode(path)
        if kind == "commit":
            inner = _committed(os.path.join(folder, name), digest) or {}  # it may not be checked out
            found |= {f"{name}/{below}": its for below, its in inner.items()}
        else:
            found[name] = f"{mode} {digest}"
    return found


def _hash(path: str, like: str) -> str:
    """Return git's mode and hash of a file or link, of the length of another hash; empty if it cannot be read."""
    try:
        mode = os.lstat(path).st_mode
        is_link = stat.S_ISLNK(mode)
        content = os.fsencode(os.readlink(path)) if is_link else read_bytes(path, limit=_LARGEST)
    except OSError:
        return ""
    digest = (hashlib.sha256 if len(like) == 64 else hashlib.sha1)(b"blob %d\0%s" % (len(content), content)).hexdigest()
    return f"{'120000' if is_link else '100755' if mode & stat.S_IXUSR else '100644'} {digest}"


def read_git_state(folder: str, names: Collection[str]) -> GitState | None:
    """Return the state of the repository in which a folder is; None if there is none, or it has no commit.

    Args:
        folder: the folder, at the top of the repository or below.
        names: the files in the folder that count, relative to it.
    """
    commit = _line(folder, "rev-parse", "--verify", "HEAD")
    committed = _committed(folder, commit) if commit else None
    if commit is None or committed is None:
        return None
    branch = _line(folder, "symbolic-ref", "--short", "HEAD")
    paths = {name: os.path.join(folder, name) for name in {*names, *committed}}
    # A file that is there, but does not count, was left out; one that is not there was removed.
    changed = any(
        committed.get(name) != _hash(path, commit) if name in names else not os.path.lexists(path)
        for name, path in paths.items()
    )
    return GitState(commit, branch, changed)


def _line(folder: str, *words: str) -> str | None:
    found = run_git(folder, *words)
    return found.decode(errors="replace").strip() or None if found is not None else None
