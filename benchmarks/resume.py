"""The time to plan how a run of 1,000 stages goes on, and to start the run that continues it, compared to a new run.

    python -m benchmarks.resume

The last stage has failed, and all stages read the first one and the one before them. A start is the time from the
pipeline's function, which is compiled, to the first process of a stage. There are limits for the plan, in seconds, and
for the ratio of the starts. All times are those of this process's processor: other programs do not count.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kfp import dsl

from torchx_kfp.local import Event, RunResult, StageStarted, Watch, load_pipeline, plan_run, run

STAGES = 1000
PLAN_LIMIT = 2.0
START_LIMIT = 1.5
ROUNDS = 3


@dsl.container_component
def stage(text: str, first: str, folder: str, name: str, out: dsl.OutputPath(str)):  # type: ignore[valid-type] (KFP's own form)
    """Fails while a file of its name exists."""
    script = 'test ! -e "$1/fail-$2" && printf %s "$2" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, out, folder, name, text, first])


def made() -> Any:
    """Return the pipeline's function as if it had just been written: KFP compiles it when it is decorated."""

    @dsl.pipeline(name="many")
    def many(folder: str):
        first = before = stage(text="", first="", folder=folder, name="0").output
        for number in range(1, STAGES):
            before = stage(text=before, first=first, folder=folder, name=str(number)).output

    return many


class _Started(Exception):
    """The first stage has started."""


class Start(Watch):
    """Ends the run when its first stage starts."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, StageStarted):
            raise _Started


def start(arguments: dict[str, Any], folder: Path, resume: RunResult | None = None) -> float:
    """Return the seconds until the first stage starts."""
    began = time.process_time()
    try:
        run(made(), arguments, output_dir=folder / "runs", cache=False, watch=Start(), resume=resume)
    except _Started:
        return time.process_time() - began
    raise RuntimeError("no stage has started")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arguments = {"folder": name}
        (folder / f"fail-{STAGES - 1}").touch()
        pipeline = load_pipeline(made())
        failed = run(pipeline, arguments, output_dir=folder / "runs", cache=False, watch=Watch())
        assert failed.state == "failed"
        (folder / f"fail-{STAGES - 1}").unlink()
        plans = []
        for _ in range(ROUNDS):
            began = time.process_time()
            plan = plan_run(pipeline, resume=failed)
            plans.append(time.process_time() - began)
        assert len(plan.kept) == STAGES - 1
        print(f"the plan: {min(plans):.2f} s, limit {PLAN_LIMIT} s")
        new = min(start(arguments, folder) for _ in range(ROUNDS))
        resumed = min(start(arguments, folder, failed) for _ in range(ROUNDS))
        print(f"start of a new run: {new:.2f} s, of a resumed one: {resumed:.2f} s, ratio {resumed / new:.2f}")
    if min(plans) > PLAN_LIMIT or resumed > START_LIMIT * new:
        sys.exit("over the limit")


if __name__ == "__main__":
    main()
