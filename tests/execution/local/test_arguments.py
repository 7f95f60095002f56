"""Arguments and options of a run, and the messages about wrong ones."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035

import dataclasses
import textwrap
from typing import Dict, List

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.local.components import ir, load, write
from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import (
    ArgumentError,
    StageFailedError,
    TorchxKfpError,
)
from torchx_kfp.execution.local.run_options import RunKeywords
from torchx_kfp.execution.pipeline.values import describe_parameters, parse_arguments
from torchx_kfp.local import RunOptions, Watch, load_pipeline, run


@dsl.pipeline(name="train")
def parameters(s: str, n: int = 3, lr: float = 0.1, on: bool = True, li: List[int] = [1], st: Dict[str, int] = {}):  # noqa: B006 (KFP takes the text of defaults)
    write(x=s)


DESCRIBED = textwrap.dedent("""\
    The parameters of the pipeline 'train' are:
      s: str
      li: list = [1]
      lr: float = 0.1
      n: int = 3
      on: bool = True
      st: dict = {}""")


def test_arguments_from_text():
    loaded = load_pipeline(parameters)
    words = {"s": "7", "n": "7", "lr": "1e-3", "on": "false", "li": "[1,2]", "st": '{"a": 1}'}
    assert parse_arguments(loaded, words) == {
        "s": "7",
        "n": 7,
        "lr": 0.001,
        "on": False,
        "li": [1, 2],
        "st": {"a": 1},
    }
    with pytest.raises(ArgumentError) as error:
        parse_arguments(loaded, {"n": "x", "on": "yes", "li": "1,2", "m": "1"})
    assert str(error.value) == (
        "The argument 'n' is not an int: 'x'.\n"
        "The argument 'on' is not a bool: 'yes'. Write it as true or false.\n"
        "The argument 'li' is not a list: '1,2'. Write it as JSON, such as [0.1, 0.5].\n"
        "There is no parameter 'm'.\n" + DESCRIBED
    )
    assert describe_parameters(loaded) == DESCRIBED.split("\n", 1)[1]


def test_values_that_a_parameter_allows(tmp_path):
    documents = ir(folder=tmp_path)
    documents[0]["root"]["inputDefinitions"]["parameters"]["x"]["literals"] = ["a", "b"]
    with pytest.raises(ArgumentError, match=says("'x'", "'c'", "'a'", "'b'", "argument", "'v'", "'pipeline'")):
        parse_arguments(load(documents, tmp_path), {"x": "c"})


@dsl.pipeline
def tracked(tracker_base: str):
    write(x=tracker_base)


def test_the_inputs_of_a_stage_are_those_of_its_pipeline(tmp_path):
    @dsl.pipeline
    def pipeline(tracker_base: str, rate: float = 0.5):
        app = AppDef("train", [Role("train", image="x", entrypoint="true", args=[f"{rate}"])])
        Stages(tracker_base=tracker_base).task(app)

    result = run(pipeline, tracker_base=tmp_path / "base", output_dir=tmp_path / "runs", watch=Watch())
    assert result["train"].inputs == {"rate_float": 0.5, "tracker_base": str(tmp_path / "base")}


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"parallelism": 0}, ["parallelism must be an int, 1 or more, but is 0."]),
        ({"parallelism": "3"}, ["parallelism must be an int, 1 or more, but is '3'."]),
        ({"parallelism": 1.5}, ["parallelism must be an int, 1 or more, but is 1.5."]),
        ({"parallelism": True}, ["parallelism must be an int, 1 or more, but is True."]),
        ({"max_items": 0}, ["max_items", "1 or more", "is 0"]),
        ({"grace": True}, ["grace must be a number of seconds, 0 or more, but is True."]),
        ({"grace": -1}, ["grace must be a number of seconds, 0 or more, but is -1."]),
        ({"grace": float("inf")}, ["grace must be a number of seconds, 0 or more, but is inf."]),
        *(({"timeout": value}, ["timeout", "seconds", "more than 0", value]) for value in (0, -1, "5", float("nan"))),
        ({"docker": "shell"}, ["docker must be True or False, but is 'shell'"]),
        ({"docker": True, "mounts": "/data"}, ["mounts must be a list"]),
        ({"mounts": ["."]}, ["Mounts are for stages in containers"]),
        ({"output_dir": 5}, ["output_dir must be the path of a folder, but is 5."]),
        ({"output_dir": "a\0b"}, ["a\\x00b", "cannot be created", "embedded null", "Name another"]),
        ({"output_dir": __file__}, ["folder", "directory", "output_dir", "--output-dir"]),
        ({"directory": "nowhere"}, ["'nowhere'", "directory", "folder"]),
        ({"tracker_base": "b"}, ["tracker_base"]),
        ({"tracker_base": "b", "pipeline": tracked, "arguments": {"tracker_base": "a"}}, ["given twice", "'a'", "'b'"]),
        ({"arguments": [("s", "")]}, ["dict", "{'lr': 0.1}", "[('s', '')]"]),
        ({"arguments": [1], "tracker_base": "b"}, ["dict", "{'lr': 0.1}", "[1]"]),
        ({"arguments": {1: 2}}, ["There is no parameter 1.\n"]),
    ],
    ids=lambda value: ", ".join(map(repr, value)) if isinstance(value, list) else None,
)
def test_a_wrong_option_is_refused_with_its_value(options, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=says(*facts)):
        run(**{"pipeline": parameters, "arguments": {"s": ""}, **options})
    assert list(tmp_path.iterdir()) == [], "nothing was begun"


def test_an_unknown_option_is_a_type_error_that_names_the_right_one():
    with pytest.raises(TypeError, match=says("'paralelism'", "'parallelism'")):
        run(parameters, {"s": ""}, paralelism=3)
    with pytest.raises(TypeError, match=says("'s' is a parameter", "arguments={'s': ...}")):
        run(parameters, s="")
    assert issubclass(StageFailedError, TorchxKfpError)


def test_every_keyword_is_an_option_with_a_default():
    keywords = set(RunKeywords.__annotations__)
    options = {item.name for item in dataclasses.fields(RunOptions)}
    # The URLs of copy_from are among what is named.
    assert keywords == options - {"python_path", "project", "named"} | {"copy_from"}
