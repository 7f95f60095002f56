"""Start a component's application by hand, as a stage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from torchx import specs

from tests.entrypoints.cli.ready import Ready
from torchx_kfp.contract import protocol

REPOSITORY = Path(__file__).resolve().parents[2]


def run_app(
    app: specs.AppDef,
    *,
    tracker_base: str | Path | None = None,
    parents: Mapping[str, protocol.RunIds] | None = None,
    run_id: str | None = None,
    shell: tuple[str, ...] = ("sh",),
    python: Ready | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the application as a process, which is a stage of the run ``run`` if there is a tracker base.

    Args:
        run_id: the stage's run id; by default, it is made from the AppDef's name.
        shell: the shell that ``sh`` is.
        python: the process whose forks run Python. Default: each starts the interpreter.
    """
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
    if tracker_base is not None:
        context = protocol.StageContext(str(tracker_base), run_id or f"run/{app.name}/1", parents or {})
        environ.update(protocol.encode(context))
    (role,) = app.roles
    if python is not None:
        assert role.entrypoint == "python"
        return python.python(role.args, REPOSITORY, environ)
    program = {"python": (sys.executable,), "sh": shell}[role.entrypoint]
    return subprocess.run([*program, *role.args], cwd=REPOSITORY, env=environ, capture_output=True, text=True)
