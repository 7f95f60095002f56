"""`replay --docker`: a stage in its image, attached to the terminal."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import json
import shutil
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


def test_a_folder_of_somebody_else_gives_a_container_no_files(folder: Path, call: Program) -> None:
    """No tracker base that never was one, nor an artifact, unless the user names it."""
    (folder / "private").mkdir()
    (folder / "private" / "key").write_text("SECRET")
    compiler.Compiler().compile(takes, str(folder / "takes.yaml"))
    made = run(folder / "takes.yaml", output_dir=folder / "local_outputs", watch=Watch())
    assert made.folder is not None

    def replayed(name: str) -> subprocess.CompletedProcess[str]:
        return call("replay", name, "--docker")

    (asked,) = (folder / "local_outputs").glob("asks-*")
    for file in (asked / "run.json", asked / "events.jsonl"):
        file.write_text(file.read_text().replace(f"{folder}/results", f"{folder}/private"))
    done = replayed(f"{asked.name}/ask")
    assert (done.returncode, f"--mount {folder}/private" in done.stderr) == (2, True), done.stderr
    done = replayed(f"{made.folder.name}/take")
    assert (done.returncode, done.stdout) == (0, "given\n"), done.stderr
    lines = (made.folder / "events.jsonl").read_text().splitlines()
    (made.folder / "link").symlink_to(folder / "private" / "key")
    # It may have been unpacked next to anything.
    beside = shutil.copytree(folder / "private", made.folder.parent / "private")
    for uri in (f"{folder}/private/key", f"{made.folder}/link", f"{beside}/key"):
        for key in ("uri", "custom_path"):
            events = list(map(json.loads, lines))
            for event in events:
                if event["event"] == "stage_started" and event["name"] == "take":
                    event["artifacts"]["data"] |= {"uri": "s3://bucket/key", "imported": True, key: uri}
            (made.folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
            done = replayed(f"{made.folder.name}/take")
            assert (done.returncode, "SECRET" in done.stdout) == (2, False), done.stderr
            assert "--mount" in done.stderr
    for uri, way_out in (
        (f"local://{folder}/private/key", "--copy-from"),
        (f"simplecache::file://{folder}/private/key", "chained"),
    ):
        text = "\n".join(lines).replace(f'"uri": "{made["give"].artifacts["data"].uri}"', f'"uri": "{uri}"')
        (made.folder / "events.jsonl").write_text(f"{text}\n")
        done = replayed(f"{made.folder.name}/take")
        assert (done.returncode, "SECRET" in done.stdout, way_out in done.stderr) == (1, False, True), done.stderr
