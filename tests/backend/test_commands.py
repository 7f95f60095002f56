"""The commands for runs on a host, as a user calls them, against a host whose runs really run."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backend.calling import ended, get, wait_until
from tests.backend.commands import Done, Program, rows, write_pipelines
from tests.backend.host import KfpHost
from tests.cli.ready import Ready
from tests.facts import says

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: The fields of events that differ between a run on a host and the same run on this machine.
PLACES = {"run_id", "folder", "link", "log_file", "pod_name", "not_applied", "differs"}
TIMES = {"time", "duration", "started_at"}
#: The fields of events that a host does not tell.
UNKNOWN: dict[str, Any] = {"inputs": {}, "outputs": {}, "artifacts": {}, "key": ""}


@pytest.fixture(scope="module")
def pipelines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with compiled pipelines, and the tracker base ``base`` of their pods."""
    folder = tmp_path_factory.mktemp("commands")
    (folder / "base").mkdir()
    write_pipelines(folder, folder / "base")
    return folder


@dataclass
class There:
    """A host with runs that have ended, by what became of them. The newest is ``canceled``."""

    host: KfpHost
    runs: Mapping[str, str]

    @property
    def words(self) -> tuple[str, str]:
        return "--host", self.host.url


@pytest.fixture(scope="module")
def there(pipelines: Path, tmp_path_factory: pytest.TempPathFactory, ready_program: Ready) -> Iterator[There]:
    program = Program(ready_program, pipelines)
    with KfpHost(tmp_path_factory.mktemp("host")) as host:

        def submit(name: str, *words: str) -> str:
            done = program("submit", f"{name}.yaml", "--host", host.url, "-q", "--name", f"a {name} run", *words)
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        base = ("--tracker-base", str(pipelines / "base"))
        runs = {"good": submit("good", *base), "failed": submit("bad")}
        assert ended(host, runs["good"])["state"] == "SUCCEEDED"
        runs["cached"] = submit("good", *base)
        runs["canceled"] = submit("long", "-p", f"go={pipelines / 'never'}")
        wait_until(lambda: program("logs", runs["canceled"], "script", "--host", host.url).stdout == "begun\n")
        canceled = program("cancel", "latest", "--host", host.url)
        assert canceled.returncode == 0
        assert canceled.stderr.endswith(f"The run {runs['canceled']} is canceled.\n")
        for run_id in runs.values():
            ended(host, run_id)
        yield There(host, runs)


@pytest.fixture
def program(ready_program: Ready, pipelines: Path, tmp_path: Path) -> Program:
    """The command line in a folder of its own, with the compiled pipelines."""
    for file in pipelines.glob("*.*"):
        shutil.copy(file, tmp_path)
    return Program(ready_program, tmp_path)


def events_of(done: Done) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


# Submit


@pytest.mark.parametrize("file", ["plain.yaml", "plain.py", "plain.py:plain"])
def test_the_id_of_a_run_is_alone_on_stdout(kfp_host: KfpHost, program: Program, file: str) -> None:
    done = program("submit", file, "--host", kfp_host.url, "-p", "word=one", "-p", "count=3")
    assert done.returncode == 0
    assert re.fullmatch(UUID + "\n", done.stdout)
    run_id = done.stdout.strip()
    link, again = done.stderr.splitlines()
    assert link == f"{kfp_host.url}/#/runs/details/{run_id}"
    assert again == f"To watch it: torchx-kfp watch {run_id} --host {kfp_host.url}".replace("torchx-kfp", _name(), 1)
    run = get(kfp_host, f"/apis/v2beta1/runs/{run_id}")
    assert run["runtime_config"]["parameters"] == {"word": "one", "count": 3}
    ended(kfp_host, run_id)
    assert program("logs", run_id, "script", "--host", kfp_host.url).stdout == "one 3\n"


def _name() -> str:
    """Return how messages name the program."""
    from tests.cli.ready import PROGRAM

    return "torchx-kfp" if shutil.which("torchx-kfp") == PROGRAM else PROGRAM


def test_the_options_of_a_run(kfp_host: KfpHost, program: Program) -> None:
    options = ["--name", "my run", "--experiment", "tries", "--service-account", "me", "--pipeline-root", "s3://root"]
    done = program("submit", "plain.yaml", "--host", kfp_host.url, *options, "--no-cache", "--quiet")
    assert done.stderr == ""
    run = get(kfp_host, f"/apis/v2beta1/runs/{done.stdout.strip()}")
    assert (run["display_name"], run["service_account"]) == ("my run", "me")
    assert run["runtime_config"]["pipeline_root"] == "s3://root"
    experiments = get(kfp_host, "/apis/v2beta1/experiments")["experiments"]
    names = {experiment["experiment_id"]: experiment["display_name"] for experiment in experiments}
    assert names[run["experiment_id"]] == "tries"
    tasks = run["pipeline_spec"]["root"]["dag"]["tasks"].values()
    assert [task["cachingOptions"]["enableCache"] for task in tasks] == [False]


def test_a_run_as_json(kfp_host: KfpHost, program: Program) -> None:
    done = program("submit", "plain.yaml", "--host", kfp_host.url, "--json")
    answer = json.loads(done.stdout)
    assert answer == {"run_id": answer["run_id"], "link": f"{kfp_host.url}/#/runs/details/{answer['run_id']}"}
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("words", "code", "facts"),
    [
        (["plain.yaml", "-p", "wrod=x"], 2, ["'wrod'", "'word'", "count: int = 1"]),
        (["plain.yaml", "-p", "count=many"], 2, ["'count'", "'many'", "int"]),
        (["plain.yaml", "--tracker-base", "s3://a/b"], 2, ["--tracker-base", "'plain'", "word", "count"]),
        (["good.yaml"], 2, ["'good'", "--tracker-base s3://bucket/results"]),
        (["good.yaml", "--tracker-base", "./out"], 2, ["'./out'", "'train'", "s3://bucket/results", "mount_pvc"]),
        (["good.yaml", "--tracker-base", "/tmp/out"], 2, ["'/tmp/out'", "s3://bucket/results", "mount_pvc"]),
        (["good.yaml", "-p", "tracker_base=/tmp/out"], 2, ["'/tmp/out'", "s3://bucket/results", "mount_pvc"]),
        (["good.yaml", "--tracker-base", "memory://a"], 2, ["'memory://a'", "s3://bucket/results"]),
        (["none.yaml"], 2, ["none.yaml"]),
        (["plain.yaml", "--quiet", "--verbose", "--watch"], 2, ["--quiet", "--verbose"]),
    ],
)
def test_what_would_fail_is_not_submitted(
    kfp_host: KfpHost, program: Program, words: list[str], code: int, facts: list[str]
) -> None:
    done = program("submit", *words, "--host", kfp_host.url)
    assert (done.returncode, done.stdout) == (code, "")
    assert re.search(says(*facts), done.stderr)
    assert not kfp_host.requests


def test_what_a_backend_refuses_is_not_submitted(kfp_host: KfpHost, program: Program) -> None:
    done = program("submit", "lost.yaml", "--host", kfp_host.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says("'lost'", "'inner'", "'lr'", "nothing was submitted"), done.stderr)
    assert not kfp_host.requests


def test_without_a_host_all_ways_to_name_one_are_told(program: Program) -> None:
    done = program("submit", "plain.yaml")
    assert (done.returncode, done.stdout) == (2, "")
    ways = ["--host", "TORCHX_KFP_HOST", "KF_PIPELINES_ENDPOINT", "[kfp]", "TORCHX_KFP_CONFIG", "port-forward"]
    assert re.search(says(*ways, program.folder / "home" / ".config" / "torchx-kfp" / "config.ini"), done.stderr)


def test_a_host_that_is_down(program: Program) -> None:
    done = program("submit", "plain.yaml", "--host", "http://127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(says("http://127.0.0.1:1", "refused", "port-forward"), done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("words", [("submit", "plain.yaml"), ("runs",), ("watch", "latest"), ("cancel", "latest")])
def test_a_host_that_refuses_the_token(kfp_host: KfpHost, program: Program, words: tuple[str, ...]) -> None:
    kfp_host.token = "right"
    done = program(*words, "--host", kfp_host.url, "--existing-token", "wrong-secret")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(says("401", "--existing-token", "--token-file"), done.stderr)
    assert "wrong-secret" not in done.stderr


def test_submit_and_watch(kfp_host: KfpHost, program: Program, pipelines: Path) -> None:
    words = ("submit", "good.yaml", "--host", kfp_host.url, "--tracker-base", str(pipelines / "base"), "--watch")
    done = program(*words, "--no-cache")
    assert done.returncode == 0
    run_id, _, table = done.stdout.partition("\n")
    assert re.fullmatch(UUID, run_id)
    assert rows(table) == [
        ["train", "succeeded", _seconds(table, 0), "loss=0.5"],
        ["script", "skipped", "(its condition is false)"],
        ["evaluate[0]", "succeeded", _seconds(table, 2), "loss=2.0"],
        ["evaluate[1]", "succeeded", _seconds(table, 3), "loss=2.0"],
    ]
    assert f"torchx-kfp results {pipelines / 'base'} {run_id}" in done.stderr
    assert done.stderr.count(f"{kfp_host.url}/#/runs/details/{run_id}") == 2


def _seconds(table: str, row: int) -> str:
    found = rows(table)[row][2]
    assert re.fullmatch(r"\d+\.\d", found)
    return found


def test_the_exit_code_of_a_run_that_fails(kfp_host: KfpHost, program: Program) -> None:
    done = program("submit", "bad.yaml", "--host", kfp_host.url, "--watch")
    assert done.returncode == 1
    assert re.match(UUID, done.stdout)
    assert re.search(says("Error: The run", "1 of 2 stages failed", "Not run because of that: script-2."), done.stderr)
    quoted = done.stderr[done.stderr.index("Its last lines") :]
    # There is no terminal: the colors of the log are left out. The folder of the log is gone.
    assert quoted.splitlines()[:3] == ["Its last lines:", "    one", "    the last line"]
    assert f"torchx-kfp logs {done.stdout.splitlines()[0]} script --host {kfp_host.url}" in quoted


def test_the_exit_code_of_a_run_that_is_canceled(kfp_host: KfpHost, program: Program) -> None:
    with program.start(
        *("submit", "long.yaml", "-p", f"go={program.folder / 'never'}"), *("--host", kfp_host.url, "--watch")
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        run_id = process.stdout.readline().strip()
        wait_until(lambda: program("logs", run_id, "script", "--host", kfp_host.url).stdout == "begun\n")
        canceled = program("cancel", run_id[:10], "--host", kfp_host.url)
        assert canceled.returncode == 0
        assert canceled.stderr == f"Canceling {run_id}: waiting for script.\nThe run {run_id} is canceled.\n"
        said = process.stderr.read()
        assert process.wait(60) == 1
        assert f"Error: The run {run_id} was canceled.\n" in said
        assert rows(process.stdout.read())[0][:2] == ["script", "canceled"]
    assert "signal" not in said, "a second signal does nothing there"


# Watch a run that is over


def test_a_run_that_has_succeeded(there: There, program: Program, pipelines: Path) -> None:
    done = program("watch", there.runs["good"], *there.words)
    assert done.returncode == 0
    assert [(row[0], row[1], row[-1]) for row in rows(done.stdout)] == [
        ("train", "succeeded", "loss=0.5"),
        ("script", "skipped", "(its condition is false)"),
        ("evaluate[0]", "succeeded", "loss=2.0"),
        ("evaluate[1]", "succeeded", "loss=2.0"),
    ]
    quiet = program("watch", there.runs["good"], *there.words, "-q")
    assert quiet.stdout == done.stdout
    assert len(quiet.stderr.splitlines()) == 1
    assert f"torchx-kfp results {pipelines / 'base'} {there.runs['good']}" in quiet.stderr


def test_a_run_whose_stages_were_cached(there: There, program: Program) -> None:
    done = program("watch", there.runs["cached"], *there.words)
    assert done.returncode == 0
    assert [row[:2] for row in rows(done.stdout)] == [
        ["train", "cached"],
        ["script", "skipped"],
        ["evaluate[0]", "cached"],
        ["evaluate[1]", "cached"],
    ]
    [note] = [line for line in done.stderr.splitlines() if line.startswith("Cached: ")]
    assert re.search(says("train, evaluate[0], evaluate[1]", "results are not shown"), note)


def test_a_run_that_has_failed(there: There, program: Program) -> None:
    done = program("watch", "a bad run", *there.words)
    assert done.returncode == 1
    assert rows(done.stdout) == [
        ["script", "failed", _seconds(done.stdout, 0)],
        ["script-2", "not run", "(script failed)"],
    ]
    assert "    the last line\n" in done.stderr


def test_a_run_that_was_canceled(there: There, program: Program) -> None:
    done = program("watch", "latest", *there.words)
    assert done.returncode == 1
    assert rows(done.stdout) == [["script", "canceled", _seconds(done.stdout, 0)]]
    assert f"Error: The run {there.runs['canceled']} was canceled.\n" in done.stderr


@pytest.mark.parametrize("run", ["good", "failed", "cached", "canceled"])
def test_nothing_of_a_run_is_left_on_this_machine(there: There, program: Program, run: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    for words in (("watch", "--json"), ("watch",), ("logs",), ("report",)):
        done = program(*words, there.runs[run], *there.words, TMPDIR=str(tmp_path / "scratch"))
        assert str(tmp_path / "scratch") not in done.stdout + done.stderr
    assert not os.listdir(tmp_path / "scratch")
    [report] = tmp_path.glob("*.html")
    assert str(tmp_path / "scratch") not in report.read_text()


def simple(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without what is different on another machine and at another time, in a stable order."""
    kept = [{key: value for key, value in event.items() if key not in PLACES | TIMES} for event in events]
    return sorted(kept, key=lambda event: (str(event.get("name", "")), event["event"]))


@pytest.mark.parametrize("pipeline", ["good", "bad"])
def test_events_are_those_of_the_same_run_on_this_machine(
    there: There, program: Program, pipelines: Path, pipeline: str
) -> None:
    base = ["--tracker-base", str(pipelines / "base")] if pipeline == "good" else []
    here = events_of(program("run", f"{pipeline}.yaml", "--json", "--no-cache", *base))
    elsewhere = events_of(program("watch", there.runs["good" if base else "failed"], "--json", *there.words))
    for event in here:
        # KFP's API does not tell these, and its launcher ends as the application does not.
        event.update({name: empty for name, empty in UNKNOWN.items() if name in event})
        if event.get("exit_code"):
            event.update(exit_code=1, reason="ended with exit code 1 (of KFP's launcher)")
    assert simple(elsewhere) == simple(here)
    assert [event["event"] for event in elsewhere][:: len(elsewhere) - 1] == ["run_started", "run_finished"]
    assert {event.get("log_file") for event in elsewhere} == {None}
