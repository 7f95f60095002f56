"""Lists and dicts as results: what the publisher passes on to KFP, and what it rejects."""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st
from kfp.dsl import for_loop, pipeline_channel

from tests.contract.carried.published import RUN_ID, Stage
from tests.facts import says
from torchx_kfp.errors import RefusedError
from torchx_kfp.tracking import current_run

LARGEST = sys.float_info.max


@functools.cache
def attributes() -> set[str]:
    """Return the names that KFP's loop items have themselves."""
    channel = pipeline_channel.PipelineParameterChannel("trials", "List", task_name="ask")
    item = for_loop.LoopParameterArgument.from_pipeline_channel(channel)
    found = {name for name in dir(item) if not name.startswith("_")}
    for name in found - {"task"}:
        assert not isinstance(getattr(item, name), for_loop.LoopArgumentVariable), "KFP's own, not the field"
    return found


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | TEXT
FIELDS = TEXT.filter(lambda name: name not in attributes())
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(FIELDS, inner, max_size=4), max_leaves=12
)

Publish = Callable[..., tuple[str, str]]


@pytest.fixture
def publish(tmp_path_factory: pytest.TempPathFactory) -> Publish:
    """Publish one result; return the content of its output, and what the stage's log says."""

    def function(kind: str, name: str = "trials", **recorded: Any) -> tuple[str, str]:
        stage = Stage(tmp_path_factory.mktemp("stage"), results={name: {"list": list, "dict": dict}[kind]})
        current_run({"TORCHX_TRACKER_BASE": stage.base, "TORCHX_JOB_ID": RUN_ID}).add_metadata(recorded)
        done = stage.run("true")
        file = stage.folder / "out" / name
        assert file.exists() is not bool(done.returncode)
        return "" if done.returncode else file.read_text(), done.stderr

    return function


def published(folder: Path, recorded: dict[str, Any]) -> tuple[Stage, subprocess.CompletedProcess[str]]:
    """Run a stage that declares all that is recorded."""
    stage = Stage(folder, results={name: type(value) for name, value in recorded.items()})
    current_run({"TORCHX_TRACKER_BASE": stage.base, "TORCHX_JOB_ID": RUN_ID}).add_metadata(recorded)
    return stage, stage.run("true")


def finite(value: Any) -> Any:
    """Return a value with the largest doubles in place of NaN and infinities."""
    if isinstance(value, list):
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return (
        math.copysign(LARGEST, 1 if value != value else value)
        if value in (math.inf, -math.inf) or value != value
        else value
    )


RECORDED = st.lists(VALUES, max_size=4) | st.dictionaries(TEXT, VALUES, max_size=4)


@hypothesis.settings(suppress_health_check=list(hypothesis.HealthCheck), max_examples=5)
@hypothesis.given(st.lists(RECORDED, min_size=6, max_size=6))
@hypothesis.example([[-math.inf, math.inf], {"x": [math.nan]}])
def test_kfp_gets_what_was_recorded(tmp_path_factory: pytest.TempPathFactory, values: list[Any]) -> None:
    recorded = {f"trials{at}": value for at, value in enumerate(values)}
    stage, done = published(tmp_path_factory.mktemp("stage"), recorded)
    assert done.returncode == 0, done.stderr
    for name, value in recorded.items():
        text = stage.outputs()[name]
        assert json.dumps(json.loads(text)) == json.dumps(finite(value)), "also the order of fields, and 1.0 is not 1"
        assert (f"{name} has a number which KFP cannot store" in done.stderr) is (str(LARGEST) in text)


def test_the_last_metadata_counts_and_results_come_first(publish: Publish, tmp_path: Path) -> None:
    stage = Stage(tmp_path, results={"a": list, "b/c": dict})
    run = current_run({"TORCHX_TRACKER_BASE": stage.base, "TORCHX_JOB_ID": RUN_ID})
    run.add_metadata({"a": [1], "b/c": {"x": 1}})
    run.add_metadata(a=[2])
    assert stage.run("true").returncode == 0
    assert stage.outputs() == {"a": "[2]", "b_c": '{"x":1}'}
    stage.record('{"a": [3, "ü"], "n": 1}')  # another tracker writes any JSON
    done = stage.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert stage.outputs() == {"a": '[3,"ü"]', "b_c": '{"x":1}'}
    assert stage.report()["metrics"]["metadata"] == {"n": 1}


@pytest.mark.parametrize(
    ("kind", "recorded", "facts"),
    [
        ("list", {}, ["'trials' as list", "recorded nothing"]),
        ("list", {"trails": []}, ["'trials' as list", "recorded trails"]),
        ("list", {"trials": {}}, ["'trials' as list", "recorded {}"]),
        ("dict", {"trials": []}, ["'trials' as dict", "recorded []"]),
        ("dict", {"trials": "{}"}, ["'trials' as dict", "recorded '{}'"]),
        ("list", {"trials": [{"seed": 2**53 + 1}]}, ["trials", 2**53 + 1, "round", "as text"]),
        ("list", {"trials": [{}, {"name": "a"}]}, ["'name' in trials", "KFP's loop items", "rename"]),
        ("list", {"trials": ["\ud800"]}, ["surrogates not allowed"]),
        ("list", {"trials": ["é" * 32_767]}, ["has 65538 bytes in trials", "more than 65536", "artifact"]),
    ],
)
def test_what_fails_the_stage(publish: Publish, kind: str, recorded: dict[str, Any], facts: list[object]) -> None:
    text, said = publish(kind, **recorded)
    assert text == ""
    (line,) = said.splitlines()
    assert line.startswith("torchx-kfp: train ")
    assert all(str(fact) in line for fact in facts), line


def test_the_limit(publish: Publish) -> None:
    """64 KiB: one argument of a process may have 128, and has to hold all inputs of a task."""
    text, _ = publish("list", trials=["é" * 32_766])
    assert len(text.encode()) == 65_536


def test_a_dict_may_have_any_keys(publish: Publish) -> None:
    """Only the items of a list are what a loop's variable represents."""
    assert publish("dict", trials={"name": 1, "task": {"value": 2}})[0] == '{"name":1,"task":{"value":2}}'
    assert publish("list", trials=[{"x": {"name": 1}}, "name"])[0] == '[{"x":{"name":1}},"name"]'


@pytest.mark.versions
def test_fields_that_kfps_loop_items_have_themselves(tmp_path: Path) -> None:
    found = attributes()
    assert found >= {"name", "task_name", "value", "pattern"}
    stage, done = published(tmp_path, {f"of_{name}": [{}, {name: "a"}] for name in found})
    assert done.returncode == 1
    assert [name for name in found if f"'{name}' in of_{name}" not in done.stderr] == []
    assert not [name for name in found if (stage.folder / "out" / f"of_{name}").exists()]


@pytest.mark.parametrize("value", [[{"lr": 0.1}], (1, 2), {"lr": 0.1}])
def test_put_says_where_they_go(tmp_path: Path, value: object) -> None:
    run = current_run({"TORCHX_TRACKER_BASE": str(tmp_path), "TORCHX_JOB_ID": "run/ask/1"})
    with pytest.raises(RefusedError, match=says("current_run().add_metadata({'a/b': ...})", "results={name: list}")):
        run.put({"a/b": value})
