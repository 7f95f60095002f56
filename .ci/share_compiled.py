"""Have the modules of this environment compiled that were compiled before, and keep what is compiled here.

``PYTHON .ci/share_compiled.py take [ENVIRONMENT]`` links what other clones have kept and what another environment has.
``PYTHON .ci/share_compiled.py keep`` keeps what is compiled here, in ``~/.cache/torchx-kfp`` (XDG_CACHE_HOME).

uv links the files of a package into each environment. What is compiled from such a file is linked too; the rest is
compiled.
"""

import contextlib
import os
import py_compile
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

TAG = str(sys.implementation.cache_tag)
OURS = Path(sysconfig.get_path("purelib"))
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torchx-kfp" / f"compiled-{TAG}"
#: Seconds after which a module is removed that no environment has taken.
UNUSED = 30 * 24 * 3600


def compiled_in(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Yield each compiled module below a folder, and its source."""
    for compiled in folder.rglob(f"__pycache__/*.{TAG}*.pyc"):
        yield compiled, compiled.parent.parent / f"{compiled.name.split('.')[0]}.py"


def identity(source: Path) -> str:
    """Return what tells apart the files that a module has in several versions: uv's links have the same."""
    status = source.stat()
    return f"{status.st_mtime_ns}-{status.st_size}"


def link_or_compile(compiled: Path, source: Path, target: Path, *, same: bool) -> None:
    """Link a compiled module, or compile it from its source here."""
    if same:
        target.parent.mkdir(exist_ok=True)
        os.link(compiled, target)
    elif "pytest" not in target.name:  # pytest compiles its plugins itself
        py_compile.compile(str(source), quiet=2)


def share(theirs: Path) -> int:
    """Take modules of another environment, and return how many."""
    count = 0
    for compiled, source in compiled_in(theirs):
        own, target = OURS / source.relative_to(theirs), OURS / compiled.relative_to(theirs)
        # Another process may install packages into their environment.
        with contextlib.suppress(OSError):
            if own.exists() and not target.exists():
                link_or_compile(compiled, own, target, same=own.samefile(source))
                count += 1
    return count


def take() -> int:
    """Take kept modules, and return how many."""
    count = 0
    # One folder for each module, with a file for each of its versions.
    for kept in KEPT.rglob("*.pyc"):
        target = OURS / kept.relative_to(KEPT)
        own = target.parent.parent / f"{target.name.split('.')[0]}.py"
        with contextlib.suppress(OSError):
            if own.exists() and not target.exists():
                version = kept / identity(own)
                link_or_compile(version, own, target, same=version.exists())
                count += 1
    return count


def keep() -> None:
    """Keep the modules that are compiled here, and remove those that have not been in use for a month."""
    for compiled, source in compiled_in(OURS):
        # Another process may keep the same one.
        with contextlib.suppress(OSError):
            if source.stat().st_nlink > 1:  # otherwise, no other environment has this file
                kept = KEPT / compiled.relative_to(OURS)
                kept.mkdir(parents=True, exist_ok=True)
                os.link(compiled, kept / identity(source))
    for version in KEPT.rglob("*.pyc/*"):
        with contextlib.suppress(OSError):
            # To link it has changed its status.
            if version.stat().st_ctime < time.time() - UNUSED:
                version.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "keep":
        keep()
        sys.exit()
    taken = take()
    for environment in sys.argv[2:]:
        # There are none if that environment has another version of Python.
        taken += share(Path(environment).absolute() / OURS.relative_to(sys.prefix))
    sys.exit(taken == 0)
