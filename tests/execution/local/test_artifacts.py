"""Artifacts of container components: created, reported, passed on."""

import json
import os
import socket
from pathlib import Path
from typing import NamedTuple

import pytest
from kfp import compiler, dsl

from torchx_kfp.local import Artifact

#: Stores the path of the report, which is in the executor input, in a variable.
REPORT = """p=${2#*'"outputFile":"'}; p=${p%%'"'*}; """
MAKE = REPORT + 'printf %s "$3" >"$1"; printf %s "$4" >"$p"'


@dsl.container_component
def make(model: dsl.Output[dsl.Model], content: str = "weights", report: str = ""):
    return dsl.ContainerSpec(
        image="busybox",
        command=["sh", "-c", MAKE, "sh"],
        args=[model.path, "{{$}}", content, report],
    )


@dsl.container_component
def show(model: dsl.Input[dsl.Model], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image="busybox",
        command=["sh", "-c", 'printf "%s|%s|%s" "$2" "$(cat "$3")" "$4" >"$1"', "sh"],
        args=[out, model.uri, model.path, "{{$}}"],
    )


@dsl.container_component
def show_uri(model: dsl.Input[dsl.Model], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(
        image="busybox",
        command=["sh", "-c", 'printf "%s|%s|%s" "$2" "$3" "$4" >"$1"', "sh"],
        args=[out, model.uri, "{{$.inputs.artifacts['model'].metadata['epochs']}}", "{{$}}"],
    )


def report(**artifact: object) -> str:
    return json.dumps({"artifacts": {"model": {"artifacts": [artifact]}}})


def test_an_artifact_is_handed_on(execute):
    @dsl.pipeline
    def pipeline():
        made = make(report=report(metadata={"epochs": 3, "name": "é"}))
        show(model=made.outputs["model"])

    result = execute(pipeline)
    made, shown = result.stages
    artifact = made.artifacts["model"]
    assert isinstance(artifact, Artifact)
    assert (artifact.type.title, artifact.metadata) == ("system.Model", {"epochs": 3, "name": "é"})
    assert Path(artifact.uri).read_text() == "weights"
    assert artifact.uri.startswith(str(result.folder))
    uri, content, executor_input = shown.outputs["out"].split("|")
    assert (uri, content) == (artifact.uri, "weights")
    (read,) = json.loads(executor_input)["inputs"]["artifacts"]["model"]["artifacts"]
    assert read["metadata"] == {"epochs": 3, "name": "é"}


def test_metadata_is_handed_on_as_the_backend_keeps_it(execute):
    """A list and a dict are wrapped in a dict, a bool is a number, and six decimals are left."""

    @dsl.pipeline
    def pipeline():
        metadata = {"list": [1], "dict": {"a": 1}, "bool": True, "small": 1.23456789e-3, "text": "x"}
        show(model=make(report=report(metadata=metadata)).outputs["model"])

    _, shown = execute(pipeline).stages
    (read,) = json.loads(shown.outputs["out"].split("|")[2])["inputs"]["artifacts"]["model"]["artifacts"]
    kept = {"list": {"list": [1]}, "dict": {"struct": {"a": 1}}, "bool": 1, "small": 0.001235, "text": "x"}
    assert read["metadata"] == kept


def test_an_artifact_on_other_storage(execute):
    @dsl.pipeline
    def pipeline():
        made = make(report=report(uri="abfs://models/1", metadata={"epochs": 3}))
        show_uri(model=made.outputs["model"])

    _, shown = execute(pipeline).stages
    uri, epochs, executor_input = shown.outputs["out"].split("|")
    assert (uri, epochs) == ("abfs://models/1", "{{$.inputs.artifacts['model'].metadata['epochs']}}")
    (artifact,) = json.loads(executor_input)["inputs"]["artifacts"]["model"]["artifacts"]
    assert artifact["uri"] == "abfs://models/1"
    assert artifact["type"] == {"schemaTitle": "system.Model", "schemaVersion": "0.0.1"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: "),
        ('{"artifacts": {}, "more": 1}', "would be rejected by KFP's launcher: it has the unknown field 'more'"),
        (report(ur1="x"), "would be rejected by KFP's launcher: the artifact 'model' has the unknown field 'ur1'"),
        (report(metadata={"loss": float("nan")}), "is not JSON: it contains NaN, which JSON does not have"),
        (report(metadata=[1]), "has metadata of the artifact 'model' that is not an object: [1]"),
        (report(metadata={"none": None}), "has null as 'none' in the metadata of the artifact 'model'"),
        ("[1]", "would be rejected by KFP's launcher: it is [1], which is not an object"),
        ('{"artifacts": {"other": {}}}', "has the artifact 'other', which the component does not declare"),
    ],
)
def test_reports_that_a_backend_would_refuse(execute_failing, text, reason):
    @dsl.pipeline
    def pipeline(text: str):
        make(report=text)

    (made,) = execute_failing(pipeline, {"text": text}).stages
    assert made.reason.startswith(f"wrote a report that {reason}")
    assert made.reason.endswith("executor_output.json")


def test_parameters_in_a_report(execute):
    @dsl.container_component
    def both(number: dsl.OutputPath(int), text: dsl.OutputPath(str)):
        return dsl.ContainerSpec(
            image="busybox",
            command=["sh", "-c", REPORT + 'printf x >"$1"; printf %s "$3" >"$p"', "sh"],
            args=[text, "{{$}}", '{"parameterValues": {"number": 3}}', number],
        )

    @dsl.pipeline
    def pipeline():
        both()

    (stage,) = execute(pipeline).stages
    assert stage.outputs == {"number": 3, "text": "x"}


class Outputs(NamedTuple):
    model: dsl.Model
    name: str


@dsl.container_component
def name_of(model: dsl.Input[dsl.Model], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'cat "$2" >"$1"', "sh"], args=[out, model.path])


@dsl.pipeline
def inner(content: str) -> Outputs:
    made = make(content=content)
    return Outputs(model=made.outputs["model"], name=name_of(model=made.outputs["model"]).output)


def test_nested_pipelines_conditions_and_loops(execute):
    @dsl.pipeline
    def pipeline(go: str = "yes") -> dsl.Model:
        first = inner(content="a")
        with dsl.If(go == "yes"):
            show(model=first.outputs["model"])
        with dsl.ParallelFor(["x", "y"]) as item:
            made = make(content=item)
            name_of(model=made.outputs["model"])
        return first.outputs["model"]

    result = execute(pipeline)
    outs = {stage.name: stage.outputs.get("out", "") for stage in result.stages}
    assert outs["inner/name-of"] == "a"
    assert "|a|" in outs["show"]
    assert [outs["name-of[0]"], outs["name-of[1]"]] == ["x", "y"]
    assert result.outputs == {}
    assert Path(result.artifacts["Output"].uri).read_text() == "a"


def test_a_compiled_file_runs_as_well(execute, tmp_path):
    @dsl.pipeline
    def pipeline():
        show(model=make().outputs["model"])

    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    assert execute(str(tmp_path / "pipeline.yaml")).state == "succeeded"


def test_an_artifact_that_is_not_written_has_its_place_all_the_same(execute):
    @dsl.container_component
    def nothing(model: dsl.Output[dsl.Model]):
        return dsl.ContainerSpec(image="busybox", command=["true"], args=[model.uri])

    @dsl.pipeline
    def pipeline():
        nothing()

    (artifact,) = [stage.artifacts["model"] for stage in execute(pipeline).stages if stage.artifacts]
    assert not Path(artifact.uri).exists()
    assert Path(artifact.uri).parent.is_dir()


@dsl.container_component
def leave(script: str, data: dsl.Output[dsl.Dataset], elsewhere: str = ""):
    return dsl.ContainerSpec(
        image="busybox",
        command=["sh", "-c", 'data=$1 report=$2 elsewhere=$3; eval "$0"'],
        args=[script, data.path, "{{$.outputs.output_file}}", elsewhere],
    )


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("mkfifo $data", "/data is a named pipe (FIFO)"),
        ("ln -s /dev/zero $data", "/data is a character device"),
        ("mkdir $data; mkfifo $data/x", "/data/x is a named pipe (FIFO)"),
        ("mv s $data", "/data is a socket"),
        ("mkfifo $report", "executor_output.json is a named pipe (FIFO)"),
        ("ln -s /dev/zero $report", "executor_output.json is a character device"),
    ],
)
def test_what_is_no_file_is_refused_at_once(execute_failing, tmp_path, monkeypatch, script, fact):
    monkeypatch.chdir(tmp_path)

    @dsl.pipeline
    def pipeline():
        leave(script=script)

    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("s")
        (stage,) = execute_failing(pipeline).stages
    assert fact in stage.reason


def test_copies_keep_the_permissions_of_what_is_copied(execute, tmp_path):
    """A program that a stage had created used to lose its executable bit."""
    text = report(customPath=str(tmp_path / "elsewhere")).replace("model", "data")
    script = (
        'mkdir "$elsewhere"; echo echo >"$elsewhere"/run; chmod 754 "$elsewhere"/run; chmod 751 "$elsewhere"; '
        f"printf %s '{text}' >$report"
    )

    @dsl.pipeline
    def pipeline(elsewhere: str):
        leave(script=script, elsewhere=elsewhere)

    before = os.umask(0o027)
    try:
        (stage,) = execute(pipeline, {"elsewhere": str(tmp_path / "elsewhere")}).stages
    finally:
        os.umask(before)
    data = Path(stage.artifacts["data"].path)
    assert [path.stat().st_mode & 0o777 for path in (data, data / "run")] == [0o751, 0o754]


def test_a_runs_folder_is_its_users_alone(execute):
    @dsl.pipeline
    def pipeline():
        leave(script="true")

    assert execute(pipeline).folder.stat().st_mode & 0o777 == 0o700
