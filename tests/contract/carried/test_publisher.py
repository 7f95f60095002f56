"""The program around an application, as commands carry it, run as a process."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl

from tests.contract.carried.published import RUN_ID, Stage
from torchx_kfp.contract.carried.programs import PUBLISHER
from torchx_kfp.tracking import FsspecResultTracker


def put(*code: str) -> list[str]:
    """Return the command of an application that records results."""
    return [sys.executable, "-c", "\n".join(["from torchx_kfp.tracking import current_run", *code])]


@pytest.mark.lowest
def test_results_become_outputs_and_metrics_exactly(tmp_path: Path) -> None:
    stage = Stage(tmp_path, results={"good": bool, "uri": str, "l2norm/mean": float, "whole": float, "empty": str})
    recorded = '{"l2norm/mean": 1e-7}, good=True, uri="s3://b/ü\\n", whole=2, empty="", other=0.5, note="x"'
    done = stage.run(*put(f"current_run().put({recorded})"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    outputs = {"good": "true", "uri": "s3://b/ü\n", "l2norm_mean": "1e-07", "whole": "2.0", "empty": ""}
    assert stage.outputs() == outputs
    metrics = {"whole": 2, "other": 0.5, "l2norm/mean": "1e-07"}
    uri = "s3://bucket/root/metrics"
    assert stage.report() == {"metrics": {"name": "metrics", "uri": uri, "metadata": metrics}}


def test_what_is_beyond_doubles_loses_no_run(tmp_path: Path) -> None:
    huge = "1" + "0" * 400
    stage = Stage(tmp_path, results={"x": float})
    stage.record(f'{{"x": {huge}, "accuracy": 0.5}}')
    done = stage.run("true")
    assert (done.returncode, stage.outputs()) == (0, {"x": repr(sys.float_info.max)})
    assert f"torchx-kfp: x is {huge}, which KFP cannot store: no metric; the output is" in done.stderr
    assert stage.report()["metrics"]["metadata"] == {"accuracy": 0.5}


def test_only_ints_that_would_arrive_changed_are_refused(tmp_path: Path) -> None:
    refused = {f"seed{place}": value for place, value in enumerate([2**53 + 1, 2**60, -(2**63), 10**400])}
    kept = {f"kept{place}": value for place, value in enumerate([2**53, -(2**53), 0])}
    stage = Stage(tmp_path, results=dict.fromkeys([*refused, *kept], int))
    stage.record(json.dumps({**refused, **kept}))
    done = stage.run("true")
    assert done.returncode == 1
    for name, value in refused.items():
        assert f"torchx-kfp: train has {value} in {name}, which KFP would round: record it as text\n" in done.stderr
        assert not (tmp_path / "out" / name).exists()
    assert not [name for name in kept if f"'{name}'" in done.stderr]
    assert {name: (tmp_path / "out" / name).read_text() for name in kept} == {
        name: str(value) for name, value in kept.items()
    }


RESULT = "torchx-kfp: train declares the result "
OTHER_KINDS: list[tuple[type, str]] = [
    *((float, '"high"'), (float, "true"), (int, "1.0"), (int, "false"), (bool, "1")),
    *((str, "1"), (float, "null")),
]
FAILURES: dict[str, tuple[dict[str, Any], str | None, list[str]]] = {
    "other kinds": (
        {"results": {**{f"x{at}": kind for at, (kind, _) in enumerate(OTHER_KINDS)}, "good": bool}},
        "{" + "".join(f'"x{at}": {text}, ' for at, (_, text) in enumerate(OTHER_KINDS)) + '"good": true}',
        [
            f"{RESULT}'x{at}' as {kind.__name__} but recorded {json.loads(text)!r}"
            for at, (kind, text) in enumerate(OTHER_KINDS)
        ],
    ),
    "nothing recorded": ({"results": {"x": float}}, None, [f"{RESULT}'x' as float but recorded nothing"]),
    "a file that is not there": (
        {"artifacts": {"page": dsl.HTML}},
        None,
        ["torchx-kfp: cannot publish ", "FileNotFoundError", "/nowhere/page"],
    ),
    **{
        f"{text!r} is no result": ({}, text, [f"torchx-kfp: cannot publish {{base}}/{RUN_ID}: "])
        for text in ("[1]", "{", '"x"', "\xff")
    },
}


@pytest.mark.parametrize("case", FAILURES)
def test_what_is_recorded_otherwise_fails_the_stage(case: str, tmp_path: Path) -> None:
    declared, recorded, facts = FAILURES[case]
    stage = Stage(tmp_path, **declared)
    if recorded is not None:
        stage.record(recorded)
    stage.register("model", "s3://models/1")
    stage.register("page", "/nowhere/page")
    done = stage.run("true")
    assert done.returncode == 1
    facts = [fact.format(base=stage.base) for fact in facts]
    if facts[0].startswith("torchx-kfp: train"):
        assert done.stderr.splitlines() == facts
    assert all(fact in done.stderr for fact in facts), done.stderr
    assert "Traceback" not in done.stderr
    if "good" in stage.declared["results"]:
        assert (tmp_path / "out" / "good").read_text() == "true", "the others are there"


def test_a_failed_application_has_the_last_word(tmp_path: Path) -> None:
    stage = Stage(tmp_path, results={"accuracy": float})
    done = stage.run(*put("current_run().put(accuracy=0.5)", "raise SystemExit(7)"))
    assert (done.returncode, done.stderr) == (7, "")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run_id"], "nothing is published"
    assert FsspecResultTracker(stage.base)[RUN_ID] == {"accuracy": 0.5}, "and nothing is lost"


@pytest.mark.parametrize(
    ("word", "code", "text"), [("no-such-program", 127, "not found"), ("/etc", 126, "ermission denied")]
)
def test_what_cannot_be_started(tmp_path: Path, word: str, code: int, text: str) -> None:
    done = Stage(tmp_path).run(word)
    assert done.returncode == code
    assert text in done.stderr


def test_modules_of_the_application_are_not_pythons(tmp_path: Path) -> None:
    """The working directory of an image may contain a signal.py of the application."""
    for name in ("signal", "zlib", "base64", "json", "fsspec"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    done = Stage(tmp_path).run("true", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


# Signals and processes

HANDLER = """
import signal, sys, time
count = 0
def handle(number, frame):
    global count
    count += 1
    print("got", signal.Signals(number).name, flush=True)
for name in {names}:
    signal.signal(getattr(signal, name), handle)
print("ready", flush=True)
deadline = time.monotonic() + 100
while not count and time.monotonic() < deadline:
    time.sleep(0.01)
time.sleep(0.3)
sys.exit(40 + count)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"])
@pytest.mark.parametrize("group", [False, True], ids=["process", "group"])
def test_signals_reach_the_application_once(tmp_path: Path, name: str, group: bool) -> None:
    """Docker signals a container's first process; Argo's executor signals its whole process group."""
    process = Stage(tmp_path).start(sys.executable, "-c", HANDLER.format(names=[name]), start_new_session=True)
    (os.killpg if group else os.kill)(process.pid, getattr(signal, name))
    out, error = process.communicate(timeout=120)
    assert (process.returncode, out, error) == (41, f"got {name}\n", "")


def test_the_application_has_a_session_of_its_own(tmp_path: Path) -> None:
    """Two signals at once may be delivered as one, so the test above does not always notice."""
    done = Stage(tmp_path).run(sys.executable, "-c", "import os; print(os.getsid(0) == os.getpid())")
    assert (done.returncode, done.stdout) == (0, "True\n")


#: A training's handler needs the processes of its data loaders: only the training itself is asked to end.
WITH_WORKER = """
import signal, subprocess, time
worker = subprocess.Popen(["sleep", "30"])
def end(*_):
    time.sleep(0.3)
    print("worker", worker.poll(), flush=True)
    worker.kill(); worker.wait(); raise SystemExit(5)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: time.sleep(0.01)
"""
#: A signal ends the shell around an application at once; the application has time.
IN_A_SHELL = """
import signal, time
def end(*_):
    time.sleep(0.5)
    print("saved", flush=True)
    raise SystemExit
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize(
    ("application", "code", "output"),
    [
        (["sh", "-c", "echo ready; exec sleep 30"], 143, ""),
        ([sys.executable, "-c", WITH_WORKER], 5, "worker None\n"),
        (["sh", "-c", f"{shlex.quote(sys.executable)} -c '{IN_A_SHELL}'; true"], 143, "saved\n"),
        (["sh", "-c", "trap 'kill -9 $$' TERM; echo ready; while :; do sleep 0.01; done"], 137, ""),
    ],
    ids=["no handler", "workers", "a shell", "killed"],
)
def test_sigterm_ends_the_application(application: list[str], code: int, output: str, tmp_path: Path) -> None:
    process = Stage(tmp_path).start(*application)
    process.terminate()
    found, error = process.communicate(timeout=120)
    assert (process.returncode, found, error) == (code, output, "")


def test_an_early_signal_ends_the_stage(tmp_path: Path) -> None:
    """It may come before the program has begun to pass signals on, or just as the application starts."""
    stage = Stage(tmp_path)
    command = stage.container("sleep", "30").argv()
    for delay in (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12):
        process = subprocess.Popen(command, env=stage.environ)
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
        assert process.returncode in (143, -signal.SIGTERM)


def test_the_application_has_usual_signal_dispositions(tmp_path: Path) -> None:
    """Python ignores SIGPIPE, and the programs that it starts would inherit that."""
    code = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
    done = Stage(tmp_path).run("sh", "-c", code)
    without = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=True)
    # Of the two that glibc keeps for itself, posix_spawn ignores some: Python 3.13 starts most programs with it.
    usable = sum(1 << number - 1 for number in signal.valid_signals())

    def masks(output: str) -> dict[str, int]:
        return {name: int(mask, 16) & usable for name, mask in map(str.split, output.splitlines())}

    assert masks(done.stdout) == masks(without.stdout)
    assert set(masks(without.stdout)) == {"SigIgn:", "SigBlk:"}


@pytest.mark.parametrize(
    "left", ["sleep 900 &", "setsid sleep 900 &", "(setsid sh -c 'trap \"\" TERM; sleep 900' &) &"]
)
def test_what_the_application_leaves_running_is_ended(tmp_path: Path, left: str) -> None:
    """It holds the pipe of the stage's output open, and an engine waits for that pipe."""
    done = Stage(tmp_path).run("sh", "-c", f"{left} echo done; sleep 0.2")
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_standard_input_is_the_applications(tmp_path: Path) -> None:
    assert Stage(tmp_path).run("cat", input="text").stdout == "text"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_it_can_be_the_init_of_a_container(tmp_path: Path) -> None:
    """Such a process does not get signals without a handler, and it inherits the orphans of all other processes."""
    stage = Stage(tmp_path)
    application = [
        "sh",
        "-c",
        # The orphans end while the application runs: it waits until none is left, zombies included.
        "for i in 1 2 3; do sh -c 'sleep 0.1 &'; done; trap 'echo got; exit 9' TERM; echo ready;"
        " n=0; while ps -o comm= --ppid 1 | grep -q sleep && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.1; done;"
        " ps -o stat= --ppid 1 | grep -c Z; while :; do sleep 0.1; done",
    ]
    inside = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no rights for a process namespace")
    process = subprocess.Popen(
        [*inside, *stage.container(*application).argv()], env=stage.environ, stdout=-1, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    assert process.stdout.readline() == "0\n", "zombies"
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGTERM)
    out, _ = process.communicate(timeout=120)
    assert (process.returncode, out) == (9, "got\n")


# Artifacts


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(
        tmp_path,
        artifacts={
            "model": dsl.Model,
            "confusion": dsl.HTML,
            "train/notes": dsl.Markdown,
        },
    )


@pytest.mark.lowest
def test_an_artifact_is_copied_or_named_by_its_type(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "notes[1].md").write_text("# Notes")
    (tmp_path / "matrix.html").write_text("<table>")
    stage.register("model", "s3://models/1", framework="sklearn", classes=[0, 1], loss=float("nan"))
    stage.register("confusion", f"file://{tmp_path}/matrix.html")
    stage.register("train/notes", str(tmp_path / "notes[1].md"), author="me")
    done = stage.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    report = stage.report()
    assert report["model"]["uri"] == "s3://bucket/root/model", "KFP's own: a launcher fails of another one"
    assert report["model"]["metadata"] == {
        "framework": "sklearn",
        "classes": [0, 1],
        "loss": "NaN",
        "location": "s3://models/1",
    }
    assert json.loads((tmp_path / "out" / "model").read_text()) == {
        "path": "s3://models/1",
        "metadata": {"framework": "sklearn", "classes": [0, 1], "loss": "NaN"},
    }
    assert (tmp_path / "out" / "confusion").read_text() == "<table>", "by content"
    assert report["confusion"]["uri"] == "s3://bucket/root/confusion"
    assert (tmp_path / "out" / "train_notes").read_text() == "# Notes"
    assert report["train_notes"]["metadata"] == {"author": "me"}


def test_numbers_that_six_decimals_would_change_are_text(tmp_path: Path) -> None:
    """MLMD writes doubles with "%f"."""
    values = [0.0, -0.0, 0.0123456789, 0.0004994, 1e300, 0.0001234, -3.3e-7, 5e-324]
    stage = Stage(tmp_path, results={f"x{place}": float for place in range(8)})
    stage.record(json.dumps({f"x{place}": value for place, value in enumerate(values)}))
    assert stage.run("true").returncode == 0
    assert [*stage.report()["metrics"]["metadata"].values()] == [*values[:5], "0.0001234", "-3.3e-07", "5e-324"]


def test_a_path_that_reads_like_a_chain_of_urls(tmp_path: Path) -> None:
    stage = Stage(tmp_path, artifacts={"file": dsl.Model})
    (tmp_path / "a::b").write_text("{}")
    stage.register("file", str(tmp_path / "a::b"))
    done = stage.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "file").read_text() == "{}"


@pytest.mark.parametrize("where", ["its own disk", "the base", "a link in the base"])
def test_files_of_another_stage_are_below_the_tracker_base(where: str, tmp_path: Path) -> None:
    """The pod that publishes has files of its own at the paths of other pods."""
    (tmp_path / "model").write_text("weights")
    stage = Stage(tmp_path)
    if where == "a link in the base":
        Path(stage.base).mkdir()
        Path(stage.base, "link").symlink_to(tmp_path / "model")
    path = Path(stage.base, "link") if where == "a link in the base" else tmp_path / "model"
    stage.register("model", str(path), store=where == "the base")
    (tmp_path / "run_id").write_text(RUN_ID)
    outputs = {
        "parameters": {"run_id": {"outputFile": str(tmp_path / "run_id")}},
        "artifacts": {name: {"artifacts": [{"metadata": {}}]} for name in ("metrics", "model")},
        "outputFile": str(tmp_path / "executor_output.json"),
    }
    spec = {"results": {}, "artifacts": {"model": ["model", 0]}}
    words = [json.dumps(spec), json.dumps({"outputs": outputs}), str(tmp_path / "metrics"), str(tmp_path / "copy")]
    environ = {**os.environ, "TORCHX_TRACKER_BASE": stage.base, "TORCHX_JOB_ID": RUN_ID}
    done = subprocess.run([sys.executable, "-c", PUBLISHER, *words], env=environ, capture_output=True, text=True)
    if where == "the base":
        assert (done.returncode, done.stderr, (tmp_path / "copy").read_text()) == (0, "", "weights")
    else:
        assert done.returncode == 1
        assert f"{path} is on another stage's disk: register it there with store=True" in done.stderr
        assert not (tmp_path / "copy").exists()


def test_a_local_file_or_folder_is_kept_by_kfp(tmp_path: Path) -> None:
    stage = Stage(tmp_path, artifacts={"file": dsl.Model, "folder": dsl.Model})
    (tmp_path / "model[1]" / "deep").mkdir(parents=True)
    (tmp_path / "model[1]" / "deep" / "weights").write_bytes(b"\0\1")
    (tmp_path / "model[1]" / "config").write_text("{}")
    stage.register("file", str(tmp_path / "model[1]" / "config"))
    stage.register("folder", str(tmp_path / "model[1]"))
    done = stage.run("true")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "out" / "file").read_text() == "{}"
    assert (tmp_path / "out" / "folder" / "deep" / "weights").read_bytes() == b"\0\1"
    assert stage.report()["folder"]["uri"] == "s3://bucket/root/folder", "where KFP puts it"


# Images


def test_an_image_without_fsspec_is_told_before_the_application_starts(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # without site-packages
    python.chmod(0o755)
    stage.environ = {**stage.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = stage.run("echo", "started")
    assert (done.returncode, done.stdout) == (125, "")
    assert done.stderr.splitlines()[0] == "torchx-kfp: fsspec is missing"


@pytest.mark.lowest
def test_stores_over_http(tmp_path: Path, s3_base: str) -> None:
    stage = Stage(tmp_path, results={"accuracy": float}, artifacts={"n": dsl.HTML}, may_fail=True)
    stage.base = s3_base
    FsspecResultTracker(s3_base)[RUN_ID] = {"accuracy": 0.25}
    page = f"{s3_base}-pages/page.html"
    import fsspec

    with fsspec.open(page, "wb") as file:
        file.write(b"<p>")
    stage.register("n", page)
    done = stage.run("sh", "-c", "exit 4")
    said = "torchx-kfp: exit code 4, but the stage may fail\n"
    assert (done.returncode, done.stderr) == (0, said)
    assert stage.outputs() == {"accuracy": "0.25"}
    assert (tmp_path / "out" / "n").read_text() == "<p>"
    assert FsspecResultTracker(s3_base)[RUN_ID] == {"accuracy": 0.25, "exit_code": 4}
