"""Artifacts of container components: created, reported, passed on."""

import json
import os
import socket
from pathlib import Path

import pytest
from kfp import dsl

from tests.documents import documents
from tests.execution.local.components import load
from torchx_kfp.local import load_pipeline, run

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


def report(**artifact: object) -> str:
    return json.dumps({"artifacts": {"model": {"artifacts": [artifact]}}})


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


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "is not JSON: "),
        ('{"artifacts": {}, "more": 1}', "would be rejected by KFP's launcher: it has the unknown field 'more'"),
        (report(ur1="x"), "would be rejected by KFP's launcher: the artifact 'model' has the unknown field 'ur1'"),
        (
            report(metadata={"loss": float("nan")}),
            "is not JSON: artifacts.model.artifacts.0.metadata.loss is NaN,",
        ),
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
        ("mkfifo $data", "/data is a FIFO"),
        ("ln -s /dev/zero $data", "/data is a device"),
        ("mkdir $data; mkfifo $data/x", "/data/x is a FIFO"),
        ("mv s $data", "/data is a socket"),
        ("mkfifo $report", "executor_output.json is a FIFO"),
        ("ln -s /dev/zero $report", "executor_output.json is a device"),
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
        result = execute(pipeline, {"elsewhere": str(tmp_path / "elsewhere")})
    finally:
        os.umask(before)
    data = Path(result["leave"].artifacts["data"].path)
    assert [path.stat().st_mode & 0o777 for path in (data, data / "run")] == [0o751, 0o754]
    assert result.folder.stat().st_mode & 0o777 == 0o700, "a run's folder is its user's"


def test_artifacts_of_a_loop_that_does_not_define_its_outputs(tmp_path):
    """KFP's compiler does define them."""

    @dsl.container_component
    def show_all(models: dsl.Input[list[dsl.Model]], out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'printf %s "$1" >"$0"', out], args=["{{$}}"])

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["a", "b"]) as content:
            made = make(content=content)
        show_all(models=dsl.Collected(made.outputs["model"]))

    changed = documents(load_pipeline(pipeline).text)
    del changed[0]["components"]["comp-for-loop-2"]["outputDefinitions"]
    result = run(load(changed, tmp_path), output_dir=tmp_path / "runs")
    result.raise_for_failure()
    assert len(json.loads(result["show-all"].outputs["out"])["inputs"]["artifacts"]["models"]["artifacts"]) == 2


@dsl.container_component
def change(data: dsl.Input[dsl.Dataset], script: str, said: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script], args=[data.path, said])


READ = 'if test -d "$0"; then cat "$0"/a; else cat "$0"; fi >"$1"'


@pytest.mark.parametrize(
    "script", ["printf 1 >$data", "mkdir -p $data/b; printf 1 >$data/a; ln -s a $data/c"], ids=["file", "folder"]
)
def test_each_stage_has_its_own_copy_of_an_artifact(execute, script):
    """As on KFP: what a stage changes in its input, neither the next one nor the producer's artifact has."""

    @dsl.pipeline
    def pipeline(script: str):
        data = leave(script=script).outputs["data"]
        changes = 'for it in "$0/a" "$0"; do printf 2 >>"$it" && break; done; '
        changed = change(data=data, script=changes + READ)
        change(data=data, script=READ).after(changed)

    made, changed, after = execute(pipeline, {"script": script}).stages
    assert (changed.outputs["said"], after.outputs["said"]) == ("12", "1")
    path = Path(made.artifacts["data"].path)
    assert (path / "a" if path.is_dir() else path).read_text() == "1"


def test_files_beside_an_artifact_are_lost_and_a_line_says_so(execute_failing):
    @dsl.pipeline
    def pipeline():
        data = leave(script="printf 1 >$data; printf 2 >$data.csv").outputs["data"]
        change(data=data, script='cat "$0.csv" >"$1"')

    made, read = execute_failing(pipeline).stages
    assert made.state == "succeeded"
    assert "Lost, locally as on KFP: data.csv, next to an artifact's path." in made.log_file.read_text()
    assert read.state == "failed"
