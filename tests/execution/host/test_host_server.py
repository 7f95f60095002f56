"""The host that other tests talk to: its answers are those that a real host gave for the same pipeline."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import compiler

from tests.execution.host.calling import (
    RECORDED,
    RUNS,
    ended,
    get,
    nodes_of,
    recorded,
    request,
    shape,
    submit,
    wait_until,
    workflow_of,
)
from tests.execution.host.pipelines import leaves, loops, retries, small
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.fake_kfp.argo import Naming, fnv1a32
from tests.fake_kfp.faults import Fault
from tests.fake_kfp.schema import answer_problems
from torchx_kfp.execution.pipeline.load import compile_function
from torchx_kfp.tracking import FsspecResultTracker

CASES = ("succeeded", "cached", "failed", "terminated")
NEVER, EPOCH = "0001-01-01T00:00:00Z", "1970-01-01T00:00:00Z"


@dataclass
class Replay:
    """The answers of the tests' host about a run of the recorded pipeline."""

    host: KfpHost
    run_id: str
    created: dict[str, Any]
    polls: list[dict[str, Any]] = field(default_factory=list)
    v1: dict[str, Any] = field(default_factory=dict)

    @property
    def last(self) -> dict[str, Any]:
        return self.polls[-1]


@pytest.fixture(scope="module")
def replays(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Replay]]:
    """Run the recorded pipeline as it was recorded: with success, from the cache, with a failure, and terminated."""
    folder = tmp_path_factory.mktemp("host")
    with KfpHost(folder / "runs", directory=folder) as host:
        yield {case: replay(host, case, str(folder / "results")) for case in CASES}


def replay(host: KfpHost, case: str, base: str) -> Replay:
    body = recorded(f"{case}-create")["body"]
    parameters = {**body["runtime_config"]["parameters"], "tracker_base": base}
    if case == "failed":
        parameters["wait"] = 0.1
    status, created = request(host, "POST", RUNS, {**body, "runtime_config": {"parameters": parameters}})
    assert status == 200, created
    made = Replay(host, created["run_id"], created)
    while not made.polls or made.last["state"] not in ("SUCCEEDED", "FAILED"):
        answer = get(host, f"{RUNS}/{made.run_id}")
        if not made.polls or answer != made.last:
            made.polls.append(answer)
        started = host.runs[made.run_id].facts.attempts
        if case == "terminated" and "inner/sleeper" in started and answer["state"] == "RUNNING":
            # The other stages are cached, and have ended by then.
            wait_until(lambda: "deploy" in host.runs[made.run_id].facts.finished)
            made.polls.append(get(host, f"{RUNS}/{made.run_id}"))
            assert request(host, "POST", f"{RUNS}/{made.run_id}:terminate") == (200, {})
        time.sleep(0.05)
    made.v1 = get(host, f"/apis/v1beta1/runs/{made.run_id}")
    return made


def without(answer: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in keys}


# Compared with the recordings


@pytest.mark.parametrize("case", CASES)
def test_the_answer_to_a_submission(replays: dict[str, Replay], case: str) -> None:
    sent, answer = recorded(f"{case}-create")["body"], recorded(f"{case}-create")["answer"]
    made = replays[case].created
    assert shape(without(made, "pipeline_spec")) == shape(without(answer, "pipeline_spec"))
    assert made["pipeline_spec"] == sent["pipeline_spec"]
    assert (made["state"], made["display_name"]) == ("PENDING", case)


@pytest.mark.parametrize("case", CASES)
def test_the_last_answer_about_a_run(replays: dict[str, Replay], case: str) -> None:
    theirs, ours = recorded(f"{case}-polls")[-1]["answer"], replays[case].last
    apart = "pipeline_spec", "run_details"
    assert shape(without(ours, *apart)) == shape(without(theirs, *apart))
    assert [each["state"] for each in ours["state_history"]] == [each["state"] for each in theirs["state_history"]]
    assert ours["pipeline_spec"] == theirs["pipeline_spec"]
    assert shape(ours["run_details"]) == shape(theirs["run_details"])


@pytest.mark.parametrize("case", CASES)
def test_all_answers_about_a_run(replays: dict[str, Replay], case: str) -> None:
    """The real host says nothing else in between either: not a key or a kind of value more."""
    theirs = [poll["answer"] for poll in recorded(f"{case}-polls")]
    known = {shape(without(answer, "pipeline_spec", "run_details", "state_history")) for answer in theirs}
    tasks = {shape(task) for answer in theirs for task in answer.get("run_details", {}).get("task_details", ())}
    for answer in replays[case].polls:
        assert shape(without(answer, "pipeline_spec", "run_details", "state_history")) in known
        found = {shape(task) for task in answer.get("run_details", {}).get("task_details", ())}
        assert found <= tasks | {shape_of_omitted(task) for task in tasks}
        assert [each["state"] for each in answer["state_history"]][-1] == answer["state"]


def shape_of_omitted(task: Any) -> Any:
    """Return the shape of a task that Argo omits. KFP does not know that state; this was not recorded."""
    history = ("list", frozenset([frozenset([("update_time", "time")])]))
    return frozenset({*((key, kind) for key, kind in task if key not in ("state", "state_history"))}) | {
        ("state_history", history)
    }


@pytest.mark.parametrize("case", ["succeeded", "cached"])
def test_names_and_states_of_tasks(replays: dict[str, Replay], case: str) -> None:
    def tasks(answer: dict[str, Any]) -> Counter[Any]:
        details = answer["run_details"]["task_details"]
        return Counter((workflowless(task.get("display_name", "")), task.get("state")) for task in details)

    assert tasks(replays[case].last) == tasks(recorded(f"{case}-polls")[-1]["answer"])


def workflowless(name: str) -> str:
    return re.sub("^recorded-[a-z0-9]{5}", "W", name)


@pytest.mark.parametrize("case", CASES)
def test_the_nodes_of_the_workflow(replays: dict[str, Replay], case: str) -> None:
    theirs = nodes_of(workflow_of(recorded(f"{case}-v1beta1")["answer"]))
    ours = nodes_of(workflow_of(replays[case].v1))
    keys = "type", "templateName", "phase", "displayName", "boundaryID", "children", "outboundNodes", "nodeFlag"
    said = {key: (*map(node.get, keys), untimed(node), exit_code(node)) for key, node in theirs.items()}
    made = {key: (*map(node.get, keys), untimed(node), exit_code(node)) for key, node in ours.items()}
    if case == "terminated":
        # There, the loop was ended in the middle; here, its stages were taken from the cache long before.
        said = {key: value for key, value in said.items() if ".for-loop-2" not in key}
        made = {key: value for key, value in made.items() if ".for-loop-2" not in key}
    assert made == said


def untimed(node: dict[str, Any]) -> str:
    return re.sub(r"\d{4}-.* UTC", "TIME", node.get("message", ""))


def exit_code(node: dict[str, Any]) -> str | None:
    code: str | None = (node.get("outputs") or {}).get("exitCode")
    return code


@pytest.mark.parametrize("case", CASES)
def test_the_workflow_in_v1beta1(replays: dict[str, Replay], case: str) -> None:
    theirs, ours = recorded(f"{case}-v1beta1")["answer"], replays[case].v1
    assert shape(without(ours["run"], "pipeline_spec")) == shape(without(theirs["run"], "pipeline_spec"))
    assert shape(ours["run"]["pipeline_spec"]) == shape(theirs["run"]["pipeline_spec"])
    assert ours["run"]["status"] == theirs["run"]["status"]
    assert ours["pipeline_runtime"].keys() == theirs["pipeline_runtime"].keys()
    workflow, other = workflow_of(ours), workflow_of(theirs)
    # The host of tests makes neither templates nor what Kubernetes notes about the fields.
    assert shape(workflow["metadata"]) == shape(without(other["metadata"], "managedFields"))
    assert shape(workflow["spec"]) == shape(without(other["spec"], "templates", "arguments", "ttlStrategy"))
    apart = "nodes", "artifactRepositoryRef"
    assert shape(without(workflow["status"], *apart)) == shape(without(other["status"], *apart))
    ours_by_name, theirs_by_name = nodes_of(workflow), nodes_of(other)
    for name in ours_by_name.keys() & theirs_by_name.keys():
        if case != "terminated" or ".for-loop-2" not in name:
            assert node_shape(ours_by_name[name]) == node_shape(theirs_by_name[name]), name


def node_shape(node: dict[str, Any]) -> Any:
    """Return the shape of a node, with the names and keys of its parameters. Values of parameters are not compared."""

    def parameters(key: str) -> Any:
        return [(each["name"], frozenset(each)) for each in (node.get(key) or {}).get("parameters", ())]

    outputs = frozenset(node.get("outputs") or ())
    plain = without(node, "inputs", "outputs", "children", "outboundNodes", "boundaryID", "resourcesDuration")
    return shape(plain), sorted(parameters("inputs")), sorted(parameters("outputs")), outputs


def test_a_run_that_failed_has_stale_tasks(replays: dict[str, Replay]) -> None:
    """KFP does not store how the last nodes of a failed run ended; v1beta1 has it."""
    for case in ("failed", "terminated"):
        for answer in (replays[case].last, recorded(f"{case}-polls")[-1]["answer"]):
            tasks = answer["run_details"]["task_details"]
            root = next(task for task in tasks if task.get("display_name") == "root")
            assert (root["state"], root["end_time"]) == ("RUNNING", NEVER)
        assert {node["phase"] for node in nodes_of(workflow_of(replays[case].v1)).values()} >= {"Failed", "Omitted"}


def test_times_before_they_have_come(replays: dict[str, Replay]) -> None:
    first, last = replays["succeeded"].polls[0], replays["succeeded"].last
    assert first["finished_at"] == EPOCH
    assert last["finished_at"] not in (EPOCH, NEVER)
    assert NEVER not in {task["end_time"] for task in last["run_details"]["task_details"]}
    running = [
        task for poll in replays["succeeded"].polls for task in poll.get("run_details", {}).get("task_details", ())
    ]
    assert NEVER in {task["end_time"] for task in running}


def test_tasks_are_in_no_useful_order(replays: dict[str, Replay]) -> None:
    tasks = replays["succeeded"].last["run_details"]["task_details"]
    begun = [task["start_time"] for task in tasks]
    assert begun != sorted(begun)
    assert sum("display_name" not in task for task in tasks) == 6


def test_ids_of_nodes_are_hashes_of_their_names() -> None:
    for case in CASES:
        workflow = workflow_of(recorded(f"{case}-v1beta1")["answer"])
        names = Naming(workflow["metadata"]["name"])
        assert {names.id(node["name"]) for node in workflow["status"]["nodes"].values()} == workflow["status"][
            "nodes"
        ].keys()
    assert fnv1a32("") == 2166136261


def test_a_terminated_run_is_canceling_first(replays: dict[str, Replay]) -> None:
    states = [poll["state"] for poll in replays["terminated"].polls]
    assert states.index("CANCELING") < states.index("FAILED")
    host, run_id = replays["terminated"].host, replays["terminated"].run_id
    status, answer = request(host, "POST", f"{RUNS}/{run_id}:terminate")
    assert (status, answer["code"]) == (400, 3)


@pytest.mark.parametrize(
    ("case", "stage", "name"),
    [
        ("succeeded", "first", "succeeded-log-first"),
        ("succeeded", "trial[1]", "succeeded-log-trial[1]"),
        ("succeeded", "last", "succeeded-log-last"),
        ("failed", "inner/sleeper", "failed-log-inner.sleeper"),
    ],
)
def test_logs(replays: dict[str, Replay], case: str, stage: str, name: str) -> None:
    made = replays[case]
    pod = made.host.runs[made.run_id].facts.attempts[stage][-1].pod_name
    path = f"/apis/v1alpha1/runs/{made.run_id}/nodes/{pod}/log"
    ours, theirs = get(made.host, path), recorded(name)["text"]
    assert re.fullmatch(r".*/nodes/recorded-\w+-metadata-0-8-system-container-impl-\d+/log", path)
    assert parts_of(ours) == parts_of(theirs)


def parts_of(log: str) -> Any:
    """Return a log's own lines, the places in KFP's source of the others, once, and the kinds of its JSON."""
    output = re.search(r"ExecutorOutput: (\{\n.*?\n\})\n", log, re.DOTALL)
    rest = log.replace(output.group(1), "") if output else log
    klog = re.compile(r"[IEF]\d{4} \d\d:\d\d:\d\d\.\d{6} {6}\d+ (\S+)\]")
    lines = [(klog.match(line), line) for line in rest.splitlines()]
    own = [line for found, line in lines if not found]
    places = [found.group(1) for found, _ in lines if found]
    # The launcher says more about the DAGs around a stage, and for each artifact.
    told = sorted(set(places) - {"client.go:847", "client.go:871"})
    made = shape(json.loads(output.group(1))["artifacts"]["metrics"]) if output else None
    return own, places[:3], told, made


def test_a_pod_that_does_not_exist_has_no_log(replays: dict[str, Replay]) -> None:
    made = replays["succeeded"]
    status, answer = request(made.host, "GET", f"/apis/v1alpha1/runs/{made.run_id}/nodes/pod-1/log")
    assert status == 500
    assert "pod-1" in answer["error_message"]


def test_stages_recorded_results_with_the_keys_of_kfp(replays: dict[str, Replay]) -> None:
    made = replays["succeeded"]
    facts = made.host.runs[made.run_id].facts
    base = made.created["runtime_config"]["parameters"]["tracker_base"]
    for stage, task in {"first": "first", "trial[0]": "trial", "inner/sleeper": "sleeper"}.items():
        result = facts.finished[stage].result
        key = f"{made.run_id}/{task}/{facts.attempts[stage][-1].pod_name}"
        assert result.run_id == key
        assert FsspecResultTracker(base).get(key) == result.results
    assert facts.finished["first"].result.results == {"accuracy": 0.900745}


def test_errors(replays: dict[str, Replay]) -> None:
    host = next(iter(replays.values())).host
    for name in ("create-wrong-parameter", "create-broken-spec"):
        theirs = recorded(name)
        assert request(host, "POST", RUNS, theirs["body"]) == (theirs["status"], theirs["answer"])
    theirs = recorded("unknown-run")
    assert request(host, "GET", theirs["request"].partition(" ")[2]) == (theirs["status"], theirs["answer"])


def test_health_and_experiments(replays: dict[str, Replay]) -> None:
    host = replays["succeeded"].host
    for name in ("healthz", "experiments"):
        theirs = recorded(name)
        assert shape(get(host, theirs["request"].partition(" ")[2])) == shape(theirs["answer"])


def test_pages_of_runs(replays: dict[str, Replay]) -> None:
    host = replays["succeeded"].host
    theirs = recorded("runs-page-1")
    first = get(host, theirs["request"].partition(" ")[2])
    assert first.keys() == theirs["answer"].keys()
    assert (
        json.loads(base64.b64decode(first["next_page_token"])).keys()
        <= json.loads(base64.b64decode(theirs["answer"]["next_page_token"])).keys()
    )
    second = get(host, f"{RUNS}?page_size=2&sort_by=created_at%20desc&page_token={first['next_page_token']}")
    assert second == get(host, f"{RUNS}?page_size=2&page_token={first['next_page_token']}")
    assert (first["total_size"], second["total_size"]) == (4, 4)
    assert "next_page_token" not in second
    found = [run["run_id"] for run in first["runs"] + second["runs"]]
    created = [run["created_at"] for run in first["runs"] + second["runs"]]
    assert sorted(found) == sorted(made.run_id for made in replays.values())
    assert created == sorted(created, reverse=True)
    predicate = {"operation": "EQUALS", "key": "display_name", "stringValue": "cached"}
    only = get(host, f"{RUNS}?filter={urllib.request.quote(json.dumps({'predicates': [predicate]}))}")
    assert [run["run_id"] for run in only["runs"]] == [replays["cached"].run_id]
    assert get(host, f"{RUNS}?experiment_id=another") == {}
    assert request(host, "GET", f"{RUNS}?page_token=x")[0] == 400


@pytest.mark.parametrize(
    ("key", "operation", "value", "status"),
    [
        ("display_name", "IS_SUBSTRING", {"stringValue": "e"}, 200),
        ("state", "NOT_EQUALS", {"stringValue": "RUNNING"}, 200),
        ("state", "IN", {"stringValues": {"values": ["SUCCEEDED", "FAILED"]}}, 400),
        ("created_at", "GREATER_THAN_EQUALS", {"timestampValue": "2020-01-01T00:00:00Z"}, 400),
        ("storage_state", "EQUALS", {"stringValue": "AVAILABLE"}, 200),
    ],
)
def test_second_pages_are_refused_as_recorded(
    replays: dict[str, Replay], key: str, operation: str, value: Any, status: int
) -> None:
    host = replays["succeeded"].host
    predicates = json.dumps({"predicates": [{"operation": operation, "key": key, **value}]})
    asked = f"{RUNS}?page_size=1&sort_by=created_at%20desc&filter={urllib.request.quote(predicates)}"
    token = get(host, asked)["next_page_token"]
    found, answer = request(host, "GET", f"{asked}&page_token={token}")
    assert found == status
    assert status == 200 or "page token does not match" in answer["message"]
    assert get(host, f"{RUNS}?page_size=1&page_token={token}")["runs"]


def test_recorded_answers_are_as_the_description_has_them() -> None:
    for path in sorted(RECORDED.glob("*.json")):
        content = recorded(path.stem)
        for each in content if isinstance(content, list) else [content]:
            if "answer" in each:
                method, _, target = each["request"].partition(" ")
                answer = without(each["answer"], "pipeline_spec")  # most recordings have a note in its place
                assert answer_problems(method, target.partition("?")[0], each["status"], answer) == [], path


# Other pipelines


def spec_of(function: Any) -> Any:
    documents = [document for document in yaml.safe_load_all(compile_function(function).text) if document]
    if len(documents) == 1:
        return documents[0]
    return {"pipeline_spec": documents[0], "platform_spec": documents[1]}


def test_retries_are_attempts_of_one_node(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    again = f"import os, sys; p = {str(marker)!r}; os.path.exists(p) or open(p, 'w').close() or sys.exit(1)"

    for kfp in ("2.17", "2.14"):
        marker.unlink(missing_ok=True)
        with KfpHost(tmp_path / kfp, version=kfp) as host:
            run_id = submit(host, spec_of(retries), {"code": again})
            assert ended(host, run_id)["state"] == "SUCCEEDED"
            nodes = nodes_of(workflow_of(get(host, f"/apis/v1beta1/runs/{run_id}")))
            outer = "W(0).root(0).work(0)" if kfp == "2.17" else "W.root.work"
            assert (nodes[f"{outer}.executor"]["type"], nodes[f"{outer}.executor"]["phase"]) == ("Retry", "Succeeded")
            tries = [nodes[f"{outer}.executor({number})"] for number in range(2)]
            assert [node["phase"] for node in tries] == ["Failed", "Succeeded"]
            assert [exit_code(node) for node in tries] == ["1", "0"]
            assert nodes[f"{outer}.executor"]["children"] == {f"{outer}.executor(0)", f"{outer}.executor(1)"}
            for node in tries:
                pod = f"{host.runs[run_id].record.workflow}-retry-system-container-impl-{node['id'].rpartition('-')[2]}"
                assert "main.go:67]" in get(host, f"/apis/v1alpha1/runs/{run_id}/nodes/{pod}/log")


def test_an_exit_task_is_a_hook(tmp_path: Path) -> None:
    with KfpHost(tmp_path / "runs") as host:
        run_id = submit(host, spec_of(leaves), {})
        assert ended(host, run_id)["state"] == "FAILED"
        nodes = nodes_of(workflow_of(get(host, f"/apis/v1beta1/runs/{run_id}")))
    hook = nodes["W(0).root(0).exit-handler-1.onExit"]
    assert (hook["displayName"], hook["phase"], hook["nodeFlag"]) == (
        "exit-handler-1.onExit",
        "Succeeded",
        {"hooked": True},
    )
    assert nodes["W(0).root(0).exit-handler-1.onExit(0).work"]["phase"] == "Succeeded"
    assert nodes["W(0).root(0).exit-handler-1(0).work-2(0).executor(0)"]["phase"] == "Failed"


def test_nested_loops_and_branches(tmp_path: Path) -> None:
    with KfpHost(tmp_path / "runs") as host:
        run_id = submit(host, spec_of(loops), {})
        assert ended(host, run_id)["state"] == "SUCCEEDED"
        nodes = nodes_of(workflow_of(get(host, f"/apis/v1beta1/runs/{run_id}")))
    inner = (
        "iteration-iterations(1:1)(0).iteration-item(0).for-loop-4(0).iteration-iterations(0:0)(0).iteration-item(0)"
    )
    assert nodes[f"W(0).root(0).for-loop-2(0).{inner}.work(0).executor(0)"]["phase"] == "Succeeded"
    # The outer branch was taken, although nothing in it has run.
    assert nodes["W(0).root(0).condition-5(0)"]["phase"] == "Succeeded"
    skipped = nodes["W(0).root(0).condition-5(0).condition-6"]
    assert (skipped["type"], skipped["phase"]) == ("Skipped", "Skipped")


def test_a_host_of_2_14(tmp_path: Path) -> None:
    """Each node is there once, and a new run has no state yet. This was not recorded."""

    with KfpHost(tmp_path / "runs", version="2.14") as host:
        run_id = submit(host, spec_of(small), {"code": "print('hello')"})
        assert "state" not in get(host, f"{RUNS}/{run_id}")
        answer = ended(host, run_id)
        names = {task["display_name"] for task in answer["run_details"]["task_details"] if "display_name" in task}
        workflow = host.runs[run_id].record.workflow
        assert names == {workflow, "root", "root-driver", "work", "work-driver", "executor"}
        nodes = nodes_of(workflow_of(get(host, f"/apis/v1beta1/runs/{run_id}")))
    assert nodes["W.root.work.executor"]["type"] == "Pod"
    assert nodes["W.root.work-driver"]["children"] == {"W.root.work"}
    assert nodes["W.root"]["outboundNodes"] == {"W.root.work.executor"}


# What a test switches


@pytest.fixture
def host(tmp_path: Path) -> Iterator[KfpHost]:
    with KfpHost(tmp_path / "runs") as running:
        yield running


def test_a_request_that_is_not_in_the_api(tmp_path: Path) -> None:
    host = KfpHost(tmp_path)
    host.__enter__()
    assert request(host, "GET", f"{RUNS}?sort=x")[0] == 400
    assert request(host, "POST", RUNS, {"pages": 1})[0] == 400
    assert request(host, "GET", f"{RUNS}?page_size=many")[0] == 400
    with pytest.raises(AssertionError, match=says("sort", "pages", "many")):
        host.__exit__(None)


def test_a_run_that_this_machine_cannot_run(tmp_path: Path) -> None:
    spec = spec_of(small)
    # Only the image knows what it starts.
    spec["deploymentSpec"]["executors"]["exec-work"]["container"] = {"image": "app:1"}
    host = KfpHost(tmp_path)
    host.__enter__()
    assert ended(host, submit(host, spec, {"code": ""}))["state"] == "FAILED"
    with pytest.raises(AssertionError, match=says("'test' could not be run on this machine", "work")):
        host.__exit__(None)


def test_tokens(host: KfpHost) -> None:
    host.token = "one"
    assert request(host, "GET", RUNS)[0] == 401
    assert request(host, "GET", RUNS, headers={"authorization": "Bearer one"})[0] == 200
    host.token = "two"
    assert request(host, "GET", RUNS, headers={"authorization": "Bearer one"})[0] == 401
    host.token, host.cookie = None, "session=1"
    assert "Log in" in request(host, "GET", RUNS)[1]
    assert request(host, "GET", RUNS, headers={"cookie": "session=1"})[0] == 200


def test_errors_on_demand(host: KfpHost) -> None:
    host.fail(503, times=2)
    host.fail(429, headers={"Retry-After": "1"}, path="healthz")
    assert [request(host, "GET", RUNS)[0] for _ in range(3)] == [503, 503, 200]
    with pytest.raises(urllib.error.HTTPError) as error:
        urllib.request.urlopen(f"{host.url}/apis/v2beta1/healthz")
    with error.value:
        assert (error.value.code, error.value.headers["Retry-After"]) == (429, "1")
    host.served -= {"v1beta1", "v1alpha1"}
    assert request(host, "GET", "/apis/v1beta1/runs/x")[0] == 404
    assert [each.status for each in host.requests] == [503, 503, 200, 429, 404]
    assert (host.count("runs"), host.count("runs", "POST")) == (4, 0)


def test_connections_that_break(host: KfpHost) -> None:
    host.add(Fault(cut=0.5))
    with pytest.raises(Exception, match="IncompleteRead"):
        request(host, "GET", RUNS)
    host.add(Fault(cut=0))
    with pytest.raises(Exception, match="closed connection"):
        request(host, "GET", RUNS)
    host.add(Fault(seconds=0.3))
    began = time.monotonic()
    assert request(host, "GET", RUNS)[0] == 200
    assert time.monotonic() - began >= 0.3


def test_a_large_run(host: KfpHost) -> None:
    run = host.make_run(1000, chains=100)
    run.advance(started=100, ended=40)
    path = f"{RUNS}/{run.record.run_id}"
    states = Counter(task.get("state") for task in get(host, path)["run_details"]["task_details"])
    assert states == {"SUCCEEDED": 2 + 40 * 6 + 60 * 2, "RUNNING": 4 + 60 * 4, None: 40}
    again = time.monotonic()
    get(host, path)
    assert time.monotonic() - again < 0.5
    run.advance(ended=41, failed=True)
    run.terminate()
    assert get(host, path)["state"] == "CANCELING"
    answer = get(host, path)
    assert (answer["state"], answer["state_history"][-2]["state"]) == ("FAILED", "CANCELING")
    host.delete(run.record.run_id)
    assert request(host, "GET", path)[0] == 404


def test_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.fake_kfp", "--port", "0", "--folder", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/apis/v2beta1/healthz") as answer:
            assert answer.status == 200
        process.terminate()
        assert process.wait(30) == 0


# A real client


@pytest.fixture
def client(host: KfpHost) -> Iterator[Any]:
    import kfp.client

    with pytest.warns(FutureWarning):
        client = kfp.client.Client(host=host.url)
    with contextlib.closing(client._run_api.api_client):
        yield client


# kfp_server_api calls a method that urllib3 1.26 deprecates.
old_urllib3 = pytest.mark.filterwarnings("ignore:HTTPResponse.getheader:DeprecationWarning")


@pytest.mark.versions
@old_urllib3
def test_a_real_client_submits(host: KfpHost, client: Any, tmp_path: Path) -> None:
    package = str(tmp_path / "pipeline.yaml")
    compiler.Compiler().compile(small, package)
    try:
        experiment = client.create_experiment("mine", "for tests")
    except TypeError as error:
        assert client.list_experiments().total_size == 1
        pytest.skip(f"kfp {version('kfp')} does not work with kfp-server-api {version('kfp-server-api')}: {error}")
    assert client.create_experiment("mine").experiment_id == experiment.experiment_id
    run = client.create_run_from_pipeline_package(
        package, {"code": "print('hello')"}, run_name="first", experiment_name="mine", enable_caching=False
    )
    done = client.wait_for_run_completion(run.run_id, timeout=60, sleep_duration=0.2)
    assert (done.state, done.display_name) == ("SUCCEEDED", "first")
    assert client.get_run(run.run_id).experiment_id == experiment.experiment_id
    assert client.list_runs(experiment_id=experiment.experiment_id).total_size == 1
    assert client.list_runs(namespace="kubeflow").total_size == 1


@pytest.mark.versions
@old_urllib3
def test_a_real_client_watches_and_terminates(host: KfpHost, client: Any) -> None:
    assert client.get_kfp_healthz().multi_user is False
    first = submit(host, spec_of(small), {"code": "print('hello')"}, "first")
    second = submit(host, spec_of(small), {"code": "import time; time.sleep(60)"}, "second")
    assert client.wait_for_run_completion(first, timeout=60, sleep_duration=0.2).state == "SUCCEEDED"
    wait_until(lambda: client.get_run(second).state == "RUNNING")
    assert {each.run_id for each in client.list_runs(sort_by="created_at desc").runs} == {first, second}
    client.terminate_run(second)
    run = client.wait_for_run_completion(second, timeout=60, sleep_duration=0.2)
    assert [each.state for each in run.state_history][-2:] == ["CANCELING", "FAILED"]
    details = {task.display_name: task for task in run.run_details.task_details if task.display_name}
    assert details["root"].state == "RUNNING"
    client.archive_run(second)
    assert client.get_run(second).storage_state == "ARCHIVED"
