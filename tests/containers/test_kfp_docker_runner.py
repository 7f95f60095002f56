"""The fixtures themselves, with pipelines that do not use this project."""
# No annotations from __future__: KFP reads those of components as objects.

import os
import subprocess
import sys
from pathlib import Path

import docker
import pytest
from kfp import compiler, dsl
from kfp.local import config

from tests.containers.images import BUSYBOX_IMAGE, REPOSITORY
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


@dsl.pipeline(name="busybox-stages")
def busybox_stages(path: str, name: str = "World"):
    keep(text=greet(name=name).outputs["greeting"], path=path)


def test_nothing_stays_behind(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    """No containers, image names or KFP state are left: components can be called without running."""
    results = tmp_path / "results"
    results.mkdir()
    compiler.Compiler().compile(busybox_stages, str(tmp_path / "p.yaml"))
    kfp_docker_runner.run(
        tmp_path / "p.yaml",
        {"path": str(results / "text"), "name": "Jo é$HOME"},
        writable=(results,),
        images={TRUE_NAME: BUSYBOX_IMAGE},
        environment={"MOOD": "calm"},
    )
    text, mood, listing = (results / "text").read_text().split("|")
    assert (text, mood) == ("Hello, Jo é$HOME", "calm")
    # This machine's userland is not where the image would look for it.
    assert {"usr", "lib"}.isdisjoint(listing.split())
    client = kfp_docker_runner.client
    containers = client.api.containers(all=True, filters={"label": "torchx-kfp-test"})
    # A container that removes itself may still be there.
    assert [container for container in containers if container["State"] != "removing"] == []
    with pytest.raises(docker.errors.ImageNotFound):
        client.images.get(TRUE_NAME)
    client.images.get(BUSYBOX_IMAGE)
    # Calling a component outside a pipeline does not run it.
    assert config.LocalExecutionConfig.instance is None


@pytest.mark.parametrize(("require", "outcome"), [("0", "1 skipped"), ("1", "1 error")])
def test_without_an_engine_tests_are_skipped_or_fail(require: str, outcome: str, tmp_path: Path) -> None:
    socket = f"unix://{tmp_path}/none.sock"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-rs", "-k", "stays_behind", __file__],
        env={**os.environ, "DOCKER_HOST": socket, "TORCHX_KFP_REQUIRE_DOCKER": require},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome in run.stdout.splitlines()[-1]
    assert f"no Docker engine answers at {socket}: " in run.stdout
    assert run.returncode == (0 if require == "0" else 1)
