"""All commands for runs on a host that several users share, behind a proxy that signs them in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.execution.host.calling import wait_until
from tests.execution.host.commands import rows
from tests.facts import says
from tests.fake_kfp import SharedHost
from tests.programs import Program

ALICE, BOB = (f"{name}@example.com" for name in ("alice", "bob"))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[SharedHost]:
    with SharedHost(tmp_path / "host") as running:
        yield running


@pytest.fixture
def alice(program: Program, shared: SharedHost) -> Program:
    """The command line of Alice, with the cookie of her browser, who has the namespace team-a."""
    environ = {
        "TORCHX_KFP_HOST": shared.url,
        "TORCHX_KFP_NAMESPACE": "team-a",
        "TORCHX_KFP_COOKIES": "oauth2_proxy_kubeflow=alice-cookie",
    }
    return replace(program, variables={**program.variables, **environ})


def of_bob(alice: Program, namespace: str) -> Program:
    """Return the command line of Bob, with his token, in a namespace."""
    variables = {name: value for name, value in alice.variables.items() if name != "TORCHX_KFP_COOKIES"}
    own = {"TORCHX_KFP_EXISTING_TOKEN": "bob-token", "TORCHX_KFP_NAMESPACE": namespace}
    return replace(alice, variables={**variables, **own})


def state(host: SharedHost, run_id: str) -> str:
    return str(host.runs[run_id].describe()["state"])


def test_all_commands_in_the_users_own_namespace(alice: Program, shared: SharedHost) -> None:
    done = alice("submit", "good.yaml", "--name", "first", "--watch")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.split()[0]
    assert shared.runs[run_id].record.service_account == "default-editor"
    assert f"{shared.url}/#/runs/details/{run_id}" in done.stderr
    assert rows(alice("runs").stdout)[0][:2] == [run_id, "first"]
    assert rows(alice("runs", "--state", "succeeded").stdout)[0][:2] == [run_id, "first"]
    watched = alice("watch", "first")
    assert (watched.returncode, [row[:2] for row in rows(watched.stdout)][:1]) == (0, [["train", "succeeded"]]), watched
    logs = alice("logs", "first/train")
    assert (logs.returncode, logs.stdout) == (0, "training with 0.5\n"), logs.stderr
    assert ["train", "0.5"] in rows(alice("results", "latest").stdout)
    shown = alice("show", f"{shared.url}/#/runs/details/{run_id}")
    assert (shown.returncode, "train" in shown.stdout) == (0, True), shown.stderr
    again = alice("submit", "good.yaml", "--no-cache", "-q", "-p", "lr=0.75").stdout.strip()
    wait_until(lambda: state(shared, again) == "SUCCEEDED")
    compared = json.loads(alice("compare", "first", again, "--json").stdout)
    values = {(row["stage"], row["name"]): row["values"] for row in compared["rows"]}
    assert values["train", "loss"] == {run_id: [0.5], again: [0.75]}
    assert alice("report", "first").returncode == 0
    assert list(alice.folder.glob("*.html"))
    lists = [each for each in shared.requests if each.method == "GET" and each.path.endswith("/v2beta1/runs")]
    assert {each.query.get("namespace") for each in lists} == {"team-a"}


def _without(alice: Program) -> Program:
    return replace(alice, variables={**alice.variables, "TORCHX_KFP_NAMESPACE": ""})


@pytest.mark.parametrize(
    "words", [("submit", "plain.yaml"), ("runs",), ("watch", "latest"), ("logs", "latest"), ("results", "first")]
)
def test_without_a_namespace(alice: Program, shared: SharedHost, words: tuple[str, ...]) -> None:
    done = _without(alice)(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    facts = ("The host is multi-user, and no namespace is given", "--namespace", "TORCHX_KFP_NAMESPACE")
    assert re.search(says(*facts), done.stderr), done.stderr
    assert not shared.runs


def test_without_a_namespace_runs_are_found_by_their_ids(alice: Program, shared: SharedHost) -> None:
    run_id = alice("submit", "bad.yaml", "-q").stdout.strip()
    wait_until(lambda: state(shared, run_id) == "FAILED")
    without = _without(alice)
    assert without("logs", f"{run_id}/script").stdout == "one\n\033[31mthe last line\033[0m\n"
    assert without("watch", run_id).returncode == 1
    assert without("retry", run_id).returncode == 0
    wait_until(lambda: state(shared, run_id) == "FAILED")


#: The commands, and the right that Bob lacks; RUN is a run of Alice's.
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("runs",), "list runs"),
    (("submit", "plain.yaml"), "list experiments"),
    (("watch", "RUN"), "get runs"),
    (("watch", "first"), "list runs"),
    (("logs", "RUN"), "get runs"),
    (("results", "RUN"), "get runs"),
    (("show", "RUN"), "get runs"),
    (("compare", "RUN", "RUN"), "get runs"),
    (("report", "RUN"), "get runs"),
    (("retry", "RUN"), "get runs"),
    (("cancel", "RUN"), "get runs"),
]


def test_in_the_namespace_of_another_user(alice: Program, shared: SharedHost, tmp_path: Path) -> None:
    run_id = alice("submit", "long.yaml", "-q", "--name", "first", "-p", f"go={tmp_path / 'go'}").stdout.strip()
    bob = of_bob(alice, "team-a")
    for words, right in REFUSED:
        done = bob(*(run_id if word == "RUN" else word for word in words))
        assert (done.returncode, done.stdout) == (1, ""), (words, done.stderr)
        facts = (f"the user '{BOB}' may not {right} in the namespace 'team-a'", "contributor", "--namespace")
        assert re.search(says(*facts), done.stderr), (words, done.stderr)
        for other in ("expired", "TOKEN_FILE", "ResourceAttributes"):
            assert other not in done.stderr
    assert (len(shared.runs), state(shared, run_id)) == (1, "RUNNING")
    nobodys = of_bob(alice, "team-zzz")("runs")
    assert f"'{BOB}' may not list runs in the namespace 'team-zzz'" in nobodys.stderr
    own = of_bob(alice, "team-b")
    assert own("runs").stderr.startswith("There are no runs on ")
    assert own("submit", "plain.yaml", "-q").returncode == 0
    assert [row[0] for row in rows(alice("runs").stdout)] == [run_id]
    (tmp_path / "go").touch()
