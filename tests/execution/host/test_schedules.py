"""Schedules, from the command line and from Python, on a host that starts their runs."""

# Annotations are not postponed: kfp reads them as types.

import datetime
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl, kubernetes
from kfp.client import Client
from torchx.specs import AppDef, Role

from tests.execution.host.calling import ended, get, request
from tests.execution.host.commands import rows
from tests.execution.host.scripted import Reply, scripted
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Program, results_in
from torchx_kfp import task_from_app
from torchx_kfp.errors import ArgumentError
from torchx_kfp.host import RunFilter, Schedules, connect, schedule

#: Records how many runs there have been; the file lets it fail.
_COUNT = """
import os, sys
from torchx_kfp.tracking import current_run
base = os.environ["TORCHX_TRACKER_BASE"]
current_run().put(number=sum(name.count("-") == 4 for name in os.listdir(base)), word=sys.argv[1])
"""
_HOUR = 3600
#: A time for which schedules start runs.
_TIME = datetime.datetime(2026, 1, 1, 3, tzinfo=datetime.timezone.utc).timestamp()
_SCHEDULES = "/apis/v2beta1/recurringruns"
_ID = "00000000-0000-0000-0000-000000000001"


@pytest.fixture
def program(kfp_host: KfpHost, call: Program, tmp_path: Path) -> Program:
    """The command line of a user of a host, with a pipeline of one stage, whose base is ``base``."""
    base = tmp_path / "base"
    base.mkdir()

    @dsl.pipeline(name="count")
    def count(tracker_base: str, word: str = "hi"):
        role = Role("role", image="app:1", entrypoint="python3", args=["-c", _COUNT, f"{word}"])
        stage = task_from_app(AppDef("count", [role]), tracker_base=tracker_base)
        kubernetes.mount_pvc(stage, "claim", str(base))

    compiler.Compiler().compile(count, str(tmp_path / "count.yaml"))
    known = {"TORCHX_KFP_HOST": kfp_host.url, "TORCHX_KFP_TRACKER_BASE": str(base), "TZ": "UTC"}
    return replace(call, variables=known)


def runs_of(host: KfpHost, *, number: int) -> list[Any]:
    """Wait until all runs of schedules have ended, of which there are so many, and return them, the oldest first."""
    assert len(host.runs) == number
    return sorted((ended(host, run_id) for run_id in host.runs), key=lambda run: str(run["scheduled_at"]))


def listed(program: Program) -> dict[str, Any]:
    done = program("schedule", "list", "--json")
    assert done.returncode == 0, done.stderr
    return {each["name"]: each for each in json.loads(done.stdout)}


def test_a_schedule_from_its_first_run_to_its_end(kfp_host: KfpHost, program: Program) -> None:
    words = ("schedule", "create", "count.yaml", "-p", "word=a", "--no-cache", "--experiment", "nights")
    done = program(*words, "--every", "1h", "--name", "hourly")
    assert done.returncode == 0, done.stderr
    assert "torchx-kfp schedule list" in done.stderr
    identity = done.stdout.strip()
    again = program(*words, "--every", "1h", "--name", "hourly")
    assert (again.returncode, again.stdout) == (2, "")
    assert re.search(says("a schedule 'hourly' already", f"schedule delete {identity}", "--name"), again.stderr)
    sent = get(kfp_host, f"{_SCHEDULES}/{identity}")
    assert sent["trigger"] == {"periodic_schedule": {"interval_second": "3600"}}
    assert (sent["max_concurrency"], sent["no_catchup"]) == ("1", True)
    assert runs_of(kfp_host, number=0) == []
    none = program("results", "--schedule", "hourly")
    assert (none.returncode, none.stdout) == (1, "")
    assert re.search(says("No run of 'hourly' has results under", "of 0 runs"), none.stderr), none.stderr

    for number in range(4):
        kfp_host.fire(_TIME + number * _HOUR)
        runs = runs_of(kfp_host, number=number + 1)
    times = [datetime.datetime.fromisoformat(run["scheduled_at"][:-1]) for run in runs]
    assert {run["recurring_run_id"] for run in runs} == {identity}

    table = program("results", "--schedule", "hourly")
    assert table.returncode == 0, table.stderr
    assert rows(table.stdout) == [[f"{time}  count", str(number), "a"] for number, time in enumerate(times)]
    best = program("results", "--schedule", identity, "--where", "number > 1", "--json", "--sort", "-number")
    assert [key.partition("/")[0] for key in results_in(best.stdout)] == [runs[3]["run_id"], runs[2]["run_id"]]

    assert request(kfp_host, "POST", f"{_SCHEDULES}/{identity}:disable")[0] == 200
    assert listed(program)["hourly"]["state"] == "paused"
    kfp_host.fire(_TIME + 4 * _HOUR)
    runs_of(kfp_host, number=4)
    assert request(kfp_host, "POST", f"{_SCHEDULES}/{identity}:enable")[0] == 200
    kfp_host.fire(_TIME + 5 * _HOUR)
    [*_, last] = runs_of(kfp_host, number=5)
    shown = listed(program)["hourly"]
    assert shown["last"] == {"run": last["run_id"], "state": "succeeded", "scheduled": _TIME + 5 * _HOUR}
    assert (shown["state"], shown["every"], shown["cron"]) == ("active", 3600, None)
    [row] = rows(program("schedule", "list").stdout)
    assert row[:3] == ["hourly", "active", "every 1h 00m"]
    assert row[3].endswith("(succeeded)")

    assert len(json.loads(program("runs", "--schedule", "hourly", "--limit", "0", "--json").stdout)) == 5
    gone = program("schedule", "delete", "hourly")
    assert re.search(says("is deleted", f"torchx-kfp runs --schedule {identity}"), gone.stderr)
    of_gone = json.loads(program("runs", "--schedule", identity, "--limit", "0", "--json").stdout)
    assert len(of_gone) == 5
    assert (
        len(rows(program("results", "--tracker-base", str(program.folder / "base"), "--schedule", identity).stdout))
        == 5
    )
    assert (listed(program), program("schedule", "list").stderr) == ({}, f"There are no schedules on {kfp_host.url}.\n")
    kfp_host.fire(_TIME + 6 * _HOUR)
    runs_of(kfp_host, number=5)
    # A new schedule with this name has its own runs only.
    assert program(*words, "--every", "1h", "--name", "hourly").returncode == 0
    kfp_host.fire(_TIME + 7 * _HOUR)
    [*_, first] = runs_of(kfp_host, number=6)
    found = results_in(program("results", "--schedule", "hourly", "--json").stdout)
    assert [key.partition("/")[0] for key in found] == [first["run_id"]]


def test_a_cron_expression_has_seconds_on_kfp(kfp_host: KfpHost, program: Program) -> None:
    times = ("--start", "2020-01-01", "--end", "2020-01-05T12:00Z", "--max-runs", "2", "--catchup")
    done = program("schedule", "create", "count.yaml", "--cron", "0 3 * * 1-5", *times)
    assert done.returncode == 0, done.stderr
    facts = ["'0 0 3 * * 1-5'", "seconds first, in UTC", "--no-cache avoids that"]
    assert re.search(says(*facts), done.stderr)
    sent = get(kfp_host, f"{_SCHEDULES}/{done.stdout.strip()}")
    assert sent["trigger"] == {
        "cron_schedule": {
            "cron": "0 0 3 * * 1-5",
            "start_time": "2020-01-01T00:00:00Z",
            "end_time": "2020-01-05T12:00:00Z",
        }
    }
    assert (sent["max_concurrency"], sent.get("no_catchup")) == ("2", None)
    shown = listed(program)["count"]
    assert (shown["state"], shown["cron"], shown["max_runs"], shown["catchup"]) == ("active", "0 3 * * 1-5", 2, True)
    assert [shown["start"], shown["end"]] == [1577836800, 1578225600]
    # More than five fields, and names, are KFP's matter.
    daily = program("schedule", "create", "count.yaml", "--cron", "@daily", "--name", "other", "--json")
    assert json.loads(daily.stdout)["cron"] == "@daily"
    wrong = program("schedule", "create", "count.yaml", "--cron", "0 3 * *", "--name", "wrong")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert re.search(says("'0 3 * *'", "five fields", "'0 3 * * *'"), wrong.stderr)


def test_schedules_from_python(kfp_host: KfpHost, program: Program) -> None:
    arguments = {"tracker_base": str(program.folder / "base")}
    made = schedule(str(program.folder / "count.yaml"), arguments, every=_HOUR, name="mine", host=kfp_host.url)
    host = connect(host=kfp_host.url)
    schedules = Schedules(host)
    assert (schedules.find("mine"), list(schedules.list())) == (made, [made])
    kfp_host.fire(_TIME)
    for every in (0.0, float("inf"), float("nan")):
        with pytest.raises(ArgumentError, match="at least 1 s"):
            schedule(str(program.folder / "count.yaml"), arguments, every=every, host=kfp_host.url)
    [run] = runs_of(kfp_host, number=1)
    assert [each.run_id for each in host.list(schedules.runs_of(made))] == [run["run_id"]]
    [name] = [each.name for each in host.list(RunFilter(name="mine"))]
    assert re.fullmatch(r"mine\w{5}-1-\d+", name), "KFP names a run after the object of its schedule"
    schedules.delete(made)


@pytest.mark.newest  # the client of kfp 2.14 does not go with newer versions of kfp-server-api
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"every": 3600.0}, {"interval_second": 3600}),
        (
            {"cron": "0 3 * * *", "max_runs": 2},
            {"cron_expression": "0 0 3 * * *", "max_concurrency": 2},
        ),
    ],
)
def test_a_body_is_that_of_kfp_client(ours: dict[str, Any], theirs: dict[str, Any], program: Program) -> None:
    arguments = {"tracker_base": "s3://bucket/results", "word": "é"}
    file, both = str(program.folder / "count.yaml"), {"pipeline_root": "s3://root", "service_account": "me"}
    with scripted(lambda request: Reply({"recurring_run_id": _ID, "experiment_id": "1"})) as server:
        options = {"no_catchup": True, "pipeline_package_path": file, "params": arguments, **both}
        Client(host=server.url).create_recurring_run("1", "nights", **theirs, **options)
        expected = server.requests[-1]
        schedule(file, arguments, name="nights", host=server.url, **ours, **both)
        found = server.requests[-1]
    assert (found.method, found.path) == (expected.method, expected.path) == ("POST", _SCHEDULES)
    assert {**texts(found.body), "pipeline_spec": ""} == {**texts(expected.body), "pipeline_spec": ""}


def texts(value: Any) -> Any:
    """Return a value whose numbers are text, as protobuf has those of 64 bits."""
    if isinstance(value, dict):
        return {key: texts(item) for key, item in value.items() if item is not False}
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def test_a_tracker_base_that_only_the_pipeline_names(kfp_host: KfpHost, program: Program) -> None:
    base = str(program.folder / "base")
    text = (program.folder / "count.yaml").read_text()
    parameter = "      tracker_base:\n        parameterType: STRING\n      word"
    assert parameter in text
    named = parameter.replace("STRING", f"STRING\n        defaultValue: {base}\n        isOptional: true")
    (program.folder / "named.yaml").write_text(text.replace(parameter, named))
    made = program(
        "schedule", "create", "named.yaml", "--every", "1h", "--no-cache", "--name", "named", TORCHX_KFP_TRACKER_BASE=""
    )
    assert made.returncode == 0, made.stderr
    for number in (1, 2):
        kfp_host.fire(_TIME + number * _HOUR)
        runs = runs_of(kfp_host, number=number)
    assert all("parameters" not in run.get("runtime_config", {}) for run in runs)
    found = program("results", "--schedule", "named", "--json")
    assert len(json.loads(found.stdout)) == 2, found.stderr


def test_runs_in_progress_survive_their_schedule(kfp_host: KfpHost, program: Program) -> None:
    waits = "import os, sys, time; list(iter(lambda: time.sleep(0.05) or os.path.exists(sys.argv[1]), True))"
    slow = (program.folder / "count.yaml").read_text().replace("import os, sys", waits)
    (program.folder / "slow.yaml").write_text(slow)
    go = program.folder / "go"
    program("schedule", "create", "slow.yaml", "-p", f"word={go}", "--every", "1h")
    kfp_host.fire(_TIME)
    assert program("schedule", "delete", "count").returncode == 0
    go.touch()
    assert [run["state"] for run in runs_of(kfp_host, number=1)] == ["SUCCEEDED"]


def test_a_schedule_that_the_host_may_not_have_made_says_how_to_find_it(kfp_host: KfpHost, program: Program) -> None:
    kfp_host.fail(503, path="recurringruns", method="POST")
    lost = program("schedule", "create", "count.yaml", "--every", "6h")
    assert lost.returncode == 1
    assert re.search(says("may have accepted the schedule 'count'", "torchx-kfp schedule list"), lost.stderr)
