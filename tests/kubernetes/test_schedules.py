"""Whatever dies when: schedules of what happens to launchers, replicas and the API server, several at the same time.

``TORCHX_KFP_SCHEDULES=200 make test-cluster ARGS="-n0 --timeout=3600 tests/kubernetes/test_schedules.py"`` tries that
many. Schedules that fail are printed.
"""

from __future__ import annotations

import os
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


@pytest.mark.cluster
@pytest.mark.usefixtures("controllers")
def test_one_object_and_one_result_whatever_dies_when(
    cluster: ControlPlane, namespace: Namespace, kubelet: Kubelet, tmp_path: Path
) -> None:
    for engine in COLLECTIONS:
        give_rights(namespace, engine, f"{engine}-launcher")
    decoys = {each: namespace.create(manifest) for each, manifest in DECOYS.items()}

    with closing(History(namespace, list(DECOYS))) as history:

        def problem_of(number: int) -> str:
            schedule = draw(Random())
            trial = prepare(kubelet, history, tmp_path / str(number), f"s{number}", schedule)
            try:
                run(trial, cluster)
                check(trial)
                end(trial)
            except BaseException:
                return f"{schedule}\n{trial.log}{traceback.format_exc()}"
            return ""

        with ThreadPoolExecutor(TOGETHER) as pool:
            count = int(os.environ.get("TORCHX_KFP_SCHEDULES", "12"))
            problems = list(filter(None, pool.map(problem_of, range(count))))
    if problems:
        pytest.fail("\n".join(problems), pytrace=False)
    for collection, decoy in decoys.items():
        found = namespace.api.get(namespace.path(collection, decoy["metadata"]["name"]))
        assert _untouched(found) == _untouched(decoy)


def _untouched(found: Object) -> Object:
    """Return what only its owner changes."""
    names = ("uid", "labels", "ownerReferences", "deletionTimestamp")
    return {**{name: found["metadata"].get(name) for name in names}, "spec": found["spec"]}
