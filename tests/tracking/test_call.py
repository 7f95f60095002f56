"""``python -m torchx_kfp.tracking.call``: what a function is called with, and what is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.facts import says
from tests.tracking.stages import Parents, environ, stage
from torchx_kfp.tracking.records import read_record

MODULE = """
import collections
import functools
import inspect
from typing import Annotated, Any, Optional

def signed(function):
    @functools.wraps(function)
    def wrapper(*args, **named):
        return function(*args, **named)
    wrapper.__signature__ = inspect.signature(function)
    return wrapper

@signed
def add(left: "int", right: Optional["float"] = 0.5):
    return left + right

def several(name: str, flag: "Annotated[bool, 1]", sizes: list[int] = [], untyped=None):
    return {"name": name, "flag": flag, "items": [name], "size": sum(sizes)}

def nothing():
    print("said")

def score(loss, train):
    return {"loss": loss, "train": train["loss"] if isinstance(train, dict) else [each["loss"] for each in train]}

def only(loss):
    return loss

def one(loss: float):
    return loss

def rated(rate: float = 7):
    return rate

def counted(names: list[str], rows: int = 1):
    return len(names) * rows

def joined(names: list):
    return sum(map(len, names))

def names_text(names: str):
    return names

def by_position(loss=0.1, /):
    return loss

def bad():
    return {"x": print}

def pair():
    return 0.1, 0.9

def shape() -> tuple:
    raise RuntimeError("the work")

def arrays():
    import numpy as np
    return {"loss": np.float32(0.5), "curve": [np.float32(0.25), np.int64(3)], "all": np.array([1.5, 2]), "odd": {1: 2}}

def lost():
    return {"loss": 0.25, "odd": [print], "note": "x"}

def named():
    return collections.namedtuple("Named", "loss, sizes")(0.5, [1])

def decides(judge: bool):
    return {"decided": judge}

def judges(judge: dict):
    return {"decided": judge["judge"]}

def sized(judge: dict):
    return sum(judge["sizes"]) + judge["judge"]

def whole(loss: int):
    return loss

def text(loss: str):
    return loss

fixed = functools.partial(add, 1)


def fails():
    raise RuntimeError("of the function")
"""


def call(
    folder: Path, *words: str, parents: Parents | None = None, tracked: bool = True
) -> subprocess.CompletedProcess[str]:
    """Call a function in a process of its own; the results are below the folder ``base``."""
    (folder / "functions.py").write_text(MODULE)
    (folder / "broken.py").write_text("import missing_package")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TORCHX_")}
    variables = environ(folder / "base", "p1/call/e1", parents) if tracked else {}
    command = [sys.executable, "-m", "torchx_kfp.tracking.call", *words]
    return subprocess.run(command, cwd=folder, env={**clean, **variables}, capture_output=True, text=True, check=False)


def record(folder: Path) -> None:
    """Record the results of the stages that are read: ``train`` and two trials."""
    stage(folder / "base", "p1/train/e1").put(loss=0.5, rate=0.1)
    for index in range(2):
        stage(folder / "base", f"p1/trial/e{index}").put(loss=index / 10)
    stage(folder / "base", "p1/prepare/e1").add_metadata(rows=3, names=["a", "b"])
    stage(folder / "base", "p1/judge/e1").put(judge=False)
    stage(folder / "base", "p1/whole/e1").put(loss=3.0)


TRAIN = {"train": "p1/train/e1"}
TRIALS = {"train": ("p1/trial/e0", "p1/trial/e1")}


@pytest.mark.parametrize(
    ("words", "parents", "expected"),
    [
        (["add", "left=3"], {}, {"add": 3.5}),
        (["add", "left=3", "right=1"], {}, {"add": 4.0}),
        (["several", "name=a=b", "flag=true"], {}, {"name": "a=b", "flag": True, "size": 0}),
        (["several", "name=", "flag=False", "sizes=[1, 2]"], {}, {"name": "", "flag": False, "size": 3}),
        (["nothing"], {}, {}),
        (["only"], TRAIN, {"only": 0.5}),
        (["only", "loss=text"], TRAIN, {"only": "text"}),
        (["score"], TRAIN, {"loss": 0.5, "train": 0.5}),
        (["score"], TRIALS, {}),
        (["only"], {"prepare": "p1/prepare/e1", **TRAIN}, {"only": 0.5}),
        (["rated"], TRAIN, {"rated": 0.1}),
        (["rated"], {"train": "p1/trial/e0"}, {"rated": 7}),
        (["rated", "rate=3"], TRAIN, {"rated": 3.0}),
        (["rated"], {}, {"rated": 7}),
        (["decides"], {"judge": "p1/judge/e1"}, {"decided": False}),
        (["judges"], {"judge": "p1/judge/e1"}, {"decided": False}),
        (["whole"], {"whole": "p1/whole/e1"}, {"whole": 3}),
        (["counted"], {"prepare": "p1/prepare/e1"}, {"counted": 2}),
        (["joined"], {"prepare": ("p1/prepare/e1", "p1/prepare/e1")}, {"joined": 4}),
    ],
)
def test_what_a_function_is_called_with_and_what_is_recorded(
    tmp_path: Path, words: list[str], parents: Parents, expected: dict[str, object]
) -> None:
    record(tmp_path)
    done = call(tmp_path, "-m", "functions", *words, parents=parents)
    assert (done.returncode, [line for line in done.stderr.splitlines() if "() gets " not in line]) == (0, [])
    assert stage(tmp_path / "base", "p1/call/e1").results() == expected


@pytest.mark.parametrize(
    ("words", "parents", "arguments"),
    [
        (["rated"], TRAIN, {"rate": "0.1, from train"}),
        (["rated"], {}, {"rate": "7, the default"}),
        (["rated", "rate=3"], TRAIN, {"rate": "3.0, passed"}),
        (["counted"], {"prepare": "p1/prepare/e1"}, {"names": "['a', 'b'], from prepare", "rows": "1, the default"}),
    ],
)
def test_the_log_and_the_tracker_say_where_arguments_are_from(
    tmp_path: Path, words: list[str], parents: Parents, arguments: dict[str, str]
) -> None:
    record(tmp_path)
    done = call(tmp_path, "-m", "functions", *words, parents=parents)
    assert all(f"{name}={how}" in done.stderr for name, how in arguments.items() if "passed" not in how)
    assert read_record(stage(tmp_path / "base", "p1/call/e1")._tracker.store, "p1/call/e1").arguments == arguments


def test_a_dict_has_all_that_a_stage_returned(tmp_path: Path) -> None:
    stage(tmp_path / "base", "p1/judge/e1").put(judge=0.5)
    stage(tmp_path / "base", "p1/judge/e1").add_metadata(sizes=[1, 2])
    assert call(tmp_path, "-m", "functions", "sized", parents={"judge": "p1/judge/e1"}).returncode == 0
    assert stage(tmp_path / "base", "p1/call/e1").results() == {"sized": 3.5}


def test_lists_are_metadata(tmp_path: Path) -> None:
    record(tmp_path)
    assert call(tmp_path, "-m", "functions", "score", parents=TRIALS).returncode == 0
    run = stage(tmp_path / "base", "p1/call/e1")
    assert run.metadata() == {"loss": [0.0, 0.1], "train": [0.0, 0.1]}


def test_all_that_can_be_recorded_is(tmp_path: Path) -> None:
    """One item that JSON refuses lost the results of a finished stage."""
    done = call(tmp_path, "-m", "functions", "lost")
    assert done.returncode == 1
    assert "metadata 'odd'" in done.stderr
    assert stage(tmp_path / "base", "p1/call/e1").results() == {"loss": 0.25, "note": "x"}


def test_arrays_are_lists(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    done = call(tmp_path, "-m", "functions", "arrays")
    assert (done.returncode, "the key 1 is of type int" in done.stderr) == (1, True)
    run = stage(tmp_path / "base", "p1/call/e1")
    assert (run.results(), run.metadata()) == ({"loss": 0.5}, {"curve": [0.25, 3], "all": [1.5, 2.0]})


def test_a_named_tuple_has_names(tmp_path: Path) -> None:
    assert call(tmp_path, "-m", "functions", "named").returncode == 0
    run = stage(tmp_path / "base", "p1/call/e1")
    assert (run.results(), run.metadata()) == ({"loss": 0.5}, {"sizes": [1]})


def test_outside_of_a_stage_what_is_returned_is_printed(tmp_path: Path) -> None:
    done = call(tmp_path, "-m", "functions", "several", "name=x", "flag=true", tracked=False)
    assert json.loads(done.stdout) == {"name": "x", "flag": True, "items": ["x"], "size": 0}


def test_outside_of_a_stage_arrays_are_lists(tmp_path: Path) -> None:
    pytest.importorskip("numpy")
    done = call(tmp_path, "-m", "functions", "arrays", tracked=False)
    assert json.loads(done.stdout) == {"loss": 0.5, "curve": [0.25, 3], "all": [1.5, 2.0], "odd": {"1": 2}}


@pytest.mark.parametrize(
    ("words", "parents", "facts"),
    [
        ([], {}, ["usage: python -m torchx_kfp.tracking.call -m MODULE FUNCTION [NAME=VALUE ...]"]),
        (["-m", "function", "add"], {}, ["no module 'function'", "--workspace DIR", "in the image"]),
        (["-m", "functions", "severl"], {}, ["'functions' has no function 'severl'", "'several'?"]),
        (["-m", "functions", "fixed"], {}, ["'functions'", "'fixed'", "functools.partial", "def fixed("]),
        (["-m", "functions", "add", "lef=1"], {}, ["'lef=1'", "no parameter 'lef'", "'left'?"]),
        (["-m", "functions", "add", "left"], {}, ["'left' is not NAME=VALUE"]),
        (["-m", "functions", "add", "left=x"], {}, ["left of add() is int, but got 'x'"]),
        (["-m", "functions", "several", "name=x", "flag=1"], {}, ["flag of several() is bool", "neither true nor"]),
        (["-m", "functions", "several", "name=x", "flag=true", "sizes={}"], {}, ["sizes of", "'{}' is not a list"]),
        (["-m", "functions", "several", "name=x", "flag=true", "sizes=["], {}, ["sizes of several() is list", "'['"]),
        (["-m", "functions", "only"], {}, ["only() needs 'loss'", "loss=VALUE", "there is none"]),
        (["-m", "functions", "only"], {"prepare": "p1/prepare/e1"}, ["needs 'loss'", "prepare has recorded names"]),
        (["-m", "functions", "add"], {"trian": "p1/train/e1"}, ["needs 'left'", "trian has recorded loss, rate"]),
        (["-m", "functions", "only"], {"a": "p1/train/e1", "b": "p1/trial/e0"}, ["several stages recorded: a, b"]),
        (["-m", "functions", "one"], TRIALS, ["loss of one() is float", "a fan-in: a list of 2", "with list"]),
        (["-m", "functions", "score"], {"train": "p1/prepare/e1"}, ["needs 'loss'", "train has recorded names"]),
        (["-m", "functions", "whole"], TRAIN, ["loss of whole() is int", "0.5", "type float", "Record int there"]),
        (["-m", "functions", "text"], TRAIN, ["loss of text() is str", "0.5", "type float", "Record str there"]),
        (
            ["-m", "functions", "names_text"],
            {"prepare": "p1/prepare/e1"},
            ["names of names_text() is str, but prepare returned ['", "Return one value there", "with list"],
        ),
        (["-m", "functions", "decides"], {"judge": "p1/train/e1"}, ["needs 'judge'", "judge has recorded loss, rate"]),
        (
            ["-m", "functions", "only"],
            {"train": ("p1/trial/e0", "p1/trial/e7")},
            ["needs 'loss'", "1 of 2 runs of train have not recorded it: p1/trial/e7"],
        ),
        (["-m", "functions", "bad"], {}, ["the value from bad() cannot be recorded", "'x'", "built-in function print"]),
        (
            ["-m", "functions", "pair"],
            {},
            ["the value from pair()", "of type tuple", 'return {"loss": ..., "accuracy": ...}'],
        ),
        (["-m", "functions", "shape"], {}, ["shape() returns tuple, which cannot be recorded"]),
        (["-m", "functions", "by_position"], {}, ["'loss' of by_position()", "positional-only", "Remove the '/'"]),
        (["-m", "functions", "fails"], {}, ["RuntimeError: of the function"]),
        (["-m", "broken", "add"], {}, ["No module named 'missing_package'"]),
    ],
)
def test_a_refusal_shows_the_value_and_the_way_out(
    tmp_path: Path, words: list[str], parents: Parents, facts: list[str]
) -> None:
    record(tmp_path)
    done = call(tmp_path, *words, parents=parents)
    assert done.returncode == 1
    with pytest.raises(AssertionError, match=says(*facts)):
        raise AssertionError(done.stderr)
    assert stage(tmp_path / "base", "p1/call/e1").results() == {}


@pytest.mark.parametrize(("module", "function"), [("functions", "fails"), ("broken", "add")])
def test_a_traceback_has_the_frames_of_the_application_alone(tmp_path: Path, module: str, function: str) -> None:
    lines = call(tmp_path, "-m", module, function).stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert [line.split('"')[1] for line in lines if line.startswith("  File ")] == [str(tmp_path / f"{module}.py")]
