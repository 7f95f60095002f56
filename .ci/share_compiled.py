"""Have the modules compiled that another environment has compiled: ``PYTHON .ci/share_compiled.py ENVIRONMENT``.

uv links the files of a package into each environment. What is compiled from such a file is linked too; the rest is
compiled.
"""

import contextlib
import os
import py_compile
import sys
import sysconfig
from pathlib import Path


def share(theirs: Path, ours: Path) -> int:
    """Link or compile modules, and return how many there are now."""
    count = 0
    for compiled in theirs.rglob(f"__pycache__/*.{sys.implementation.cache_tag}*.pyc"):
        source = compiled.parent.parent / f"{compiled.name.split('.')[0]}.py"
        own = ours / source.relative_to(theirs)
        target = ours / compiled.relative_to(theirs)
        # Another process may install packages into their environment.
        with contextlib.suppress(OSError):
            if target.exists() or not own.exists():
                continue
            if own.samefile(source):
                target.parent.mkdir(exist_ok=True)
                os.link(compiled, target)
            elif "pytest" not in compiled.name:  # pytest compiles its plugins itself
                py_compile.compile(str(own), quiet=2)
            count += 1
    return count


if __name__ == "__main__":
    ours = Path(sysconfig.get_path("purelib"))
    # There are none if that environment has another version of Python.
    sys.exit(share(Path(sys.argv[1]).absolute() / ours.relative_to(sys.prefix), ours) == 0)
