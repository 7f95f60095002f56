"""The environment variables that all stages of a run share."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from torchx_kfp.contract import protocol

#: A variable that every process of a run has, so that processes that have left their stage's session can be found: the
#: run's mark, a colon, and the stage's mark. A run that is started inside a stage adds its own after another colon.
RUN_MARK = "TORCHX_KFP_LOCAL_RUN"

_PYTHONS = ("python", "python3")


def stage_environment(folder: Path, run_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that all stages of a run share.

    They are the runner's variables, except those that describe a stage (the runner itself may run in one). ``python``
    and ``python3`` are the running interpreter. Python does not buffer output, so that it is seen while a stage runs.

    Args:
        folder: the run's folder. Scripts named ``python`` and ``python3`` are put there unless the interpreter's own
            folder has these names.
        run_id: the run's id.
        environ: the runner's environment variables.
    """
    configs = map(protocol.tracker_config_variable, protocol.decode_trackers(environ))
    own = {protocol.PIPELINE_RUN, protocol.POD_NAME, protocol.POD_UID, protocol.IMAGE}
    leaking = {*protocol.VARIABLES, *configs, *own, *protocol.OF_LAUNCHERS, *protocol.OF_REPLICAS}
    shared = {name: value for name, value in environ.items() if name not in leaking}
    shared.setdefault("PYTHONUNBUFFERED", "1")
    shared["PATH"] = os.pathsep.join([_python_folder(folder), shared.get("PATH") or os.defpath])
    outer = shared.get(RUN_MARK)
    shared[RUN_MARK] = f"{outer}:{run_id}" if outer else run_id
    return shared


def stage_mark(environ: Mapping[str, str], run_id: str, pod_name: str) -> str:
    """Return the value of ``RUN_MARK`` for one stage."""
    return f"{environ[RUN_MARK]}:{run_id}/{pod_name}"


def _python_folder(folder: Path) -> str:
    own = os.path.dirname(os.path.abspath(sys.executable))
    if all(_is_own(os.path.join(own, name)) for name in _PYTHONS):
        return own
    # Use a script: if it were started through a link, Python would not find its virtual environment.
    shims = folder.absolute() / "bin"
    shims.mkdir(exist_ok=True)
    for name in _PYTHONS:
        shim = shims / name
        shim.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        shim.chmod(0o755)
    return str(shims)


def _is_own(path: str) -> bool:
    return os.path.realpath(path) == os.path.realpath(sys.executable) and os.access(path, os.X_OK)
