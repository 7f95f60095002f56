"""Arguments and options of a run, and the messages about wrong ones."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035

import dataclasses
import json
import textwrap
from typing import Dict, List

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.execution.local.components import ir, write
from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import (
    ArgumentError,
    LocalRunError,
    StageFailedError,
)
from torchx_kfp.execution.local.run_options import ResumeKeywords, RunKeywords, RunOptions
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.runs.history import read_run
from torchx_kfp.local import Watch, describe_parameters, load_pipeline, parse_arguments, run


@dsl.pipeline(name="train")
def parameters(s: str, n: int = 3, lr: float = 0.1, on: bool = True, li: List[int] = [1], st: Dict[str, int] = {}):  # noqa: B006
    write(x=s)


DESCRIBED = textwrap.dedent("""\
    The parameters of the pipeline 'train' are:
      s: str
      li: list = [1]
      lr: float = 0.1
      n: int = 3
      on: bool = True
      st: dict = {}""")


def argument_error(arguments, pipeline=parameters):
    with pytest.raises(ArgumentError) as error:
        run(pipeline, arguments, watch=Watch())
    return str(error.value)


def test_wrong_arguments_are_refused_with_the_list_of_the_right_ones(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert argument_error({"lrr": 1, "n": "3", "zzz": None}) == (
        "There is no parameter 'lrr'. Did you mean 'lr'?\n"
        "The argument 'n' is not an int: '3'.\n"
        "There is no parameter 'zzz'.\n"
        "The argument 's' is missing.\n" + DESCRIBED
    )
    assert argument_error({"s": None}).startswith("The argument 's' is not a str: None.\n")
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_without_parameters():
    @dsl.pipeline
    def pipeline():
        write(x="x")

    assert argument_error({"n": 1}, pipeline) == (
        "There is no parameter 'n'.\nThe pipeline 'pipeline' has no parameters."
    )


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
        parse_arguments(pipeline_from_documents(documents, "p.yaml"), {"x": "c"})


def test_the_tracker_base_is_an_argument(tmp_path):
    @dsl.pipeline
    def tracked(tracker_base: str):
        write(x=tracker_base)

    result = run(tracked, tracker_base=tmp_path / "base", output_dir=tmp_path / "runs", watch=Watch())
    assert result["write"].inputs == {"x": str(tmp_path / "base")}
    with pytest.raises(ArgumentError, match=says("given twice", "'a'", "'b'")):
        run(tracked, {"tracker_base": "a"}, tracker_base="b")
    with pytest.raises(ArgumentError, match="tracker_base"):
        run(parameters, {"s": ""}, tracker_base="b")


def test_the_inputs_of_a_stage_are_those_of_its_pipeline(tmp_path):
    @dsl.pipeline
    def pipeline(tracker_base: str, rate: float = 0.5):
        app = AppDef("train", [Role("train", image="x", entrypoint="true", args=[f"{rate}"])])
        Stages(tracker_base=tracker_base).task(app)

    result = run(pipeline, tracker_base=tmp_path / "base", output_dir=tmp_path / "runs", watch=Watch())
    assert result["train"].inputs == {"rate_float": 0.5, "tracker_base": str(tmp_path / "base")}


def test_options_of_a_run(tmp_path):
    with pytest.raises(ArgumentError, match=says("parallelism", "1 or more", "is 0")):
        run(parameters, {"s": ""}, parallelism=0)
    with pytest.raises(TypeError, match=r"'paralelism'.*'parallelism'"):
        run(parameters, {"s": ""}, paralelism=3)
    for options, message in (
        ({"docker": "shell"}, r"^docker must be True, or a list of stages' names, but is 'shell'"),
        ({"docker": True, "mounts": "/data"}, r"^mounts must be a list"),
        ({"mounts": [str(tmp_path)]}, r"^Mounts are for stages in containers"),
        ({"parallelism": "3"}, r"^parallelism must be an int, 1 or more, but is '3'\.$"),
        ({"parallelism": 1.5}, r"^parallelism must be an int, 1 or more, but is 1\.5\.$"),
        ({"output_dir": 5}, r"^output_dir must be the path of a folder, but is 5\.$"),
        (
            {"output_dir": "a\0b"},
            r"^The run's folder '.*a\\x00b.*' cannot be created: .*embedded null .*\. Name another",
        ),
        ({"parallelism": True}, r"^parallelism must be an int, 1 or more, but is True\.$"),
        ({"grace": True}, r"^grace must be a number of seconds, 0 or more, but is True\.$"),
        ({"grace": -1}, r"^grace must be a number of seconds, 0 or more, but is -1\.$"),
        ({"grace": float("inf")}, r"^grace must be a number of seconds, 0 or more, but is inf\.$"),
    ):
        with pytest.raises(ArgumentError, match=message):
            run(parameters, {"s": ""}, **options)
    with pytest.raises(ArgumentError, match=says("dict", "{'lr': 0.1}", "[('s', '')]")):
        run(parameters, [("s", "")])
    with pytest.raises(ArgumentError, match=r"^There is no parameter 1\.\n"):
        run(parameters, {1: 2})
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=says("folder", "directory", "output_dir", "--output-dir")):
        run(parameters, {"s": ""}, output_dir=tmp_path / "file")
    assert issubclass(StageFailedError, LocalRunError)


def test_every_keyword_is_an_option_with_a_default():
    keywords = set(RunKeywords.__annotations__)
    options = {item.name for item in dataclasses.fields(RunOptions)}
    # The URLs of copy_from are among what is named.
    assert keywords == options - {"python_path", "project", "named"} | {"copy_from"}
    assert set(ResumeKeywords.__annotations__) < keywords


def test_empty_paths_are_the_current_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = RunOptions.of({"directory": "", "kfp_workspace": ""})
    assert options.directory == options.kfp_workspace == str(tmp_path)


def test_options_survive_the_run_json(tmp_path):
    options = RunOptions.of({"docker": ["train"], "mounts": [f"{tmp_path}:/data:ro"], "timeout": 5}, ["/data"])

    def stored(content):
        (tmp_path / "run.json").write_text(json.dumps({"run_id": "r-1", "options": content}))
        return read_run(tmp_path)

    record = stored(options.as_json())
    assert RunOptions.of_record(record) == options
    assert RunOptions.of_record(record).resumed({"timeout": None, "parallelism": 7}) == dataclasses.replace(
        options, parallelism=7
    )
    content = options.as_json()
    for name in ("docker", "mounts", "directory", "workspace", "python_path", "named"):
        without = {key: value for key, value in content.items() if key != name}
        with pytest.raises(ArgumentError, match=says("r-1", repr(name), "Start")):
            RunOptions.of_record(stored(without))
    # Earlier runs can be resumed although a later version has added an option that may change on resume.
    for name in ResumeKeywords.__annotations__:
        without = {key: value for key, value in content.items() if key != name}
        default = getattr(RunOptions(), name)
        assert RunOptions.of_record(stored(without)) == dataclasses.replace(options, **{name: default})
