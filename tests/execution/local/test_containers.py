"""Stages in containers, without an engine: what is rejected before one is asked, and how one is looked for."""

import socket

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import shell, write
from tests.facts import says
from torchx_kfp.errors import ArgumentError, ContainerEngineError, UnsupportedPipelineError
from torchx_kfp.local import run


@dsl.pipeline
def inner():
    write(x="in")
    with dsl.ParallelFor([1, 2]), dsl.ParallelFor([3]):
        shell(script="train")


@dsl.pipeline
def outer():
    shell(script="out")
    inner()


@dsl.container_component
def no_command():
    return dsl.ContainerSpec(image="image")


@pytest.mark.parametrize(
    "words",
    [
        "--docker outer.yaml",
        "outer.yaml --docker",
        "outer.yaml --docker --parallelism 1",
        "--docker shell --docker inner/write outer.yaml",
        "--docker=shell outer.yaml",
        "--docker -- outer.yaml",
    ],
)
def test_the_option_takes_a_stage_and_leaves_the_file(words, call, tmp_path, monkeypatch):
    """An engine is asked for before anything is started."""
    compiler.Compiler().compile(outer, str(tmp_path / "outer.yaml"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    done = call("run", "--output-dir", "runs", *words.split())
    assert done.returncode == 1
    assert f"none answers. Tried:\n- unix://{tmp_path}/no.sock: No such file or directory\n" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_word_behind_the_end_of_options_is_not_one(call, tmp_path):
    compiler.Compiler().compile(outer, str(tmp_path / "outer.yaml"))
    done = call("run", "outer.yaml", "--", "--docker")
    assert (done.returncode, "--docker" in done.stderr, "--docker=" in done.stderr) == (2, True, False)


@pytest.mark.lowest
def test_a_socket_that_nobody_listens_at(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    with pytest.raises(ContainerEngineError, match=r"dead\.sock: Connection refused"):
        run(outer, docker=True, output_dir=tmp_path / "runs")


def test_a_stage_in_a_container_needs_no_command(tmp_path, monkeypatch):
    @dsl.pipeline
    def pipeline():
        no_command()
        write(x="a")

    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    for docker in (False, ["write"]):
        with pytest.raises(UnsupportedPipelineError, match=says("--docker", "'pipeline'", "'no-command'", "'image'")):
            run(pipeline, docker=docker)
    for docker in (True, ["no-command"]):
        with pytest.raises(ContainerEngineError):
            run(pipeline, docker=docker)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"docker": ["iner/write"]}, ["'iner/write'", "'outer'", "'inner/write'", "Name"]),
        ({"mounts": ["missing"]}, ["'missing'", "/missing'", "Create"]),
        *(
            ({"mounts": [text]}, ["SRC[:DST][:ro]", "Write"])
            for text in ("", ":/data", ".:data", ".:/data:rx", ".:/a:/b")
        ),
    ],
)
def test_a_wrong_option_of_containers_is_refused(options, facts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=says(*facts)):
        run(outer, **{"docker": True, **options})
