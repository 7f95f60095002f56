"""Artifacts on other storage and in the workspace, for stages that take their files; ``test_transfer`` has the URLs."""

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kfp import compiler, dsl


@dsl.container_component
def cat(data: dsl.Input[dsl.Dataset], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'cp "$0" "$1"'], args=[data.path, out])


@dsl.container_component
def name_of(data: dsl.Input[dsl.Dataset], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="x", command=["sh", "-c", 'printf %s "$0" > "$1"'], args=[data.uri, out])


@dsl.container_component
def both(one: dsl.Input[dsl.Dataset], other: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image="x", command=["cmp", one.path, other.path])


@dsl.component(base_image="python:3.11")
def read(data: dsl.Input[dsl.Dataset]) -> str:
    with open(data.path) as file:
        return f"{file.read()} from {data.uri}"


@dsl.component(base_image="python:3.11")
def list_files(data: dsl.Input[dsl.Dataset]) -> list:
    import os

    return sorted(os.listdir(data.path))


@pytest.mark.s3
@pytest.mark.lowest
def test_files_and_folders_of_an_object_store(s3_base, execute):
    import fsspec

    for name in ("a", "b"):
        with fsspec.open(f"{s3_base}/folder/{name}", "w") as file:
            file.write(f"content of {name}")

    @dsl.pipeline
    def pipeline():
        one = dsl.importer(artifact_uri=f"{s3_base}/folder/a", artifact_class=dsl.Dataset).output
        cat(data=one)
        both(one=one, other=one)
        read(data=one)
        name_of(data=one)
        list_files(data=dsl.importer(artifact_uri=f"{s3_base}/folder", artifact_class=dsl.Dataset).output)

    stages = {stage.name: stage for stage in execute(pipeline).stages}
    assert stages["cat"].outputs == {"out": "content of a"}
    assert stages["read"].outputs == {"Output": f"content of a from {s3_base}/folder/a"}
    assert stages["name-of"].outputs == {"out": f"{s3_base}/folder/a"}
    assert stages["list-files"].outputs == {"Output": ["a", "b"]}


@pytest.mark.s3
def test_a_file_that_goes_to_the_workspace_and_to_a_stage(s3_base, execute, tmp_path):
    """The copy at one of the two places was missing."""
    import fsspec

    with fsspec.open(f"{s3_base}/a", "w") as file:
        file.write("content")

    @dsl.pipeline(pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def pipeline():
        options = {"artifact_uri": f"{s3_base}/a", "artifact_class": dsl.Dataset}
        shared = dsl.importer(**options, download_to_workspace=True).output
        both(one=dsl.importer(**options).output, other=shared)

    execute(pipeline, kfp_workspace=tmp_path / "shared")


def test_what_cannot_be_had(execute_failing):
    @dsl.pipeline
    def pipeline():
        missing = dsl.importer(artifact_uri="memory://bucket/missing", artifact_class=dsl.Dataset).output
        cat(data=missing)
        read(data=missing)
        name_of(data=missing)

    stages = {stage.name: stage for stage in execute_failing(pipeline, copy_from=["memory://bucket"]).stages}
    assert stages["cat"].reason.startswith(
        "takes an artifact that cannot be copied from memory://bucket/missing: FileNotFoundError"
    )
    assert stages["read"].reason == "ended with exit code 1"
    assert "This stage takes an artifact that cannot be copied" in stages["read"].log_file.read_text()
    assert stages["name-of"].outputs == {"out": "memory://bucket/missing"}


def test_to_the_workspace(execute, tmp_path):
    (tmp_path / "data.csv").write_text("1,2")

    def pipeline_with(**options):
        if not hasattr(dsl, "WorkspaceConfig") or "download_to_workspace" not in dsl.importer.__annotations__:
            pytest.skip("this kfp has no importers to the workspace")
        config = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))

        @dsl.pipeline(pipeline_config=config)
        def pipeline():
            made = dsl.importer(artifact_uri=str(tmp_path / "data.csv"), artifact_class=dsl.Dataset, **options)
            cat(data=made.output)
            path_of(data=made.output)

        return pipeline

    @dsl.component(base_image="python:3.11")
    def path_of(data: dsl.Input[dsl.Dataset]) -> str:
        return data.path

    # The compiler writes this if the pipeline has a workspace.
    result = execute(pipeline_with(download_to_workspace=True), kfp_workspace=tmp_path / "shared")
    stages = {stage.name: stage for stage in result.stages}
    place = tmp_path / "shared" / ".artifacts" / str(tmp_path / "data.csv").strip("/")
    assert stages["cat"].outputs == {"out": "1,2"}
    assert stages["path-of"].outputs == {"Output": str(place)}
    assert Path(place).read_text() == "1,2"


def test_a_copy_that_does_not_come_to_an_end(tmp_path):
    """A server accepts the connection but does not answer: Ctrl-C still ends the run."""
    server = socket.create_server(("127.0.0.1", 0))

    @dsl.pipeline
    def pipeline(url: str):
        cat(data=dsl.importer(artifact_uri=url, artifact_class=dsl.Dataset).output)

    compiler.Compiler().compile(pipeline, str(tmp_path / "pipeline.yaml"))
    code = "import sys; from torchx_kfp.local import run; run('pipeline.yaml', {'url': sys.argv[1]}, grace=0.1)"
    url = f"http://127.0.0.1:{server.getsockname()[1]}/data"
    runner = subprocess.Popen([sys.executable, "-c", code, url], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    try:
        server.settimeout(60)
        connection, _ = server.accept()
        with connection:
            runner.send_signal(signal.SIGINT)
            _, shown = runner.communicate(timeout=120)
    finally:
        runner.kill()
        server.close()
    assert "was ended by SIGINT" in shown
    assert runner.returncode == -signal.SIGINT
