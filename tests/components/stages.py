"""Start a component's application by hand, as a stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchx import specs

from tests.programs import Program

REPOSITORY = Path(__file__).resolve().parents[2]


def run_app(
    app: specs.AppDef,
    *,
    tracker_base: str | Path | None = None,
    parents: Mapping[str, str | Sequence[str]] | None = None,
    run_id: str | None = None,
    shell: tuple[str, ...] = ("sh",),
    python: Program | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the application as a process, which is a stage of the run ``run`` if there is a tracker base.

    Args:
        run_id: the stage's run id; by default, it is made from the AppDef's name.
        shell: the shell that ``sh`` is.
        python: the process whose forks run Python. Default: each starts the interpreter.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
    if tracker_base is not None:
        environ |= {"TORCHX_TRACKER_BASE": str(tracker_base), "TORCHX_JOB_ID": run_id or f"run/{app.name}/1"}
        if parents:
            first = next(iter(parents.values()))
            environ["TORCHX_PARENT_RUN_IDS"] = json.dumps(parents)
            environ["TORCHX_PARENT_RUN_ID"] = first if isinstance(first, str) else first[0]
    (role,) = app.roles
    if python is not None:
        assert role.entrypoint == "python"
        return python(*role.args, **environ)
    program = {"python": (sys.executable,), "sh": shell}[role.entrypoint]
    return subprocess.run([*program, *role.args], cwd=REPOSITORY, env=environ, capture_output=True, text=True)
