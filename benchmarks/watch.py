"""The processor time of watching a run of 1,000 stages on KFP, for each answer of the host.

    python -m benchmarks.watch [STAGES]

A poll reads two answers: v2beta1's, which has the state of the run, and v1beta1's, whose manifest has its nodes. First,
the benchmark prints what the manifests of recorded runs cost. Then it makes up answers about a run of so many stages,
as KFP 2.17 gives them (each node twice, each stage with eight of them) and as 2.14 does, and reads them: JSON to nodes
to events to the state of the run. It prints, for answers in which ten stages have gone on and for ones that are the
same as before, the milliseconds of each step, and the share of one core at the interval at which ``watch`` asks: every
2 s while something changes, and every 10 s while nothing does.
"""

import itertools
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict

from tests.execution.host import answers_of_kfp
from tests.kfp_host import KfpHost
from torchx_kfp.execution.host.manifest import manifest_of, read_manifest
from torchx_kfp.execution.host.observer import Observer
from torchx_kfp.execution.runs.state import RunState, outline

STEP = 10
#: Seconds from one answer to the next.
BUSY, IDLE = 2.0, 10.0
STEPS = ("json", "nodes", "observe", "fold")


def measure_recorded() -> None:
    for name in ("succeeded", "size-hand", "size-image"):
        run, answer = answers_of_kfp.last(name), answers_of_kfp.manifest(name)
        text, other = json.dumps(answer), json.dumps(run)
        times: dict[str, list[float]] = defaultdict(list)
        for _ in range(20):
            began = time.process_time()
            manifest = manifest_of(json.loads(text))
            read = time.process_time()
            nodes = read_manifest(manifest)
            parsed = time.process_time()
            observer = Observer()
            events = observer.observe(run, nodes)
            times["json"].append(read - began)
            times["nodes"].append(parsed - read)
            times["events"].append(time.process_time() - parsed)
        shown = ", ".join(f"{step} {min(found) * 1000:.1f}" for step, found in times.items())
        print(
            f"recorded {name}: v1beta1 {len(text) / 1e6:.2f} MB (manifest {len(manifest) / 1e6:.2f}), v2beta1 "
            f"{len(other) / 1e6:.2f} MB, {len(events)} events from one answer: {shown} ms"
        )


def measure(version: str, stages: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = KfpHost(folder, version=version).make_run(stages, chains=50)
        observer = Observer()
        state: RunState | None = None
        manifest, last = "", None
        times: dict[str, list[float]] = defaultdict(list)
        for ended in [*range(0, stages, STEP), stages]:
            if ended == stages:
                run.finish()
            else:
                run.advance(started=ended + 50 if ended + 50 < stages else stages, ended=ended)
            texts = json.dumps(run.describe()), json.dumps(run.describe_v1())
            for kind in ("changed", "same"):
                moments = [time.process_time()]
                answer, manifest_before, manifest = json.loads(texts[0]), manifest, manifest_of(json.loads(texts[1]))
                moments.append(time.process_time())
                nodes = read_manifest(manifest, last) if manifest != manifest_before else None
                last = nodes or last
                moments.append(time.process_time())
                events = observer.observe(answer, nodes)
                moments.append(time.process_time())
                assert observer.pipeline is not None
                state = state or RunState(outline(observer.pipeline))
                for event in events:
                    state.on_event(event)
                moments.append(time.process_time())
                for step, (begin, end) in zip(STEPS, itertools.pairwise(moments), strict=True):
                    times[f"{kind} {step}"].append(end - begin)
        assert state is not None
        assert str(state.state) == "succeeded"
        assert len(state.stages) == stages
    size = " + ".join(f"{len(text) / 1e6:.1f}" for text in texts)
    for kind, interval in (("changed", BUSY), ("same", IDLE)):
        medians = {step: statistics.median(times[f"{kind} {step}"]) * 1000 for step in STEPS}
        shown = ", ".join(f"{step} {value:.1f}" for step, value in medians.items())
        whole = sum(medians.values())
        print(
            f"KFP {version}, {stages} stages ({size} MB), answers {kind:8} {whole:.1f} ms: {shown}; "
            f"{whole / 1000 / interval:.1%} of a core"
        )


def main() -> None:
    measure_recorded()
    for version in ("2.17", "2.14"):
        measure(version, int(sys.argv[1]) if len(sys.argv) > 1 else 1000)


if __name__ == "__main__":
    main()
