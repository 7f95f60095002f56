"""TorchX's own program against a KFP host whose runs really run."""

from __future__ import annotations

import ast
import dataclasses
import json
import re
import signal
import time

import pytest
from torchx import specs

from tests.entrypoints.scheduler.program import TorchX, handle_of
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Done

pytestmark = pytest.mark.newest

IS_NIGHTLY = hasattr(specs, "Workspace")
UNKNOWN = "kfp://torchx/12345678-1234-1234-1234-123456789012"
#: Components: what runs, and how.
COMPONENTS = '''
import sys
import torchx.specs as specs

def _app(code: str) -> specs.AppDef:
    role = specs.Role("main", image="example.com/app:1", entrypoint="python", args=["-u", "-c", code])
    return specs.AppDef("app", [role])

def steps() -> specs.AppDef:
    """Print lines, with a pause between them"""
    return _app("import time; print('one 1'); time.sleep(2); print('two 2'); time.sleep(1); print('end')")

def fails() -> specs.AppDef:
    """Fail"""
    return _app("import sys; print('about to fail'); sys.exit(7)")

def waits() -> specs.AppDef:
    """Wait for a long time"""
    return _app("import time; print('waiting'); time.sleep(100)")

'''


@pytest.fixture
def on_host(torchx: TorchX, host: KfpHost) -> TorchX:
    """TorchX's program for a user with a host in the environment, and components in the folder."""
    (torchx.folder / "app.py").write_text(COMPONENTS)
    return dataclasses.replace(torchx, variables={**torchx.variables, "TORCHX_KFP_HOST": host.url})


def wait(host: KfpHost, handle: str, state: str, seconds: float = 60) -> None:
    """Wait until the host has the run in this state."""
    deadline = time.monotonic() + seconds
    while (run_state := host.runs[handle.rpartition("/")[2]].describe().get("state")) != state:
        assert time.monotonic() < deadline, run_state
        time.sleep(0.1)


def state_of(said: Done) -> str:
    found = re.search(r"State: (\w+)", said.stdout)
    assert found, said
    return found[1]


def lines(text: str) -> list[str]:
    """Return the lines of the app, without the prefix that TorchX gives them."""
    return [line.removeprefix("main/0 ") for line in text.splitlines() if line.startswith("main/0 ")]


def test_from_an_empty_folder_with_nothing_but_a_host(torchx: TorchX, host: KfpHost) -> None:
    """The command that a user tries first; TorchX's other commands get no options, and this one says so."""
    said = torchx(
        "run", "-s", "kfp", "-cfg", f"host={host.url}", "--wait", "--log", "utils.echo", "--msg", "hi", anew=True
    )
    assert said.returncode == 0, said
    assert re.fullmatch(r"kfp://torchx/[0-9a-f-]{36}\n", said.stdout)
    assert "echo/0 hi\n" in said.stderr
    assert re.search(says(f"export TORCHX_KFP_HOST={host.url}", ".torchxconfig"), said.stderr)
    assert "Traceback" not in said.stderr
    assert list(torchx.folder.iterdir()) == []
    [run] = host.runs.values()
    assert handle_of(said) == f"kfp://torchx/{run.record.run_id}"
    assert f"UI URL: {host.url}/#/runs/details/{run.record.run_id}" in said.stderr


def test_all_commands_of_a_run_that_succeeds(on_host: TorchX, host: KfpHost) -> None:
    run = on_host("run", "-s", "kfp", "-cfg", "experiment=tries,name=my try", "app.py:steps")
    assert run.returncode == 0, run
    assert "export TORCHX_KFP_HOST" not in run.stderr

    tail = on_host("log", "--tail", handle_of(run))
    assert (tail.returncode, lines(tail.stdout)) == (0, ["one 1", "two 2", "end"])

    wait(host, handle_of(run), "SUCCEEDED")
    status = on_host("status", handle_of(run))
    assert (status.returncode, state_of(status)) == (0, "SUCCEEDED")
    assert re.search(r"main\[0\]:SUCCEEDED", status.stdout)

    log = on_host("log", f"{handle_of(run)}/main/0", "--regex", "t.o")
    assert (log.returncode, lines(log.stdout)) == (0, ["two 2"])

    described = on_host("describe", handle_of(run))
    [role] = ast.literal_eval(re.sub(r"<RetryPolicy[^>]*>", "None", described.stdout))["roles"]
    assert (role["name"], role["num_replicas"]) == ("main", 1)

    listed = on_host("list", "-s", "kfp")
    assert re.search(rf"{handle_of(run)}\s.*SUCCEEDED", listed.stdout)
    if IS_NIGHTLY:
        assert "my try" in listed.stdout

    # It has ended: TorchX asks for nothing.
    assert on_host("cancel", handle_of(run)).returncode == 0
    assert host.count(":terminate") == 0


def test_a_run_that_fails(on_host: TorchX) -> None:
    said = on_host("run", "-s", "kfp", "--wait", "--log", "app.py:fails")
    assert said.returncode == 1
    assert lines(said.stderr) == ["about to fail"]
    status = on_host("status", handle_of(said))
    assert state_of(status) == "FAILED"
    assert re.search(r"main\[0\]:FAILED \(exitcode: 7\)", status.stdout)
    found = re.search(r"Structured Error Msg: (.*)", status.stdout)
    assert found
    assert json.loads(found[1])["message"]["errorCode"] == 7
    assert "exit code 7" in json.loads(found[1])["message"]["message"]


def test_ctrl_c_leaves_the_run_and_cancel_ends_it(on_host: TorchX, host: KfpHost) -> None:
    """As with TorchX's other remote schedulers, Ctrl-C ends only the waiting."""
    with on_host.start("run", "-s", "kfp", "--wait", "--log", "app.py:waits") as process:
        handle = process.stdout.readline().strip()
        wait(host, handle, "RUNNING")
        assert state_of(on_host("status", handle)) == "RUNNING"
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode not in (0, None)
    assert host.runs[handle.rpartition("/")[2]].describe()["state"] == "RUNNING"
    assert host.count(":terminate") == 0

    canceled = on_host("cancel", handle)
    assert canceled.returncode == 0, canceled
    assert host.count(":terminate", "POST") == 1
    wait(host, handle, "FAILED")
    assert state_of(on_host("status", handle)) == "CANCELLED"


@pytest.mark.skipif(not IS_NIGHTLY, reason="TorchX 0.7.0 has no such command")
def test_delete_cancels(on_host: TorchX, host: KfpHost) -> None:
    handle = handle_of(on_host("run", "-s", "kfp", "app.py:waits"))
    assert on_host("delete", handle).returncode == 0
    assert host.count(":terminate", "POST") == 1
    # What has ended stays in KFP's list.
    wait(host, handle, "FAILED")
    assert on_host("delete", handle).returncode == 0
    assert host.count(":terminate", "POST") == 1


def test_a_torchxconfig_serves_all_commands(torchx: TorchX, host: KfpHost) -> None:
    (torchx.folder / ".torchxconfig").write_text(f"[kfp]\nhost = {host.url}\nexperiment = None\n")
    run = torchx("run", "-s", "kfp", "--wait", "utils.echo", "--msg", "hi")
    assert run.returncode == 0, run
    assert "export TORCHX_KFP_HOST" not in run.stderr
    assert state_of(torchx("status", handle_of(run))) == "SUCCEEDED"
    assert "SUCCEEDED" in torchx("list", "-s", "kfp").stdout
    assert "echo/0 hi" in torchx("log", handle_of(run)).stdout


def test_a_dry_run_shows_the_file_and_needs_no_host(torchx: TorchX) -> None:
    said = torchx(
        "run", "-s", "kfp", "-cfg", "tracker_base=s3://bucket/results", "--dryrun", "utils.echo", "--msg", "hi"
    )
    assert said.returncode == 0, said
    request = said.stdout.partition("=== SCHEDULER REQUEST ===")[2]
    assert re.search(says("# argument tracker_base: s3://bucket/results", "pipelineInfo:", "name: echo"), request)
    if IS_NIGHTLY:
        shown = json.loads(torchx("run", "-s", "kfp", "--dryrun", "--json", "utils.echo", "--msg", "hi").stdout)
        assert "pipelineInfo:" in shown["request"]["pipeline"]


# What goes wrong


@pytest.mark.parametrize(
    ("words", "facts"),
    [
        (["utils.echo", "--num_replicas", "2"], ["'echo'", "num_replicas=2", "-cfg engine=job"]),
        (["-cfg", "host=http://127.0.0.1:1", "utils.echo"], ["http://127.0.0.1:1/apis/v2beta1", "does not answer"]),
    ],
)
def test_mistakes_are_said_without_a_traceback(torchx: TorchX, words: list[str], facts: list[str]) -> None:
    said = torchx("run", "-s", "kfp", *words)
    assert (said.returncode, said.stdout) == (1, "")
    assert re.search(says(*facts), said.stderr), said.stderr
    assert "Traceback" not in said.stderr


def test_without_a_host_a_command_says_how_to_give_one(torchx: TorchX) -> None:
    said = torchx("status", UNKNOWN)
    assert said.returncode == 1
    assert re.search(says("No KFP host is given", "TORCHX_KFP_HOST", "config.ini", "kubectl port-forward"), said.stderr)
