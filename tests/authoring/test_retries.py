"""``max_retries`` of stages whose pod KFP makes, in real shells: another attempt, with another execution id."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.authoring.kfp_engines import Container
from tests.authoring.test_command import stage_container

#: Prints its execution id, and fails until it has been started as often as its argument says.
FAILS = 'echo "$TORCHX_JOB_ID"; echo >>"$1"; [ "$(wc -l <"$1")" -ge "$2" ] || exit 7'
POD = {"KFP_RUN_ID": "run-1", "KFP_POD_NAME": "pod-7", "KFP_POD_UID": "0b5a1f3c-1234-4f00-9c1e-1"}


def said(attempts: int, of: int, code: int = 7) -> list[str]:
    return [
        f"torchx-kfp: attempt {attempt} of {of}: the application ended with exit code {code}"
        for attempt in range(2, attempts + 1)
    ]


def failing(folder: Path, times: int, *, tracked: bool = True, retries: int = 3) -> Container:
    words = ["-c", FAILS, "sh", str(folder / "starts"), str(times)]
    fields = {"entrypoint": "sh", "args": words, "max_retries": retries, "env": {"A": "$(B)"}}
    return replace(stage_container(folder, tracked=tracked, **fields), environ=POD)


def test_the_run_id_has_the_beginning_of_the_pods_uid(shells: Path, tmp_path: Path) -> None:
    """When KFP retries a run, Argo gives the new pod the name of the one that failed."""
    assert replace(stage_container(tmp_path, entrypoint="true"), environ=POD).run(shells).returncode == 0
    assert (tmp_path / "out" / "run_id").read_text() == "run-1/train/pod-7_0b5a1f3c"


def test_each_attempt_has_a_run_id_of_its_own(shells: Path, tmp_path: Path) -> None:
    done = failing(tmp_path, 3).run(shells)
    assert done.returncode == 0
    assert done.stdout.decode().split() == [f"run-1/train/pod-7_0b5a1f3c{attempt}" for attempt in ("", "_2", "_3")]
    assert done.stderr.decode().splitlines() == said(3, 4)
    assert (tmp_path / "out" / "run_id").read_text() == "run-1/train/pod-7_0b5a1f3c_3"


@pytest.mark.parametrize("tracked", [True, False])
def test_the_last_attempt_decides(shells: Path, tmp_path: Path, tracked: bool) -> None:
    done = failing(tmp_path, 9, tracked=tracked, retries=2).run(shells)
    assert done.returncode == 7
    assert done.stderr.decode().splitlines() == said(3, 3)
    assert (tmp_path / "starts").read_text().count("\n") == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_stage_that_was_asked_to_end_is_not_started_again(shells: Path, tmp_path: Path, number: int) -> None:
    """The application gets one signal, and the time that it needs."""
    program = (
        "import os, signal, sys; signals = {1, 2, 15}; signal.pthread_sigmask(signal.SIG_BLOCK, signals); "
        "os.write(1, b'ready\\n'); got = signal.sigwait(signals); more = signal.sigtimedwait(signals, 0.2); "
        "print(got, more); sys.exit(42)"
    )
    container = stage_container(tmp_path, entrypoint=sys.executable, args=["-c", program], max_retries=3)
    environ = {"PATH": f"{shells}:{os.environ['PATH']}"}
    with subprocess.Popen(container.argv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out, err) == (42, b"15 None\n", b"")


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_that_only_tells_something(shells: Path, tmp_path: Path, number: int) -> None:
    """Schedulers announce a preemption with one; it ended the shell, and the application with it."""
    program = (
        "import os, signal, sys; signals = {10, 12}; signal.pthread_sigmask(signal.SIG_BLOCK, signals); "
        "os.write(1, b'ready\\n'); got = signal.sigwait(signals); os.write(1, b'%d\\n' % got); "
        "signal.sigtimedwait((), 0.3); sys.exit(42)"
    )
    container = stage_container(tmp_path, entrypoint=sys.executable, args=["-c", program], max_retries=1)
    environ = {"PATH": f"{shells}:{os.environ['PATH']}"}
    with subprocess.Popen(
        container.argv(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == b"ready\n"
            process.send_signal(number)
            assert process.stdout.readline() == b"%d\n" % number
        out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (42, b"")
    assert err.decode().splitlines() == said(2, 2, 42)


def test_an_application_that_ends_at_once_when_asked_keeps_its_exit_code(shells: Path, tmp_path: Path) -> None:
    """The shell may not have noticed its end when it looks for it."""
    args = ["-c", "trap 'exit 42' TERM; echo ready; sleep 30 >&- & wait"]
    command = stage_container(tmp_path, tracked=False, entrypoint="sh", args=args, max_retries=3).argv()
    environ = {"PATH": f"{shells}:{os.environ['PATH']}"}
    for _ in range(20):
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(0.05)  # until the application waits, so that it ends without delay
            process.send_signal(signal.SIGTERM)
        assert process.returncode == 42


def test_a_signal_ends_an_application_between_two_attempts(shells: Path, tmp_path: Path) -> None:
    """The signal may come before the application ends, or after it; bash 5.2 sometimes loses its exit code then."""
    container = stage_container(
        tmp_path, tracked=False, entrypoint="sh", args=["-c", "kill $PPID; exit 3"], max_retries=3
    )
    for _ in range(20):
        done = container.run(shells)
        assert done.returncode in (3, 128 + signal.SIGTERM)
        assert b"attempt" not in done.stderr
