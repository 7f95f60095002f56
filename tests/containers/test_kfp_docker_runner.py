"""The fixtures themselves, with pipelines that do not use this project."""
# No annotations from __future__: KFP reads those of components as objects.

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import docker
import fsspec
import pytest
from kfp import compiler, dsl
from kfp.local import config

import torchx_kfp
from tests.containers.images import BUSYBOX_IMAGE, HOST_IMAGE, REPOSITORY, host_mounts
from tests.containers.runner import KfpDockerRunner

TRUE_NAME = "example.invalid/team/app:1"


@dsl.container_component
def greet(name: str, greeting: dsl.OutputPath(str)):
    script = 'mkdir -p "$(dirname "$2")" && printf "Hello, %s" "$1" > "$2"'
    return dsl.ContainerSpec(BUSYBOX_IMAGE, ["sh", "-ec", script, "sh"], [name, greeting])


@dsl.container_component
def keep(text: str, path: str):
    script = 'printf "%s|%s|%s" "$1" "$MOOD" "$(ls / | tr "\\n" " ")" > "$2"'
    return dsl.ContainerSpec(TRUE_NAME, ["sh", "-ec", script, "sh"], [text, path])


@dsl.container_component
def interpreter(path: str):
    return dsl.ContainerSpec(HOST_IMAGE, ["python", str(Path(__file__).with_name("describe_interpreter.py"))], [path])


@dsl.pipeline(name="busybox-stages")
def busybox_stages(path: str, name: str = "World"):
    keep(text=greet(name=name).outputs["greeting"], path=path)


@dsl.pipeline(name="host-stage")
def host_stage(path: str):
    interpreter(path=path)


def compile_to(pipeline: object, path: Path) -> Path:
    compiler.Compiler().compile(pipeline, str(path))
    return path


@pytest.mark.versions
def test_an_output_parameter_reaches_the_next_stage(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    kfp_docker_runner.run(
        compile_to(busybox_stages, tmp_path / "p.yaml"),
        {"path": str(results / "text"), "name": "Jo é$HOME"},
        writable=(results,),
        images={TRUE_NAME: BUSYBOX_IMAGE},
        environment={"MOOD": "calm"},
    )
    text, mood, listing = (results / "text").read_text().split("|")
    assert (text, mood) == ("Hello, Jo é$HOME", "calm")
    # This machine's userland is not where the image would look for it.
    assert {"usr", "lib"}.isdisjoint(listing.split())


def test_the_hosts_python_runs_in_a_container(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    results = tmp_path / "results"
    results.mkdir()
    kfp_docker_runner.run(
        compile_to(host_stage, tmp_path / "p.yaml"), {"path": str(results / "found")}, writable=(results,)
    )
    found = json.loads((results / "found").read_text())
    # The environment has a link to this repository.
    found["torchx_kfp"] = str(Path(found["torchx_kfp"]).resolve())
    assert found == {
        "version": list(sys.version_info[:3]),
        "sklearn": metadata.version("scikit-learn"),
        "fsspec": fsspec.__version__,
        "torchx_kfp": str(Path(torchx_kfp.__file__).resolve()),
        "in_container": True,
        "writable": False,
    }


def test_nothing_stays_behind(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    """No containers, image names or KFP state are left: components can be called without running."""
    results = tmp_path / "results"
    results.mkdir()
    kfp_docker_runner.run(
        compile_to(busybox_stages, tmp_path / "p.yaml"),
        {"path": str(results / "text")},
        writable=(results,),
        images={TRUE_NAME: BUSYBOX_IMAGE},
    )
    client = kfp_docker_runner.client
    containers = client.api.containers(all=True, filters={"label": "torchx-kfp-test"})
    # A container that removes itself may still be there.
    assert [container for container in containers if container["State"] != "removing"] == []
    with pytest.raises(docker.errors.ImageNotFound):
        client.images.get(TRUE_NAME)
    client.images.get(BUSYBOX_IMAGE)
    # Calling a component outside a pipeline does not run it.
    assert config.LocalExecutionConfig.instance is None


def test_every_mount_is_read_only_and_exists() -> None:
    mounts = host_mounts()
    assert str(REPOSITORY) in mounts or any(REPOSITORY.is_relative_to(source) for source in mounts)
    assert all(Path(source).is_dir() for source in mounts)


@pytest.mark.parametrize(("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_without_an_engine_tests_are_skipped_or_fail(require: str, outcome: str, tmp_path: Path) -> None:
    socket = f"unix://{tmp_path}/none.sock"
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "-rs",
            "-k",
            "output_parameter",
            __file__,
        ],
        env={**os.environ, "DOCKER_HOST": socket, "TORCHX_KFP_REQUIRE_DOCKER": require},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout.splitlines()[-1]
    assert f"no Docker engine answers at {socket}: " in run.stdout
    assert run.returncode == (0 if require == "0" else 1)
