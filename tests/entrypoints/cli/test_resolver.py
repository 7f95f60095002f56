"""Commands that show records find a run's tracker base in the run."""

import json
import re
import shutil
from pathlib import Path

import pytest
from kfp import dsl

from tests.cases.apps import python
from tests.entrypoints.cli.conftest import Call
from tests.facts import says
from tests.programs import results_in
from tests.s3 import S3Server
from torchx_kfp import Stages
from torchx_kfp.local import Watch, run

RECORD = "from torchx_kfp.tracking import current_run; import sys; current_run().put(x=float(sys.argv[1]))"


def stages_of(base: str, second: str, lr: object) -> None:
    train = Stages(tracker_base=base).task(python("train", RECORD, f"{lr}"))
    Stages(tracker_base=second).task(python("judge", RECORD, f"{lr}")).after(train)


@dsl.pipeline(name="fixed")
def fixed(lr: float = 0.5) -> None:
    """A pipeline whose tracker base is not an argument, and is relative."""
    stages_of("base", "base", lr)


@dsl.pipeline(name="several")
def several(lr: float = 0.5) -> None:
    stages_of("base", "other", lr)


def make_runs(folder: Path) -> list[str]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return [run(fixed, {"lr": lr}, output_dir="kept", watch=Watch()).run_id for lr in (0.5, 0.25)]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    folder = tmp_path_factory.mktemp("made")
    return folder, make_runs(folder)


@pytest.fixture
def runs(made: tuple[Path, list[str]], project: Path) -> list[str]:
    """Two runs, in the folder ``kept``."""
    folder, found = made
    shutil.copytree(folder, project, dirs_exist_ok=True)
    return found


def test_a_run_knows_its_tracker_base_wherever_the_command_is(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    first, second = make_runs(project)
    monkeypatch.chdir(project)

    def shown(*words: str) -> str:
        done = call(*words, "--output-dir", str(project / "kept"), folder=elsewhere)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert results_in(shown("results", "latest", "--json")) == {
        f"{second}/judge/judge_1": {"x": 0.25},
        f"{second}/train/train_1": {"x": 0.25},
    }
    assert [*results_in(shown("results", f"{first[:-1]}/train", "--json"))] == [f"{first}/train/train_1"]
    assert json.loads(shown("show", "latest/judge", "--json"))["results"] == {"x": 0.25}
    assert f"{second}/judge/judge_1" in shown("show", "--lineage", "latest/judge", "--json")
    compared = json.loads(shown("compare", "latest", first, "--json"))["rows"]
    assert {row["name"]: row["values"] for row in compared if row["kind"] == "parameter"} == {
        "lr": {first: [0.5], second: [0.25]}
    }
    # The path of a run's folder is enough, with its cached stages.
    again = run(fixed, {"lr": 0.25}, output_dir=project / "kept", watch=Watch()).run_id
    done = call("results", str(project / "kept" / again), "--json", folder=elsewhere)
    assert [*results_in(done.stdout)] == [f"{second}/train/train_1", f"{second}/judge/judge_1"]
    assert call("results", again, "--json", folder=project / "kept").stdout == done.stdout


def test_a_run_with_several_tracker_bases_asks_for_one(
    project: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run_id = run(several, watch=Watch()).run_id
    done = call("results", "latest")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says(run_id, "several tracker bases", "base, other", "--tracker-base"), done.stderr)
    assert [*results_in(call("results", "--tracker-base", "other", "latest", "--json").stdout)] == [
        f"{run_id}/judge/judge_1"
    ]


@pytest.mark.s3
def test_the_rest_of_a_tracker_base_is_not_listed_for_a_run_that_was_found(
    call: Call, s3_base: str, s3_server: S3Server
) -> None:
    for value in ("1", "2"):
        words = ("--tracker-base", s3_base, "-p", f"value={value}", "-p", 'names=["a", "b"]')
        assert call("run", "pipelines.py:two", *words, "--quiet").returncode == 0
    second, first = (run["run"] for run in json.loads(call("runs", "--json").stdout))
    commands = [
        ("show", "latest/second[1]"),
        ("get", "--list", "latest"),
        ("results", first),
        ("compare", first, second),
    ]
    for words in commands:
        requests = s3_server.requests(lambda words=words: call(*words))
        listings = [request for request in requests if "list-type=2" in request]
        assert listings
        assert all(first in request or second in request for request in listings), (words, listings)
    shown = call("compare", first, second, "--json")
    assert ["a", "b"] in [value for row in json.loads(shown.stdout)["rows"] for value in row["values"][first]]


@pytest.mark.parametrize("command", ["results", "report", "logs"])
@pytest.mark.parametrize("run", ["", "latest"])
def test_runs_on_this_machine_do_not_need_the_settings_of_a_host(
    command: str, run: str, call: Call, runs: list[str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "config.ini").write_text("not a setting")
    monkeypatch.setenv("TORCHX_KFP_CONFIG", str(project / "config.ini"))
    done = call(command, run or runs[0], "--output-dir", "kept")
    assert done.returncode == 0, done.stderr
    assert "config.ini" not in done.stderr
