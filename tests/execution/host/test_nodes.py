"""The nodes in the manifest that v1beta1 returns."""

from __future__ import annotations

import base64
import gzip
import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.execution.host.answers_of_kfp import RUNS, manifest, nodes
from tests.execution.host.workflows import workflow
from tests.facts import says
from torchx_kfp.execution.host import manifest as manifest_module
from torchx_kfp.execution.host.archived_logs import ArchivedLog
from torchx_kfp.execution.host.manifest import manifest_of, read_manifest
from torchx_kfp.execution.host.nodes import Node, Nodes
from torchx_kfp.execution.host.states import seconds
from torchx_kfp.execution.runs.vocabulary import State


def _workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manifest_of(manifest(name)))
    return found


def _packed(nodes: bytes, name: str = "failed") -> str:
    """Return the manifest of a recorded run with these compressed nodes."""
    found = _workflow(name)
    found["status"] = {**found["status"], "nodes": None, "compressedNodes": base64.b64encode(nodes).decode()}
    return json.dumps(found, separators=(",", ":"))


def _all(found: Nodes, name: str) -> dict[str, Node | None]:
    return {record["name"]: found.get(record["name"]) for record in _workflow(name)["status"]["nodes"].values()}


def test_a_manifest_has_pods_exit_codes_messages_and_what_drivers_decided() -> None:
    found = nodes("failed")
    root = f"{found.workflow}(0).root(0)"
    pod = found.get(f"{root}.inner(0).sleeper(0).executor(0)")
    name = "recorded-jncvj-metadata-0-8-system-container-impl-2769273973"
    assert pod == Node(
        name=f"{root}.inner(0).sleeper(0).executor(0)",
        state=State.FAILED,
        start=seconds("2026-11-22T03:02:40Z"),
        end=seconds("2026-11-22T03:02:50Z"),
        message="main: Error (exit code 1)",
        exit_code=1,
        pod=name,
        log=ArchivedLog(
            "seaweedfs.kubeflow.svc.cluster.local:9000",
            "mlpipeline",
            f"private-artifacts/kubeflow/recorded-jncvj/2026/11/22/{name}/main.log",
        ),
    )
    driver = found.get(f"{root}.for-loop-2(0).iteration-driver(0)")
    assert driver is not None
    assert driver.decisions["iteration-count"] == "2"


@pytest.mark.parametrize("name", [*RUNS, "size-hand", "stuck", "retried"])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_each_node_of_a_manifest_is_found(name: str, separators: tuple[str, str]) -> None:
    found = read_manifest(json.dumps(_workflow(name), separators=separators))
    for record in _workflow(name)["status"]["nodes"].values():
        node = found.get(record["name"])
        assert node is not None
        assert (node.start, node.message) == (seconds(record["startedAt"]), record.get("message", ""))
        assert node.end == seconds(record.get("finishedAt"))


def test_a_node_that_has_not_changed_is_not_read_again() -> None:
    before = nodes("retried-failed")
    first, second = (f"retried-mpf7w(0).root(0).{name}(0).executor(0)" for name in ("first", "second"))
    old = before.get(first), before.get(second)
    after = read_manifest(manifest_of(manifest("retried")), before)
    assert after.get(first) is old[0]
    new = after.get(second)
    assert old[1] is not None
    assert new is not None
    assert (old[1].state, new.state) == (State.FAILED, State.SUCCEEDED)


def test_the_last_attempt_is_last() -> None:
    records = {"a": "", "b": "", **{f"a({number})": "" for number in range(11)}}
    made = iter(range(20))
    found = Nodes("W", records, lambda record: Node(str(next(made)), State.FAILED))
    assert [node.name for node in found.attempts("a")] == [str(number) for number in range(11)]
    assert [node.name for node in found.attempts("b")] == ["11"]
    assert found.attempts("c") == []


def test_argo_compresses_the_nodes_of_large_workflows() -> None:
    packed = _packed(gzip.compress(json.dumps(_workflow("failed")["status"]["nodes"]).encode()))
    found, plain = read_manifest(packed), nodes("failed")
    assert _all(found, "failed") == _all(plain, "failed")
    assert None not in _all(found, "failed").values()


def test_a_run_whose_nodes_are_compressed_as_recorded() -> None:
    assert "compressedNodes" in _workflow("size-image")["status"]
    found = nodes("size-image")
    pods = [found.get(f"{found.workflow}(0).root(0).stage-{index}(0).executor(0)") for index in range(30)]
    assert [pod.state for pod in pods if pod is not None] == [State.SUCCEEDED] * 30


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"not gzip", ["damaged"]),
        (gzip.compress(b"[" * 100_000), []),
        (gzip.compress(b'{"a": {"id": "a", "name": "b", ')[:-9], ["cut off"]),
        (gzip.compress(b'{"a": {"id": "a", "name": "b", '), ["not JSON"]),
        (gzip.compress(b"\xff\xff"), ["damaged"]),
    ],
    ids=["text", "deep", "cut", "short", "bytes"],
)
def test_compressed_nodes_that_cannot_be_read(content: bytes, facts: list[str]) -> None:
    if facts:
        with pytest.raises(ValueError, match=says(*facts)):
            read_manifest(_packed(content))
    else:
        assert read_manifest(_packed(content)).get("W") is None


def test_compressed_nodes_are_not_unpacked_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MOST_UNPACKED", 1 << 20)
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    with pytest.raises(ValueError, match=says("more than", "1,048,576 bytes")):
        read_manifest(_packed(bomb))


def test_in_old_workflows_pods_have_the_ids_of_nodes() -> None:
    made = workflow({"W.train.executor": {"phase": "Running", "type": "Pod", "templateName": "x"}})
    new = read_manifest(json.dumps(made)).get("W.train.executor")
    made["metadata"]["annotations"] = {"workflows.argoproj.io/pod-name-format": "v1"}
    old = read_manifest(json.dumps(made)).get("W.train.executor")
    (identity,) = made["status"]["nodes"]
    assert new is not None
    assert old is not None
    assert (new.pod, old.pod) == (f"W-x-{identity.removeprefix('W-')}", identity)


@pytest.mark.parametrize(
    "content",
    [{}, {"pipeline_runtime": None}, {"pipeline_runtime": 7}, {"pipeline_runtime": {"workflow_manifest": []}}],
)
def test_an_answer_without_a_manifest_has_no_nodes(content: dict[str, Any]) -> None:
    assert read_manifest(manifest_of(content)).workflow == ""


def test_phases_and_times_that_mean_nothing() -> None:
    records = {"W.a": {"phase": "A phase of 2030"}, "W.b": {"phase": None}, "W.c": {"phase": 3}}
    found = read_manifest(json.dumps(workflow(records)))
    for name in records:
        node = found.get(name)
        assert node is not None
        assert node.state is State.QUEUED
    assert seconds("0001-01-01T00:00:00Z") is seconds("1970-01-01T00:00:00Z") is seconds(None) is seconds("x") is None


@given(st.integers(0, 1 << 32), st.sampled_from([*RUNS, "stuck"]), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_a_damaged_manifest_is_an_error_or_has_other_nodes(seed: int, name: str, changes: int) -> None:
    rng = random.Random(seed)
    text = manifest_of(manifest(name))
    names = [record["name"] for record in _workflow(name)["status"]["nodes"].values()]
    for _ in range(changes):
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(['"', "{", "}", "\\", "[", "null", "7", ""]) + text[at + rng.randrange(40) :]
    try:
        found = read_manifest(text)
    except ValueError:
        return
    for one in names:
        node = found.get(one)
        assert node is None or isinstance(node.state, State)
