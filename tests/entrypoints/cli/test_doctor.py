"""``torchx-kfp doctor``, as a user calls it."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.entrypoints.cli.conftest import Call
from tests.entrypoints.cli.ready import Ready
from tests.execution.host.calling import wait_until
from tests.execution.host.commands import Program
from tests.facts import says
from tests.fake_kfp import KfpHost
from torchx_kfp.entrypoints.cli.commands.doctor import doctor_command

REPOSITORY = Path(__file__).resolve().parents[3]
#: No settings, whoever runs the tests.
HIDDEN = {"TORCHX_KFP_HOST": "", "KF_PIPELINES_ENDPOINT": "", "TORCHX_KFP_CONFIG": "", "TORCHX_KFP_TRACKER_BASE": ""}


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KfpHost]:
    with KfpHost(tmp_path / "host") as running:
        yield running


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the settings of whoever runs the tests."""
    for name in ("TORCHX_KFP_HOST", "KF_PIPELINES_ENDPOINT", "KUBERNETES_SERVICE_HOST", "TORCHX_KFP_TRACKER_BASE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))


def read(text: str) -> dict[str, dict[str, Any]]:
    """Return the checks in JSON by their subjects."""
    return {check["subject"]: check for check in json.loads(text)["checks"]}


def files(base: Path) -> list[Path]:
    return [path for path in base.rglob("*") if path.is_file()]


def test_this_machine_alone(inside: Call) -> None:
    done = inside("doctor")
    assert done.returncode == 0, done.stdout
    assert re.search(says("ok       Python: ", "kfp ", "skipped  host: None is given", "--tracker-base"), done.stdout)
    assert "0 things missing" in done.stderr


def test_a_host_and_its_pods(inside: Call, host: KfpHost, tmp_path: Path) -> None:
    base = tmp_path / "results"
    words = ["--host", host.url, "--tracker-base", str(base), "--volume", "claim", "--image", "app:1"]
    done = inside("doctor", *words, "--run", "--engine", "job", "--json")
    checks = read(done.stdout)
    assert done.returncode == 0, done.stdout
    assert len(done.stderr.splitlines()) == 4, "one for each run"
    assert json.loads(done.stdout)["ok"] is True
    assert {name for name, check in checks.items() if check["level"] not in ("ok", "warning")} == {"pipeline root"}
    assert {name for name, check in checks.items() if check["level"] == "warning"} <= {"container engine"}
    proved = ("results between stages", "label of pods", "KFP_POD_UID", "retries of the cluster", "cache", "cancel")
    assert {*proved, "replicas (job)", "cleaned up"} <= set(checks)
    assert checks["cleaned up"]["found"] == "4 runs and 4 files are removed."
    assert not host.runs
    assert not files(base)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_remove_what_was_begun(
    ready_program: Ready, host: KfpHost, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    base = tmp_path / "results"
    program = Program(ready_program, tmp_path)
    (tmp_path / "slow").mkdir()
    wait = "import os, time\nif '/second/' in os.environ.get('TORCHX_JOB_ID', ''): time.sleep(120)\n"
    (tmp_path / "slow" / "sitecustomize.py").write_text(wait)
    words = ["--host", host.url, "--tracker-base", str(base), "--volume", "claim", "--image", "app:1", "--run"]
    with program.start("doctor", *words, "--env", f"PYTHONPATH={tmp_path / 'slow'}") as started:
        wait_until(lambda: any(path.parent.name == "first" for path in files(base)))
        started.send_signal(number)
        _, errors = started.communicate()
    assert started.returncode == code, errors
    assert "Traceback" not in errors
    assert re.search(says("Removing what was begun", "are removed"), errors)
    assert not host.runs
    assert not files(base)


def test_packages_that_cannot_be_imported(call: Call, host: KfpHost, tmp_path: Path) -> None:
    """They are what the doctor is called for."""
    for name in ("kfp", "torchx"):
        (tmp_path / "broken" / name).mkdir(parents=True)
        (tmp_path / "broken" / name / "__init__.py").write_text(f"raise ImportError('{name} is broken')")
    words = ["--host", host.url, "--tracker-base", str(tmp_path / "results")]
    done = call("doctor", *words, "--run", PYTHONPATH=str(tmp_path / "broken"), **HIDDEN)
    assert done.returncode == 1
    assert re.search(
        says("packages: ", "missing  host: ImportError: kfp is broken", "ok       tracker base"), done.stdout
    )
    assert "Traceback" not in done.stderr


def test_a_broken_settings_file(inside: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The tracker base of the flag is looked at nevertheless."""
    (tmp_path / "config.ini").write_text("host = without a section")
    monkeypatch.setenv("TORCHX_KFP_CONFIG", str(tmp_path / "config.ini"))
    done = inside("doctor", "--tracker-base", str(tmp_path / "results"), "--json")
    checks = read(done.stdout)
    assert done.returncode == 1
    assert checks["settings"]["level"] == "missing"
    assert re.search(says(str(tmp_path / "config.ini"), "[kfp]"), checks["settings"]["found"])
    assert (checks["host"]["level"], checks["tracker base"]["level"]) == ("skipped", "ok")


def test_a_wrong_token(inside: Call, host: KfpHost, tmp_path: Path) -> None:
    host.token = "right"
    done = inside(
        "doctor", "--host", host.url, "--existing-token", "wrong-one", "--tracker-base", str(tmp_path), "--run"
    )
    assert done.returncode == 1
    assert re.search(says("missing  host: ", "401", "Sent were: '--existing-token'"), done.stdout)
    assert re.search(r"missing  runs: .*see above", done.stdout)
    assert "wrong-one" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_password_in_the_tracker_base(inside: Call) -> None:
    done = inside("doctor", "--tracker-base", "unknown://key:word-1@bucket/results")
    assert done.returncode == 1
    assert re.search(says("missing  tracker base: ", "unknown://...@bucket/results", "Protocol not known"), done.stdout)
    assert "word-1" not in done.stdout + done.stderr


def test_runs_need_a_tracker_base(inside: Call) -> None:
    done = inside("doctor", "--run")
    assert done.returncode == 1
    assert re.search(
        says("missing  runs: --run needs a tracker base.", "--tracker-base s3://bucket/results"), done.stdout
    )


def test_the_form_for_bugs_asks_for_the_output() -> None:
    text = (REPOSITORY / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    fields = {field["id"]: field for field in yaml.safe_load(text)["body"] if "id" in field}
    assert "`torchx-kfp doctor`" in fields["doctor"]["attributes"]["label"]
    assert fields["doctor"]["validations"]["required"] is True
    options = {option for it in doctor_command.params for option in it.opts}
    assert set(re.findall(r"--[a-z-]+", fields["doctor"]["attributes"]["description"])) <= options
    for path in re.findall(r"/blob/main/([\w./-]+)", text):
        assert (REPOSITORY / path).exists(), path
