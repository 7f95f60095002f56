"""Watching a run: in a terminal, as lines and as JSON, with the program as a user calls it."""

import fcntl
import json
import math
import re
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import pytest
from kfp import compiler, dsl

from tests.entrypoints.cli.conftest import Call
from tests.execution.local.components import python, shell
from tests.execution.report.runs import write_events
from tests.programs import PROGRAM, Program
from tests.terminal import PATIENCE, Terminal
from torchx_kfp.local import RunFinished, RunStarted, StageFinished, StageResult, State


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled pipelines, so that programs here need not load kfp."""
    made = tmp_path_factory.mktemp("watch")
    wait = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.05)\n"
    awkward = r"os.write(1, b'\x1b[2J\x1b[9A \x1b[31mred ' + 'wide \u65e5\u672c '.encode() * 40 + b'\n')" + "\n"

    @dsl.pipeline(name="waits")
    def waits():
        with dsl.ParallelFor(list(range(30))) as item:
            del item
            python(code=f"import os\n{awkward}print('looping', flush=True)\n{wait}")
        first = shell(script="echo trying; exit 3")
        shell(script="echo never").after(first)

    @dsl.pipeline(name="sleeps")
    def sleeps():
        shell(script="echo quick")
        asleep = python(code="import time\nprint('asleep', flush=True)\ntime.sleep(60)")
        shell(script="echo never").after(asleep)

    @dsl.pipeline(name="fails")
    def fails():
        first = shell(script="printf '\\033[31mred\\n'; exit 3")
        shell(script="echo never").after(first)

    for pipeline in (waits, sleeps, fails):
        compiler.Compiler().compile(pipeline, str(made / f"{pipeline.name}.yaml"))
    return made


@pytest.fixture
def start(folder: Path, fork_server: str) -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []
    (folder / "go").unlink(missing_ok=True)

    def function(columns: int, lines: int, *words: str, **environ: str) -> Terminal:
        started.append(Program(fork_server, folder).terminal(columns, *words, lines=lines, **environ))
        return started[-1]

    yield function
    for terminal in started:
        if terminal.process.poll() is None:
            terminal.process.send_signal(signal.SIGKILL)
            terminal.process.wait()


@pytest.mark.parametrize(("columns", "lines"), [(100, 30), (40, 10)])
def test_a_picture_while_it_runs_and_a_table_after_it(
    start: Callable[..., Terminal], folder: Path, columns: int, lines: int
) -> None:
    terminal = start(columns, lines, "run", "waits.yaml", "--parallelism", "3", "--no-cache")
    shown = terminal.wait_for("python[0]", "python[2]", "looping", "✗ shell")
    picture = shown[shown.rindex("waits ") :].splitlines()
    assert re.match(r"waits \d+s  1 failed, 3 running,", picture[0])
    assert [line.split()[:2] for line in picture if "python" in line] == [
        ["●", "python"],
        *[["●", f"python[{number}]"] for number in range(3)],
    ]
    # There is one picture, which is redrawn, and the cursor is on the line below.
    assert shown.count("● python[1]") == 1
    assert terminal.screen.cursor.x == 0
    assert not terminal.screen.cursor.hidden
    (folder / "go").touch()
    assert terminal.end() == 1
    assert "● " not in terminal.shown
    text = terminal.written.decode().replace("\r\n", "\n")
    assert text.endswith("\n")
    if columns == 100:
        table = [line.split() for line in text[text.rindex("stage  ") :].splitlines()]
        assert ["python[...]", "30", "succeeded"] in [line[:3] for line in table]
        assert "shell ended with exit code 3." in text
        assert "    trying\n" in text
        assert "Not run because of that: shell-2." in text
        assert "torchx-kfp run waits.yaml" in text.splitlines()[-1].replace("'", "")


def test_ctrl_c_leaves_nothing_behind(start: Callable[..., Terminal]) -> None:
    terminal = start(200, 30, "run", "sleeps.yaml", "--no-cache")
    terminal.wait_for("● python", "asleep", "✓ shell")
    terminal.send(b"\x03")
    assert terminal.end() == 130
    lines = terminal.shown.splitlines()
    assert lines[0] == "before"
    assert lines[1].startswith("Run sleeps-")
    assert lines[2].startswith("stage ")
    assert sorted(line.split()[:3] for line in lines[4:7])[::2] == [
        ["python", "canceled", mock.ANY],
        ["shell-2", "not", "run"],
    ]
    assert re.search(r"was ended by SIGINT\.", terminal.shown)
    assert "torchx-kfp run sleeps.yaml --no-cache" in terminal.shown
    assert lines[-1] == "Interrupted."
    assert "●" not in terminal.shown
    assert "^C" not in terminal.shown
    assert not terminal.screen.cursor.hidden


def test_another_size_is_followed(start: Callable[..., Terminal]) -> None:
    terminal = start(120, 30, "run", "sleeps.yaml", "--no-cache")
    terminal.wait_for("● python", "asleep")
    fcntl.ioctl(terminal.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 30, 0, 0))
    terminal.screen.resize(5, 30)
    terminal.wait_for("● python", "asleep")
    terminal.send(b"\x03")
    assert terminal.end() == 130


def test_no_colors_and_no_picture_for_those_who_want_none(start: Callable[..., Terminal]) -> None:
    plain = start(100, 30, "run", "fails.yaml", NO_COLOR="1")
    assert plain.end() == 1
    assert re.search(rb"\x1b\[[0-9;]*m", plain.written) is None
    dumb = start(100, 30, "run", "fails.yaml", TERM="dumb")
    assert dumb.end() == 1
    assert b"\x1b" not in dumb.written
    assert b"shell | red\r\n" in dumb.written


def test_verbose_lines_in_a_terminal(start: Callable[..., Terminal]) -> None:
    terminal = start(100, 40, "run", "fails.yaml", "--verbose")
    assert terminal.end() == 1
    assert "\nshell starts.\nshell   input script = " in terminal.shown
    # A color that is not ended does not affect the next line.
    assert b"shell | \x1b[31mred\x1b[0m\r\n" in terminal.written
    assert "shell-2 was not run: shell failed." in terminal.shown


def call(folder: Path, *words: str, **options: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([PROGRAM, *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, **options)


def test_a_time_limit_ends_a_run(folder: Path) -> None:
    done = call(folder, "run", "sleeps.yaml", "--timeout", "10s", "--no-cache")
    assert done.returncode == 1
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[2:] if line}
    assert rows["python"].split()[1] == "canceled"
    assert "The time limit of 10 s was exceeded: the running stages have 10 s to stop" in done.stderr
    assert re.search(
        r"Error: The run sleeps-\S+ failed: the time limit of 10 s was exceeded\.\nEnded because of that: python\.",
        done.stderr,
    )
    assert call(folder, "run", "sleeps.yaml", "--timeout", "3").returncode == 2


def test_results_that_could_not_be_read_are_told(call: Call, project: Path) -> None:
    """Numbers that JSON has not are no constants in events."""
    folder = project / "local_outputs" / "run-1"
    given = {"a": None, "b": {"loss": math.nan}, "c": None}
    stages = [
        StageResult(
            name, name, State.SUCCEEDED, results=results, execution_id=f"run-1/{name}/1", tracker_base="s3://bucket"
        )
        for name, results in given.items()
    ]
    end = RunFinished("run-1", State.SUCCEEDED, 1.0)
    write_events(folder, [RunStarted("pipeline", "run-1", folder), *map(StageFinished, stages), end])
    told = call("watch", "latest", "--quiet")
    assert told.stderr.startswith("The results of a, c could not be read from s3://bucket.\n")
    assert [line.split()[2:] for line in told.stdout.splitlines()[2:]] == [[], ["loss=nan"], []]
    lines = call("watch", "latest", "--json").stdout.splitlines()
    [event] = [json.loads(line, parse_constant=pytest.fail) for line in lines if '"loss"' in line]
    assert event["results"] == {"loss": "NaN"}
