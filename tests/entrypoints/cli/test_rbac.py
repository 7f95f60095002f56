"""``torchx-kfp rbac``: the rights that the launcher of a distributed stage needs."""

from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete

from tests.documents import documents
from tests.entrypoints.cli.conftest import Call
from torchx_kfp.authoring.engines import ENGINES
from torchx_kfp.entrypoints.cli import cli

pytestmark = pytest.mark.lowest

STOCK = Path(__file__).resolve().parents[2] / "kubernetes" / "pipeline-runner-role.yaml"


def rules(text: str) -> list[tuple[str, str, str]]:
    """Return what a Role allows, as (group, resource, verb)."""
    role: Any = documents(text)[0]
    return [
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def has(stock: list[tuple[str, str, str]], right: tuple[str, str, str]) -> bool:
    return right in stock or (*right[:2], "*") in stock


@pytest.mark.parametrize("engine", ENGINES)
def test_what_kfps_own_service_account_may(inside: Call, engine: str) -> None:
    text = inside("rbac", "--engine", engine).stdout
    stock = rules(STOCK.read_text())
    lacking = [right for right in rules(text) if not has(stock, right)]
    assert text.startswith("# KFP's own service account, pipeline-runner, has all") == (not lacking)
    group, resource = ENGINES[engine].RESOURCE
    assert {right[:2] for right in lacking} == (set() if engine == "job" else {(group, resource)})


@pytest.mark.parametrize("engine", ENGINES)
def test_the_rights_are_those_that_the_launcher_needs(inside: Call, engine: str) -> None:
    """No others: ``tests/kubernetes/test_contract.py`` runs launchers that have just these."""
    group, resource = ENGINES[engine].RESOURCE
    companions = [(*companion, verb) for companion in ENGINES[engine].COMPANIONS for verb in ("create", "get", "patch")]
    own = [(group, resource, verb) for verb in ("create", "get", "patch", "delete")]
    expected = [*own, *companions, ("", "pods", "list"), ("", "pods/log", "get")]
    assert sorted(rules(inside("rbac", "--engine", engine).stdout)) == sorted(expected)


def test_help_names_the_engines_and_the_profiles_account(inside: Call) -> None:
    done = inside("rbac", "--help")
    for text in (*ENGINES, "default-editor", "kubectl apply -f -", "pipeline-runner"):
        assert text in done.stdout


def test_completion_of_engines() -> None:
    completion = ShellComplete(cli, {}, "torchx-kfp", "_TORCHX_KFP_COMPLETE")
    assert [item.value for item in completion.get_completions(["rbac", "--engine"], "")] == list(ENGINES)
    assert [item.value for item in completion.get_completions(["rbac", "--engine"], "jobs")] == ["jobset"]
