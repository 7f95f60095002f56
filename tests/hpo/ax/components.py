"""TorchX components of these tests. Their applications need nothing but ``torchx_kfp.tracking``."""

from __future__ import annotations

import sys
from typing import Any

from torchx import specs

#: x in [0, 10]: 7 fails, 8 records nothing.
QUADRATIC = """
import sys
from torchx_kfp.tracking import current_run

x, scale = int(sys.argv[1]), float(sys.argv[2])
if x == 7:
    print("about to fail\\n\\n")
    sys.exit(7)
if x != 8:
    run = current_run()
    run.put({"loss/mean": scale * (x - 3) ** 2, "loss/sem": 0.5, "size": x, "word": "many"})
"""
#: Logs steps, and waits to be stopped.
SLOW = """
import time
from torchx_kfp.tracking import current_run

run = current_run()
run.log(1, loss=4)
run.log(2, loss=3)
run.flush()
time.sleep(100)
"""


def _app(code: str, *args: object) -> specs.AppDef:
    role = specs.Role("main", image="example.com/app:1", entrypoint=sys.executable)
    role.args = ["-c", code, *map(str, args)]
    return specs.AppDef("trial", [role])


def quadratic(x: int, scale: float = 1.0, volume: str = "") -> specs.AppDef:
    app = _app(QUADRATIC, x, scale)
    app.roles[0].mounts = [specs.VolumeMount("claim", volume)] if volume else []
    return app


def slow(x: int) -> specs.AppDef:
    return _app(SLOW)


def runner_of(component: Any, base: object = "memory://base", scheduler: str = "local_cwd", **options: Any) -> Any:
    """Return a runner of trials with this component."""
    from torchx_kfp.hpo.ax import TorchXRunner

    return TorchXRunner(component, tracker_base=base, scheduler=scheduler, **options)
