"""Time that a tracked stage's script adds to the start of a process, in milliseconds.

    python benchmarks/start.py

The bare command and the stage's whole command run in turn, with the same real binaries.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torchx.specs import AppDef, Role

from torchx_kfp.adapter.plan import plan_stage

ROUNDS = 300
LIMIT = 5.0
PATH = "/usr/local/bin:/usr/bin:/bin"


def milliseconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, env={"PATH": PATH})
    return (time.perf_counter() - start) * 1000


def main() -> None:
    program = os.path.realpath(shutil.which("true", path=PATH) or "/bin/true")
    arguments = ["--lr", "0.1", "--name", "a"]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for label, words, env in (
            ("plain", arguments, {}),
            ("with variables", arguments, {"A": "1", "B": "2"}),
            ("with four escaped arguments", [*arguments, "$$", "$(HOME)", "{{workflow.name}}", "\x7f"], {}),
        ):
            app = AppDef("train", roles=[Role("trainer", image="x", entrypoint=program, args=words, env=env)])
            plan = plan_stage(app, tracker_base=("/tmp/results",), sources={"prepare": "run/prepare/1"})
            output = "{{$.outputs.parameters['run_id'].output_file}}"
            stage = [word.replace(output, str(Path(folder, "stage", "run_id"))) for word in plan.command]
            bare, tracked = [], []
            for _ in range(ROUNDS):
                bare.append(milliseconds([program, *words]))
                tracked.append(milliseconds(stage))
            before, after = statistics.median(bare), statistics.median(tracked)
            ratios.append({"case": label, "bare": before, "tracked": after, "added": after - before})
            print(
                f"{label}: bare {before:.2f} ms, tracked {after:.2f} ms, added {after - before:.2f} ms, "
                f"ratio {after / before:.1f}"
            )
    if "--json" in sys.argv:
        print(json.dumps(ratios))
    sys.exit(ratios[0]["added"] > LIMIT)


if __name__ == "__main__":
    main()
