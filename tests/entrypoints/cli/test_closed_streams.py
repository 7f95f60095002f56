"""Readers that stop early, such as ``head -1``, and streams that were never open do not change the exit code."""

from __future__ import annotations

import errno
import os
import runpy
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kfp import compiler

from tests.entrypoints.cli.conftest import PIPELINE, invoke
from tests.execution.host.calling import wait_until
from tests.programs import PROGRAM, Program
from torchx_kfp.tracking import FsspecResultTracker

#: The exit codes of commands, by their words.
COMMANDS = {
    ("run", "two.yaml", "--tracker-base", "base"): 0,
    ("run", "fails.yaml", "--tracker-base", "base"): 1,
    ("compile", "pipelines.py:two"): 0,
    ("results", "--tracker-base", "base"): 0,
    ("results", "--tracker-base", "base", "none"): 2,
    ("--help",): 0,
    ("unknown",): 2,
}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled pipelines, so that programs here need not load kfp."""
    folder = tmp_path_factory.mktemp("compiled")
    (folder / "pipelines.py").write_text(PIPELINE)
    found = runpy.run_path(str(folder / "pipelines.py"))
    for name in ("two", "fails", "sleeps"):
        compiler.Compiler().compile(found[name], str(folder / f"{name}.yaml"))
    return folder


@pytest.fixture(autouse=True)
def base(project: Path, compiled: Path) -> None:
    for path in compiled.glob("*.yaml"):
        shutil.copy(path, project)
    FsspecResultTracker(project / "base")["run-1/train/1"] = {"loss": 0.1}


def closed(words: tuple[str, ...], folder: Path, streams: set[str]) -> subprocess.CompletedProcess[str]:
    """Call the command line with the reader of these streams gone."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run(
            [PROGRAM, *words],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=write if "stdout" in streams else subprocess.PIPE,
            stderr=write if "stderr" in streams else subprocess.PIPE,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        os.close(write)


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_the_exit_code_is_that_of_the_command(words: tuple[str, ...], project: Path) -> None:
    done = closed(words, project, {"stdout", "stderr"})
    assert done.returncode == COMMANDS[words]


@pytest.mark.parametrize(
    "words",
    [("results", "--tracker-base", "base"), ("results", "--tracker-base", "base", "none"), ("--help",)],
    ids=" ".join,
)
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_one_stream_is_closed(words: tuple[str, ...], stream: str, project: Path) -> None:
    done = closed(words, project, {stream})
    assert done.returncode == COMMANDS[words], done.stderr
    assert "Traceback" not in (done.stderr or "")
    assert "Broken" not in (done.stderr or "")


def test_a_run_goes_on_and_says_the_rest_to_those_who_read(project: Path) -> None:
    done = closed(("run", "two.yaml", "--tracker-base", "base"), project, {"stdout"})
    assert "See the results again: " in done.stderr
    shown = closed(("run", "two.yaml", "--tracker-base", "base"), project, {"stderr"})
    assert shown.stdout.split()[:3] == ["stage", "state", "results"]
    assert len(FsspecResultTracker(project / "base").keys()) == 3


def test_what_never_ends_stops_without_a_reader(project: Path, call: Program) -> None:
    with call.start("run", "sleeps.yaml") as process:
        wait_until(lambda: "asleep" in process.stderr)
        assert closed(("logs", "latest", "--follow"), project, {"stdout"}).returncode == 0
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        process.wait()


@pytest.mark.parametrize("streams", [">&-", "2>&-"])
def test_streams_that_were_closed_before(streams: str, project: Path) -> None:
    # With kfp, whose modules would find no streams, either.
    command = f"{PROGRAM} run pipelines.py:two --tracker-base base {streams}"
    done = subprocess.run(["sh", "-c", command], cwd=project, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert ("See the results again" in done.stderr) == ("2>" not in streams)
    assert ("succeeded" in done.stdout) == (streams == "2>&-")


def test_messages_that_cannot_be_written_do_not_change_the_exit_code(project: Path) -> None:
    with open("/dev/full", "w") as full:
        for words, code in (
            (("results", "--tracker-base", "base", "none"), 2),
            (("results",), 2),
            (("check", "sleeps.yaml"), 0),
        ):
            assert subprocess.run([PROGRAM, *words], cwd=project, stderr=full, check=False).returncode == code


def test_a_pipe_of_the_commands_own_that_breaks_is_a_failure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the connection to a store: no reader of the output is gone, so the command has not done its work."""

    def fail(*_: object, **__: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(FsspecResultTracker, "keys", fail)
    monkeypatch.chdir(project)
    assert invoke("results", "--tracker-base", "base").returncode == 1
