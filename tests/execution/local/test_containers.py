"""Stages in containers, without an engine: which stages are chosen, what the engine is asked for, what is rejected."""

import os
import socket

import pytest
from click.testing import CliRunner
from kfp import compiler, dsl, kubernetes

from tests.execution.local.components import shell, write
from tests.facts import says
from torchx_kfp.entrypoints.cli import cli
from torchx_kfp.entrypoints.cli.commands.run import _with_values
from torchx_kfp.errors import ArgumentError, ContainerEngineError, UnsupportedPipelineError
from torchx_kfp.execution.local.executors.executor import Containers, choose_containers
from torchx_kfp.execution.local.executors.mounts import (
    Mount,
    combine,
    local_path,
    named_places,
    parse_mount,
    tracker_bases,
)
from torchx_kfp.execution.local.preflight import check_supported, find_not_applied
from torchx_kfp.execution.pipeline.placeholders import Facts, Limits, parse_quantity, read_limits
from torchx_kfp.local import load_pipeline, run
from torchx_kfp.tracking.recorder import Recorder


@pytest.fixture
def nested():
    @dsl.pipeline
    def inner():
        write(x="in")
        with dsl.ParallelFor([1, 2]), dsl.ParallelFor([3]):
            shell(script="train")

    @dsl.pipeline
    def outer():
        shell(script="out")
        inner()

    return load_pipeline(outer)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--docker", "pipeline.yaml"], ["--docker=", "pipeline.yaml"]),
        (["pipeline.py:main", "--docker"], ["pipeline.py:main", "--docker="]),
        (["--docker", "pipeline.py:main"], ["--docker=", "pipeline.py:main"]),
        (["p.yaml", "--docker", "-p", "x=1"], ["p.yaml", "--docker=", "-p", "x=1"]),
        (
            ["--docker", "train", "--docker", "in/eval", "p.yaml"],
            ["--docker", "train", "--docker", "in/eval", "p.yaml"],
        ),
        (["--docker=train", "p.yaml"], ["--docker=train", "p.yaml"]),
        (["--docker", "--", "p.yaml"], ["--docker=", "--", "p.yaml"]),
        (["p.yaml", "--", "--docker"], ["p.yaml", "--", "--docker"]),
    ],
)
def test_the_option_takes_a_stage_and_leaves_the_file(words, expected):
    assert _with_values(words) == expected


@pytest.mark.parametrize(
    "words", [["--docker", "FILE"], ["FILE", "--docker"], ["FILE", "--docker", "shell", "--docker", "write"]]
)
def test_the_command_asks_for_an_engine_before_it_starts_anything(words, tmp_path, nested, monkeypatch):
    @dsl.pipeline
    def pipeline():
        shell(script="true")
        write(x="a")

    path = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    arguments = [str(path) if word == "FILE" else word for word in words]
    done = CliRunner().invoke(cli, ["run", "--output-dir", str(tmp_path / "runs"), *arguments])
    assert done.exit_code == 1
    assert f"none answers. Tried:\n- unix://{tmp_path}/no.sock: No such file or directory\n" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.lowest
def test_a_socket_that_nobody_listens_at(tmp_path, monkeypatch, nested):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "dead.sock"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/dead.sock")
    with pytest.raises(ContainerEngineError, match=r"dead\.sock: Connection refused"):
        run(nested, docker=True, output_dir=tmp_path / "runs")


def test_stages_are_chosen_by_name(nested):
    assert choose_containers(nested, False).names == set()
    assert choose_containers(nested, True).names == {"shell", "inner/write", "inner/shell"}
    assert choose_containers(nested, ["shell"]).names == {"shell", "inner/shell"}
    some = choose_containers(nested, ("inner/shell",))
    assert ("inner/shell[1,0]" in some, "shell" in some) == (True, False)


def test_wrong_choices_are_refused(nested):
    with pytest.raises(ArgumentError, match=says("'iner/write'", "'outer'", "'inner/write'", "Name")):
        choose_containers(nested, ["iner/write"])


def test_mounts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    here = str(tmp_path)
    assert parse_mount(here) == Mount(here, here)
    assert parse_mount(".:ro") == Mount(here, here, read_only=True)
    assert parse_mount("~:/data/:rw") == Mount(here, "/data")
    with pytest.raises(ArgumentError, match=says("'missing'", "/missing'", "Create")):
        parse_mount("missing")
    for text in ("", ":/data", ".:data", ".:/data:rx", ".:/a:/b"):
        with pytest.raises(ArgumentError, match=says("SRC[:DST][:ro]", "Write")):
            parse_mount(text)


def test_one_mount_for_each_path():
    run_, base = Mount("/runs/1", "/runs/1"), Mount("/runs/1/tracker", "/runs/1/tracker")
    assert combine([base, run_]) == (run_,)
    shut = Mount("/runs/1/tracker", "/runs/1/tracker", read_only=True)
    assert combine([run_, shut]) == (run_, shut)
    assert combine([Mount("/a", "/data"), Mount("/b", "/data")]) == (Mount("/b", "/data"),)
    assert combine([shut, base, Mount("/runs/10", "/runs/10")]) == (base, Mount("/runs/10", "/runs/10"))
    inside = Mount("/elsewhere", "/runs/1/volumes")
    assert combine([run_, inside]) == (run_, inside)


def test_tracker_bases_of_this_machine(tmp_path):
    command = ["env", f"TORCHX_TRACKER_BASE={tmp_path}/a", "sh"]
    inputs = {"tracker_base": f"file://{tmp_path}/b%20c", "pipelinechannel--tracker_base": "s3://bucket", "x": "/etc"}
    named = named_places([f"{tmp_path}/a/", f"file://{tmp_path}/b%20c", "relative", 1, ""])
    assert named == [f"{tmp_path}/a", f"{tmp_path}/b%20c"]
    assert tracker_bases(command, inputs, named, ()) == named
    # The tracker takes a URL of a file as it is, too.
    assert os.path.isdir(tmp_path / "b%20c")
    assert str(Recorder.open(f"file://{tmp_path}/b%20c").folder) == named[1]
    # If a mount already shows it, it need not be mounted.
    here = str(tmp_path)
    assert tracker_bases(command, inputs, (), [Mount(here, here)]) == []
    for mounts in ((), [Mount(here, here, read_only=True)], [Mount(f"{here}/b", here)]):
        with pytest.raises(ValueError, match=says(f"'{here}/a'", f"--tracker-base {here}/a", f"--mount {here}/a")):
            tracker_bases(command, inputs, (), mounts)
    with pytest.raises(ValueError, match=says("records results at 'local:///etc'", "containers")):
        tracker_bases([], {"tracker_base": "local:///etc"}, (), ())
    with pytest.raises(
        ValueError, match=says("records results at 'results'", "another folder in a container", "absolute path", "Give")
    ):
        local_path("results")


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("500m", 0.5),
        ("2", 2),
        ("1.5Gi", 1.5 * 2**30),
        ("64M", 64e6),
        ("1k", 1e3),
        ("1e3", 1e3),
        ("2E", 2e18),
        ("1Ei", 2**60),
    ],
)
def test_quantities(text, number):
    assert parse_quantity(text) == number


@pytest.mark.parametrize("text", ["", "many", "1.2.3", "-1", "1K", "5 GB", "mi"])
def test_what_is_no_quantity(text):
    with pytest.raises(ValueError, match=says("is not a quantity", "500m", "1.5Gi")):
        parse_quantity(text)


def test_limits_of_all_forms():
    assert read_limits({"cpuLimit": 1.5, "memoryLimit": 0.5}, Facts()) == Limits(1.5, 500_000_000)
    both = {"cpuLimit": 1.0, "resourceCpuLimit": "{{$.inputs.parameters['c']}}", "resourceMemoryLimit": "1Gi"}
    assert read_limits(both, Facts(parameters={"c": "250m"})) == Limits(0.25, 2**30)
    accelerator = {"accelerator": {"type": "nvidia.com/gpu", "count": "2", "resourceCount": "1"}}
    assert read_limits(accelerator, Facts()) == Limits(accelerators=1, accelerator_type="nvidia.com/gpu")
    assert read_limits({"cpuRequest": 2.0, "resourceMemoryRequest": "1G"}, Facts()) == Limits()


def test_what_processes_cannot_have_containers_can(tmp_path):
    @dsl.container_component
    def no_command():
        return dsl.ContainerSpec(image="image")

    @dsl.component(base_image="python:3.12")
    def lightweight():
        pass

    @dsl.pipeline
    def pipeline():
        lightweight()
        task = no_command().set_cpu_limit("1").set_accelerator_limit(1).set_accelerator_type("nvidia.com/gpu")
        kubernetes.empty_dir_mount(task, "scratch", "/no/such/folder")
        kubernetes.mount_pvc(task, "claim", "/no/such/data")
        kubernetes.set_image_pull_policy(task, "Always")

    loaded = load_pipeline(pipeline)
    with pytest.raises(
        UnsupportedPipelineError, match=says("--docker", "stage", "'pipeline'", "'no-command'", "'image'")
    ):
        check_supported(loaded)
    chosen = choose_containers(loaded, True)
    check_supported(loaded, chosen)
    mount = "the volume claim 'claim' (give --mount FOLDER:/no/such/data)"
    assert find_not_applied(loaded, containers=chosen) == ("accelerator limits", mount)
    mounted = choose_containers(loaded, True, [parse_mount(f"{tmp_path}:/no/such/data")])
    assert find_not_applied(loaded, containers=mounted) == ("accelerator limits",)
    assert find_not_applied(loaded, containers=Containers(chosen.names, mounted.mounts, has_gpus=True)) == ()
    assert find_not_applied(loaded) == (
        "an empty directory 'scratch' (make the directory /no/such/folder, or use --docker)",
        "cpu, memory and accelerator limits",
        "image pull policies",
        "the volume claim 'claim' (make the directory /no/such/data, or use --docker)",
    )
