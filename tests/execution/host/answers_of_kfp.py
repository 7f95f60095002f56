"""Answers of KFP's API about runs, as recorded."""

from __future__ import annotations

import copy
import functools
import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchx_kfp.contract.command import encode_command
from torchx_kfp.contract.inputs import parameter_placeholder

RECORDED = Path(__file__).parents[2] / "recorded" / "kfp"
#: The names of the recorded runs of one pipeline. There are others, whose answers are known at their end only.
RUNS = ("succeeded", "cached", "failed", "terminated")


@functools.cache
def _read(name: str) -> str:
    packed = RECORDED / f"{name}.json.gz"
    if packed.exists():
        return gzip.decompress(packed.read_bytes()).decode()
    return (RECORDED / f"{name}.json").read_text(encoding="utf-8")


def recorded(name: str) -> Any:
    """Return a recording: a request and its answer, or several of them."""
    return json.loads(_read(name))


def answer(name: str) -> Any:
    """Return one answer: of a file with a request and its answer."""
    found = recorded(name)
    return found["answer"] if "answer" in found else found["text"]


def polls(name: str) -> list[dict[str, Any]]:
    """Return v2beta1's answers about a run, whenever something in them had changed."""
    return [poll["answer"] for poll in recorded(f"{name}-polls")]


def last(name: str) -> dict[str, Any]:
    """Return v2beta1's last answer about a run."""
    found: dict[str, Any] = polls(name)[-1] if name in RUNS else answer(f"{name}-v2beta1")
    return found


def manifest(name: str) -> dict[str, Any]:
    """Return v1beta1's last answer about a run."""
    found: dict[str, Any] = answer(f"{name}-v1beta1")
    return found


def workflow_in(answer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the workflow in an answer of v1beta1."""
    workflow: dict[str, Any] = json.loads(answer["pipeline_runtime"]["workflow_manifest"])
    return workflow


def with_workflow(workflow: Mapping[str, Any], run_id: str = "") -> dict[str, Any]:
    """Return an answer of v1beta1 with a workflow."""
    return {"run": {"id": run_id} if run_id else {}, "pipeline_runtime": {"workflow_manifest": json.dumps(workflow)}}


def course(name: str, *, pending: bool = False) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield what both versions of the API say of a run in each second in which something in it changed.

    v1beta1 was recorded at the end of runs only: a node is as it was before if it began or ended later. With
    ``pending``, pods wait in the second in which they appear.
    """
    run, workflow = with_present_commands(last(name)), workflow_in(manifest(name))
    records = workflow["status"]["nodes"]
    history = run["state_history"]
    moments = {record[key] for record in records.values() for key in ("startedAt", "finishedAt") if record.get(key)}
    for moment in sorted(moments | {item["update_time"] for item in history}):
        nodes = {
            identity: record
            if (record.get("finishedAt") or "") <= moment
            else _unfinished(record, moment if pending else "")
            for identity, record in records.items()
            if record["startedAt"] <= moment
        }
        now = {**workflow, "status": {**workflow["status"], "nodes": nodes}}
        so_far = [item for item in history if item["update_time"] <= moment]
        is_over = len(so_far) == len(history)
        state = {"state": (so_far or [{"state": "PENDING"}])[-1]["state"], "state_history": so_far}
        yield (
            run if is_over else {**run, **state, "finished_at": "1970-01-01T00:00:00Z"},
            with_workflow(now, run["run_id"]),
        )


def _unfinished(record: Mapping[str, Any], moment: str) -> dict[str, Any]:
    later = ("finishedAt", "message", "outputs", "outboundNodes")
    phase = "Pending" if record["type"] == "Pod" and record["startedAt"] == moment else "Running"
    return {**{key: value for key, value in record.items() if key not in later}, "phase": phase}


def with_present_commands(run: dict[str, Any]) -> dict[str, Any]:
    """Return an answer of v2beta1 about a run, in whose pipeline commands have today's form.

    The recorded pipelines were compiled to earlier forms, which nobody reads any more. Everything else is as KFP said
    it: nodes, pods, states and logs. The commands say what an observer reads in them: the stage, the tracker base, and
    what a stage reads by the name of its input.
    """
    run = copy.deepcopy(run)
    spec = run.get("pipeline_spec") or {}
    spec = spec.get("pipeline_spec", spec)
    stage, reads = map(parameter_placeholder, ("stage", "reads"))
    for executor in spec.get("deploymentSpec", {}).get("executors", {}).values():
        container = executor.get("container", {})
        words = container.get("command") or ["", ""]
        if words[1].startswith("TORCHX_TRACKER_BASE="):
            name = words.index("-ec") + 2
            base, parents = words[1].partition("=")[2], [f'"{reads}"'] if reads in words else []
            made = encode_command("00000000", words[name + 1 :], tracker_base=base, values=stage, parents=parents)
            container["command"] = [words[name] if stage not in words and word == stage else word for word in made]
    for component in (spec.get("root", {}), *spec.get("components", {}).values()):
        for task in component.get("dag", {}).get("tasks", {}).values():
            value = task.get("inputs", {}).get("parameters", {}).get("stage", {}).get("runtimeValue", {})
            if isinstance(value.get("constant"), str):
                value["constant"] = value["constant"].replace(" ", "|")
    return run


def pods(name: str) -> dict[str, str]:
    """Return the pods of the stages of a run that has them, as MLMD has recorded them."""
    return {stage: facts.get("pod", "") for stage, facts in recorded(f"{name}-stages").items()}


def log_of(name: str, pod: str) -> str | None:
    """Return the recorded log of a pod of a run, if there is one."""
    stages = {of: stage for stage, of in (pods(name).items() if name in ("succeeded", "failed") else ())}
    for key in (stages.get(pod, "").replace("/", "."), pod.rpartition("-")[2]):
        if key and list(RECORDED.glob(f"{name}-log-{key.replace('[', '[[]')}.json*")):
            return str(answer(f"{name}-log-{key}"))
    return None
