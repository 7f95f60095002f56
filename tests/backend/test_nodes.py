"""What KFP's API tells about the nodes of a workflow: v2beta1 without names, v1beta1 with all of them."""

from __future__ import annotations

import base64
import gzip
import json
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.backend.answers_of_kfp import RUNS, manifest, polls
from tests.backend.workflows import of_2_14, workflow
from torchx_kfp.backend.details import Details, from_details
from torchx_kfp.backend.nodes import Node, Nodes, from_manifest, seconds, state_of, workflow_of
from torchx_kfp.backend.observer import Observer
from torchx_kfp.backend.values import hash_of
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs.vocabulary import State


def _pipeline(run: dict[str, Any]) -> Pipeline:
    observer = Observer()
    observer.observe({**run, "run_details": None})
    assert observer.pipeline is not None
    return observer.pipeline


def _wrong(told: Nodes, true: Nodes) -> list[tuple[str, str, str]]:
    """Return the nodes that are not as they are in the manifest; those of which v2beta1 knows less are left out."""
    unknown = (State.WAITING, State.QUEUED, State.RUNNING)
    # Argo takes a pod that it ends for one that has failed, until it finds that the pod had succeeded.
    late = {node.name for node in true.by_name.values() if node.message == "Step exceeded its deadline"}
    return [
        (name, str(node.state), str(true.by_name[name].state) if name in true.by_name else "missing")
        for name, node in told.by_name.items()
        if node.state not in unknown
        and name not in late
        and (name not in true.by_name or node.state is not true.by_name[name].state)
    ]


@pytest.mark.parametrize("name", RUNS)
def test_both_versions_of_the_api_tell_of_the_same_nodes(name: str) -> None:
    true = from_manifest(manifest(name))
    answers = polls(name)
    details = Details(_pipeline(answers[0]))
    for answer in answers:
        told = details.read(answer)
        assert _wrong(told, true) == []
    assert told.workflow == true.workflow
    entries = [entry for entry in answers[-1]["run_details"]["task_details"] if entry.get("display_name")]
    assert len(told.by_name) == len(entries), "each entry is a node"
    assert Counter(str(node.state) for node in told.by_name.values()) == Counter(
        str(state_of(entry["state"])) for entry in entries
    )


def test_nodes_have_the_times_of_their_entries() -> None:
    true = from_manifest(manifest("succeeded")).by_name
    run = polls("succeeded")[-1]
    for name, node in from_details(run, _pipeline(run)).by_name.items():
        assert node.start == true[name].start, name
        assert node.end in (true[name].end, None), name


@pytest.mark.parametrize("name", RUNS)
def test_before_2_17_each_node_is_there_once(name: str) -> None:
    run = of_2_14(name, polls(name)[-1])
    told = from_details(run, _pipeline(run))
    true = from_manifest(manifest(name))
    without_attempts = {
        node.replace("(0)", ""): true.by_name[node] for node in true.by_name if not node.endswith("(0)")
    }
    assert _wrong(told, Nodes(true.workflow, without_attempts)) == []
    entries = [entry for entry in run["run_details"]["task_details"] if entry.get("display_name")]
    assert len(told.by_name) == len(entries)


def test_a_manifest_has_pods_exit_codes_messages_and_what_drivers_decided() -> None:
    found = from_manifest(manifest("failed"))
    root = f"{found.workflow}(0).root(0)"
    pod = found.get(f"{root}.inner(0).sleeper(0).executor(0)")
    assert pod == Node(
        name=f"{root}.inner(0).sleeper(0).executor(0)",
        state=State.FAILED,
        start=seconds("2026-11-22T03:02:40Z"),
        end=seconds("2026-11-22T03:02:50Z"),
        message="main: Error (exit code 1)",
        exit_code=1,
        pod="recorded-jncvj-metadata-0-8-system-container-impl-2769273973",
    )
    driver = found.get(f"{root}.for-loop-2(0).iteration-driver(0)")
    assert driver is not None
    assert driver.decisions["iteration-count"] == "2"


def test_the_last_attempt_is_last() -> None:
    nodes = {f"a({number})": Node(f"a({number})", State.FAILED) for number in range(11)}
    found = Nodes("W", {"a": Node("a", State.RUNNING), "b": Node("b", State.RUNNING), **nodes})
    assert [node.name for node in found.attempts("a")] == [f"a({number})" for number in range(11)]
    assert [node.name for node in found.attempts("b")] == ["b"]
    assert found.attempts("c") == []


def test_argo_compresses_the_nodes_of_large_workflows() -> None:
    found = workflow_of(manifest("failed"))
    nodes = gzip.compress(json.dumps(found["status"]["nodes"]).encode())
    status = {**found["status"], "nodes": None, "compressedNodes": base64.b64encode(nodes).decode()}
    assert from_manifest({**found, "status": status}) == from_manifest(found)


def test_in_old_workflows_pods_have_the_ids_of_nodes() -> None:
    made = workflow({"W.train.executor": {"phase": "Running", "type": "Pod", "templateName": "x"}})
    made["metadata"]["annotations"] = {"workflows.argoproj.io/pod-name-format": "v1"}
    (node,) = from_manifest(made).by_name.values()
    assert node.pod == f"W-{hash_of('W.train.executor')}"


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"pipeline_runtime": None},
        {"pipeline_runtime": {"workflow_manifest": "{"}},
        {"pipeline_runtime": {"workflow_manifest": 3}},
        {"status": {"nodes": {"a": None, "b": 3, "c": {}}}},
        {"status": {"compressedNodes": "not base64"}},
        {"status": {"compressedNodes": base64.b64encode(b"not gzip").decode()}},
    ],
)
def test_what_is_no_workflow_has_no_nodes(content: dict[str, Any]) -> None:
    assert from_manifest(content).by_name == {}


def test_words_and_times_that_mean_nothing() -> None:
    assert state_of("Omitted") is State.NOT_RUN
    assert state_of("SKIPPED") is state_of("Skipped") is State.SKIPPED
    assert state_of("Error") is State.FAILED
    assert state_of("A_WORD_OF_2030") is state_of(None) is state_of(3) is State.QUEUED
    assert seconds("0001-01-01T00:00:00Z") is seconds("1970-01-01T00:00:00Z") is seconds(None) is seconds("x") is None


def test_a_node_that_has_ended_stays_so() -> None:
    def nodes(state: State) -> Nodes:
        return Nodes("W", {"a": Node("a", state)})

    for old, new, then in [
        (State.SUCCEEDED, State.RUNNING, State.SUCCEEDED),
        (State.RUNNING, State.WAITING, State.RUNNING),
        (State.RUNNING, State.SKIPPED, State.RUNNING),
        (State.QUEUED, State.SKIPPED, State.SKIPPED),
        (State.RUNNING, State.FAILED, State.FAILED),
    ]:
        assert nodes(old).updated(nodes(new)).by_name["a"].state is then


def test_an_omitted_node_has_no_state_in_v2beta1() -> None:
    run = polls("failed")[-1]
    pipeline = _pipeline(run)
    found = workflow_of(manifest("failed"))
    omitted = f"{found['metadata']['name']}(0).root(0).last-driver"
    entries = run["run_details"]["task_details"]
    parent = next(entry for entry in entries if entry.get("display_name") == "inner(0)")
    parent["child_tasks"].append({"pod_name": f"{found['metadata']['name']}-{hash_of(omitted)}"})
    at = "2026-11-22T03:03:21Z"
    entries.append({"task_id": "x", "display_name": "last-driver", "start_time": at, "end_time": at})
    node = from_details(run, pipeline).get(omitted)
    assert node is not None
    assert node.state is State.NOT_RUN


@given(st.integers(0, 1 << 32), st.sampled_from(RUNS), st.floats(0, 1))
# The entries that are left are as many as the pods of stages, but those of other stages.
@example(41812, "failed", 0.90625)
@example(39938, "terminated", 0.90625)
@settings(deadline=None)
def test_no_node_is_taken_for_another_whatever_is_missing(seed: int, name: str, share: float) -> None:
    rng = random.Random(seed)
    run = polls(name)[-1]
    pipeline = _pipeline(run)
    true = from_manifest(manifest(name))
    entries = run["run_details"]["task_details"]
    rng.shuffle(entries)
    entries[:] = [entry for entry in entries if rng.random() < share]
    entries += rng.sample(entries, len(entries) // 3)
    assert _wrong(from_details(run, pipeline), true) == []
