"""Ctrl-C and other signals: a real runner in a separate process, real signals, and no processes left."""

import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.execution.host.calling import wait_until
from tests.execution.local.components import python, scripts, shell
from tests.execution.local.test_failures import alive
from tests.facts import says
from tests.watching import Heard
from torchx_kfp import task_from_app
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.local import StageStarted, Watch, run

#: Seconds after which a runner counts as hanging. It takes one, or ten on a machine with ten processes for each CPU.
HANGS = 200

RUNNER = (
    "import sys; from torchx_kfp.local import run; run(sys.argv[1], output_dir=sys.argv[2], grace=float(sys.argv[3]))"
)


@pytest.fixture
def start(tmp_path):
    """Start a runner for a pipeline, and wait until ``count`` processes have written their ids into ``pids``."""
    runners = []

    def function(pipeline, count, grace=10.0):
        path = tmp_path / "pipeline.yaml"
        compiler.Compiler().compile(pipeline, str(path))
        command = [sys.executable, "-c", RUNNER, str(path), str(tmp_path / "runs"), str(grace)]
        # Under nohup, the tests ignore SIGHUP, and so would the processes that they start.
        hang_up = partial(signal.signal, signal.SIGHUP, signal.SIG_DFL)
        runner = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hang_up)
        runners.append(runner)
        wait_for(lambda: len(read_pids(tmp_path)) == count)
        return runner

    yield function
    for runner in runners:
        runner.kill()
        runner.communicate()
    for pid in read_pids(tmp_path):
        if alive(pid):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition):
    wait_until(condition, HANGS)


def all_end(pids: list[int]) -> None:
    """Wait for processes that were killed: each needs the CPU once more."""
    wait_for(lambda: not any(map(alive, pids)))


def read_pids(folder: Path) -> list[int]:
    file = folder / "pids"
    return [int(word) for word in file.read_text().split()] if file.exists() else []


def family(folder):
    """Return a stage with a child, one in another process group, one that ignores signals, one in another session."""
    note = f">> {folder}/pids"
    return (
        f"echo $$ {note}; sleep 300 & echo $! {note}; timeout 300 sleep 301 & echo $! {note}; "
        f"(trap '' TERM INT HUP; sleep 302) & echo $! {note}; setsid sh -c 'echo $$ {note}; exec sleep 303' & "
        "wait"
    )


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGHUP, 128 + signal.SIGHUP)],
)
def test_no_process_survives_a_signal(start, tmp_path, number, code):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor([1, 2]):
            shell(script=family(tmp_path))
        after = shell(script="sleep 0.1")
        shell(script=f"echo $$ >> {tmp_path}/pids; exec sleep 304").after(after)

    runner = start(pipeline, 11, grace=1.0)
    pids = read_pids(tmp_path)
    assert all(alive(pid) for pid in pids)
    runner.send_signal(number)
    _, stderr = runner.communicate(timeout=HANGS)
    assert runner.returncode == code
    all_end(pids)
    assert f"was ended by {signal.Signals(number).name}.\n" in stderr
    assert ("KeyboardInterrupt" in stderr) == (number == signal.SIGINT)
    assert "another exception" not in stderr


#: Counts how often it is asked to end, and takes its time.
SAVING = """
import os, pathlib, signal, sys, time
count = 0
def end(*_):
    global count
    count += 1
signal.signal(signal.SIGTERM, end)
folder = pathlib.Path(sys.argv[1])
with open(folder / "pids", "a") as pids:
    pids.write(f"{os.getpid()}\\n")
while not count:
    time.sleep(0.01)
time.sleep(0.5)
(folder / sys.argv[2]).write_text(str(count))
"""


def test_applications_have_time_to_end_and_are_asked_once(start, tmp_path):
    """Also if the shell around one ends at once, and through the program that publishes a stage's results."""
    (tmp_path / "app.py").write_text(SAVING)
    words = [str(tmp_path / "app.py"), str(tmp_path)]

    @dsl.pipeline
    def pipeline():
        shell(script=f"{shlex.join([sys.executable, *words, 'in-a-shell'])} & wait")
        role = Role("train", image="image:1", entrypoint="python", args=[*words, "with-results"])
        task_from_app(AppDef("train", roles=[role]), tracker_base=str(tmp_path / "results"), results={})

    # The grace period is longer than the test may take, which does not wait for its end.
    runner = start(pipeline, 2, grace=1000.0)
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=HANGS)
    assert [(tmp_path / name).read_text() for name in ("in-a-shell", "with-results")] == ["1", "1"]
    all_end(read_pids(tmp_path))


def test_a_second_signal_kills_at_once(start, tmp_path):
    code = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: open({str(tmp_path / "asked")!r}, "w").close())
open({str(tmp_path / "pids")!r}, "w").write(str(os.getpid()))
while True: time.sleep(1)
"""

    @dsl.pipeline
    def pipeline():
        python(code=code)

    runner = start(pipeline, 1, grace=300.0)
    runner.send_signal(signal.SIGINT)
    wait_for((tmp_path / "asked").exists)
    assert runner.poll() is None
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=HANGS)
    assert runner.returncode == -signal.SIGINT
    all_end(read_pids(tmp_path))


def test_nothing_starts_after_a_signal(start, tmp_path):
    @dsl.pipeline
    def pipeline():
        first = shell(script=f"trap 'exit 0' TERM; echo $$ >> {tmp_path}/pids; sleep 300 & wait")
        first.set_retry(5)
        shell(script=f"touch {tmp_path}/second").after(first)

    runner = start(pipeline, 1)
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=HANGS)
    assert not (tmp_path / "second").exists()
    assert len(read_pids(tmp_path)) == 1


def test_a_run_inside_of_a_stage_ends_with_it(start, tmp_path):
    @dsl.pipeline
    def inner():
        shell(script=f"echo $$ >> {tmp_path}/pids; exec setsid -w sleep 305")

    path = tmp_path / "inner.yaml"
    compiler.Compiler().compile(inner, str(path))

    @dsl.pipeline
    def outer():
        python(code=f"from torchx_kfp.local import run; run({str(path)!r}, output_dir={str(tmp_path)!r})")

    runner = start(outer, 1, grace=2.0)
    runner.send_signal(signal.SIGINT)
    runner.communicate(timeout=HANGS)
    all_end(read_pids(tmp_path))


def test_handlers_are_put_back_and_ignored_signals_stay_ignored(execute, tmp_path):
    seen = []

    def hear(event):
        seen.append(signal.getsignal(signal.SIGTERM))
        if isinstance(event, StageStarted):
            os.kill(os.getpid(), signal.SIGHUP)
            (tmp_path / "go").touch()

    before = signal.getsignal(signal.SIGTERM)
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        execute(scripts(f"until [ -e {tmp_path}/go ]; do sleep 0.02; done"), watch=Heard(on_event=hear))
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, previous)
    assert seen[0] is not before
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_process_that_ignores_the_ends_of_its_children(execute_failing, tmp_path):
    pipeline, failures = scripts("exit 3"), []

    def in_a_thread():
        with pytest.raises(TorchxKfpError, match=says("signal.signal", "signal.SIGCHLD")):
            run(pipeline, output_dir=tmp_path / "thread", watch=Watch())
        failures.append("refused")

    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert execute_failing(pipeline).stages[0].exit_code == 3
        assert signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
        thread = threading.Thread(target=in_a_thread)
        thread.start()
        thread.join()
    finally:
        signal.signal(signal.SIGCHLD, previous)
    assert failures == ["refused"]


def test_a_run_in_another_thread_leaves_signals_alone(execute):
    before, seen = signal.getsignal(signal.SIGTERM), []
    watch = Heard(on_event=lambda _: seen.append(signal.getsignal(signal.SIGTERM)))
    thread = threading.Thread(target=lambda: seen.append(execute(scripts(":"), watch=watch).state))
    thread.start()
    thread.join()
    assert seen == [*[before] * 5, "succeeded"]


#: A file that takes long to load.
LONG = "\n".join(f"k{number}: [a, b, {number}, d]" for number in range(150_000))


@pytest.mark.parametrize("phase", ["loading", "many iterations"])
def test_a_signal_ends_every_phase(tmp_path, phase):
    """Loading used to go on for minutes."""

    @dsl.pipeline
    def pipeline(items: list):
        with dsl.ParallelFor(items):
            shell(script="true")

    path = tmp_path / "p.yaml"
    if phase == "loading":
        os.mkfifo(path)
    else:
        compiler.Compiler().compile(pipeline, str(path))
    command = [Path(sys.executable).with_name("torchx-kfp"), "run", path, "--output-dir", tmp_path / "runs"]
    if phase != "loading":
        command += ["-p", f"items={json.dumps(['x'] * 9000)}"]
    runner = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        if phase == "loading":
            # The writer ends when the runner has read everything and begins to parse it.
            writer = threading.Thread(target=path.write_text, args=(LONG,), daemon=True)
            writer.start()
            wait_for(lambda: not writer.is_alive())
        else:
            wait_for(lambda: list(tmp_path.glob("runs/*/events.jsonl")))
            # Most runs have reached the phase by now. An earlier signal also ends them.
            time.sleep(1)
        runner.send_signal(signal.SIGINT)
        _, stderr = runner.communicate(timeout=HANGS)
    finally:
        runner.kill()
        runner.wait()
    assert (runner.returncode, "Traceback" in stderr) == (130, False), stderr
