"""The processor time of watching a run of 1,000 stages on KFP, for each answer of the host.

    python -m benchmarks.watch [STAGES]

The answers are made up, as KFP 2.17 gives them (each node twice, each stage with eight of them) and as 2.14 does. Every
poll reads one answer: JSON to events to the state of the run. The benchmark prints, for an answer in which ten stages
have gone on and for one that is the same as before, the milliseconds of each step, and the share of one core at the
interval at which ``watch`` asks: every 2 s while something changes, and every 10 s while nothing does.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict

from tests.backend.host import KfpHost
from torchx_kfp.backend.observer import Observer
from torchx_kfp.runs.state import RunState, outline

STEP = 10
#: Seconds from one answer to the next.
BUSY, IDLE = 2.0, 10.0


def measure(version: str, stages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = KfpHost(folder, version=version).make_run(stages, chains=50)
        observer = Observer()
        state: RunState | None = None
        times: dict[str, list[float]] = defaultdict(list)
        for ended in [*range(0, stages, STEP), stages]:
            if ended == stages:
                run.finish()
            else:
                run.advance(started=ended + 50 if ended + 50 < stages else stages, ended=ended)
            text = json.dumps(run.describe())
            if ended == STEP:
                observer.observe(json.loads(text), run.describe_v1())  # the names of pods
            for kind in ("changed", "same"):
                begin = time.process_time()
                answer = json.loads(text)
                parsed = time.process_time()
                observer.wants_manifest(answer)
                events = observer.observe(answer)
                observed = time.process_time()
                state = state or RunState(outline(observer.pipeline))
                for event in events:
                    state.on_event(event)
                folded = time.process_time()
                times[f"{kind} json"].append(parsed - begin)
                times[f"{kind} observe"].append(observed - parsed)
                times[f"{kind} fold"].append(folded - observed)
        assert state is not None
        assert str(state.state) == "succeeded"
        assert len(state.stages) == stages
    size = len(text) / 1e6
    for kind, interval in (("changed", BUSY), ("same", IDLE)):
        steps = {name: statistics.median(times[f"{kind} {name}"]) * 1000 for name in ("json", "observe", "fold")}
        shown = ", ".join(f"{name} {value:.1f}" for name, value in steps.items())
        most = max(times[f"{kind} observe"][1:]) * 1000
        share = sum(steps.values()) / 1000 / interval
        print(
            f"KFP {version}, {stages} stages ({size:.1f} MB), answer {kind:8} {shown} ms "
            f"(observe at most {most:.1f} ms), {share:.1%} of a core"
        )


def main() -> None:
    stages = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    for version in ("2.17", "2.14"):
        measure(version, stages)


if __name__ == "__main__":
    main()
