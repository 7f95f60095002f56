"""TorchX's own program against a KFP host whose runs really run."""

from __future__ import annotations

import re

import pytest

from tests.entrypoints.scheduler.program import TorchX, handle_of
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Done

pytestmark = pytest.mark.newest

UNKNOWN = "kfp://torchx/12345678-1234-1234-1234-123456789012"


def state_of(said: Done) -> str:
    found = re.search(r"State: (\w+)", said.stdout)
    assert found, said
    return found[1]


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


def test_a_torchxconfig_serves_all_commands(torchx: TorchX, host: KfpHost) -> None:
    (torchx.folder / ".torchxconfig").write_text(f"[kfp]\nhost = {host.url}\nexperiment = None\n")
    run = torchx("run", "-s", "kfp", "--wait", "utils.echo", "--msg", "hi")
    assert run.returncode == 0, run
    assert "export TORCHX_KFP_HOST" not in run.stderr
    assert state_of(torchx("status", handle_of(run))) == "SUCCEEDED"
    assert "SUCCEEDED" in torchx("list", "-s", "kfp").stdout
    assert "echo/0 hi" in torchx("log", handle_of(run)).stdout


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
