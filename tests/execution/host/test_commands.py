"""The commands for runs on a host, as a user calls them, against a host whose runs really run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import manifest, pods, polls, with_present_commands
from tests.execution.host.calling import ended, get, wait_until
from tests.execution.host.commands import rows
from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.faults import Fault
from tests.programs import Program
from tests.transcripts.hosts import a_host

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: The fields of events that differ between a run on a host and the same run on this machine.
PLACES = {"run_id", "execution_id", "folder", "link", "log_file", "pod_name", "not_applied", "differs"}
TIMES = {"time", "duration", "started_at"}
#: The fields of events that a host does not tell.
UNKNOWN: dict[str, Any] = {"inputs": {}, "outputs": {}, "artifacts": {}, "key": ""}


@pytest.fixture
def there(call: Program, tmp_path: Path) -> Iterator[Program]:
    """The command line of a user of a host with runs that have ended: see ``tests.transcripts.hosts``."""
    with a_host(tmp_path) as around:
        yield replace(call, variables=around.environ)


def events_of(printed: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in printed.splitlines()]


# Submit


@pytest.mark.parametrize("file", ["plain.yaml", "plain.py:plain"])
def test_the_id_of_a_run_is_alone_on_stdout(kfp_host: KfpHost, program: Program, file: str) -> None:
    done = program("submit", file, "--host", kfp_host.url, "-p", "word=one", "-p", "count=3")
    assert done.returncode == 0
    assert re.fullmatch(UUID + "\n", done.stdout)
    run_id = done.stdout.strip()
    link, again = done.stderr.splitlines()[-2:]  # a busy host may be waited for before
    assert link == f"{kfp_host.url}/#/runs/details/{run_id}"
    assert again == f"To watch it: torchx-kfp watch {run_id} --host {kfp_host.url}".replace("torchx-kfp", _name(), 1)
    run = get(kfp_host, f"/apis/v2beta1/runs/{run_id}")
    assert run["runtime_config"]["parameters"] == {"word": "one", "count": 3}
    ended(kfp_host, run_id)
    assert program("logs", f"{run_id}/script", "--host", kfp_host.url).stdout == "one 3\n"
    as_json = program("submit", file, "--host", kfp_host.url, "--json")
    answer = json.loads(as_json.stdout)
    assert answer == {"run": answer["run"], "link": f"{kfp_host.url}/#/runs/details/{answer['run']}"}
    assert as_json.stderr == ""


def _name() -> str:
    """Return how messages name the program."""
    from tests.programs import PROGRAM

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


@pytest.mark.parametrize("words", [("submit", "plain.yaml"), ("runs",), ("watch", "latest"), ("cancel", "latest")])
def test_a_host_that_refuses_the_token(kfp_host: KfpHost, program: Program, words: tuple[str, ...]) -> None:
    kfp_host.token = "right"
    done = program(*words, "--host", kfp_host.url, TORCHX_KFP_EXISTING_TOKEN="wrong-secret")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(says("401", "TORCHX_KFP_EXISTING_TOKEN", "TORCHX_KFP_TOKEN_FILE"), done.stderr)
    assert "wrong-secret" not in done.stderr
    as_flag = program(*words, "--host", kfp_host.url, "--existing-token", "wrong-secret")
    assert re.search(says("--existing-token", "Set TORCHX_KFP_EXISTING_TOKEN", "config.ini"), as_flag.stderr)


def test_the_exit_code_of_a_run_that_fails(kfp_host: KfpHost, program: Program) -> None:
    done = program("submit", "bad.yaml", "--host", kfp_host.url, "--watch")
    assert done.returncode == 1
    assert re.match(UUID, done.stdout)
    assert re.search(says("Error: The run", "1 of 2 stages failed", "Not run because of that: script-2."), done.stderr)
    quoted = done.stderr[done.stderr.index("Its last lines") :]
    # There is no terminal: the colors of the log are left out. The folder of the log is gone.
    assert quoted.splitlines()[:3] == ["Its last lines:", "    one", "    the last line"]
    for command in ("logs", "replay"):
        assert f"torchx-kfp {command} {done.stdout.splitlines()[0]}/script --host {kfp_host.url}" in quoted


@pytest.mark.parametrize(
    ("name", "through"),
    [("SIGINT", "command"), ("SIGTERM", "command"), ("SIGHUP", "command"), ("SIGTERM", "python")],
)
def test_a_signal_while_the_host_creates_a_run_says_how_to_find_it(
    kfp_host: KfpHost, program: Program, name: str, through: str
) -> None:
    fault = kfp_host.add(Fault(path="/runs", method="POST", seconds=2.0))
    code = f"from torchx_kfp.host import submit; submit('plain.yaml', name='mine', host={kfp_host.url!r})"
    words = ("submit", "plain.yaml", "--host", kfp_host.url, "--name", "mine", "--watch")
    python = replace(program, program=sys.executable)
    with program.start(*words) if through == "command" else python.start("-c", code) as process:
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


# Watch a run that is over


@pytest.mark.parametrize("run", ["good", "bad", "cached", "long"])
def test_nothing_of_a_run_is_left_on_this_machine(there: Program, run: str, tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    for words in (("watch", "--json"), ("watch",), ("logs",), ("report",)):
        done = there(*words, f"a {run} run", TMPDIR=str(tmp_path / "scratch"))
        assert str(tmp_path / "scratch") not in done.stdout + done.stderr
    assert not os.listdir(tmp_path / "scratch")
    [report] = tmp_path.glob("*.html")
    assert str(tmp_path / "scratch") not in report.read_text()


def simple(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events without what is different on another machine and at another time, in a stable order."""
    kept = [{key: value for key, value in event.items() if key not in PLACES | TIMES} for event in events]
    return sorted(kept, key=lambda event: (str(event.get("name", "")), event["event"]))


@pytest.mark.parametrize("pipeline", ["good", "bad"])
def test_events_are_those_of_the_same_run_on_this_machine(there: Program, pipeline: str) -> None:
    # Other tests of this process read all records of the base that the host's runs have.
    base = ["--tracker-base", "own"] if pipeline == "good" else []
    done = there("run", f"{pipeline}.yaml", "--json", "--no-cache", *base)
    of_host = there.variables["TORCHX_KFP_TRACKER_BASE"]
    here = events_of(done.stdout.replace(str(there.folder / "own"), of_host))
    elsewhere = events_of(there("watch", f"a {pipeline} run", "--json").stdout)
    for event in here:
        # KFP's API does not tell these.
        event.update({name: empty for name, empty in UNKNOWN.items() if name in event})
    assert simple(elsewhere) == simple(here)
    assert [event["event"] for event in elsewhere][:: len(elsewhere) - 1] == ["run_started", "run_finished"]
    assert {event.get("log_file") for event in elsewhere} == {None}


# Runs


def test_runs_without_a_tracker_base_have_no_results(kfp_host: KfpHost, program: Program) -> None:
    host = ("--host", kfp_host.url)
    runs = [program("submit", "plain.yaml", "-p", f"word={word}", *host).stdout.strip() for word in ("a", "b")]
    for run_id in runs:
        ended(kfp_host, run_id)
    for words in (["results", runs[0]], ["compare", *runs]):
        done = program(*words, *host)
        assert (done.returncode, done.stdout) == (2, "")
        facts = (runs[0], "no results", "no tracker base", f"torchx-kfp show {runs[0]} --host {kfp_host.url}\n")
        assert re.search(says(*facts), done.stderr), done.stderr


def test_runs_whose_records_are_gone_are_not_said_to_be_the_same(
    kfp_host: KfpHost, program: Program, pipelines: Path
) -> None:
    base = str(pipelines / "base")
    words = ["good.yaml", "--host", kfp_host.url, "-p", f"tracker_base={base}", "--no-cache"]
    runs = [program("submit", *words).stdout.strip() for _ in range(2)]
    for run_id in runs:
        ended(kfp_host, run_id)
        for folder in list(Path(base).rglob(run_id)):
            shutil.rmtree(folder)
    done = program("compare", *runs, "--changed", "--host", kfp_host.url, "--tracker-base", base)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "do not differ" not in done.stderr
    assert [f"{run_id}) has recorded nothing" in done.stderr for run_id in runs] == [True, True]


def test_a_host_without_runs(kfp_host: KfpHost, program: Program) -> None:
    done = program("runs", "--host", kfp_host.url)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", f"There are no runs on {kfp_host.url}.\n")
    assert json.loads(program("runs", "--host", kfp_host.url, "--json").stdout) == []
    latest = program("watch", "latest", "--host", kfp_host.url)
    assert (latest.returncode, latest.stderr) == (
        2,
        f"Error: There is no run on {kfp_host.url} that is not archived.\n",
    )


def test_a_full_temporary_folder_is_named(there: Program) -> None:
    """A limit for the size of files stands for it."""
    limited = ("sh", "-c", 'ulimit -f 0; exec "$@"', "sh", sys.executable, "-m", "torchx_kfp", "logs", "a good run")
    done = subprocess.run(limited, cwd=there.folder, env=there.environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert re.search(says("Logs cannot be written", "ulimit", "TMPDIR"), done.stderr)


# Settings


def test_secrets_are_never_printed(kfp_host: KfpHost, program: Program, pipelines: Path) -> None:
    kfp_host.token = "a-secret-token"
    base = ("--tracker-base", str(pipelines / "base"))
    config = program.folder / "config.ini"
    config.write_text(f"[kfp]\nhost = {kfp_host.url}\nexisting_token = a-secret-token\n")
    config.chmod(0o644)
    ways: list[tuple[list[str], dict[str, str]]] = [
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


# Results, show, compare


def test_two_runs_are_compared(kfp_host: KfpHost, program: Program, pipelines: Path) -> None:
    base, other = str(pipelines / "base"), str(program.folder / "other")
    words = ("submit", "good.yaml", "--host", kfp_host.url, "--tracker-base", base, "-q", "--no-cache")
    one, two = (program(*words, "-p", f"lr={lr}", "-p", 'names=["a"]').stdout.strip() for lr in (0.5, 0.75))
    assert program("run", "good.yaml", "--tracker-base", other, "-p", "lr=0.25", "-q").returncode == 0
    [here] = (program.folder / "local_outputs").glob("good-*")
    for run_id in (one, two):
        assert ended(kfp_host, run_id)["state"] == "SUCCEEDED"
    done = program("compare", one[:8], two, "--changed", "--host", kfp_host.url, "--json")
    compared = {(row["stage"], row["kind"], row["name"]): row["values"] for row in json.loads(done.stdout)["rows"]}
    assert compared[("", "parameter", "lr")] == {one: [0.5], two: [0.75]}
    assert compared[("train", "result", "loss")] == {one: [0.5], two: [0.75]}
    assert ("evaluate", "result", "loss") not in compared
    # One there and one here, whose tracker bases differ.
    done = program("compare", two, here.name, "--host", kfp_host.url, "--json")
    compared = {(row["stage"], row["kind"], row["name"]): row["values"] for row in json.loads(done.stdout)["rows"]}
    assert compared[("", "parameter", "lr")] == {two: [0.75], here.name: [0.25]}
    assert compared[("train", "result", "loss")] == {two: [0.75], here.name: [0.25]}
    assert program("compare", two, here.name, "--json", TORCHX_KFP_HOST=kfp_host.url).stdout == done.stdout
    # People see names, and programs ids.
    named = program(*words, "--name", "a third", "-p", 'names=["a"]').stdout.strip()
    assert ended(kfp_host, named)["state"] == "SUCCEEDED"
    heading = program("compare", named, here.name, "--host", kfp_host.url).stdout.splitlines()[0]
    assert re.split(r" {2,}", heading) == ["stage", "name", "a third", here.name, "difference"]
    assert program("results", "a third", "--host", kfp_host.url).stdout.startswith(f"Run a third ({named})\n")
    assert program("show", "a third/train", "--host", kfp_host.url).stdout.startswith("Run a third/train (")


def test_a_host_that_names_files_of_the_user(program: Program) -> None:
    """It answers with a run whose results would be the user's own file, and whose pod leads there."""
    secrets = program.folder / "home" / ".config" / "gcloud"
    secrets.mkdir(parents=True)
    (secrets / "credentials.json").write_text('{"refresh_token": "s3cr3t"}')
    answer, old = json.dumps(with_present_commands(polls("succeeded")[-1])), manifest("succeeded")
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
