"""The host that other tests talk to: its answers are those that a real host gave for the same pipeline."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler
from kfp.client import Client
from torchx_kfp_dev_host.argo import Naming

from tests.execution.host.answers_of_kfp import RUNS, manifest, recorded, workflow_in
from tests.execution.host.calling import PATH, get, request, shape, wait_until
from tests.execution.host.pipelines import small
from tests.fake_kfp import KfpHost

#: What the tests' host does not make of an answer, or has compared elsewhere.
APART = ("pipeline_spec", "run_details", "state_history", "plugins_output")
#: The decisions of drivers that are read.
DECISIONS = {"iteration-count", "pod-spec-patch", "cached-decision"}


@dataclass
class Replay:
    """The answers of the tests' host about a run of the recorded pipeline."""

    host: KfpHost
    run_id: str
    created: dict[str, Any]
    polls: list[dict[str, Any]] = field(default_factory=list)
    v1: dict[str, Any] = field(default_factory=dict)


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replay]]:
    """Run the recorded pipeline as it was recorded: with success, from the cache, with a failure, and terminated."""
    folder = tmp_path_factory.mktemp("host")
    with KfpHost(folder / "runs", directory=folder) as host:
        yield {case: replay(host, case, str(folder / "results")) for case in RUNS}


def replay(host: KfpHost, case: str, base: str) -> Replay:
    body = recorded(f"{case}-create")["body"]
    parameters = {**body["runtime_config"]["parameters"], "tracker_base": base}
    if case == "failed":
        parameters["wait"] = 0.1
    status, created = request(host, "POST", PATH, {**body, "runtime_config": {"parameters": parameters}})
    assert status == 200, created
    made = Replay(host, created["run_id"], created)
    while not made.polls or made.polls[-1]["state"] not in ("SUCCEEDED", "FAILED"):
        answer = get(host, f"{PATH}/{made.run_id}")
        if not made.polls or answer != made.polls[-1]:
            made.polls.append(answer)
        tasks = host.runs[made.run_id].facts.tasks
        if case == "terminated" and tasks["inner/sleeper"].attempts and answer["state"] == "RUNNING":
            # The other stages are cached, and have ended by then.
            wait_until(lambda: host.runs[made.run_id].facts.tasks["deploy"].finished)
            assert request(host, "POST", f"{PATH}/{made.run_id}:terminate") == (200, {})
        time.sleep(0.05)
    made.v1 = get(host, f"/apis/v1beta1/runs/{made.run_id}")
    return made


def without(answer: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in keys}


@pytest.mark.parametrize("case", RUNS)
def test_answers_about_a_run_have_the_shape_of_the_recorded_ones(replays: dict[str, Replay], case: str) -> None:
    """Not a key or a kind of value more or less, from the submission to the end."""
    made, created = replays[case], recorded(f"{case}-create")
    assert shape(without(made.created, "pipeline_spec")) == shape(
        without(created["answer"], "pipeline_spec", "plugins_output")
    )
    assert made.created["pipeline_spec"] == created["body"]["pipeline_spec"]
    assert (made.created["state"], made.created["display_name"]) == ("PENDING", case)
    theirs = [poll["answer"] for poll in recorded(f"{case}-polls")]
    known = {shape(without(answer, *APART)) for answer in theirs}
    for answer in made.polls:
        assert shape(without(answer, *APART)) in known
        assert [each["state"] for each in answer["state_history"]][-1] == answer["state"]
    assert [each["state"] for each in made.polls[-1]["state_history"]] == [
        each["state"] for each in theirs[-1]["state_history"]
    ]
    assert made.polls[-1]["pipeline_spec"] == theirs[-1]["pipeline_spec"]
    assert (made.polls[0]["finished_at"], made.polls[-1]["finished_at"] > "2000") == ("1970-01-01T00:00:00Z", True)


@pytest.mark.parametrize("case", RUNS)
def test_a_workflow_has_the_recorded_nodes(replays: dict[str, Replay], case: str) -> None:
    ours, theirs = nodes_of(workflow_in(replays[case].v1)), nodes_of(workflow_in(manifest(case)))
    if case == "terminated":
        # There, the loop was ended in the middle; here, its stages were taken from the cache long before.
        ours, theirs = ({key: it for key, it in each.items() if ".for-loop-2" not in key} for each in (ours, theirs))
    assert ours == theirs
    assert replays[case].v1["run"]["status"] == manifest(case)["run"]["status"]


def nodes_of(workflow: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of nodes, by their names, which begin with W in place of the workflow's name."""
    name, nodes = workflow["metadata"]["name"], workflow["status"]["nodes"]
    names = Naming(name)
    assert {names.id(node["name"]) for node in nodes.values()} == nodes.keys(), "ids are hashes of names"

    def compared(node: Mapping[str, Any]) -> Any:
        outputs = node.get("outputs") or {}
        message = re.sub(r"\d{4}-.* UTC", "TIME", node.get("message", ""))
        said = {each["name"] for each in outputs.get("parameters", ())} & DECISIONS if node["type"] == "Pod" else set()
        times = [bool(node.get(key)) for key in ("startedAt", "finishedAt")]
        return node["type"], node["templateName"], node["phase"], message, outputs.get("exitCode"), said, times

    return {"W" + node["name"].removeprefix(name): compared(node) for node in nodes.values()}


def test_errors_are_the_recorded_ones(replays: dict[str, Replay]) -> None:
    host = replays["succeeded"].host
    for name in ("create-wrong-parameter", "create-broken-spec"):
        theirs = recorded(name)
        assert request(host, "POST", PATH, theirs["body"]) == (theirs["status"], theirs["answer"])
    theirs = recorded("unknown-run")
    assert request(host, "GET", theirs["request"].partition(" ")[2]) == (theirs["status"], theirs["answer"])


@pytest.mark.versions
@pytest.mark.filterwarnings("ignore")
def test_kfps_own_client_works_with_the_host(kfp_host: KfpHost, tmp_path: Path) -> None:
    file = str(tmp_path / "small.yaml")
    compiler.Compiler().compile(small, file)
    client = Client(host=kfp_host.url)
    run = client.create_run_from_pipeline_package(file, arguments={"code": "print(1)"}, run_name="theirs")
    ended = client.wait_for_run_completion(run.run_id, timeout=120, sleep_duration=0.1)
    assert (ended.state, ended.display_name, ended.finished_at >= ended.created_at) == ("SUCCEEDED", "theirs", True)
    assert [each.run_id for each in client.list_runs(page_size=1, sort_by="created_at desc").runs] == [run.run_id]
