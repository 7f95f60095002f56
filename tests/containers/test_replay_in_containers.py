"""`replay --docker`: a stage in its image, attached to the terminal."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import subprocess
from pathlib import Path

import docker
import pytest
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.containers.images import BUSYBOX_IMAGE
from tests.programs import PROGRAM, Program
from torchx_kfp import task_from_app
from torchx_kfp.local import Watch, run

#: Where it runs, and on what; then it records what somebody types.
ASK = r"""
[ -t 1 ] && printf '\033[31mred\033[0m\n'
if [ -e /bin/busybox ] && [ ! -e /root ]; then echo in the image; fi
printf 'number? '; read n
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
echo "{\"n\": ${n:-0}}" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
[ -z "$n" ] || exit "$n"
"""


@dsl.pipeline(name="asks")
def asks(tracker_base: str):
    app = AppDef("ask", [Role("role", image=BUSYBOX_IMAGE, entrypoint="sh", args=["-c", ASK])])
    task_from_app(app, tracker_base=tracker_base)


@dsl.container_component
def give(data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(BUSYBOX_IMAGE, ["sh", "-c", 'mkdir -p "${0%/*}"; echo given >"$0"', data.path])


@dsl.container_component
def take(data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(BUSYBOX_IMAGE, ["sh", "-c", 'cat "$0"', data.path])


@dsl.pipeline(name="takes")
def takes():
    take(data=give().outputs["data"])


@pytest.fixture
def folder(docker_client: docker.DockerClient, tmp_path: Path) -> Path:
    """A folder with a run whose stage was a process here."""
    compiler.Compiler().compile(asks, str(tmp_path / "asks.yaml"))
    arguments = {"tracker_base": str(tmp_path / "results")}
    done = run(tmp_path / "asks.yaml", arguments, output_dir=tmp_path / "local_outputs", watch=Watch())
    assert done["ask"].results == {"n": 0}
    return tmp_path


def left(client: docker.DockerClient) -> list[object]:
    there = client.containers.list(all=True, ignore_removed=True)  # other tests remove theirs
    return [each for each in there if "replay_asks" in each.labels.get("torchx-kfp.run", "")]


def test_a_container_is_attached(docker_client: docker.DockerClient, folder: Path, call: Program) -> None:
    words = ("replay", "latest/ask", "--docker")
    terminal = call.terminal(100, *words)
    terminal.wait_for("in the image", "number?")
    assert b"\033[31mred" in terminal.written
    terminal.send(b"7\r")
    assert terminal.end() == 7
    assert "n 7 (was 0)" in terminal.shown
    # Ctrl-C reaches the application, which ends by the signal.
    terminal = call.terminal(100, *words)
    terminal.wait_for("number?")
    terminal.send(b"\x03")
    assert terminal.end() == 130
    # Without a terminal, streams are what they are.
    program = [PROGRAM, *words]
    done = subprocess.run(program, cwd=folder, input="3\n", capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (3, "in the image\nnumber? "), done.stderr
    assert not left(docker_client)


def test_a_container_has_a_copy_of_what_the_stage_was_given(folder: Path, call: Program) -> None:
    compiler.Compiler().compile(takes, str(folder / "takes.yaml"))
    made = run(folder / "takes.yaml", output_dir=folder / "local_outputs", watch=Watch())
    done = call("replay", f"{made.run_id}/take", "--docker")
    assert (done.returncode, done.stdout) == (0, "given\n"), done.stderr
