"""The time that a tracked stage's script adds to the start of a process, in milliseconds.

    python -m benchmarks.start

The bare command and the stage's whole command run in turn, with the same real binaries. For a stage with results, the
time until the application runs is measured, without the publication of results afterwards.
"""

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp.authoring.options import StageSettings
from torchx_kfp.authoring.outputs import read_publication
from torchx_kfp.authoring.plan import StagePlan, plan_stage

ROUNDS = 300
LIMIT = 5.0
#: The limit for the program that publishes results.
PUBLISHER_LIMIT = 60.0
PATH = "/usr/local/bin:/usr/bin:/bin"


def milliseconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env={"PATH": PATH})
    return (time.perf_counter() - start) * 1000


def main() -> None:
    program = os.path.realpath(shutil.which("true", path=PATH) or "/bin/true")
    arguments = ["--lr", "0.1", "--name", "a"]
    added = []
    with tempfile.TemporaryDirectory() as folder:
        for label, words, env in (
            ("plain", arguments, {}),
            ("with variables", arguments, {"A": "1", "B": "2"}),
            ("with four escaped arguments", [*arguments, "$$", "$(HOME)", "{{workflow.name}}", "\x7f"], {}),
        ):
            app = AppDef("train", roles=[Role("trainer", image="x", entrypoint=program, args=words, env=env)])
            plan = plan_stage(app, StageSettings(tracker_base=("/tmp/results",), sources={"prepare": "run/prepare/1"}))
            output = "{{$.outputs.parameters['run_id'].output_file}}"
            stage = [word.replace(output, str(Path(folder, "stage", "run_id"))) for word in filled_in(plan)]
            bare, tracked = [], []
            for _ in range(ROUNDS):
                bare.append(milliseconds([program, *words]))
                tracked.append(milliseconds(stage))
            before, after = statistics.median(bare), statistics.median(tracked)
            added.append(after - before)
            print(
                f"{label}: bare {before:.2f} ms, tracked {after:.2f} ms, added {after - before:.2f} ms, "
                f"ratio {after / before:.1f}"
            )
    sys.exit(added[0] > LIMIT or with_results() > PUBLISHER_LIMIT)


def filled_in(plan: StagePlan) -> list[str]:
    """Return the command of a stage with the constants that its task passes to its inputs."""
    constants = {
        f"{{{{$.inputs.parameters['{name}']}}}}": it.argument
        for name, it in plan.inputs.items()
        if isinstance(it.argument, str)
    }
    placeholder = re.compile("|".join(map(re.escape, constants)) or "$^")
    return [placeholder.sub(lambda found: constants[found.group()], word) for word in plan.command]


def with_results() -> float:
    """Return the milliseconds that a stage with results adds until its application runs, which prints the time."""
    with tempfile.TemporaryDirectory() as folder:
        app = AppDef("train", roles=[Role("trainer", image="x", entrypoint="date", args=["+%s%N"])])
        publication = read_publication({"accuracy": float}, {"model": dsl.Model})
        plan = plan_stage(app, StageSettings(tracker_base=(folder,), publication=publication))
        outputs = {
            "parameters": {name: {"outputFile": f"{folder}/{name}"} for name in ("run_id", "accuracy")},
            "artifacts": {name: {"artifacts": [{"uri": f"{folder}/{name}"}]} for name in ("metrics", "model")},
            "outputFile": f"{folder}/executor_output.json",
        }
        placeholder = re.compile(r"\{\{\$\.outputs\.\w+\['(\w+)'\]\.\w+\}\}")
        stage = [
            placeholder.sub(rf"{folder}/\1", word).replace("{{$}}", json.dumps({"outputs": outputs}))
            for word in filled_in(plan)
        ]
        path = f"{Path(sys.executable).parent}:{PATH}"
        bare, tracked = [], []
        for _ in range(ROUNDS // 3):
            for command, times in (["date", "+%s%N"], bare), (stage, tracked):
                start = time.time_ns()
                done = subprocess.run(command, env={"PATH": path}, capture_output=True)
                times.append((int(done.stdout) - start) / 1e6)
    before, after = statistics.median(bare), statistics.median(tracked)
    print(
        f"with results, until the application runs: bare {before:.2f} ms, stage {after:.2f} ms, "
        f"added {after - before:.2f} ms (limit {PUBLISHER_LIMIT:g})"
    )
    return after - before


if __name__ == "__main__":
    main()
