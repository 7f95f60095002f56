"""The size of the workflow that KFP's backend creates: the model, and the sizes of this project's stages."""

import dataclasses
import functools
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, compile_stage, make_app
from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.execution.model.workflow import LEVEL_LIMIT, LIMIT, Size, check_size, describe, measure
from torchx_kfp.execution.pipeline.load import load_pipeline, pipeline_from_documents, pipeline_from_text

RECORDED = Path(__file__).parents[2] / "recorded" / "pipeline.yaml"


def test_a_recorded_workflow() -> None:
    """The workflow that KFP 2.17 created from this pipeline had 54,153 bytes of JSON when it started."""
    size = measure(load_pipeline(RECORDED))
    assert size.workflow == pytest.approx(54_153, rel=0.1)
    assert (size.level, size.tasks) == (5_752, 6)
    assert size.stages == 7, "one of them in a loop of two iterations, one in a branch that was not taken"


@functools.cache
def recorded(name: str) -> tuple[dict[str, Any], Size]:
    """Return a recorded run's facts, and the size of its pipeline as the model has it."""
    with gzip.open(RECORDED.with_name("sizes.json.gz")) as file:
        facts = json.load(file)[name]
    return facts, measure(pipeline_from_documents([facts["spec"], facts["platform"]], name))


@pytest.mark.parametrize("name", ["hand", "image", "inline", "200", "220 with the program", "250 from an image"])
def test_recorded_sizes(name: str) -> None:
    """Of runs with one result a stage, with KFP 2.17 and Argo 4.0.5."""
    facts, size = recorded(name)
    assert size.stages == size.tasks
    assert size.workflow == pytest.approx(facts["workflow"], rel=0.04)
    assert size.state * facts["ended"] / size.stages == pytest.approx(facts["state"], rel=0.1)


def test_recorded_runs_that_reached_their_ends() -> None:
    for name in ("220 with the program", "250 from an image"):
        _, size = recorded(name)
        assert 0.85 < size.share < 1
        assert not [*check_size(size)]


def test_a_recorded_run_that_did_not_reach_its_end() -> None:
    """Of 200 stages, 175 had succeeded when the workflow had 1,042,882 bytes."""
    _, size = recorded("200")
    assert 165 < size.stages / size.share < 190
    (finding,) = check_size(size)
    assert re.search(says("200 stages", "fails before its end", "inline=False", "nodeStatusOffLoad"), str(finding))


def test_images_with_torchx_kfp_are_recommended_to_stages_that_carry_a_program() -> None:
    for inline in (True, False):
        size = measure(pipeline_from_text(compile_stage(results={}, inline=inline)))
        (finding,) = check_size(dataclasses.replace(size, state=2 * LIMIT))
        assert ("inline=False" in str(finding)) == inline


def test_the_recorded_limit_of_a_level() -> None:
    """A level of 200 tasks ran, one of 225 did not; their components had 118,353 and 133,428 bytes, as JSON in JSON."""
    facts, size = recorded("200")
    assert 118_353 < size.level < 118_353 + 4_000 < LEVEL_LIMIT
    tasks = facts["spec"]["root"]["dag"]["tasks"]
    more = {f"stage-{200 + number}": tasks[f"stage-{100 + number}"] for number in range(25)}
    spec = {**facts["spec"], "root": {**facts["spec"]["root"], "dag": {"tasks": {**tasks, **more}}}}
    size = measure(pipeline_from_documents([spec], "more"))
    assert (size.tasks, size.level > LEVEL_LIMIT) == (225, True)
    assert re.search(
        says("225 tasks", "131,072", "No more retries", "nested", "ConfigMaps"), str([*check_size(size)][-1])
    )


def test_loops_branches_and_nested_pipelines() -> None:
    @dsl.pipeline(name="inner")
    def inner(tracker_base: str) -> None:
        task_from_app(make_app("deep"), tracker_base=tracker_base)

    def pipeline(items: list, flag: bool = True, tracker_base: str = "/tmp") -> None:
        with dsl.ParallelFor([1, 2, 3]):
            inner(tracker_base=tracker_base)
        with dsl.ParallelFor(items):
            task_from_app(make_app("unknown"), tracker_base=tracker_base)
        with dsl.If(flag == True):  # noqa: E712 (a channel)
            inner(tracker_base=tracker_base)

    size = measure(pipeline_from_text(compile_pipeline(pipeline)))
    assert size.stages == 5
    assert size.tasks == 3


@pytest.mark.parametrize(
    ("size", "facts"),
    [
        (Size(600, 1_300_000, 990_000, 50_000, 60), ["2.18 times", "is rejected", "274 of its 600", "execution_id"]),
        (Size(320, 700_000, 640_000, 50_000, 60), ["1.28 times", "fails before its end", "Nested pipelines do not"]),
        (Size(1, 140_000, 1_000, 131_073, 350), ["350 tasks", "131,073 bytes"]),
    ],
)
def test_what_exceeds_a_limit(size: Size, facts: list[str]) -> None:
    (finding,) = check_size(size)
    assert re.search(says(*facts), str(finding))
    assert not describe(size)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (Size(100, 210_000, 165_000, 39_000, 100), []),
        (
            Size(212, 520_000, 424_000, 131_072, 212),
            ["212 stages, about 0.9 of the 1 MiB that Argo accepts for a run."],
        ),
    ],
)
def test_what_fits(size: Size, said: list[str]) -> None:
    assert describe(size) == said
    assert not [*check_size(size)]
