"""What git says about the folder of a workspace. Real repositories; nothing about them may be an error."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchx_kfp.common.git import GitState, read_git_state

Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """Git in a repository with a commit: ``a.py``, ``code/b.py`` and a submodule ``code/sub``."""
    config = tmp_path / "config"
    config.write_text(
        '[user]\nname = n\nemail = e@x\n[init]\ndefaultBranch = main\n[protocol "file"]\nallow = always\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")

    def run(*words: str, folder: str = "repo") -> str:
        done = subprocess.run(["git", "-C", str(tmp_path / folder), *words], capture_output=True, check=True, text=True)
        return done.stdout.strip()

    for name in ("other", "repo"):
        (tmp_path / name / "code").mkdir(parents=True)
        run("init", "-q", folder=name)
        (tmp_path / name / "a.py").write_text("a")
        (tmp_path / name / "code/b.py").write_text("b")
        run("add", ".", folder=name)
        run("commit", "-qm", "first", folder=name)
    run("submodule", "--quiet", "add", str(tmp_path / "other"), "code/sub")
    run("commit", "-qm", "second")
    return run


def test_the_state_of_a_folder(git: Git, tmp_path: Path) -> None:
    code, commit = tmp_path / "repo/code", git("rev-parse", "HEAD")
    names = {"b.py", "sub/a.py", "sub/code/b.py"}

    def state(*further: str, folder: Path = code) -> GitState | None:
        return read_git_state(str(folder), {*names, *further})

    assert state() == GitState(commit, "main", changed=False)
    found = state()
    # What is not in the folder, and what was left out, does not count.
    (tmp_path / "repo/a.py").write_text("changed")
    (code / "local_outputs").mkdir()
    (code / "local_outputs/x").touch()
    assert state() == found
    # A new file, a change and a removed file do, also in a submodule.
    assert state("local_outputs/x") == GitState(commit, "main", changed=True)
    for path in (code / "b.py", code / "sub/a.py"):
        before = path.read_text()
        path.write_text("changed")
        assert (changed := state()) is not None
        assert changed.changed
        path.write_text(before)
        assert state() == found
    # So do the mode of a file, and a link in its place: the archive keeps both.
    (code / "b.py").chmod(0o755)
    assert state() == GitState(commit, "main", changed=True)
    (code / "b.py").unlink()
    (code / "b.py").symlink_to("x")
    assert state() == GitState(commit, "main", changed=True)
    (code / "b.py").unlink()
    assert (removed := read_git_state(str(code), names - {"b.py"})) is not None
    assert removed.changed
    git("checkout", "-q", "--", ".")

    # A worktree on a branch, and then no branch.
    git("worktree", "add", "-q", "-b", "größe/x", "../tree")
    git("submodule", "--quiet", "update", "--init", folder="tree")
    tree = state(folder=tmp_path / "tree/code")
    assert tree == GitState(commit, "größe/x", changed=False)
    git("checkout", "-q", "--detach", folder="tree")
    assert state(folder=tmp_path / "tree/code") == GitState(commit, None, changed=False)


def test_nothing_to_say_is_not_an_error(git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").mkdir()
    git("init", "-q", folder="empty")
    for name in ("plain", "empty", "missing"):
        assert read_git_state(str(tmp_path / name), {"a.py"}) is None
    # A repository of somebody else, which git refuses.
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert read_git_state(str(tmp_path / "repo"), {"a.py"}) is None
    monkeypatch.delenv("GIT_TEST_ASSUME_DIFFERENT_OWNER")
    assert read_git_state(str(tmp_path / "repo"), {"a.py"}) is not None
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_git_state(str(tmp_path / "repo"), {"a.py"}) is None
