"""The stages that a stage reads: their aliases, their execution ids, and the dependencies that follow."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, load, make_app, unresolved_inputs
from tests.authoring.kfp_engines import tracked_container
from torchx_kfp import task_from_app

pytestmark = pytest.mark.versions

BASE = "/tmp/results"
stage = functools.partial(task_from_app, tracker_base=BASE)
SHOW = make_app("read", entrypoint="env", args=["-0"])


@dsl.pipeline(name="inner")
def inner(tracker_base: str) -> str:
    return task_from_app(make_app("train"), tracker_base=tracker_base).outputs["run_id"]


def parents(pipeline: Callable[..., Any], folder: Path, name: str = "read") -> dict[str, Any]:
    """Return the execution ids in a stage's environment; those that are inputs have the name of the input."""
    compiled = compile_pipeline(pipeline)
    spec, _ = load(compiled)
    assert unresolved_inputs(spec) == []
    declared = spec["components"][f"comp-{name}"]["inputDefinitions"]["parameters"]
    inputs = {each: '["many"]' if kind == {"parameterType": "LIST"} else each for each, kind in declared.items()}
    del inputs["stage"]
    found = tracked_container(compiled, name, folder, **inputs).environment()["TORCHX_PARENT_RUN_IDS"]
    return dict(json.loads(found))


def test_a_fan_in_over_a_loop(tmp_path: Path) -> None:
    def pipeline() -> None:
        with dsl.ParallelFor([1, 2]):
            trial = stage(make_app("trial"))
        stage(SHOW, reads=[dsl.Collected(trial.outputs["run_id"])])

    assert parents(pipeline, tmp_path) == {"trial": ["many"]}


def test_run_ids_of_all_kinds(tmp_path: Path) -> None:
    def pipeline(old_run: str, mode: str, ids: list) -> None:
        with dsl.If(mode == "a"):
            a = stage(make_app("a"))
        with dsl.Else():
            b = stage(make_app("b"))
        nested = inner(tracker_base=BASE)
        reads = {
            "old": old_run,
            "text": f"{old_run}",
            "constant": "run/train/1",
            "either": dsl.OneOf(a.outputs["run_id"], b.outputs["run_id"]),
            "nested": nested.output,
            "many": ids,
        }
        stage(SHOW, reads=reads)

    assert list(parents(pipeline, tmp_path).items()) == [
        ("old", "old"),
        ("text", "old"),
        ("constant", "run/train/1"),
        ("either", "either"),
        ("nested", "nested"),
        ("many", ["many"]),
    ]


@pytest.mark.parametrize("item", [{"run": "a/b/c", "lr": 0.1}, {"lr": 0.1, "run": "a/b/c"}])
def test_a_field_of_a_loop_over_constants(item: dict[str, Any], tmp_path: Path) -> None:
    def pipeline(mode: str) -> None:
        with dsl.ParallelFor([item]) as one, dsl.If(mode == "a"):
            stage(SHOW, reads={"old": one.run})

    assert parents(pipeline, tmp_path) == {"old": "old"}


def test_nothing_to_read() -> None:
    def pipeline() -> None:
        for number, reads in enumerate(([], {}, None, ())):
            stage(make_app(f"stage-{number}"), reads=reads)

    assert "TORCHX_PARENT" not in compile_pipeline(pipeline)


def test_the_tracker_base_in_text(tmp_path: Path) -> None:
    def pipeline(bucket: str) -> None:
        task_from_app(SHOW, tracker_base=f"s3://{bucket}/results")

    environ = tracked_container(compile_pipeline(pipeline), "read", tmp_path, bucket="it's").environment()
    assert environ["TORCHX_TRACKER_BASE"] == "s3://it's/results"
