"""Whatever dies when: schedules of killed launchers and of faults of the API server, one after the other.

``TORCHX_KFP_SCHEDULES=200 make test-cluster ARGS="-n0 -s --timeout=3600 tests/cluster/test_schedules.py"`` tries that
many, and prints figures.
"""

import itertools
import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torchx.specs import AppDef, Role

from tests.cluster.control_plane import ControlPlane
from tests.cluster.faults import Fault, FaultyServer, Lines, Request
from tests.cluster.kubelet import Kubelet
from tests.cluster.namespaces import Namespace
from tests.cluster.stages import Stage
from torchx_kfp.tracking import FsspecResultTracker

#: A shell's program, since many are started. Replica 0 records the result: one file below the tracker base.
RECORD = """
echo "replica $TORCHX_REPLICA_ID"
[ "$TORCHX_REPLICA_ID" != 0 ] || {
    mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
    printf '{"loss": 0.25}' >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
}
sleep 0.5
"""
#: The numbers of stages.
numbers = itertools.count()
#: What was tried, and what came of it.
figures: Counter[str] = Counter()
#: How many schedules run at the same time.
TOGETHER = 6


@dataclass(frozen=True)
class Life:
    """One attempt: faults of its first requests, and the request at which it is killed, if it is.

    It is killed before the API server gets the request, or after the API server has handled it. With its node, its pod
    is gone, too.
    """

    faults: Sequence[Fault]
    killed_at: int | None = None
    when: Literal["before", "after"] = "before"
    with_node: bool = False


faults = st.lists(
    st.sampled_from([None, None, None, None, None, "cut", "lost", "half", 500, 503, 429, 401, 0.3, Lines(1)]),
    max_size=12,
)
killed = st.builds(Life, faults, st.integers(0, 14), st.sampled_from(["before", "after"]), st.booleans())
schedules = st.builds(lambda lives, last: (*lives, Life(last)), st.lists(killed, min_size=1, max_size=3), faults)


def follow(namespace: Namespace, seen: dict[str, set[str]], ends: threading.Event) -> None:
    """Take note of all Jobs and pods that there ever are, by the stage."""
    while not ends.wait(0.05):
        for resource in ("batch/v1/jobs", "pods"):
            for found in namespace.list(resource):
                name = found["metadata"].get("labels", {}).get("torchx-kfp/stage")
                if name:
                    seen.setdefault(f"{resource} {name}", set()).add(found["metadata"]["uid"])


def run_schedule(
    cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, folder: Path, number: int, lives: Sequence[Life]
) -> tuple[str, list[int], list[str], str | None, object, str]:
    """Run the attempts of a stage; return the name of its object, and what came of it."""
    app = AppDef("train", [Role("trainer", image="any", entrypoint="sh", args=["-c", RECORD], num_replicas=2)])
    stage = Stage(namespace, kubelet, folder, app, name=f"s{number}", engine="job", results={"loss": float})
    codes, run_ids, log = [], [], ""
    for life in lives:
        with FaultyServer(cluster) as server:
            stage.environ["KUBERNETES_SERVICE_PORT"] = server.url.rpartition(":")[2]
            server.inject(life.faults)
            name = f"workflow-{stage.component}-{stage.attempts}"

            def at(when: str, request: Request, life: Life = life, name: str = name) -> None:
                if request.number == life.killed_at and when == life.when:
                    kubelet.kill(name)
                    if when == "before":
                        request.fault = "cut"

            server.before = lambda request, at=at: at("before", request)
            server.after = lambda request, at=at: at("after", request)
            attempt = stage.start(node=f"w{number}(0).train(0).executor({{}})")
            codes.append(attempt.ended())
            if life.with_node:
                namespace.api.delete(namespace.path("pods", name), gracePeriodSeconds=0)
            if "run_id" in attempt.outputs:
                run_ids.append(attempt.run_id)
            log += f"--- {codes[-1]}, {[f'{each} {each.fault}' for each in server.requests]}\n{attempt.log}"
        if codes[-1] == 0:
            break
    recorded = FsspecResultTracker(str(stage.base))
    results = dict(recorded.items())
    (job,) = [one for one in namespace.list("batch/v1/jobs") if one["metadata"]["name"].startswith(f"s{number}-")]
    return job["metadata"]["name"], codes, run_ids, attempt.outputs.get("loss"), results, log


def try_schedules(
    cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, folder: Path, drawn: Sequence[Sequence[Life]]
) -> None:
    """Try schedules at the same time, and assert what holds for each."""
    seen: dict[str, set[str]] = {}
    ends = threading.Event()
    follower = threading.Thread(target=follow, args=(namespace, seen, ends))
    follower.start()
    try:
        with ThreadPoolExecutor(len(drawn)) as pool:
            started = []
            for lives in drawn:
                number = next(numbers)
                started.append(
                    pool.submit(run_schedule, cluster, namespace, kubelet, folder / str(number), number, lives)
                )
            outcomes = [each.result() for each in started]
    finally:
        ends.set()
        follower.join()
    for name, codes, run_ids, published, results, log in outcomes:
        assert codes[-1] == 0, log
        assert set(codes[:-1]) <= {137}, log
        assert len(seen[f"batch/v1/jobs {name}"]) == 1, f"one object, whatever dies when\n{log}"
        assert len(seen[f"pods {name}"]) == 2, f"each replica runs once\n{log}"
        assert results == {run_ids[-1]: {"loss": 0.25}}, f"recorded once, under the run id of the stage\n{log}"
        assert published == "0.25", log
        figures.update(schedules=1, attempts=len(codes), killed=codes.count(137), objects=1, results=1)


@pytest.mark.cluster
def test_one_object_and_one_result_whatever_dies_when(
    cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    folder = tmp_path / "stages"
    folder.mkdir()

    @settings(
        max_examples=int(os.environ.get("TORCHX_KFP_SCHEDULES", "12")) // TOGETHER,
        deadline=None,
        # A schedule that fails is not made smaller: each try takes seconds.
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(st.lists(schedules, min_size=TOGETHER, max_size=TOGETHER))
    def attempt(drawn: list[tuple[Life, ...]]) -> None:
        try_schedules(cluster, namespace, kubelet, folder, drawn)

    attempt()
    print("\n" + ", ".join(f"{count} {name}" for name, count in figures.items()))
