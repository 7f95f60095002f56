"""The nodes in the manifest that v1beta1 returns."""

from __future__ import annotations

import base64
import gzip
import json
import re
import zlib
from typing import Any

import pytest

from tests.execution.host.answers_of_kfp import last, manifest
from tests.execution.host.event_logs import answers, replaying, workflow
from tests.facts import says
from torchx_kfp.execution.host import nodes as manifest_module
from torchx_kfp.execution.host.nodes import manifest_of, read_manifest
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.runs.vocabulary import State


def _workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(manifest_of(manifest(name)))
    return found


def _packed(nodes: bytes) -> str:
    """Return the manifest of a recorded run with these compressed nodes."""
    found = _workflow("failed")
    found["status"] = {**found["status"], "nodes": None, "compressedNodes": base64.b64encode(nodes).decode()}
    return json.dumps(found, separators=(",", ":"))


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (b"not gzip", ["damaged"]),
        (gzip.compress(b"[" * 100_000), ["not JSON"]),
        (gzip.compress(b'{"a": {"id": "a", "name": "b", ')[:-9], ["cut off"]),
        (gzip.compress(b'{"a": {"id": "a", "name": "b", '), ["not JSON"]),
        (gzip.compress(b"\xff\xff"), ["damaged"]),
    ],
    ids=["text", "deep", "cut", "short", "bytes"],
)
def test_compressed_nodes_that_cannot_be_read(content: bytes, facts: list[str]) -> None:
    with pytest.raises(ValueError, match=says(*facts)):
        read_manifest(_packed(content))


def test_compressed_nodes_are_not_unpacked_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_module, "MOST_UNPACKED", 1 << 20)
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    with pytest.raises(ValueError, match=says("more than", "1,048,576 bytes")):
        read_manifest(_packed(bomb))


def test_a_phase_that_means_nothing_is_queued() -> None:
    records = {"W.a": {"phase": "A phase of 2030"}, "W.b": {"phase": None}, "W.c": {"phase": 3}}
    found = read_manifest(json.dumps(workflow(records)))
    assert {node.state for name in records if (node := found.get(name))} == {State.QUEUED}
    assert read_manifest('{"status": {"nodes": {"a": 7, "b": null}}}').get("W.a") is None


def test_in_old_workflows_pods_have_the_ids_of_nodes() -> None:
    made = workflow({"W.train.executor": {"phase": "Running", "type": "Pod", "templateName": "x"}})
    new = read_manifest(json.dumps(made)).get("W.train.executor")
    made["metadata"]["annotations"] = {"workflows.argoproj.io/pod-name-format": "v1"}
    old = read_manifest(json.dumps(made)).get("W.train.executor")
    (identity,) = made["status"]["nodes"]
    assert new is not None
    assert old is not None
    assert (new.pod, old.pod) == (f"W-x-{identity.removeprefix('W-')}", identity)


def test_a_host_cannot_announce_any_number_of_iterations() -> None:
    text = json.dumps(_workflow("succeeded"))
    said, count = re.subn(r'("name": "iteration-count", "value": ")\d+', r"\g<1>999999999", text)
    assert count
    run = last("succeeded")
    steps = Snapshot.of(run, RunPipeline.of(run), read_manifest(said)).new
    assert 10_000 < len(steps) < 11_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("-driver", "-dag-driver"),
        (".executor", ".main"),
        ("iteration-item", "iteration-body"),
        ("iteration-iterations", "iteration-loop"),
        (".root(0)", ".whole(0)"),
    ],
)
@pytest.mark.parametrize("name", ["nested-loop", "succeeded", "failed"])
def test_names_of_another_version_are_said_to_be_unknown(name: str, old: str, new: str) -> None:
    """A stage whose pod has another name than those that are known is not taken for a cached one."""
    with replaying(name) as replayed:
        replayed.see(*answers(name)[-1])
        before = replayed.run.read()
        assert not [sentence for sentence in before.corrupt if "does not know" in sentence]
    run, nodes = answers(name)[-1]
    text = manifest_of(nodes).replace(old, new)
    if text == manifest_of(nodes):
        pytest.skip(f"{name} has no {old}")
    with replaying(name) as replayed:
        replayed.see(run, {**nodes, "pipeline_runtime": {"workflow_manifest": text}})
        record = replayed.run.read()
    [sentence] = [sentence for sentence in record.corrupt if "does not know" in sentence]
    assert re.search(says("pod", "of this run", new, "states, results and logs of stages may be missing"), sentence)
    cached = {stage.name for stage in record.run.stages if stage.state is State.CACHED}
    assert cached <= {stage.name for stage in before.run.stages if stage.state is State.CACHED}


@pytest.mark.parametrize("name", ["nested-loop", "succeeded"])
def test_nodes_that_are_not_read_again_are_known(name: str) -> None:
    """Those of a stage that has ended are read once, in a run that is watched."""
    with replaying(name) as replayed:
        for each in answers(name):
            replayed.see(*each)
            assert not [sentence for sentence in replayed.run.read().corrupt if "does not know" in sentence]
