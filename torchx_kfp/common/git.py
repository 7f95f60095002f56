"""The state of a folder in git; unknown if git is missing or fails, or outside a repository."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class GitState:
    """The state of a repository.

    Attributes:
        commit: the hash of the commit that is checked out.
        branch: the name of the branch; None for a detached head.
        changed: whether the files differ from the commit.
    """

    commit: str
    branch: str | None
    changed: bool


def run_git(folder: str, *words: str) -> bytes | None:
    """Return the output of git in a folder; None if it fails or is not installed."""
    import subprocess  # applications import the module, for its class only

    environ = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}  # `git status` would write to the repository's index
    try:
        done = subprocess.run(
            ["git", "-C", folder, *words], capture_output=True, check=False, stdin=subprocess.DEVNULL, env=environ
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout


def read_git_state(folder: str, names: Collection[str]) -> GitState | None:
    """Return the state of a folder's repository; None if it has none, or no commit.

    Args:
        folder: the folder, at the top of the repository or below.
        names: the relevant files, relative to the folder.
    """
    commit = _line(folder, "rev-parse", "--verify", "HEAD")
    changes = _changes(folder) if commit else None
    if commit is None or changes is None:
        return None
    # New files only count if they are relevant; removed files always count.
    changed = any(
        "D" in state or (path in names if not path.endswith("/") else any(name.startswith(path) for name in names))
        for state, path in changes
    )
    return GitState(commit, _line(folder, "symbolic-ref", "--short", "HEAD"), changed)


def _changes(folder: str) -> list[tuple[str, str]] | None:
    """Return the changes in a folder and its submodules: states, and paths relative to the folder.

    Paths of folders that git does not search end with a slash.
    """
    options = ("--porcelain=v2", "-z", "--no-renames", "--untracked-files=all", "--ignored")
    listed, above = run_git(folder, "status", *options, "--", "."), _line(folder, "rev-parse", "--show-prefix") or ""
    if listed is None:
        return None
    changes = []
    for entry in os.fsdecode(listed).split("\0"):
        kind, _, rest = entry.partition(" ")
        if kind in ("?", "!"):
            changes.append((kind, rest.removeprefix(above)))
        elif kind in ("1", "u"):
            state, submodule, *_, path = rest.split(" ", 9 if kind == "u" else 7)
            path = path.removeprefix(above)
            if submodule[0] == "S":
                inner = _changes(os.path.join(folder, path)) or ()
                changes += [(inner_state, f"{path}/{below}") for inner_state, below in inner]
            if submodule[:2] != "S.":  # a file, or another commit of a submodule
                changes.append((state, path if submodule[0] == "N" else f"{path}/"))
    return changes


def _line(folder: str, *words: str) -> str | None:
    output = run_git(folder, *words)
    return output.decode(errors="replace").strip() or None if output is not None else None
