"""The carried launcher as a process on this machine, where each replica is a process of its own."""

# No annotations from __future__: KFP reads the annotations of pipeline functions.

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from torchx.specs import AppDef, RetryPolicy, Role

from tests.contract.carried.behaviours import BEHAVIOURS, ROWS, CompiledStage, outputs, run_here
from tests.execution.local.test_failures import alive
from tests.facts import keep, says
from tests.oldest import needs_oldest, oldest_python
from torchx_kfp import engines
from torchx_kfp.tracking import FsspecResultTracker

#: Seconds after which a program counts as hanging.
HANGS = 120
#: Time passes so fast that replicas have 0.2 s to end after SIGTERM.
IMPATIENT = "import time; passed = time.monotonic; time.monotonic = lambda: passed() * 50\n"
#: The machine lets the program start two threads, as the limit of processes in a container may.
FEW_THREADS = """
import itertools, threading
start_thread, started = threading.Thread.start, itertools.count()
def start_one(thread):
    if next(started) == 2:
        raise RuntimeError("can't start new thread")
    start_thread(thread)
threading.Thread.start = start_one
"""
#: What runs the carried program, and a program that comes before it.
PROGRAMS = {
    "carried": (sys.executable, ""),
    "oldest": (oldest_python() or "", ""),
    "impatient": (sys.executable, IMPATIENT),
    "few-threads": (sys.executable, FEW_THREADS),
}
#: A ``python3`` whose argument after -c is the carried program.
PYTHON = """#!/bin/sh
program=$2
shift 2
exec {interpreter} -c "$(cat {path}/before)
$program" "$@"
"""
both_pythons = pytest.mark.parametrize("program", ["carried", pytest.param("oldest", marks=needs_oldest)])


@pytest.mark.parametrize(("name", "engine"), ROWS)
def test_a_stage_does_the_same_here_as_on_a_cluster(name: str, engine: str, tmp_path: Path) -> None:
    row = BEHAVIOURS[name]
    stage = CompiledStage(row.app(tmp_path), tmp_path / "results", **row.options_with(engine))
    code, log = run_here(stage, tmp_path / "stage")
    found = outputs(tmp_path / "stage")
    row.check(code, log, found, rank0="localhost", server="localhost")
    if row.records is not None:
        assert FsspecResultTracker(str(tmp_path / "results"))[found["run_id"]] == row.records


def role(name: str, replicas: int, *command: str, restarts: int = 0, **fields: Any) -> Role:
    """Return a role; ``restarts`` is how often each replica is started again."""
    if restarts:
        fields |= {"max_retries": restarts, "retry_policy": RetryPolicy.REPLICA}
    fields |= {"image": "any", "entrypoint": command[0], "args": [*map(keep, command[1:])], "num_replicas": replicas}
    return Role(name, **fields)


def shell(name: str, replicas: int, script: str, **fields: Any) -> Role:
    return role(name, replicas, "sh", "-c", script, **fields)


def python(name: str, replicas: int, code: str, **fields: Any) -> Role:
    return role(name, replicas, sys.executable, "-uc", textwrap.dedent(code), **fields)


def command(
    folder: Path,
    path: Path,
    *roles: Role,
    program: str = "carried",
    engine: str = "",
    count: str | None = None,
    success: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
) -> tuple[list[str], dict[str, str]]:
    """Return the command and the environment of a stage, whose output is in the folder.

    Args:
        folder: a folder.
        path: another one, for the interpreter.
        roles: its roles.
        program: one of ``PROGRAMS``.
        engine: the engine; by default, one that can run the roles.
        count: the number of replicas, which is known only at run time.
        success: the roles whose success is the stage's.
        variables: further variables.
    """
    options: dict[str, Any] = {} if count is None else {"replicas": lambda n: n}
    options["engine"] = engine or (
        engines.JobSet(succeeds_with=success) if success else "jobset" if roles[1:] else "job"
    )
    stage = CompiledStage(AppDef("train", list(roles)), folder / "results", tracked=False, **options)
    container = stage.container(folder, {} if count is None else {"n_int": count})
    interpreter, before = PROGRAMS[program]
    (path / "before").write_text(before)
    (path / "python3").write_text(PYTHON.format(path=path, interpreter=interpreter))
    (path / "python3").chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHX_", "KFP_"))}
    return container.argv(), {**kept, "PATH": f"{path}:{os.environ['PATH']}", **(variables or {})}


Start = Callable[..., "subprocess.Popen[bytes]"]
Launch = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def start(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start a stage, with options of ``command`` and of ``Popen``."""
    processes = []

    def function(*roles: Role, prefix: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        given = {name: options.pop(name) for name in ("stdout", "stderr", "cwd") if name in options}
        words, environ = command(tmp_path, tmp_path_factory.mktemp("path"), *roles, **options)
        process = subprocess.Popen([*prefix, *words], env=environ, **{"stdout": -1, "stderr": -1, **given})
        processes.append(process)
        return process

    yield function
    for process in processes:
        with process:
            process.kill()


@pytest.fixture
def launch(start: Start) -> Launch:
    """Run a stage to its end."""

    def function(*roles: Role, **options: Any) -> subprocess.CompletedProcess[bytes]:
        process = start(*roles, **options)
        out, err = process.communicate(timeout=HANGS)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    return function


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + HANGS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def lines(output: bytes, label: str) -> list[str]:
    """Return the lines of one replica."""
    return [line.partition(" | ")[2] for line in output.decode().split("\n") if line.startswith(f"{label} | ")]


def said(process: subprocess.CompletedProcess[bytes]) -> list[str]:
    """Return what the launcher has said, but for how many replicas run."""
    spoken = process.stderr.decode().splitlines()
    return [line.removeprefix("torchx-kfp: ") for line in spoken if "replicas run" not in line]


@both_pythons
def test_each_replica_gets_its_variables_and_words(program: str, launch: Launch) -> None:
    script = 'echo "$0 $1 $ME $TORCHX_REPLICA_ID/$TORCHX_NUM_REPLICAS $TORCHX_RANK0_HOST $SHARED $OWN"'
    process = launch(
        role("a", 2, "sh", "-c", script, "x${replica_id}y", "$(HOME) $$5", env={"ME": "${replica_id}!", "OWN": "o"}),
        role("b", 1, "sh", "-c", script, "z", "", env={"ME": "b"}),
        program=program,
        variables={"SHARED": "s", "TORCHX_REPLICA_ID": "7"},
    )
    assert (process.returncode, said(process)) == (0, [])
    assert lines(process.stdout, "a/0") == ["x0y $(HOME) $$5 0! 0/2 localhost s o"]
    assert lines(process.stdout, "a/1") == ["x1y $(HOME) $$5 1! 1/2 localhost s o"]
    # The variables of the first role are also those of the launcher, but not of other roles.
    assert lines(process.stdout, "b/0") == ["z  b 0/1 localhost s "]
    assert process.stderr.decode().startswith("torchx-kfp: 3 of 3 replicas run\n")


TORCHRUN = r"""
print("[0]:epoch 1\n[0]:ValueError: bad loss\nE1122 api.py:1002] failed\n" + "Traceback\n" * 30 + "[0]:\n  rank")
raise SystemExit(1)
"""


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_last_lines_are_those_of_the_application_and_not_of_torchrun(replicas: int, launch: Launch) -> None:
    others = [shell("other", 1, "exec sleep 300")] * (replicas - 1)
    process = launch(python("train", 1, TORCHRUN), *others)
    last = "train/0 failed first, with" if replicas > 1 else "train/0 failed, with"
    assert f"{last} exit code 1; its last lines:" in said(process)
    assert process.stdout.decode().splitlines()[-2:] == [
        "  train/0 | [0]:epoch 1",
        "  train/0 | [0]:ValueError: bad loss",
    ]


def test_replicas_that_do_not_heed_sigterm_are_killed(tmp_path: Path, launch: Launch) -> None:
    fails = "[ $TORCHX_REPLICA_ID = 0 ] && { until [ -e 1 ] && [ -e 2 ]; do sleep 0.05; done; exit 5; }"
    script = f"{fails}; trap '' TERM; echo $$; touch $TORCHX_REPLICA_ID; while :; do sleep 1; done"
    process = launch(shell("train", 3, script), program="impatient", cwd=tmp_path)
    assert process.returncode == 5
    for other in ("train/1", "train/2"):
        (pid,) = lines(process.stdout, other)
        assert not alive(int(pid))


def test_stopped_replicas_are_ended(start: Start, launch: Launch) -> None:
    script = "[ $TORCHX_REPLICA_ID = 0 ] && { sleep 0.3; exit 5; }; kill -STOP $$"
    assert launch(shell("train", 2, script), program="impatient").returncode == 5


COUNTING = """
import os, signal, sys, time
count = {number: 0 for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)}
def tell(what):
    open(sys.argv[1] + os.environ["TORCHX_REPLICA_ID"] + what, "w").close()
def note(number, _):
    count[number] += 1
    tell(signal.Signals(number).name)
for number in count:
    signal.signal(number, note)
tell("")
while not sum(count.values()) - count[signal.SIGUSR1]:
    time.sleep(0.01)
time.sleep(0.3)
print({signal.Signals(number).name: n for number, n in count.items() if n})
"""


@both_pythons
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_reaches_each_replica_once(program: str, number: int, start: Start, tmp_path: Path) -> None:
    told = tmp_path / "told"
    told.mkdir()
    process = start(role("train", 3, sys.executable, "-uc", COUNTING, f"{told}/"), program=program)
    wait_for(lambda: len(list(told.iterdir())) == 3)
    process.send_signal(signal.SIGUSR1)
    wait_for(lambda: len(list(told.iterdir())) == 6)
    process.send_signal(number)
    stdout, stderr = process.communicate(timeout=HANGS)
    # The replicas have ended well, but the stage has not come to its end.
    assert process.returncode == 128 + number
    for index in range(3):
        assert lines(stdout, f"train/{index}") == [f"{{'{signal.Signals(number).name}': 1, 'SIGUSR1': 1}}"]
    assert stderr.decode() == "torchx-kfp: 3 of 3 replicas run\n"


def test_no_signal_is_lost_while_replicas_are_started(start: Start, tmp_path: Path) -> None:
    """The first replica is already running when the launcher gets the signal, the last ones may not be."""
    script = f"echo $$ >>{tmp_path}/pids; exec sleep 300"
    process = start(shell("train", 40, script))
    wait_for((tmp_path / "pids").exists)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=HANGS) == 128 + signal.SIGTERM
    assert not any(map(alive, map(int, (tmp_path / "pids").read_text().split())))


class End:
    """Roles, options of the specification, and how the stage ends: ``starts`` is how often each replica was started."""

    def __init__(
        self,
        roles: Sequence[Role],
        code: int = 0,
        says: Sequence[str] = (),
        starts: Mapping[str, int] | None = None,
        lines: Mapping[str, Sequence[str]] | None = None,
        **options: Any,
    ) -> None:
        self.roles, self.code, self.says, self.options = roles, code, says, options
        self.starts, self.lines = starts or {}, lines or {}


NOTE = "echo $$ >>$TORCHX_REPLICA_ID; "
WAITS = "exec sleep 300"
#: Replica 1 fails when both have been started as often.
FAILS = f"{NOTE}[ $TORCHX_REPLICA_ID = 0 ] && {WAITS}; until [ $(wc -l <0) = $(wc -l <1) ]; do sleep 0.05; done; exit 6"
AGAIN = "attempt {} of 3: the application ended with exit code 6"
ONE = "restarting it ({} of 2)"
NUMBER = "echo of $TORCHX_NUM_REPLICAS"
NONE: Mapping[str, Sequence[str]] = {"train/0": []}
RANGE = ["'train'", "1 to 5", "num_replicas"]
ENDS: Mapping[str, End] = {
    "a single replica is not called the first": End([shell("train", 1, "exit 4")], 4, ["train/0 failed with exit"]),
    "the last replicas have names": End(
        [shell("train", 2, "true"), shell("server", 1, "until grep -q '2 succeeded' said; do sleep 0.05; done")],
        says=["3 of 3 replicas run", "1 of 3 replicas run (server/0), 2 succeeded"],
    ),
    "SIGKILL": End([shell("train", 2, f"[ $TORCHX_REPLICA_ID = 0 ] && kill -9 $$; {WAITS}")], 137, ["train/0 failed"]),
    "SIGSEGV": End([shell("train", 2, f"[ $TORCHX_REPLICA_ID = 0 ] && kill -11 $$; {WAITS}")], 139),
    "all replicas are started again": End(
        [shell("train", 2, FAILS, max_retries=2)],
        6,
        [AGAIN.format(2), AGAIN.format(3)],
        {"0": 3, "1": 3},
        engine="jobset",
    ),
    "single replicas are started again, as often as their role says": End(
        [
            shell(
                "train",
                2,
                f"{NOTE}[ $TORCHX_REPLICA_ID = 0 ] && {WAITS}; until [ -s 0 ]; do sleep 0.05; done; exit 6",
                restarts=2,
            ),
            shell("b", 1, WAITS, restarts=2),
        ],
        6,
        [f"train/1 failed with exit code 6; {what}" for what in (ONE.format(1), ONE.format(2), "ending the others")],
        {"0": 1, "1": 3},
    ),
    "a role fails whose success does not matter": End(
        [shell("trainer", 2, WAITS), shell("ps", 1, "exit 8")], 8, success=["trainer"]
    ),
    "a number of replicas": End([shell("train", 5, NUMBER)], count=" 2.0 ", lines={"train/1": ["of 2"], "train/2": []}),
    "fewer than the role needs": End(
        [shell("train", 5, NUMBER, min_replicas=2)], 1, ["2 to 5", "min_replicas", "j='1:5x"], lines=NONE, count="1"
    ),
    **{
        f"{count!r} replicas": End([shell("train", 5, NUMBER)], 1, [repr(count), *RANGE], lines=NONE, count=count)
        for count in ("0", "6", "1.5", "nan", "-inf", "1e400", "many", "")
    },
}


@pytest.mark.parametrize("name", ENDS)
def test_a_stage_of_processes_ends(name: str, tmp_path: Path, launch: Launch) -> None:
    end = ENDS[name]
    with (tmp_path / "said").open("wb") as file:
        process = launch(*end.roles, cwd=tmp_path, stderr=file, **end.options)
    spoken = (tmp_path / "said").read_text()
    assert process.returncode == end.code, spoken
    assert all(fact in spoken for fact in end.says), spoken
    assert {index: len((tmp_path / index).read_text().split()) for index in end.starts} == end.starts
    assert {label: lines(process.stdout, label) for label in end.lines} == end.lines


def test_output_of_all_kinds(launch: Launch) -> None:
    code = r"""
    import os, sys
    index = int(os.environ["TORCHX_REPLICA_ID"])
    out = sys.stdout.buffer
    if index == 0:
        out.write(b"\x00\xff\x80 binary\n\r10%\r20%\nline\r\n\nno newline")
    elif index == 1:
        out.write(b"x" * 200_000 + b"\n")
    else:
        for number in range(3000):
            os.write(1 + number % 2, b"line %d of %d\n" % (number, index))
    """
    process = launch(python("train", 4, code))
    assert process.returncode == 0
    found: dict[bytes, list[bytes]] = {}
    for line in process.stdout.rstrip(b"\n").split(b"\n"):
        label, bar, text = line.partition(b" | ")
        assert bar, line[:100]
        found.setdefault(label, []).append(text)
    # Only the end of the output is changed: a newline follows it.
    written = b"\x00\xff\x80 binary\n\r10%\r20%\nline\r\n\nno newline\n"
    # A progress bar begins its line again, and must not overwrite the name.
    assert found[b"train/0"][1] == b"\rtrain/0 | 10%\rtrain/0 | 20%"
    assert b"\n".join([*found[b"train/0"], b""]).replace(b"\rtrain/0 | ", b"\r") == written
    # Long lines come in pieces.
    assert b"".join(found[b"train/1"]) == b"x" * 200_000
    for index in (2, 3):
        assert found[b"train/%d" % index] == [b"line %d of %d" % (number, index) for number in range(3000)]


def test_processes_that_a_replica_leaves_are_killed(tmp_path: Path, launch: Launch) -> None:
    began = time.monotonic()
    process = launch(shell("train", 2, f"sleep 300 & echo $! >>{tmp_path}/pids"))
    assert process.returncode == 0
    assert time.monotonic() - began < HANGS / 2
    # A process that was killed needs the CPU once more.
    wait_for(lambda: not any(map(alive, map(int, (tmp_path / "pids").read_text().split()))))


def test_a_process_in_another_session_does_not_keep_the_stage_from_ending(tmp_path: Path, start: Start) -> None:
    """It holds the output open. The runner, and the program that publishes results, end it."""
    (tmp_path / "pids").touch()
    leave = f"setsid sh -c 'echo $$ >>{tmp_path}/pids; exec sleep 300' &"
    script = f"{leave} until [ $(wc -l <{tmp_path}/pids) = 8 ]; do sleep 0.05; done; echo end"
    process = start(shell("train", 8, script), stdout=subprocess.DEVNULL)
    try:
        assert process.wait(timeout=HANGS) == 0
    finally:
        for pid in (tmp_path / "pids").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


def test_a_stage_whose_log_nobody_reads_ends(tmp_path: Path, start: Start) -> None:
    """As with any program that writes to a closed pipe; otherwise its replicas would wait forever."""
    script = f"echo $$ >>{tmp_path}/pids; while :; do echo more; sleep 0.05; done"
    process = start(shell("train", 2, script), stderr=subprocess.STDOUT)
    assert process.stdout is not None
    process.stdout.readline()
    wait_for(lambda: (tmp_path / "pids").exists() and len((tmp_path / "pids").read_text().split()) == 2)
    process.stdout.close()
    assert process.wait(timeout=HANGS) == 128 + signal.SIGTERM
    assert not any(map(alive, map(int, (tmp_path / "pids").read_text().split())))


def test_more_replicas_than_the_machine_can_start(tmp_path: Path, launch: Launch) -> None:
    (tmp_path / "pids").touch()
    limit = ["sh", "-c", 'ulimit -n 20; exec "$@"', "sh"]
    process = launch(shell("train", 100, f"echo $$ >>{tmp_path}/pids; exec sleep 300"), prefix=limit)
    assert (process.returncode, process.stdout) == (1, b"")
    (message,) = said(process)
    assert re.search(says(" of 100 replicas", "Too many open files", "replicas=N"), message)
    wait_for(lambda: not any(map(alive, map(int, (tmp_path / "pids").read_text().split()))))


@pytest.mark.parametrize("replicas", [3, 2], ids=["at first", "again"])
def test_threads_that_the_machine_cannot_start(tmp_path: Path, replicas: int, launch: Launch) -> None:
    """Replicas that nobody would read and follow are ended."""
    fails = "[ $TORCHX_REPLICA_ID != 1 ] || exit 3; " if replicas == 2 else ""
    script = f"echo $$ >>{tmp_path}/pids; {fails}exec sleep 300"
    process = launch(shell("train", replicas, script, restarts=1), program="few-threads")
    assert process.returncode == 1
    assert re.search(
        says(f"{replicas} of {replicas} replicas", "can't start new thread", "replicas=N"), said(process)[-1]
    )
    wait_for(lambda: not any(map(alive, map(int, (tmp_path / "pids").read_text().split()))))


def free_ports(number: int) -> list[int]:
    """Return ports for which no other test, and no other run of this test, waits."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("localhost", 0))) for _ in range(number)]
        return [server.getsockname()[1] for server in servers]


def test_stages_with_the_same_port_take_turns(tmp_path: Path, start: Start) -> None:
    ports = sorted(free_ports(2))  # all hold the lower one first, whatever their order
    script = f"mkdir {tmp_path}/held || exit 9; until [ -e {tmp_path}/go ]; do sleep 0.05; done; rmdir {tmp_path}/held"
    orders = [{"p": ports[0], "q": ports[1]}, {"p": ports[1], "q": ports[0]}, {"p": ports[0]}]
    other = shell("other", 1, "true", port_map={"p": ports[0]})
    logs = [tmp_path / f"log{number}" for number in range(3)]
    processes = []
    for order, log in zip(orders, logs, strict=True):
        with log.open("wb") as file:
            processes.append(start(shell("train", 1, script, port_map=order), other, stdout=file, stderr=file))
    waiting = f"waiting for another stage on this machine that uses port {ports[0]}\n"
    wait_for(lambda: sum(waiting in log.read_text() for log in logs) == 2)
    (tmp_path / "go").touch()
    assert [process.wait(timeout=HANGS) for process in processes] == [0, 0, 0]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_stage_that_ends_frees_its_port(number: int, start: Start) -> None:
    (port,) = free_ports(1)
    first = start(shell("train", 1, "exec sleep 120", port_map={"p": port}))
    assert first.stderr is not None
    first.stderr.readline()
    waiting = start(shell("train", 1, "exec sleep 300", port_map={"p": port}))
    second = start(shell("train", 1, "echo mine", port_map={"p": port}))
    for process in (waiting, second):
        assert process.stderr is not None
        assert b"waiting" in process.stderr.readline()
    # One that waits can be ended, and does not start anything.
    waiting.send_signal(signal.SIGTERM)
    assert waiting.wait(timeout=HANGS) == 128 + signal.SIGTERM
    first.send_signal(number)
    assert second.communicate(timeout=HANGS)[0] == b"train/0 | mine\n"
    assert waiting.communicate()[0] == b""
