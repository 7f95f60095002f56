"""Runs that prove what only pods can, on the host of the tests, and what is said if something is wrong there."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.entrypoints.cli.ready import Ready
from tests.entrypoints.doctor.conftest import Check, Doctor
from tests.execution.host.calling import wait_until
from tests.execution.host.commands import Program
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault

Proved = Callable[..., dict[str, Check]]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """The tracker base, at which stages have a volume."""
    return tmp_path / "results"


@pytest.fixture
def words(kfp_host: KfpHost, base: Path) -> list[str]:
    return ["--host", kfp_host.url, "--tracker-base", str(base), "--volume", "claim", "--image", "app:1", "--run"]


@pytest.fixture
def lacking(tmp_path: Path) -> list[str]:
    """The words for an image that lacks fsspec."""
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "fsspec.py").write_text("raise ImportError('there is none')")
    return ["--env", f"PYTHONPATH={tmp_path / 'lacking'}"]


def files(base: Path) -> list[Path]:
    return [path for path in base.rglob("*") if path.is_file()]


def test_a_host_and_its_pods(doctor: Doctor, kfp_host: KfpHost, base: Path, words: list[str]) -> None:
    checks = doctor(*words, "--engine", "job")
    levels = {name: check.level for name, check in checks.items() if check.level != "ok"}
    assert {name for name, level in levels.items() if level != "warning"} == {"pipeline root"}
    assert {name for name, level in levels.items() if level == "warning"} <= {"container engine"}
    proved = ("results between stages", "label of pods", "KFP_POD_UID", "retries of the cluster", "cache", "cancel")
    assert {*proved, "replicas (job)", "cleaned up"} <= {*checks}
    assert checks["cleaned up"].said == "4 runs and 4 files are removed. "
    assert (kfp_host.runs, files(base)) == ({}, [])


def test_an_image_that_lacks_fsspec(
    doctor: Doctor, kfp_host: KfpHost, base: Path, words: list[str], lacking: list[str]
) -> None:
    """The line says what is missing, the other checks go on, and nothing is left, or what is left is named."""
    found = doctor(*words, *lacking)
    assert found["first stage"].level == "missing"
    assert re.search(says("The image lacks fsspec (there is none)", "--image IMAGE"), found["first stage"].said)
    assert found["cancel"].level == "ok"
    assert found["cleaned up"].said == "2 runs and 0 files are removed. "
    assert (kfp_host.runs, files(base)) == ({}, [])
    kfp_host.fail(403, method="DELETE", times=9)
    left = doctor(*words, *lacking)["cleaned up"]
    assert left.level == "warning"
    assert re.search(says("Left over", "403", *kfp_host.runs), left.said)


def test_an_image_in_which_nothing_can_be_installed(doctor: Doctor, words: list[str], lacking: list[str]) -> None:
    del words[words.index("--image") : words.index("--image") + 2]
    found = doctor(*words, *lacking, "--env", "PIP_NO_INDEX=1")
    assert re.search(says("python:3.12-alpine", "install what it lacks", "--image"), found["image"].said)
    facts = says("image lacks fsspec (there is none)", "pip cannot install", "--image IMAGE")
    assert re.search(facts, found["first stage"].said), found["first stage"]


def test_runs_that_cannot_start(doctor: Doctor, kfp_host: KfpHost, words: list[str]) -> None:
    """There is no tracker base, a wrong token, or a base that pods cannot use."""
    runs = doctor("--host", kfp_host.url, "--run")["runs"]
    assert (runs.level, "--tracker-base s3://bucket/results" in runs.said) == ("missing", True)
    kfp_host.token = "right"
    found = doctor(*words, "--existing-token", "wrong-one")
    assert re.search(says("401", "Sent were: '--existing-token'"), found["host"].said)
    assert (found["runs"].level, "see above" in found["runs"].said) == ("missing", True)
    assert "wrong-one" not in str(found)
    kfp_host.token = None
    unmounted = doctor(*(word for word in words if word not in ("--volume", "claim")))["tracker base of pods"]
    assert unmounted.level == "missing"
    assert re.search(says("is a directory of the pod", "--volume CLAIM"), unmounted.said)


@pytest.mark.s3
def test_pods_that_do_not_reach_the_storage(doctor: Doctor, kfp_host: KfpHost, s3_base: str) -> None:
    env = ("--env", "AWS_ENDPOINT_URL=http://store.invalid:9000", "--env", "AWS_MAX_ATTEMPTS=1")
    found = doctor("--host", kfp_host.url, "--tracker-base", s3_base, "--image", "app:1", "--run", *env)
    facts = says(f"tracker base {s3_base} cannot be used", "store.invalid", "--env AWS_ENDPOINT_URL", "--secret")
    assert re.search(facts, found["first stage"].said), found["first stage"]
    assert not kfp_host.runs


def fail_after_the_question(host: KfpHost, fault: Fault) -> None:
    """Let requests for runs fail, but for the first one, which asks for the right to run."""
    host.add(Fault(path="runs$", method="POST"))
    host.add(fault)


def test_a_host_that_takes_no_run(doctor: Doctor, kfp_host: KfpHost, words: list[str]) -> None:
    # The connection reads its settings again.
    fail_after_the_question(kfp_host, Fault(403, path="runs$", method="POST", times=2))
    found = doctor(*words)
    assert (found["runs"].level, "403" in found["runs"].said, "cleaned up" in found) == ("missing", True, False)


def test_a_run_whose_answer_is_lost_is_removed(doctor: Doctor, kfp_host: KfpHost, base: Path, words: list[str]) -> None:
    fail_after_the_question(kfp_host, Fault(path="runs$", method="POST", cut=0.5))
    found = doctor(*words)
    assert "may have accepted the run" in found["runs"].said
    assert found["cleaned up"].level == "ok"
    assert (kfp_host.runs, files(base)) == ({}, [])


def test_a_host_that_does_not_name_stages(doctor: Doctor, kfp_host: KfpHost, base: Path, words: list[str]) -> None:
    kfp_host.served -= {"v1beta1"}
    found = doctor(*words)
    assert re.search(says("reports only the state of the run", "v1beta1"), found["first stage"].said)
    assert found["pipeline root"].level == "skipped"
    assert (kfp_host.runs, files(base)) == ({}, [])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_remove_what_was_begun(
    ready_program: Ready, kfp_host: KfpHost, base: Path, words: list[str], tmp_path: Path, number: int, code: int
) -> None:
    (tmp_path / "slow").mkdir()
    wait = "import os, time\nif '/second/' in os.environ.get('TORCHX_JOB_ID', ''): time.sleep(120)\n"
    (tmp_path / "slow" / "sitecustomize.py").write_text(wait)
    program = Program(ready_program, tmp_path)
    with program.start("doctor", *words, "--env", f"PYTHONPATH={tmp_path / 'slow'}") as started:
        wait_until(lambda: any(path.parent.name == "first" for path in files(base)))
        started.send_signal(number)
        _, errors = started.communicate()
    assert started.returncode == code, errors
    assert "Traceback" not in errors
    assert re.search(says("Removing what was begun", "are removed"), errors)
    assert (kfp_host.runs, files(base)) == ({}, [])
