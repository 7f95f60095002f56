"""Names of runs and of executions: short, plain and unique; ``tests/cases/nested.py`` has those of pipelines."""

# mypy: disable-error-code="no-untyped-def"

import re

from torchx_kfp.execution.pipeline.walk import PodNames, make_run_name


def test_an_execution_is_named_by_its_stage_and_its_attempt():
    names = PodNames()
    assert [names.make("inner/train[2,0]", attempt) for attempt in (1, 2)] == [
        "inner-train-2-0_1",
        "inner-train-2-0_2",
    ]


def test_stages_that_are_alike_have_names_of_their_own():
    stages = ["a-2", "a-2-x4", "a[0]", "a[1]", "a[2]", "a-0", "a-0-0", "a", "a[0,0]"]
    names = PodNames()
    made = [names.make(stage, attempt) for attempt in (1, 2, 3) for stage in stages]
    assert len(set(made)) == 27
    assert {"a-2_1", "a-2_2", "a-2_3", "a-1_3", "a_1"} <= set(made)


def test_long_names_are_cut_and_stay_different():
    names = PodNames()
    made = [names.make("x" * 300 + end, attempt) for end in "ab" for attempt in (1, 2)]
    assert len(set(made)) == 4
    assert all(re.fullmatch(r"x{191}-[0-9a-f]{8}_[12]", name) for name in made)
    assert names.make("x" * 200, 1) == "x" * 200 + "_1"
    assert len(make_run_name("p" * 300)) < 255
