"""What a container gets of this machine: its own folder, the tracker base, mounts, and variables that are named."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import json
import os
from pathlib import Path
from typing import Any

import docker
import pytest
from kfp import dsl, kubernetes

from tests.containers.images import BUSYBOX_IMAGE
from torchx_kfp import local
from torchx_kfp.local import RunResult, Watch

SECRET = '{"token": "of the host"}'


@dsl.container_component
def make(script: str, out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset], report: str = "{}"):
    """Runs a script: ``$out``, ``$data`` and ``$report`` are the paths of outputs, ``$text`` is a report."""
    names = 'out=$1 data=$2 report=$3 text=$4; : >"$out"; '
    return dsl.ContainerSpec(
        image=BUSYBOX_IMAGE,
        command=["sh", "-c", 'eval "$0"'],
        args=[f"{names}{script}", out, data.path, "{{$.outputs.output_file}}", report],
    )


@dsl.container_component
def use(data: dsl.Input[dsl.Dataset], script: str = 'cat "$0" || cat "$0"/model'):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", script], args=[data.path])


@dsl.container_component
def shell(script: str, tracker_base: str = ""):
    return dsl.ContainerSpec(image=BUSYBOX_IMAGE, command=["sh", "-c", script], args=[tracker_base])


@pytest.fixture
def execute(docker_client: docker.DockerClient, tmp_path: Path) -> Any:
    def function(pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        options = {"docker": True, "watch": Watch(), "output_dir": tmp_path / "runs", "cache": False, **options}
        return local.run(pipeline, arguments, **options)

    return function


def report(**entry: str) -> str:
    return json.dumps({"artifacts": {"data": {"artifacts": [entry]}}})


def log_of(result: RunResult, stage: str) -> str:
    return next(end for end in result.stages if end.name == stage).log_file.read_text()


def test_a_container_sees_its_own_folder_and_no_other(execute, tmp_path):
    look = "folder=${out%/made/*}; ls ${folder%/*}; ls ${folder%/*/*}; "

    @dsl.pipeline
    def pipeline():
        first = make(script=look)
        make(script=look).after(first)

    (tmp_path / "file").write_text(SECRET)
    result = execute(pipeline)
    result.raise_for_failure()
    for name in ("make", "make-2"):
        assert log_of(result, name) == f"{name}_1\n{result.run_id}\n"


@pytest.mark.parametrize("user", [0, 1234])
def test_a_stage_may_change_its_own_copy_of_an_artifact(execute, user):
    """KFP's launcher gives it one as well."""

    @dsl.pipeline
    def pipeline():
        data = make(script="mkdir $data; echo 1 >$data/model; chmod 400 $data/model; chmod 500 $data").outputs["data"]
        changed = use(data=data, script='echo 2 >>"$0"/model; echo 3 >"$0"/new; cat "$0"/*')
        kubernetes.set_security_context(changed, run_as_user=user)
        use(data=data, script='cat "$0"/*').after(changed)

    result = execute(pipeline)
    result.raise_for_failure()
    assert (log_of(result, "use"), log_of(result, "use-2")) == ("1\n2\n3\n", "1\n")


def test_stages_of_different_users_record_below_one_base(execute, tmp_path):
    record = (
        'for folder in "$0"/own-* "$0"/.torchx_kfp/runs/own-* "$0"/.torchx_kfp/files/own-*; do '
        'mkdir "$folder/$(id -u)" && echo x >"$folder/$(id -u)/1" || exit 1; done'
    )

    @dsl.pipeline(name="own")
    def pipeline(tracker_base: str):
        for user in (0, 1234, 2345):
            kubernetes.set_security_context(shell(script=record, tracker_base=tracker_base), run_as_user=user)

    execute(pipeline, {"tracker_base": str(tmp_path / "base")}, parallelism=1).raise_for_failure()
    assert len([path for path in (tmp_path / "base").rglob("1") if path.read_text() == "x\n"]) == 9


@pytest.mark.parametrize(
    ("script", "fact"),
    [
        ("rm $out; mkdir $out", "out is a folder"),
        ("rm $out; mkfifo $out", "out is a FIFO"),
        ("rm $out; truncate -s 17M $out", "is larger than 16 MiB"),
        ("mkfifo $report", "executor_output.json is a FIFO"),
        ("mkdir $data; mkfifo $data/x", "data/x is a FIFO"),
        ("echo >/model; ln -s /model $data", "data is a link to /model, which does not exist locally"),
    ],
)
def test_outputs_that_cannot_be_read(execute, script, fact):
    @dsl.pipeline
    def pipeline():
        make(script=script)

    (stage,) = execute(pipeline).stages
    assert stage.state == "failed"
    assert fact in stage.reason


def test_a_custom_path_is_in_a_folder_that_is_mounted_or_is_gone(execute):
    @dsl.pipeline
    def mounted(text: str):
        made = make(script='echo weights >/new/file; chmod 750 /new/file; printf "%s" "$text" >$report', report=text)
        kubernetes.empty_dir_mount(made, "new", "/new")
        use(data=made.outputs["data"])

    result = execute(mounted, {"text": report(customPath="/new/file")})
    result.raise_for_failure()
    assert log_of(result, "use") == "weights\n"
    assert os.stat(next(iter(result.stages)).artifacts["data"].path).st_mode & 0o777 == 0o750

    gone = execute(mounted, {"text": report(customPath="/etc/file")})
    assert "/etc/file is lost with the container" in next(iter(gone.stages)).reason


def test_links_inside_of_an_artifact_are_kept(execute):
    @dsl.pipeline
    def pipeline():
        made = make(script="mkdir $data $data/blobs; echo weights >$data/blobs/1; ln -s blobs/1 $data/model")
        use(data=made.outputs["data"])

    result = execute(pipeline)
    result.raise_for_failure()
    assert "weights" in log_of(result, "use")


def test_an_imported_file_of_this_machine_needs_a_mount(execute, tmp_path):
    file = tmp_path / "data.json"
    file.write_text(SECRET)

    @dsl.pipeline
    def pipeline(uri: str):
        use(data=dsl.importer(artifact_uri=uri, artifact_class=dsl.Dataset).output)

    for uri, way_out in (
        (str(file), f"--mount {file}:ro"),
        (f"file://{file}", f"--mount {file}:ro"),
        (f"simplecache::file://{file}", "chained"),
    ):
        ends = {stage.name: stage for stage in execute(pipeline, {"uri": uri}).stages}
        assert ends["use"].state == "failed"
        assert way_out in ends["use"].reason
    result = execute(pipeline, {"uri": str(file)}, mounts=[f"{tmp_path}:ro"])
    result.raise_for_failure()
    assert log_of(result, "use") == SECRET


def test_a_variable_of_this_machine_that_the_pipeline_takes_as_a_key(execute, monkeypatch):
    monkeypatch.setenv("TOKEN_OF_HOST", SECRET)

    @dsl.pipeline
    def pipeline():
        task = shell(script='printf %s "$TOKEN_OF_HOST"')
        kubernetes.use_secret_as_env(task, "any", {"key": "TOKEN_OF_HOST"}, optional=True)

    for options, printed in (({}, ""), ({"env": ["TOKEN_OF_HOST"]}, SECRET), ({"secrets": {"any": {"key": "k"}}}, "k")):
        assert log_of(execute(pipeline, **options), "shell") == printed
