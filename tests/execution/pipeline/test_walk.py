"""The walk over a compiled pipeline, and names of runs and of executions: short, plain and unique."""

# mypy: disable-error-code="no-untyped-def"

import re

import pytest
from kfp import dsl

from tests.execution.local.components import shell
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.walk import PodNames, StageNames, make_run_name, walk


@dsl.pipeline
def inner():
    with dsl.ParallelFor([1, 2]):
        shell(script="a")


@dsl.pipeline
def outer(x: str = ""):
    first = shell(script="b")
    with dsl.If(x == "y"):
        shell(script="c").after(first)
    with dsl.ParallelFor([1, 2]):
        inner()
    inner().after(first)


def places(*args):
    """Return the places of a walk by their paths, without the numbers of groups, which KFP counts by process."""
    return {re.sub(r"(for-loop|condition)-\d+", r"\1", place.path): place for place in walk(*args)}


def test_every_stage_has_its_place():
    found = places(load_pipeline(outer))
    assert {path: (place.name, place.looped) for path, place in found.items() if place.is_stage} == {
        "shell": ("shell", False),
        "condition/shell-2": ("shell-2", False),
        "for-loop/inner/for-loop/shell": ("inner/shell", True),
        "inner-2/for-loop/shell": ("inner-2/shell", True),
    }


def test_a_group_comes_before_what_is_inside_and_after_what_it_waits_for():
    paths = list(places(load_pipeline(outer)))
    assert paths.index("shell") < paths.index("condition") < paths.index("condition/shell-2")
    assert paths.index("shell") < paths.index("inner-2")


def test_a_place_knows_what_is_around_it():
    found = places(load_pipeline(outer))
    branch = found["condition/shell-2"]
    assert branch.inside is found["condition"]
    assert branch.has_input("pipelinechannel--x")
    assert not branch.has_input("x")
    assert found["shell"].has_input("x")


def test_a_walk_can_begin_inside():
    pipeline = load_pipeline(outer)
    nested = places(pipeline)["inner-2"]
    names = StageNames().inside_iteration(3).inside(nested.task)
    assert places(pipeline, nested.component, names)["for-loop/shell"].name == "inner-2[3]/shell"


def test_an_execution_is_named_by_its_stage_and_its_attempt():
    names = PodNames()
    assert [names.make("inner/train[2,0]", attempt) for attempt in (1, 2)] == [
        "inner-train-2-0-0",
        "inner-train-2-0-1",
    ]


@pytest.mark.timeout(20)
def test_stages_that_are_alike_have_names_of_their_own():
    stages = ["a-2", "a-2-x4", "a[0]", "a[1]", "a[2]", "a-0", "a-0-0", "a", "a[0,0]"]
    names = PodNames()
    made = [names.make(stage, attempt) for attempt in (1, 2, 3) for stage in stages]
    assert len(set(made)) == 27
    assert {"a-2-0", "a-2-1", "a-2-2", "a-1-2", "a-0"} <= set(made)


def test_long_names_are_cut_and_stay_different():
    names = PodNames()
    made = [names.make("x" * 300 + end, attempt) for end in "ab" for attempt in (1, 2)]
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"x{191}-[0-9a-f]{8}-[01]", name) for name in made)
    assert names.make("x" * 200, 1) == "x" * 200 + "-0"
    assert len(make_run_name("p" * 300)) < 255
