"""What a tracked stage adds to the start of its application, in milliseconds, and what current_run costs to import.

The bare command and the stage's whole command run in turn, with the same real binaries, until the application prints
the time.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kfp import dsl
from torchx.specs import AppDef, Role

from dev.benchmarks import medians, show, timed
from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.authoring.plan import StagePlan, plan_stage

ROUNDS = 100
NOW = ["date", "+%s%N"]
PATH = f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"


def until_it_runs(command: list[str]) -> float:
    start = time.time_ns()
    done = subprocess.run(command, env={"PATH": PATH}, capture_output=True)  # publication misses results, afterwards
    return (int(done.stdout) - start) / 1e6


def filled_in(plan: StagePlan, folder: str) -> list[str]:
    """Return the command of a stage with its constants, and with places for what it puts out."""
    outputs = {
        "parameters": {name: {"outputFile": f"{folder}/{name}"} for name in ("run_id", "accuracy")},
        "artifacts": {name: {"artifacts": [{"uri": f"{folder}/{name}"}]} for name in ("metrics", "model")},
        "outputFile": f"{folder}/executor_output.json",
    }

    def value(found: re.Match[str]) -> str:
        if found[1] == "inputs":
            return str(plan.parameters[found[2]].argument)
        return f"{folder}/{found[2]}"

    placeholder = re.compile(r"\{\{\$\.(inputs|outputs)\.\w+\['([\w.-]+)'\][\w.]*\}\}")
    return [placeholder.sub(value, word).replace("{{$}}", json.dumps({"outputs": outputs})) for word in plan.command]


def added(label: str, most: float, **settings: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        app = AppDef("train", roles=[Role("trainer", image="x", entrypoint=NOW[0], args=NOW[1:])])
        plan = plan_stage(app, StageOptions(tracker_base=folder, reads={"prepare": "run/prepare/1"}, **settings))
        stage = filled_in(plan, folder)
        bare, tracked = medians(ROUNDS, lambda: until_it_runs(NOW), lambda: until_it_runs(stage))
    show(f"a stage{label} adds", tracked - bare, "ms", most=most)
    print(f"    ({tracked:.2f} ms until the application runs, bare {bare:.2f} ms, ratio {tracked / bare:.1f})")


def imported(line: str) -> float:
    return 1000 * timed(lambda: subprocess.run([sys.executable, "-c", line], check=True))


def main() -> None:
    added("", 2)
    added(" with results", 32, results={"accuracy": float}, artifacts={"model": dsl.Model})
    lines = ("pass", "import fsspec", "from torchx_kfp.tracking import current_run")
    bare, peer, ours = medians(15, *(lambda line=line: imported(line) for line in lines))
    show("from torchx_kfp.tracking import current_run", ours - bare, "ms", most=60, peer=("import fsspec", peer - bare))
