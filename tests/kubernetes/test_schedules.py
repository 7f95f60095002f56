"""Whatever dies when: schedules of what happens to launchers, replicas and the API server, several at the same time.

``TORCHX_KFP_SCHEDULES=200 make test-cluster ARGS="-n0 --timeout=3600 tests/kubernetes/test_schedules.py"`` tries that
many. Schedules that fail are printed; put one into ``FOUND`` to try it again.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from tests.kubernetes.api import Object
from tests.kubernetes.control_plane import ControlPlane
from tests.kubernetes.history import History
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.manifests import container, headless_service, job, jobset, pod
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.schedules import Blow, Life, Schedule, check, end, prepare, run
from tests.kubernetes.stages import COLLECTIONS, give_rights

#: Objects that belong to nobody's stage, by their collections.
DECOYS = {
    "batch/v1/jobs": job("decoy", container("true"), replicas=2, suspend=True),
    "jobset.x-k8s.io/v1alpha2/jobsets": jobset("decoy", ("trainer", container("true"), 2), suspend=True),
    "pods": pod("decoy", container("true"), schedulerName="nobody"),
    "services": headless_service("decoy-service", "decoy"),
}
#: How many schedules run at the same time.
TOGETHER = 6
#: What befalls launchers that have to be replaced.
BLOWS = ["kill", "kill", "term", "cut off"]
#: What befalls requests.
FAULTS = [*[None] * 12, "cut", "lost", 500, 503, 429, 401, 0.3]
#: Schedules that once found a defect, and are tried each time.
FOUND: Sequence[Schedule] = ()


def draw(random: Random) -> Schedule:
    """Return any schedule."""
    # No restarts of a Job: it waits 10 s before each.
    engine = random.choice(["job", "jobset"])
    # A run is terminated in the end, or has time to succeed.
    ends = [draw_life(random, ["term"])] if random.random() < 0.2 else [draw_life(random, []) for _ in range(3)]
    return Schedule(
        engine,
        restarts=0 if engine == "job" else random.randint(0, 1),
        failing=random.choice([*[(0, 0)] * 5, (0, 1), (1, 0), (1, 1), (0, 2)]),
        seconds=random.choice([0, 0.5, 2]),
        back=random.randint(0, 8),
        lives=(*(draw_life(random, BLOWS) for _ in range(random.choice([0, 1, 1, 2, 3]))), *ends),
    )


def draw_life(random: Random, kinds: Sequence[str]) -> Life:
    """Return a life with blows of these kinds."""
    blows = [
        Blow(random.randint(0, 16), random.choice(["before", "after"]), random.choice(kinds))
        for _ in range(random.choice([1, 1, 2]) if kinds else 0)
    ]
    faults = random.choices(FAULTS, k=random.randint(0, 12))
    return Life(tuple(faults), tuple(blows), with_node=random.random() < 0.5)


class Trials:
    """Tries schedules beside each other."""

    def __init__(self, cluster: ControlPlane, kubelet: Kubelet, history: History, folder: Path) -> None:
        self.problems: list[str] = []
        self._pool = ThreadPoolExecutor(TOGETHER)
        self._slots = threading.Semaphore(TOGETHER)
        self._count = 0
        self._cluster = cluster
        self._prepare = lambda number, schedule: prepare(kubelet, history, folder / str(number), f"s{number}", schedule)

    def start(self, schedule: Schedule) -> None:
        """Start to try a schedule once there is room for it."""
        self._slots.acquire()
        self._pool.submit(self._run, self._count, schedule)
        self._count += 1

    def end(self) -> None:
        """Wait until all have been tried."""
        self._pool.shutdown()

    def _run(self, number: int, schedule: Schedule) -> None:
        trial = None
        try:
            trial = self._prepare(number, schedule)
            run(trial, self._cluster)
            check(trial)
            end(trial)
        except BaseException:
            self.problems.append(f"{schedule}\n{trial.log if trial else ''}{traceback.format_exc()}")
        finally:
            self._slots.release()


@pytest.mark.cluster
@pytest.mark.usefixtures("jobset_controller")
def test_one_object_and_one_result_whatever_dies_when(
    cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    for engine in COLLECTIONS:
        give_rights(namespace, engine, f"{engine}-launcher")
    decoys = {each: namespace.create(manifest) for each, manifest in DECOYS.items()}

    with closing(History(namespace, list(DECOYS))) as history:
        trials = Trials(cluster, kubelet, history, tmp_path)
        for found in FOUND:
            trials.start(found)
        random = Random()
        for _ in range(int(os.environ.get("TORCHX_KFP_SCHEDULES", "12"))):
            trials.start(draw(random))
        trials.end()
    if trials.problems:
        pytest.fail("\n".join(trials.problems), pytrace=False)
    for collection, decoy in decoys.items():
        found = namespace.api.get(namespace.path(collection, decoy["metadata"]["name"]))
        assert _untouched(found) == _untouched(decoy)


def _untouched(found: Object) -> Object:
    """Return what only its owner changes."""
    names = ("uid", "labels", "ownerReferences", "deletionTimestamp")
    return {**{name: found["metadata"].get(name) for name in names}, "spec": found["spec"]}
