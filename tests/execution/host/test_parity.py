"""A pipeline has the same stages, states and reasons on the tests' host as in a local run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases import load_cases
from tests.fake_kfp import KfpHost
from torchx_kfp import local
from torchx_kfp.host import HostRun, connect
from torchx_kfp.local import State, load_pipeline

#: Cases with each of what makes names and states, and those that end in an unusual way.
CASES = (
    "loops.nested",
    "loops.over_an_output",
    "loops.over_nothing",
    "nested.in_a_loop",
    "conditions.in_each_other",
    "conditions.collected_from_branches",
    "conditions.what_reads_a_skipped_stage_is_skipped",
    "exits.two_handlers",
    "exits.pipeline_as_exit_task",
    "failures.retries",
    "failures.in_a_branch",
    "nested.failure_inside",
    "importers.in_a_loop",
)


def case_of(name: str) -> Any:
    family, _, case = name.partition(".")
    return load_cases(family)[case]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, HostRun]]:
    """Yield runs of all cases on a host: they run side by side."""
    folder = tmp_path_factory.mktemp("host")
    with KfpHost(folder, directory=folder, options={"cache": False, "parallelism": 2}) as host:
        there, made = connect(host=host.url), {}
        for name in CASES:
            case = case_of(name)
            run_id = there.submit(load_pipeline(case.pipeline), case.arguments)
            made[name] = HostRun(there.connection, run_id)
        yield made


@pytest.mark.parametrize("name", CASES)
def test_a_run_on_a_host_has_the_stages_of_a_local_run(
    name: str, runs: dict[str, HostRun], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = case_of(name)
    here = local.run(case.pipeline, case.arguments, watch=local.Watch(), cache=False, parallelism=2)
    there = runs[name].wait(local.Watch(), timeout=120)
    assert there.state is here.state
    # Some cases have stages whose order is that of chance.
    for stage, other in zip(by_name(there), by_name(here), strict=True):
        facts = [(it.name, it.task, it.state, it.attempts, it.exit_code) for it in (stage, other)]
        assert facts[0] == facts[1]
        if stage.state is not State.FAILED:
            assert stage.reason == other.reason


def by_name(result: local.RunResult) -> list[local.StageResult]:
    return sorted(result.stages, key=lambda stage: stage.name)
