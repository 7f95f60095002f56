"""Manifests for a cluster: ``torchx-kfp rbac`` (its texts are in ``tests/transcripts``) and ``torchx-kfp secret``."""

import base64
import itertools
import os
import re
from pathlib import Path

import pytest

from tests.documents import documents
from tests.entrypoints.cli.conftest import Call
from tests.facts import says

pytestmark = pytest.mark.lowest

STOCK = Path(__file__).resolve().parents[2] / "kubernetes" / "pipeline-runner-role.yaml"
#: The engines, and what KFP's own service account lacks for each.
LACKING = {"job": [], "jobset": [("jobset.x-k8s.io", "jobsets")], "volcano": [("batch.volcano.sh", "jobs")]}


def rights(text: str) -> set[tuple[str, str, str]]:
    """Return what a Role allows, as (group, resource, verb)."""
    found = set()
    for rule in documents(text)[0]["rules"]:
        found |= {*itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}
    return found


@pytest.mark.parametrize("engine", LACKING)
def test_what_kfps_own_service_account_may(call: Call, engine: str) -> None:
    text = call("rbac", "--engine", engine).stdout
    stock = rights(STOCK.read_text())
    lacking = {right[:2] for right in rights(text) if not {right, (*right[:2], "*")} & stock}
    assert lacking == {*LACKING[engine]}
    assert text.startswith("# KFP's own service account, pipeline-runner, has all") == (not lacking)


def test_the_secret_of_the_settings_has_this_machines_values_byte_for_byte(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHX_KFP_STORAGE_SECRET", "storage id=OF_ID key=OF_KEY")
    values = {"id": b"a: b", "key": b"s3://me:word@x \xff\x01 \xc3\xa9"}
    monkeypatch.setenv("OF_ID", os.fsdecode(values["id"]))
    refused = call("secret")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search(says("OF_KEY", "'storage'"), refused.stderr)
    monkeypatch.setenv("OF_KEY", os.fsdecode(values["key"]))
    (manifest,) = documents(call("secret", "--namespace", "team").stdout)
    assert {key: base64.b64decode(text) for key, text in manifest.pop("data").items()} == values
    monkeypatch.setenv("TORCHX_KFP_NAMESPACE", "profile")
    assert documents(call("secret").stdout)[0]["metadata"]["namespace"] == "profile"
    metadata = {"name": "storage", "namespace": "team"}
    assert manifest == {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def test_a_secret_needs_a_name_and_keys(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHX_KFP_STORAGE_SECRET", raising=False)
    for value in ("", "storage"):
        monkeypatch.setenv("TORCHX_KFP_STORAGE_SECRET", value)
        done = call("secret")
        assert (done.returncode, done.stdout) == (2, "")
        assert re.search(says("STORAGE_SECRET", "accesskey=AWS_ACCESS_KEY_ID"), done.stderr)
