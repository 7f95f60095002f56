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

STOCK = Path(__file__).resolve().parents[2] / "cluster" / "pipeline-runner-role.yaml"


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


def test_the_text(inside: Call) -> None:
    done = inside("rbac", "--engine", "jobset")
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout
        == """\
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata:
  name: torchx-kfp-jobset
  namespace: "kubeflow"
rules:
  - apiGroups: ["jobset.x-k8s.io"]
    resources: ["jobsets"]
    verbs: ["create", "get", "patch", "delete"]
  - apiGroups: [""]
    resources: ["pods"]
    verbs: ["list"]
  - apiGroups: [""]
    resources: ["pods/log"]
    verbs: ["get"]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: torchx-kfp-jobset-pipeline-runner
  namespace: "kubeflow"
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: torchx-kfp-jobset
subjects:
  - kind: ServiceAccount
    name: "pipeline-runner"
    namespace: "kubeflow"
"""
    )


def test_a_profile_of_multi_user_kubeflow(inside: Call) -> None:
    """Names of digits stay text."""
    done = inside("rbac", "--engine=volcano", "--service-account", "default-editor", "--namespace", "123")
    role, binding = documents(done.stdout)
    assert role["metadata"] == {"name": "torchx-kfp-volcano", "namespace": "123"}
    assert binding["metadata"] == {"name": "torchx-kfp-volcano-default-editor", "namespace": "123"}
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "default-editor", "namespace": "123"}]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]


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
    """No others: ``tests/cluster/test_contract.py`` runs launchers that have just these."""
    group, resource = ENGINES[engine].RESOURCE
    companions = [(*companion, verb) for companion in ENGINES[engine].COMPANIONS for verb in ("create", "get", "patch")]
    own = [(group, resource, verb) for verb in ("create", "get", "patch", "delete")]
    expected = [*own, *companions, ("", "pods", "list"), ("", "pods/log", "get")]
    assert sorted(rules(inside("rbac", "--engine", engine).stdout)) == sorted(expected)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engine", "jobsets"], "'jobsets' is not one of 'job', 'jobset', 'volcano'. Did you mean 'jobset'?"),
        (["--engine", "ray"], "'ray' is not one of 'job', 'jobset', 'volcano'.\n"),
        (["--engine", "job", "--namespace", "a.b"], "'a.b' cannot be a name in Kubernetes"),
        (["--engine", "job", "--namespace", "x" * 64], "at most 63"),
        (["--engine", "job", "--namespace", 'a"\nb'], "cannot be a name in Kubernetes"),
        (["--engine", "job", "--service-account", "ns:name"], "'ns:name' cannot be a name in Kubernetes"),
        (["--engine", "job", "--service-account", "a..b"], "'a..b' cannot be a name in Kubernetes"),
        ([], "Missing option '--engine'"),
    ],
)
def test_wrong_calls(inside: Call, words: list[str], said: str) -> None:
    done = inside("rbac", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_names_with_dots(inside: Call) -> None:
    assert inside("rbac", "--engine", "job", "--service-account", "a.b-c.d").returncode == 0


def test_help_names_the_engines_and_the_profiles_account(inside: Call) -> None:
    done = inside("rbac", "--help")
    for text in (*ENGINES, "default-editor", "kubectl apply -f -", "pipeline-runner"):
        assert text in done.stdout


def test_completion_of_engines() -> None:
    completion = ShellComplete(cli, {}, "torchx-kfp", "_TORCHX_KFP_COMPLETE")
    assert [item.value for item in completion.get_completions(["rbac", "--engine"], "")] == list(ENGINES)
    assert [item.value for item in completion.get_completions(["rbac", "--engine"], "jobs")] == ["jobset"]


def test_the_engines_are_named_if_none_is_given(inside: Call) -> None:
    done = inside("rbac")
    assert done.returncode == 2
    assert "Missing option '--engine'. Give one of 'job', 'jobset', 'volcano'." in " ".join(done.stderr.split())
