"""Measure the cost of a search besides its trials: the seconds of a round on this machine, and the bytes of one on KFP.

    python -m benchmarks.search

A search of three rounds runs as processes, with trials that end at once; then the same trials in one loop, without a
search. The difference is divided by the rounds. On a KFP backend, a round is one stage and one loop more than its
trials. ``torchx_kfp.execution.model.workflow`` is the model of the workflow. Exits with 1 if a round takes more than
11,000 bytes, or if 100 trials in ten rounds do not fit.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from torchx_kfp import hpo, task_from_app
from torchx_kfp.execution.model.workflow import LIMIT, measure
from torchx_kfp.local import Watch, run

ROUNDS, TRIALS = 3, 4
#: The compressed bytes of the state of a trial: a stage, and the iteration that has it.
STATE = 2_650
GOAL = 11_000

#: Records a loss without a library.
RECORD = 'set -eu; set -- "$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID" "$1"; mkdir -p "${1%/*}"; echo \'{"loss": \'"$2}" >"$1"'


def make_app(lr: Any) -> AppDef:
    return AppDef("train", [Role("train", image="x", entrypoint="sh", args=["-c", RECORD, "train", f"{lr}"])])


def make_search(rounds: int, trials: int) -> Any:
    @dsl.pipeline(name="search")
    def pipeline(tracker_base: str):
        parameters = {"lr": hpo.log(1e-4, 1.0)}
        hpo.search(
            lambda p: make_app(p.lr),
            parameters,
            minimize="loss",
            rounds=rounds,
            trials=trials,
            tracker_base=tracker_base,
        )

    return pipeline


@dsl.pipeline(name="loop")
def loop(tracker_base: str):
    with dsl.ParallelFor([0.01 * number for number in range(ROUNDS * TRIALS)]) as lr:
        task_from_app(make_app(lr), tracker_base=tracker_base, results={}, may_fail=True)


def seconds(pipeline: Any) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        done = run(
            pipeline, {"tracker_base": f"{folder}/tracker"}, output_dir=f"{folder}/runs", cache=False, watch=Watch()
        )
        done.raise_for_failure()
        return time.perf_counter() - begin


def workflow(rounds: int) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(make_search(rounds, 10), str(path))
        return measure(path.read_text(encoding="utf-8"))


def main() -> None:
    trials = seconds(loop)
    whole = seconds(make_search(ROUNDS, TRIALS))
    print(
        f"{ROUNDS * TRIALS} trials here: {trials:.2f} s in one loop, {whole:.2f} s in {ROUNDS} rounds: "
        f"{(whole - trials) / (ROUNDS + 1):.2f} s for each stage that asks"
    )
    few, many = workflow(3), workflow(10)
    each = (many.workflow - few.workflow) / 7
    room = {size: (LIMIT - size.workflow - size.state) // STATE for size in (few, many)}
    print(
        f"workflow: 3 rounds {few.workflow:,} bytes, 10 rounds {many.workflow:,} bytes, {each:,.0f} bytes a round; "
        f"{room[few]} or {room[many]} trials run to their end within {LIMIT:,} bytes"
    )
    sys.exit(each > GOAL or room[many] < 100)


if __name__ == "__main__":
    main()
