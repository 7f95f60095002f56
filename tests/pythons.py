"""Python programs without the time that imports take: forks of a process that has imported what they need."""

from __future__ import annotations

import os
import runpy
import sys

#: What calls are to start, for ``tests.cli.ready.ready``.
ENTRY = "tests.pythons:main"


def main() -> None:
    """Run a module like ``python -m MODULE [ARGUMENT...]``."""
    program, option, module, *words = sys.argv
    if option != "-m":
        raise ValueError(f"{program} {option}: only modules can be run here")
    sys.argv[:] = [program, *words]
    sys.path[0] = os.getcwd()
    runpy.run_module(module, run_name="__main__", alter_sys=True)
