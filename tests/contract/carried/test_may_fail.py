"""Stages that may fail, as processes: the exit code becomes a result, and signals to the stage still end it."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract.carried.published import RUN_ID, Stage
from torchx_kfp.tracking import FsspecResultTracker

PUT = """
import json, os, pathlib, sys
path = pathlib.Path(os.environ["TORCHX_TRACKER_BASE"], os.environ["TORCHX_JOB_ID"])
path.parent.mkdir(parents=True, exist_ok=True)
path.write_text('{"loss": NaN, "exit_code": 99}')
"""
SAID = "torchx-kfp: exit code {}, but the stage may fail\n"


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, may_fail=True, results={"exit_code": int})


def results(stage: Stage) -> dict[str, Any]:
    return FsspecResultTracker(stage.base).get(RUN_ID)


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("exit 0", 0, ""),
        ("exit 3", 3, SAID.format(3)),
        ("kill -9 $$", 137, SAID.format(137)),
        ("kill -15 $$", 143, SAID.format(143)),
    ],
)
def test_the_exit_code_is_a_result(stage: Stage, script: str, code: int, said: str) -> None:
    done = stage.run("sh", "-c", script)
    assert (done.returncode, done.stderr) == (0, said)
    assert results(stage) == {"exit_code": code}
    assert stage.outputs() == {"exit_code": str(code)}
    assert stage.report()["metrics"]["metadata"] == {"exit_code": code}


def test_what_the_application_recorded_stays(stage: Stage) -> None:
    done = stage.run(sys.executable, "-c", PUT + "sys.exit(3)")
    assert done.returncode == 0
    assert repr(results(stage)) == repr({"loss": float("nan"), "exit_code": 3}), "the exit code is the stage's to say"
    left = [path for path in Path(stage.base).rglob("*") if path.name.startswith(".torchx_kfp-")]
    assert left == [], "the file was replaced at once"


def test_a_stage_whose_application_does_not_start_fails(stage: Stage, tmp_path: Path) -> None:
    stage.declared["workspace"] = f"{tmp_path}/.torchx_kfp/workspaces/{'0a' * 32}.tar"
    done = stage.run("true")
    assert (done.returncode, "0a.tar" in done.stderr) == (125, True)
    assert results(stage) == {}


@pytest.mark.parametrize(
    ("trap", "number", "code"),
    [
        ("-", signal.SIGTERM, 143),
        ("exit 5", signal.SIGTERM, 5),
        ("exit 5", signal.SIGINT, 5),
        ("-", signal.SIGHUP, 129),
    ],
)
def test_a_stage_that_is_asked_to_end_has_not_succeeded(stage: Stage, trap: str, number: int, code: int) -> None:
    script = f"trap '{trap}' TERM INT; echo ready; while :; do sleep 0.05; done"
    process = stage.start("sh", "-c", script)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (code, "")
    assert results(stage) == {}


def test_a_signal_that_only_tells_something(stage: Stage) -> None:
    """Schedulers announce a preemption with SIGUSR1, and the application writes a checkpoint and goes on."""
    process = stage.start("sh", "-c", "trap 'exit 3' USR1; echo ready; while :; do sleep 0.05; done")
    process.send_signal(signal.SIGUSR1)
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, SAID.format(3))
    assert results(stage) == {"exit_code": 3}
