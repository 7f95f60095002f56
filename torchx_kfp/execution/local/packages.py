"""Packages that Python components install, in environments that are created once, kept, and shared by all runs.

Components whose packages are all installed need no such environment.

An environment is a layer over the running one: its packages, such as KFP, need not be installed again, and the
component's own packages take precedence. In the cache folder (``$XDG_CACHE_HOME/torchx-kfp/venvs``), each key has a
folder:

    lock       locked by the process that creates the environment; the lock ends with the process, however it ends
    <random>   an environment, complete or not
    ready      a link to the complete one

An environment is created in its final place, because its scripts contain its path. The link is created last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import secrets
import shutil
import site
import string
import sys
import time
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from packaging.requirements import InvalidRequirement, Requirement

from torchx_kfp.execution.local.executors.executor import AttemptError

#: pip's options that only say where packages come from; each takes a value.
SOURCE_OPTIONS = ("--index-url", "-i", "--extra-index-url", "--trusted-host", "--find-links", "-f")

Installs: TypeAlias = Sequence[Sequence[str]]
#: A function that runs a command with these environment variables and returns its exit code; its output goes into the
#: stage's log.
RunCommand: TypeAlias = Callable[[Sequence[str], Mapping[str, str]], int]

# Seconds between checks whether another process has created the environment.
_POLL = 0.1
_PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--progress-bar=off")
_LAYER = "_torchx_kfp_layer.pth"


def cache_folder() -> Path:
    """Return the folder of the environments."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return Path(root if os.path.isabs(root) else os.path.expanduser("~/.cache")) / "torchx-kfp" / "venvs"


def provide_environment(
    installs: Installs, environ: Mapping[str, str], run: RunCommand, verify_wanted: Callable[[], None]
) -> Path | None:
    """Return the folder of an environment with these packages; None if the running one has them all.

    Args:
        installs: the words after each ``pip install``.
        environ: the stage's environment; indexes may name its variables (``https://$USER:$TOKEN@host/simple``).
        run: runs a command for the stage.
        verify_wanted: raises AttemptError if the stage was ended.

    Raises:
        AttemptError: pip failed, or the environment cannot be created.
    """
    wanted = [words for words in installs if not are_satisfied(words)]
    if not wanted:
        return None
    # As a shell would pass the words on: KFP quotes packages, but not the URLs of indexes.
    wanted = [
        [
            string.Template(word).safe_substitute(environ) if before in SOURCE_OPTIONS else word
            for before, word in zip(("", *words), words, strict=False)
        ]
        for words in wanted
    ]
    home = cache_folder() / _key(wanted)
    ready = home / "ready"
    if ready.is_dir():
        return ready.resolve()
    try:
        with _locked(home, verify_wanted):
            if ready.is_dir():
                return ready.resolve()
            return _make(home, wanted, environ, run)
    except OSError as error:
        raise AttemptError(
            f"could not get an environment for its packages in {home}: {error}. Set XDG_CACHE_HOME to a writable folder"
        ) from None


def activate(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of a stage that uses the environment in this folder."""
    path = os.pathsep.join((str(folder / "bin"), environ.get("PATH") or os.defpath))
    return {**environ, "PATH": path, "VIRTUAL_ENV": str(folder)}


def _make(home: Path, wanted: Installs, environ: Mapping[str, str], run: RunCommand) -> Path:
    for left in home.iterdir():
        if left.is_dir():
            # The process that was creating it was killed. A pip that still writes there does no harm.
            shutil.rmtree(left, ignore_errors=True)
    folder = home / secrets.token_hex(4)
    try:
        venv.create(folder, symlinks=True)
        # Make the running environment's packages, including editable installs, importable after the folder's own.
        (own,) = folder.glob("lib/python*/site-packages")
        lines = [f"import site; site.addsitedir({path!a})\n" for path in installed_folders()]
        (own / _LAYER).write_text("".join(lines), encoding="ascii")
        python = str(folder / "bin" / "python")
        # A project's folder in PYTHONPATH would look like an installed package.
        clean = {name: value for name, value in activate(folder, environ).items() if name != "PYTHONPATH"}
        if importlib.util.find_spec("pip") is None:
            _verify(run((python, "-m", "ensurepip", "--default-pip"), clean), "ensurepip", ["pip"])
        for words in wanted:
            _verify(run((python, *_PIP, *words), clean), "pip", words)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    link = home / "ready.new"
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(home / "ready")
    return folder.resolve()


def _verify(code: int, program: str, words: Sequence[str]) -> None:
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        # The URL of an index may contain a password.
        pairs = zip(("", *words), words, strict=False)
        names = " ".join(word for before, word in pairs if not {word, before} & set(SOURCE_OPTIONS))
        raise AttemptError(f"could not get its packages ({names}): {program} ended with {how}", code)


def installed_folders() -> list[str]:
    """Return the folders with the installed packages of the running interpreter, the user's first."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [os.path.abspath(path) for path in (*user, *site.getsitepackages()) if os.path.isdir(path)]


def _key(wanted: Installs) -> str:
    """Return a key for an environment, from the interpreter, its packages, and the packages to install."""
    folders = installed_folders()
    # Packages that pip skips because they are installed must stay installed.
    installed = [
        sorted(name for name in os.listdir(path) if name.endswith((".dist-info", ".egg-info"))) for path in folders
    ]
    local = [local_state(words) for words in wanted]
    facts = [sys.executable, sys.version, folders, installed, [list(words) for words in wanted], local]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _locked(home: Path, verify_wanted: Callable[[], None]) -> Iterator[None]:
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("a") as lock:
        while True:
            verify_wanted()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_POLL)
            else:
                break
        yield


def are_satisfied(words: Sequence[str]) -> bool:
    """Return whether the running interpreter has everything that ``pip install`` would install for these words."""
    rest = iter(words)
    for word in rest:
        if word in SOURCE_OPTIONS:
            next(rest, None)
            continue
        try:
            requirement = Requirement(word)
        except InvalidRequirement:  # some other option, or a path
            return False
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        if requirement.url is not None or not _is_installed(requirement):
            return False
    return True


def _is_installed(requirement: Requirement) -> bool:
    try:
        distribution = importlib.metadata.distribution(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return False
    # Broken metadata has no version.
    version: str | None = distribution.metadata["Version"]
    if not version or not requirement.specifier.contains(version, prereleases=True):
        return False
    for text in distribution.requires or () if requirement.extras else ():
        needed = Requirement(text)
        marker = needed.marker
        if marker is None or marker.evaluate({"extra": ""}):
            continue  # the distribution itself needs it
        if any(marker.evaluate({"extra": extra}) for extra in requirement.extras) and not _is_installed(needed):
            return False
    return True


def local_state(words: Sequence[str]) -> list[str]:
    """Return the state of the files and folders that the words name, to detect changes."""
    paths = {path for word in words if (path := _local_path(word)) and os.path.exists(path)}
    return [f"{path} {os.path.getsize(path)} {_newest(path)}" for path in sorted(paths)]


def _local_path(word: str) -> str:
    place = re.sub(r"^[\w.\[\],-]+\s*@\s*", "", word)
    if place.startswith("file:"):
        return unquote(urlsplit(place).path)
    # pip looks up a bare name in an index, even if there is a file with that name.
    return re.sub(r"\[[\w,. -]*\]$", "", place) if os.sep in place else ""


def _newest(path: str) -> int:
    """Return the time of the last change in a file or folder, in ns."""
    times = [os.stat(path).st_mtime_ns]
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith(".")]
        times += [os.lstat(os.path.join(folder, name)).st_mtime_ns for name in (*folders, *files)]
    return max(times)
