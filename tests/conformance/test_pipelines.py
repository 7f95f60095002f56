"""Each pipeline ends on the host as on this machine, but for what ``docs/why/differences.md`` says."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.cases import FAMILIES, Case, load_cases
from tests.conformance.conftest import NAMED
from tests.conformance.pipelines import replicas
from tests.conformance.place import Place
from tests.conformance.suite import Suite
from torchx_kfp.execution.pipeline.load import load_pipeline

#: What the tests run on their own host, which runs pipelines as this machine does: each of what makes names and states
#: of stages, and those that end in an unusual way.
FEW = (
    "conditions.collected_from_branches",
    "conditions.one_of_in_one_of",
    "conditions.what_reads_a_skipped_stage_is_skipped",
    "containers.concatenated",
    "examples.hello",
    "exits.pipeline_as_exit_task",
    "exits.two_handlers",
    "failures.in_a_branch",
    "failures.retries",
    "importers.in_a_loop",
    "loops.nested",
    "loops.over_nothing",
    "nested.failure_inside",
    "nested.in_a_loop",
    "results.a_failure_ends_the_run",
    "results.a_failure_that_may_happen",
    "results.a_list_drives_a_loop_and_its_fields_are_channels",
    "results.of_the_last_attempt",
)
CASES = [case for family in FAMILIES for case in load_cases(family).values() if NAMED is not None or case.name in FEW]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_pipeline(case: Case, suite: Suite, record_property: Callable[[str, object], None]) -> None:
    if case.missing and suite.place.is_real:
        pytest.skip(f"it needs {case.missing}")
    if lacking := set(case.packages) - suite.packages:
        pytest.skip(f"the image {suite.place.image} has no {' and no '.join(sorted(lacking))}")
    verdict = suite.prove(case)
    record_property("kfp", (case.name, verdict.there, verdict.here, verdict.differences, verdict.expected))
    assert verdict.expected or not verdict.differences, f"run {verdict.run_id}: " + "\n".join(verdict.differences)


@pytest.mark.parametrize("engine", ["job", "jobset"])
def test_replicas_have_the_image_of_the_place(engine: str) -> None:
    spec, platform = load_pipeline(replicas(engine).pipeline).copy_documents()
    assert '"image":"python:3.11"' in str(spec)
    Place("http://host", "s3://bucket", image="suite:1").fit(spec, platform)
    assert ("python:3.11" in str(spec), '"image":"suite:1"' in str(spec)) == (False, True)


@pytest.mark.parametrize("engine", NAMED.engines if NAMED else ("job",))
def test_engine(engine: str, suite: Suite, record_property: Callable[[str, object], None]) -> None:
    test_pipeline(replicas(engine), suite, record_property)
