"""The commands for runs on a host, as a user calls them, against a host whose runs really run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.cli.ready import Ready
from tests.execution.host.answers_of_kfp import manifest, pods, polls
from tests.execution.host.calling import ended, get, wait_until
from tests.execution.host.commands import Done, Program, rows, write_pipelines
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault

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
        ended(host, runs["cached"])
        time.sleep(1)  # a host knows whole seconds; those that begin in one have no order
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
    """The command line in a folder of its own, with the compiled pipelines, of a user who names their base."""
    for file in pipelines.glob("*.*"):
        shutil.copy(file, tmp_path)
    return Program(ready_program, tmp_path, {"TORCHX_KFP_TRACKER_BASE": str(pipelines / "base")})


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
    from tests.entrypoints.cli.ready import PROGRAM

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
    done = program("submit", *words, "--host", kfp_host.url, TORCHX_KFP_TRACKER_BASE="")
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
    for command in ("logs", "replay"):
        assert f"torchx-kfp {command} {done.stdout.splitlines()[0]} script --host {kfp_host.url}" in quoted


def test_the_exit_code_of_a_run_that_is_canceled(kfp_host: KfpHost, program: Program) -> None:
    with program.start(
        *("submit", "long.yaml", "-p", f"go={program.folder / 'never'}"), *("--host", kfp_host.url, "--watch")
    ) as process:
        run_id = process.stdout.readline().strip()
        wait_until(lambda: program("logs", run_id, "script", "--host", kfp_host.url).stdout == "begun\n")
        canceled = program("cancel", run_id[:10], "--host", kfp_host.url)
        assert canceled.returncode == 0
        assert canceled.stderr == f"Canceling {run_id}: waiting for script.\nThe run {run_id} is canceled.\n"
        table, said = process.communicate()
        assert process.returncode == 1
        assert f"Error: The run {run_id} was canceled.\n" in said
        assert rows(table)[0][:2] == ["script", "canceled"]
    assert "signal" not in said, "a second signal does nothing there"


@pytest.mark.parametrize(
    ("name", "through"),
    [("SIGINT", "command"), ("SIGTERM", "command"), ("SIGHUP", "command"), ("SIGTERM", "python")],
)
def test_a_signal_while_the_host_creates_a_run_says_how_to_find_it(
    kfp_host: KfpHost, program: Program, name: str, through: str
) -> None:
    fault = kfp_host.add(Fault(path="/runs", method="POST", seconds=0.5))
    code = f"from torchx_kfp.host import submit; submit('plain.yaml', name='mine', host={kfp_host.url!r})"
    words = ("submit", "plain.yaml", "--host", kfp_host.url, "--name", "mine", "--watch")
    python = Ready(program.ready.path, sys.executable)
    environ = program.environ()
    with (
        program.start(*words)
        if through == "command"
        else python.start(("-c", code), program.folder, environ) as process
    ):
        wait_until(lambda: not fault.times)
        process.send_signal(signal.Signals[name])
        out, said = process.communicate()
    assert out == ""
    assert process.returncode == 128 + signal.Signals[name]
    assert re.search(says("may have accepted the run 'mine'", f"torchx-kfp runs --host {kfp_host.url}\n"), said)
    assert "Traceback" not in said
    wait_until(lambda: kfp_host.runs)
    [run_id] = kfp_host.runs
    found = program("runs", "--host", kfp_host.url)
    assert rows(found.stdout)[0][:2] == [run_id, "mine"]


@pytest.mark.parametrize("trouble", [{"status": 500}, {"status": 503}, {"cut": 0.5}, {"status": 200, "body": "<html>"}])
def test_a_run_whose_answer_is_lost(kfp_host: KfpHost, program: Program, trouble: dict[str, Any]) -> None:
    kfp_host.add(Fault(path="/runs", method="POST", **trouble))
    done = program("submit", "plain.yaml", "--host", kfp_host.url, "--name", "it's mine")
    assert (done.returncode, done.stdout) == (1, "")
    facts = says("may have accepted the run", "it's mine", "Before you submit it again", f"runs --host {kfp_host.url}")
    assert re.search(facts, done.stderr)
    assert "later" not in done.stderr


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
    # It has no results of its own, which is no error.
    for words in (("results", there.runs["cached"]), ("compare", there.runs["good"], there.runs["cached"])):
        done = program(*words, *there.words, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert re.search(says(there.runs["cached"], "KFP's cache had train", "not say which run"), done.stderr)


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
        # KFP's API does not tell these.
        event.update({name: empty for name, empty in UNKNOWN.items() if name in event})
    assert simple(elsewhere) == simple(here)
    assert [event["event"] for event in elsewhere][:: len(elsewhere) - 1] == ["run_started", "run_finished"]
    assert {event.get("log_file") for event in elsewhere} == {None}


# Logs of a run that is over


def test_logs_of_stages(there: There, program: Program) -> None:
    words = (there.runs["good"], *there.words)
    done = program("logs", *words)
    assert sorted(done.stdout.splitlines()) == [
        "evaluate[0] | training with 2",
        "evaluate[1] | training with 2",
        "train | training with 0.5",
    ]
    assert done.stderr == ""
    assert program("logs", words[0], "evaluate[1]", *there.words).stdout == "training with 2\n"
    assert program("logs", words[0], "evaluate", *there.words).stdout.count("training with 2\n") == 2
    assert program("logs", words[0], "train", "--follow", *there.words).stdout == "training with 0.5\n"


def test_a_log_has_the_very_bytes(there: There, program: Program) -> None:
    done = program("logs", there.runs["failed"], "script", *there.words)
    assert done.stdout == "one\n\x1b[31mthe last line\x1b[0m\n"


@pytest.mark.parametrize(
    ("run", "stage", "facts"),
    [
        ("good", "script", ["'script'", "no log", "its condition is false"]),
        ("cached", "train", ["'train'", "no log: it was taken from the cache"]),
        ("failed", "script-2", ["'script-2'", "no log", "script failed"]),
        ("good", "evaluate[2]", ["'evaluate[2]'", "evaluate[0]"]),
    ],
)
def test_stages_without_a_log(there: There, program: Program, run: str, stage: str, facts: list[str]) -> None:
    done = program("logs", there.runs[run], stage, *there.words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says(there.runs[run], *facts), done.stderr)


# Runs


def test_the_runs_of_a_host(there: There, program: Program) -> None:
    done = program("runs", *there.words)
    assert {(row[0], row[1], row[2]) for row in rows(done.stdout)} == {
        (there.runs["good"], "a good run", "succeeded"),
        (there.runs["cached"], "a good run", "succeeded"),
        (there.runs["failed"], "a bad run", "failed"),
        (there.runs["canceled"], "a long run", "canceled"),
    }
    newest = json.loads(program("runs", *there.words, "--limit", "1", "--format", "json").stdout)
    assert [(run["run"], run["pipeline"], run["state"]) for run in newest] == [
        (there.runs["canceled"], "long", "canceled")
    ]
    assert newest[0]["link"] == f"{there.host.url}/#/runs/details/{there.runs['canceled']}"
    assert newest[0]["started"] <= newest[0]["finished"]


def test_pages_of_runs(kfp_host: KfpHost, program: Program) -> None:
    kfp_host.checks = False
    for number in range(120):
        kfp_host.make_run(1, name=f"run-{number}")
    assert len(rows(program("runs", "--host", kfp_host.url).stdout)) == 20
    assert kfp_host.count("/runs$") == 1
    assert len(rows(program("runs", "--host", kfp_host.url, "--limit", "110").stdout)) == 110
    assert kfp_host.count("/runs$") == 4, "50 in a page"
    assert program("runs", "--host", kfp_host.url, "--limit", "0").returncode == 2


def test_a_host_without_runs(kfp_host: KfpHost, program: Program) -> None:
    done = program("runs", "--host", kfp_host.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"There are no runs on {kfp_host.url}.\n")
    assert json.loads(program("runs", "--host", kfp_host.url, "--format", "json").stdout) == []
    latest = program("watch", "latest", "--host", kfp_host.url)
    assert (latest.returncode, latest.stderr) == (
        2,
        f"Error: There is no run on {kfp_host.url} that is not archived.\n",
    )


def test_no_runs_in_either_place(kfp_host: KfpHost, program: Program) -> None:
    here = "There are no runs in 'local_outputs': No such file or directory. Give the --output-dir of the runs."
    done = program("runs", TORCHX_KFP_HOST=kfp_host.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"There are no runs on {kfp_host.url}.\n{here}\n")
    gone = program("runs", TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert re.search(says(here, "Error:", "http://127.0.0.1:1", "does not answer"), gone.stderr)
    gone = program("watch", "latest", TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert (gone.returncode, "local_outputs" in gone.stderr, "does not answer" in gone.stderr) == (1, False, True)


def test_a_log_that_cannot_be_read(kfp_host: KfpHost, program: Program) -> None:
    run_id = program("submit", "good.yaml", "--host", kfp_host.url, "--watch").stdout.partition("\n")[0]
    kfp_host.fail(500, times=100, path="/log$")
    for stage in ([], ["train"]):
        done = program("logs", run_id, *stage, "--host", kfp_host.url)
        assert (done.returncode, done.stdout) == (1, "")
        assert "train: " in done.stderr
        assert "kubectl logs" in done.stderr
        assert "nothing" not in done.stderr


@pytest.mark.parametrize("words", [("logs", "good"), ("watch", "failed")])
def test_a_full_temporary_folder_is_named(there: There, words: tuple[str, str], tmp_path: Path) -> None:
    """A limit for the size of files stands for it."""
    command, run = words
    done = subprocess.run(
        [
            "sh",
            "-c",
            'ulimit -f 0; exec "$@"',
            "sh",
            sys.executable,
            "-m",
            "torchx_kfp",
            command,
            there.runs[run],
            *there.words,
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(says("Logs cannot be kept", "ulimit", "TMPDIR"), done.stderr)


# Which run


def test_names_of_a_run(there: There, program: Program) -> None:
    run_id = there.runs["canceled"]
    link = f"{there.host.url}/#/runs/details/{run_id}"
    for name in (run_id, run_id[:8], "a long run", "latest", link):
        done = program("logs", name, "script", *there.words)
        assert done.stdout == "begun\n", name
        assert (f"The run is {run_id}." in done.stderr) is (name == "latest")


@pytest.mark.parametrize("command", ["watch", "logs", "cancel", "report", "results", "show"])
def test_an_unknown_run(there: There, program: Program, command: str) -> None:
    words = there.words
    done = program(command, "a lang run", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says("'a lang run'", "Did you mean 'a long run'?", there.host.url), done.stderr)
    two = program(command, "a good run", *words)
    assert (two.returncode, two.stdout) == (2, "")
    assert re.search(says("'a good run'", "2 runs", there.runs["good"], there.runs["cached"]), two.stderr)
    # This machine has no runs: nothing is said about it, also if the host is only set up.
    for name in ("a lang run", "a good run"):
        done = program(command, name, TORCHX_KFP_HOST=there.host.url)
        assert (done.returncode, "local_outputs" in done.stderr) == (2, False), done.stderr


def test_a_run_on_this_machine_comes_first(there: There, program: Program) -> None:
    assert program("run", "plain.yaml", "-q").returncode == 0
    [folder] = (program.folder / "local_outputs").glob("plain-*")
    environ = {"TORCHX_KFP_HOST": there.host.url}
    assert program("logs", "latest", **environ).stdout == "script | hi 1\n"
    assert program("logs", "latest", "--host", there.host.url).stdout == "script | begun\n"
    # One that is not on this machine is on the host, by any of its names.
    for name in ("a long run", there.runs["canceled"]):
        assert program("logs", name, **environ).stdout == "script | begun\n"
    unknown = program("logs", "a lang run", **environ)
    assert (unknown.returncode, unknown.stdout) == (2, "")
    assert re.search(says("local_outputs", folder.name, there.host.url, "'a long run'"), unknown.stderr)
    # A watch shows both kinds.
    assert rows(program("watch", folder.name, **environ).stdout)[0][:2] == ["script", "succeeded"]
    # So does the list of runs, unless one kind is asked for.
    both = program("runs", **environ)
    here, _, on_host = both.stdout.partition(f"\nOn {there.host.url}\n")
    assert [line.split()[0] for line in here.splitlines()[3:]] == [folder.name]
    assert both.stderr.startswith("local_outputs takes ")
    assert program("runs", "--host", there.host.url, **environ).stdout == on_host
    assert {run["run"] for run in json.loads(program("runs", "--format", "json", **environ).stdout)} == {
        folder.name,
        *there.runs.values(),
    }
    alone = program("runs", "--output-dir", "local_outputs", **environ)
    assert [row[0] for row in rows(alone.stdout)] == [folder.name]
    lost = program("runs", TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert (lost.returncode, lost.stdout) == (0, alone.stdout)
    assert re.search(says("missing", "http://127.0.0.1:1"), lost.stderr)


def test_without_runs_on_this_machine(there: There, program: Program) -> None:
    known = program("runs", TORCHX_KFP_HOST=there.host.url)
    assert known.stdout == program("runs", "--host", there.host.url).stdout
    given = program("runs", "--output-dir", "elsewhere", TORCHX_KFP_HOST=there.host.url)
    assert (given.returncode, given.stdout) == (2, "")
    assert "'elsewhere'" in given.stderr
    assert "host" not in program("runs").stderr
    unknown = program("watch", "latest")
    assert unknown.returncode == 2
    assert re.search(says("'local_outputs'", "--host"), unknown.stderr)
    down = program("watch", "a long run", TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert (down.returncode, down.stdout) == (1, "")
    assert re.search(says("http://127.0.0.1:1", "refused"), down.stderr)
    # The id of a run on KFP is told apart from those of this machine.
    nowhere = program("watch", there.runs["good"])
    assert nowhere.returncode == 2
    assert re.search(says("'local_outputs'", "No KFP host is given"), nowhere.stderr)


# Settings


def test_flags_go_before_the_environment_and_that_before_the_file(there: There, program: Program) -> None:
    file = program.folder / "config.ini"
    file.write_text(f"[kfp]\nhost = {there.host.url}\n")
    environ = {"TORCHX_KFP_CONFIG": str(file)}
    names = ("logs", "a long run")
    assert program(*names, **environ).stdout == "script | begun\n"
    wrong = program(*names, **environ, TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert (wrong.returncode, "http://127.0.0.1:1" in wrong.stderr) == (1, True)
    right = program(*names, "--host", there.host.url, **environ, TORCHX_KFP_HOST="http://127.0.0.1:1")
    assert right.stdout == "script | begun\n"


def test_secrets_are_never_printed(kfp_host: KfpHost, program: Program, pipelines: Path) -> None:
    kfp_host.token = "a-secret-token"
    base = ("--tracker-base", str(pipelines / "base"))
    config = program.folder / "config.ini"
    config.write_text(f"[kfp]\nhost = {kfp_host.url}\nexisting_token = a-secret-token\n")
    config.chmod(0o644)
    ways: list[tuple[list[str], dict[str, str]]] = [
        (["--host", kfp_host.url, "--existing-token", "a-secret-token"], {}),
        (["--host", kfp_host.url], {"TORCHX_KFP_EXISTING_TOKEN": "a-secret-token"}),
        (["--host", kfp_host.url], {"TORCHX_KFP_CONFIG": str(config)}),
    ]
    run_id = ""
    for flags, environ in ways:
        # Commands read the first run, which has results.
        words = ("plain.yaml",) if run_id else ("good.yaml", *base)
        done = program("submit", *words, "--no-cache", *flags, **environ)
        assert done.returncode == 0, done.stderr
        submitted = done.stdout.strip()
        assert ended_with(kfp_host, submitted) == "SUCCEEDED"
        run_id = run_id or submitted
        said = [done]
        for words in (
            *(("watch", run_id), ("watch", run_id, "--json"), ("logs", run_id), ("runs",), ("results", run_id)),
            *(("--traceback", "watch", "none"), ("report", run_id, "-o", "-"), ("cancel", run_id)),
        ):
            said.append(program(*words, *flags, **environ))
        kfp_host.token = "another"
        said.append(program("--traceback", "runs", *flags, **environ))
        kfp_host.token = "a-secret-token"
        assert [each.returncode for each in said] == [0, 0, 0, 0, 0, 0, 2, 0, 2, 1], [each.stderr for each in said]
        assert not [each for each in said if "a-secret-token" in each.stdout + each.stderr]


def ended_with(host: KfpHost, run_id: str) -> str:
    """Wait for the end of a run, past the check of the token."""
    wait_until(lambda: host.runs[run_id].describe().get("state") in ("SUCCEEDED", "FAILED"))
    return str(host.runs[run_id].describe()["state"])


# Report


def test_a_report_opens_offline(there: There, program: Program) -> None:
    good, failed = there.runs["good"], there.runs["failed"]
    done = program("report", good, *there.words)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"good-{good}.html\n", "")
    page = (program.folder / f"good-{good}.html").read_text()
    assert "<title>good" in page
    links = set(re.findall(r"""(?:href|src)=["']?([^"'> ]+)""", page))
    assert {link for link in links if not link.startswith(("#", "data:"))} == {
        f"{there.host.url}/#/runs/details/{good}"
    }
    for text in ("evaluate[1]", "succeeded", "loss", "0.5", "its condition is false"):
        assert text in page
    done = program("report", failed, *there.words, "-o", "page.html")
    assert done.stdout == "page.html\n"
    page = (program.folder / "page.html").read_text()
    assert "the last line" in page
    assert "launcher_v2.go" not in page


# Results, show, compare


def test_results_of_a_run(there: There, program: Program, pipelines: Path) -> None:
    done = program("results", there.runs["good"], *there.words, "--format", "json")
    found = {key.split("/")[1]: value for key, value in json.loads(done.stdout).items()}
    assert found == {"train": {"loss": 0.5}, "evaluate": {"loss": 2.0}}
    assert all(key.startswith(there.runs["good"]) for key in json.loads(done.stdout))
    # The base can be given, too, and a host that is set up need not be named.
    base = str(pipelines / "base")
    assert program("results", base, there.runs["good"], *there.words, "--format", "json").stdout == done.stdout
    environ = {"TORCHX_KFP_HOST": there.host.url}
    assert program("results", there.runs["good"], "--format", "json", **environ).stdout == done.stdout
    assert program("results", there.runs["good"][:12], "--format", "json", **environ).stdout == done.stdout
    assert program("results", base, there.runs["good"][:12], "--format", "json", **environ).stdout == done.stdout
    where = program("results", there.runs["good"], *there.words, "--where", "loss > 1", "--format", "csv")
    assert [line.split(",")[2] for line in where.stdout.splitlines()] == ["stage", "evaluate", "evaluate"]


def test_everything_about_a_stage(there: There, program: Program) -> None:
    name = f"{there.runs['good'][:9]}/train"
    done = program("show", name, *there.words)
    assert done.returncode == 0
    assert ["result", "loss", "0.5"] in rows(done.stdout)
    assert program("show", name, TORCHX_KFP_HOST=there.host.url).stdout == done.stdout
    several = program("show", there.runs["good"], *there.words)
    assert (several.returncode, several.stdout) == (2, "")
    assert re.search(says("3 runs of stages", there.runs["good"]), several.stderr)


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (("results", "latest"), ["no argument 'tracker_base'", "before the run"]),
        (("show", "latest/script"), ["no argument 'tracker_base'"]),
        (("compare", "latest", "a bad run"), ["no argument 'tracker_base'"]),
        (("results",), ["Missing argument 'RUN'"]),
        (("show",), ["Missing argument 'RUN'"]),
        (("compare",), ["Missing argument 'RUN RUN'"]),
        (("compare", "latest"), ["two or more runs"]),
    ],
)
def test_wrong_calls_about_results(there: There, program: Program, words: tuple[str, ...], facts: list[str]) -> None:
    done = program(*words, *there.words)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says(*facts), done.stderr)


def test_a_word_that_is_neither_a_base_nor_a_run(there: There, program: Program) -> None:
    done = program("results", "resluts", TORCHX_KFP_HOST=there.host.url)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(says("There is no directory 'resluts'", "local_outputs", there.host.url), done.stderr)
    path = program("results", "./resluts", TORCHX_KFP_HOST=there.host.url)
    assert "There is no directory './resluts'" in path.stderr
    assert there.host.url not in path.stderr


def test_two_runs_are_compared(kfp_host: KfpHost, program: Program, pipelines: Path) -> None:
    base, other = str(pipelines / "base"), str(program.folder / "other")
    words = ("submit", "good.yaml", "--host", kfp_host.url, "--tracker-base", base, "-q", "--no-cache")
    one, two = (program(*words, "-p", f"lr={lr}", "-p", 'names=["a"]').stdout.strip() for lr in (0.5, 0.75))
    assert program("run", "good.yaml", "--tracker-base", other, "-p", "lr=0.25", "-q").returncode == 0
    [here] = (program.folder / "local_outputs").glob("good-*")
    for run_id in (one, two):
        assert ended(kfp_host, run_id)["state"] == "SUCCEEDED"
    done = program("compare", one[:8], two, "--changed", "--host", kfp_host.url, "--format", "json")
    compared = {(row["stage"], row["kind"], row["name"]): row["values"] for row in json.loads(done.stdout)["rows"]}
    assert compared[("", "parameter", "lr")] == {one: [0.5], two: [0.75]}
    assert compared[("train", "result", "loss")] == {one: [0.5], two: [0.75]}
    assert ("evaluate", "result", "loss") not in compared
    # One there and one here, whose tracker bases differ.
    done = program("compare", two, here.name, "--host", kfp_host.url, "--format", "json")
    compared = {(row["stage"], row["kind"], row["name"]): row["values"] for row in json.loads(done.stdout)["rows"]}
    assert compared[("", "parameter", "lr")] == {two: [0.75], here.name: [0.25]}
    assert compared[("train", "result", "loss")] == {two: [0.75], here.name: [0.25]}
    assert program("compare", two, here.name, "--format", "json", TORCHX_KFP_HOST=kfp_host.url).stdout == done.stdout
    # People see names, and programs ids.
    named = program(*words, "--name", "a third", "-p", 'names=["a"]').stdout.strip()
    assert ended(kfp_host, named)["state"] == "SUCCEEDED"
    heading = program("compare", named, here.name, "--host", kfp_host.url).stdout.splitlines()[0]
    assert re.split(r" {2,}", heading) == ["stage", "name", "a third", here.name, "difference"]
    assert program("results", "a third", "--host", kfp_host.url).stdout.startswith(f"Run a third ({named})\n")
    assert program("show", "a third/train", "--host", kfp_host.url).stdout.startswith("Run a third/train (")


@pytest.mark.parametrize("is_named", [True, False])
def test_a_base_that_cannot_be_read_here(kfp_host: KfpHost, program: Program, is_named: bool) -> None:
    base = program.folder / "pods"
    base.mkdir()
    write_pipelines(program.folder, base)
    words = ("submit", "good.yaml", "--host", kfp_host.url, "--tracker-base", str(base), "-q")
    run_id = program(*words).stdout.strip()
    assert ended(kfp_host, run_id)["state"] == "SUCCEEDED"
    if is_named:
        base.rename(program.folder / "elsewhere")
        environ, fact = {"TORCHX_KFP_TRACKER_BASE": str(base)}, "no such directory"
    else:
        environ, fact = {}, "only the run names it. Use s3://bucket/results or, if this machine has"
    done = program("watch", run_id, "--host", kfp_host.url, **environ)
    assert done.returncode == 0
    assert {row[1] for row in rows(done.stdout)} == {"succeeded", "skipped"}
    [why] = [line for line in done.stderr.splitlines() if "Results are missing" in line]
    assert re.search(says(f"'{base}'", fact, "s3://bucket/results"), why)
    assert "could not be read" not in done.stderr
    assert "loss" not in done.stdout
    for words in (("results", run_id), ("show", f"{run_id}/train"), ("compare", run_id, run_id)):
        done = program(*words, "--host", kfp_host.url, **environ)
        assert (done.returncode, done.stdout, done.stderr) == (2, "", f"Error: {why}\n")
    if not is_named:
        for words in (("results", str(base), run_id), ("watch", run_id)):
            done = program(*words, "--host", kfp_host.url, TORCHX_KFP_TRACKER_BASE=f"{base}/" * (words[0] == "watch"))
            assert (done.returncode, "loss" in done.stdout) == (0, True)


def test_a_run_that_is_submitted_here_has_its_results(kfp_host: KfpHost, program: Program) -> None:
    base = program.folder / "pods"
    base.mkdir()
    write_pipelines(program.folder, base)
    done = program("submit", "good.yaml", "--host", kfp_host.url, "--tracker-base", str(base), "--watch")
    assert (done.returncode, "loss" in done.stdout, "Results are missing" in done.stderr) == (0, True, False)


def test_a_host_that_names_files_of_the_user(program: Program) -> None:
    """It answers with a run whose results would be the user's own file, and whose pod leads there."""
    secrets = program.folder / "home" / ".config" / "gcloud"
    secrets.mkdir(parents=True)
    (secrets / "credentials.json").write_text('{"refresh_token": "s3cr3t"}')
    answer, old = json.dumps(polls("succeeded")[-1]), manifest("succeeded")
    base = polls("succeeded")[-1]["runtime_config"]["parameters"]["tracker_base"]
    names = pods("succeeded")
    for places, pod in (({base: str(secrets.parent)}, "gcloud/credentials.json"), ({base: str(secrets)}, "../x")):
        hostile = answer
        for one, other in places.items():
            hostile = hostile.replace(one, other)

        def script(request: Request, hostile: str = hostile, pod: str = pod) -> Reply:
            if "v1beta1" not in request.path:
                return Reply(json.loads(hostile))
            text = json.dumps(old)
            for name in filter(None, names.values()):
                text = text.replace(name, pod)
            return Reply(json.loads(text))

        with scripted(script) as server:
            run_id = json.loads(hostile)["run_id"]
            for words in (("watch",), ("watch", "--json"), ("results",), ("report", "-o", "-")):
                done = program(words[0], run_id, *words[1:], "--host", server.url, TORCHX_KFP_TRACKER_BASE="")
                assert "s3cr3t" not in done.stdout + done.stderr
                assert "Traceback" not in done.stderr
                if words[0] != "report":
                    assert "only the run names it" in done.stdout + done.stderr
