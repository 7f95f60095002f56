"""The processor time of watching a run of 1,000 stages on KFP, as a share of one core.

A poll reads two answers: v2beta1's, which has the state of the run, and v1beta1's, whose manifest has its nodes. The
answers are made up as KFP 2.17 gives them, and read: JSON to nodes to events to the state of the run. ``watch`` asks
every 2 s while something changes, here ten stages, and every 10 s while nothing does. The peer only reads the JSON.
"""

import json
import statistics
import tempfile
import time
from collections import defaultdict

from dev.benchmarks import show, timed
from tests.fake_kfp import KfpHost
from torchx_kfp.execution.host.nodes import manifest_of, read_manifest
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.pipeline.walk import outline
from torchx_kfp.execution.runs.state import RunState

STAGES, STEP = 1000, 10
#: Seconds from one answer to the next.
INTERVALS = {"that change": 2.0, "that stay the same": 10.0}


class Reader:
    """Reads answers as ``watch`` does."""

    def __init__(self) -> None:
        self.pipeline: RunPipeline | None = None
        self.snapshot = Snapshot()
        self.state = RunState()
        self.manifest = ""

    def read(self, run: str, with_manifest: str) -> None:
        before, self.manifest = self.manifest, manifest_of(json.loads(with_manifest))
        answer = json.loads(run)
        if self.pipeline is None:
            self.pipeline = RunPipeline.of(answer)
            assert self.pipeline is not None
            self.state = RunState(outline(self.pipeline.pipeline))
        if self.manifest == before:
            return
        nodes = read_manifest(self.manifest)
        self.snapshot = Snapshot.of(answer, self.pipeline, nodes, before=self.snapshot)
        for step in self.snapshot.steps:
            self.state.on_event(step.event)


def main() -> None:
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    reader = Reader()
    with tempfile.TemporaryDirectory() as folder:
        run = KfpHost(folder).make_run(STAGES, chains=50)
        for ended in [*range(0, STAGES, STEP), STAGES]:
            if ended == STAGES:
                run.finish()
            else:
                run.advance(started=min(ended + 50, STAGES), ended=ended)
            texts = json.dumps(run.describe()), json.dumps(run.describe_v1())
            for kind in INTERVALS:
                seconds = timed(lambda texts=texts: reader.read(*texts), time.process_time)
                times[kind].append((seconds, timed(lambda texts=texts: [*map(json.loads, texts)], time.process_time)))
    assert (str(reader.state.state), len(reader.state.stages)) == ("succeeded", STAGES)
    for kind, interval in INTERVALS.items():
        ours, peer = (100 * statistics.median(found) / interval for found in zip(*times[kind], strict=True))
        show(f"answers {kind}, {STAGES} stages", ours, "% of a core", most=5, peer=("the JSON alone", peer))
