"""Facts of git about a folder. Without git, outside of a repository, or if git refuses, there are none.

The folder may be somebody else's, so the programs that its own configuration names do not run: file system monitors,
filters, and the transports of a remote from which git would fetch what is missing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

#: ``git@host:path``, as ssh and git have it.
_SCP = re.compile(r"(?:[\w.+-]+@)?[\w.-]+:(?!:)[^@]*")
#: A URL, whose parts cannot hide credentials elsewhere.
_URL = re.compile(
    r"(?P<scheme>\w[\w+.-]*)://(?:(?P<user>[^/@:]*)(?::[^/@]*)?@)?(?P<host>(?:[\w.-]+|\[[\da-fA-F:]+\])(?::\d+)?)?"
    r"(?P<path>/[^@?#]*)?(?:[?#].*)?"
)


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


#: Options for which a repository's configuration does not count. A bare repository among the files is not the folder's.
_SAFE = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "safe.bareRepository=explicit")
#: Scopes of the configuration that comes with the folder.
_OWN_SCOPES = ("local", "worktree")


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


def _without_filters(folder: str) -> list[str] | None:
    """Return options that switch off the filters of the folder's own configuration: git would run them to compare.

    Return None if that is not possible: git is too old to list them, or one has a name that an option cannot have.
    """
    listed = run_git(folder, "config", "--list", "--show-scope", "--includes", "--name-only", "-z")
    if listed is None:
        return None
    words = list(map(os.fsdecode, listed.split(b"\0")))
    names = {
        name.rpartition(".")[0]
        for scope, name in zip(words[::2], words[1::2], strict=False)
        if scope in _OWN_SCOPES and name.startswith("filter.")
    }
    settings = ("clean=", "process=", "smudge=", "required=false")
    if any("=" in name for name in names):
        return None
    return [word for name in sorted(names) for setting in settings for word in ("-c", f"{name}.{setting}")]


def _differing(folder: str) -> set[str] | None:
    """Return what differs from the commit, relative to the folder; a submodule's own changes count for its name."""
    # Git's own comparison, because the user's filters (line ends, LFS) change what is in the folder.
    words = ("diff", "--name-only", "--no-ext-diff", "--ignore-submodules=dirty", "--relative", "-z", "HEAD", "--", ".")
    without = _without_filters(folder)
    found = None if without is None else run_git(folder, *without, *words)
    if found is None:
        return None
    names = set(map(os.fsdecode, filter(None, found.split(b"\0"))))
    return names | {name for name in _submodules(folder) if _is_changed(os.path.join(folder, name))}


def _submodules(folder: str) -> list[str]:
    tree = run_git(folder, "ls-tree", "-r", "-z", "HEAD") or b""
    entries = [entry.partition(b"\t") for entry in tree.split(b"\0")]
    return [os.fsdecode(name) for head, _, name in entries if head.startswith(b"160000")]


def _is_changed(submodule: str) -> bool:
    """Tell whether a submodule has changes or new files. One that is not checked out has none."""
    if not os.path.lexists(os.path.join(submodule, ".git")):
        return False
    new = run_git(submodule, "ls-files", "--others", "--exclude-standard", "-z")
    return bool(new or _differing(submodule))


def read_git_state(folder: str, names: Collection[str]) -> GitState | None:
    """Return the state of the repository in which a folder is; None if there is none, or it has no commit.

    Args:
        folder: the folder, at the top of the repository or below.
        names: the files in the folder that count, relative to it. A submodule's files are those of its commit if git
            says that it has not changed.
    """
    commit = _line(folder, "rev-parse", "--verify", "HEAD")
    tree = run_git(folder, "ls-tree", "-r", "-z", "HEAD")
    differing = _differing(folder)
    if commit is None or tree is None or differing is None:
        return None
    branch = _line(folder, "symbolic-ref", "--short", "HEAD")
    upstream = _line(folder, "config", "--get", f"branch.{branch}.remote") if branch else None
    remote = _line(folder, "config", "--get", f"remote.{upstream or 'origin'}.url")
    committed = {os.fsdecode(entry.partition(b"\t")[2]) for entry in tree.split(b"\0") if entry}
    submodules = tuple(f"{name}/" for name in _submodules(folder))
    added = any(name not in committed and not name.startswith(submodules) for name in names)
    changed = added or any(
        # A file that is there, but does not count, was left out; one that is not there was removed.
        name in names or not os.path.lexists(os.path.join(folder, name)) or f"{name}/" in submodules
        for name in differing
    )
    return GitState(commit, branch, without_credentials(remote) if remote else None, changed)


def without_credentials(remote: str) -> str | None:
    """Return a remote's URL without user, password, query and fragment; None if it could hide credentials elsewhere.

    The user of ssh (``git@``) is kept: it is part of the address.
    """
    if "://" not in remote:
        is_path = remote.startswith(("/", "./", "../"))
        return remote if is_path or _SCP.fullmatch(remote) else None
    found = _URL.fullmatch(remote)
    if found is None or not (found["host"] or found["scheme"] == "file"):
        return None
    user = f"{found['user']}@" if found["user"] and "ssh" in found["scheme"] else ""
    return f"{found['scheme']}://{user}{found['host'] or ''}{found['path'] or ''}"


def _line(folder: str, *words: str) -> str | None:
    found = run_git(folder, *words)
    return found.decode(errors="replace").strip() or None if found is not None else None
