"""The answers of KFP's API about a run, in both of its versions, made from the nodes of its workflow."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.fake_kfp.argo import Naming, Node, fnv1a32

NAMESPACE = "kubeflow"
#: What KFP says of a time that has not come: about runs, and about tasks.
EPOCH, NEVER = "1970-01-01T00:00:00Z", "0001-01-01T00:00:00Z"
#: States of tasks by Argo's phases. KFP does not know the phase Omitted (``model/run.go``, ``ToV2``): it says nothing.
_STATES = {phase: phase.upper() for phase in ("Pending", "Running", "Succeeded", "Skipped", "Failed")} | {
    "Error": "FAILED"
}
#: The recorded host had no MLflow, and every answer says so.
_PLUGINS = {
    "mlflow": {
        "entries": {"experiment_name": {"value": "KFP-Default"}},
        "state": "PLUGIN_FAILED",
        "state_message": "MLflow config resolution failed; run creation will continue: Invalid input error: Kubernetes "
        "bearer token is empty for MLflow auth",
    }
}


@dataclass
class Record:
    """The API server's record of a run."""

    run_id: str
    workflow: str
    experiment_id: str
    display_name: str
    pipeline_spec: Mapping[str, Any]
    created: float
    description: str = ""
    #: The recurring run that has started it, and the time for which it was started.
    recurring_run_id: str = ""
    scheduled: float | None = None
    #: The runtime config of the request; None if it had none.
    runtime_config: Mapping[str, Any] | None = None
    service_account: str = "pipeline-runner"
    storage_state: str = "AVAILABLE"
    #: States and their times.
    history: list[tuple[str, float]] = field(default_factory=list)
    finished: float | None = None
    #: The version of an uploaded pipeline that the run runs; KFP sends this in place of the pipeline.
    reference: Mapping[str, str] | None = None
    #: Whether the host has lost the workflow's manifest.
    manifest_is_gone: bool = False
    #: Whether the host is one of 2.14.
    is_old: bool = False

    @property
    def state(self) -> str:
        return self.history[-1][0]


def shown_time(seconds: float) -> str:
    """Return a time in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def describe_run(
    record: Record, names: Naming, nodes: Mapping[str, Node], launched: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return the run in v2beta1. ``launched`` has the start and end of each stage whose launcher has succeeded."""
    answer: dict[str, Any] = {
        "experiment_id": record.experiment_id,
        "run_id": record.run_id,
        "display_name": record.display_name,
        "storage_state": record.storage_state,
        "description": record.description,
        "pipeline_version_reference": record.reference,
        "pipeline_spec": None if record.reference else record.pipeline_spec,
        "runtime_config": record.runtime_config,
        "service_account": record.service_account,
        "created_at": shown_time(record.created),
        "scheduled_at": shown_time(record.scheduled or record.created),
        "finished_at": shown_time(record.finished) if record.finished else EPOCH,
        "recurring_run_id": record.recurring_run_id,
        "state": record.state,
        "state_history": [{"update_time": shown_time(when), "state": state} for state, when in record.history],
        "plugins_output": None if record.is_old else _PLUGINS,
    }
    if nodes:
        details = [*_details(record, names, nodes), *_launchers(record, launched)]
        answer["run_details"] = {"task_details": sorted(details, key=lambda detail: detail["task_id"])}
    # Nothing that is empty is sent, except an empty object.
    return {key: value for key, value in answer.items() if value is not None and value not in ("", [])}


def _details(record: Record, names: Naming, nodes: Mapping[str, Node]) -> Iterable[dict[str, Any]]:
    for node in nodes.values():
        history = [(_STATES.get(phase), when) for phase, when in node.history]
        detail = {
            "run_id": record.run_id,
            "task_id": str(uuid.uuid5(uuid.UUID(record.run_id), node.name)),
            "display_name": node.display_name,
            "create_time": shown_time(record.created),
            "start_time": shown_time(node.started),
            "end_time": shown_time(node.ended) if node.ended is not None else NEVER,
        }
        if history[-1][0]:
            detail["state"] = history[-1][0]
        statuses = [{"update_time": shown_time(when), "state": state} for state, when in history]
        yield {
            **detail,
            "state_history": [{key: value for key, value in status.items() if value} for status in statuses],
            **({"child_tasks": [{"pod_name": names.id(child)} for child in node.children]} if node.children else {}),
        }


def _launchers(record: Record, launched: Mapping[str, tuple[float, float]]) -> Iterable[dict[str, Any]]:
    """Yield the entries that KFP's launchers make: they have neither a name nor a state."""
    for stage, (start, end) in launched.items():
        yield {
            "run_id": record.run_id,
            "task_id": str(uuid.uuid5(uuid.UUID(record.run_id), f"launcher {stage}")),
            "create_time": shown_time(start),
            "start_time": shown_time(start),
            "end_time": shown_time(end),
            "execution_id": str(fnv1a32(stage) % 100_000),
        }


def describe_run_v1(record: Record, names: Naming, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Return the run in v1beta1, with its workflow."""
    parameters = (record.runtime_config or {}).get("parameters")
    pipeline = {"pipeline_manifest": _manifest(record.pipeline_spec)}
    run = {
        "id": record.run_id,
        "name": record.display_name,
        "description": record.description,
        "pipeline_spec": {**pipeline, "runtime_config": {"parameters": parameters}} if parameters else pipeline,
        "resource_references": [{"key": {"type": "EXPERIMENT", "id": record.experiment_id}, "relationship": "OWNER"}],
        "service_account": record.service_account,
        "created_at": shown_time(record.created),
        "scheduled_at": shown_time(record.created),
        "finished_at": shown_time(record.finished) if record.finished else EPOCH,
        "status": "Terminating" if record.state == "CANCELING" else record.state.capitalize(),
    }
    manifests = {
        "pipeline_manifest": json.dumps(workflow(record, names, {}), separators=(",", ":")),
        "workflow_manifest": json.dumps(workflow(record, names, nodes), separators=(",", ":")) if nodes else "",
    }
    return {
        "run": {key: value for key, value in run.items() if value != ""},
        "pipeline_runtime": {key: value for key, value in manifests.items() if value},
    }


def _manifest(spec: Mapping[str, Any]) -> str:
    documents = [spec["pipeline_spec"], spec["platform_spec"]] if "pipeline_spec" in spec else [spec]
    return "\n---\n".join(yaml.safe_dump(document) for document in documents)


def workflow(record: Record, names: Naming, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Return Argo's workflow, without its templates; without nodes, as it was before Argo saw it."""
    name = record.workflow
    metadata: dict[str, Any] = {
        "name": name,
        "generateName": name.rpartition("-")[0] + "-",
        "namespace": NAMESPACE,
        "uid": str(uuid.uuid5(uuid.UUID(record.run_id), "workflow")),
        "resourceVersion": "19099",
        "generation": 1,
        "creationTimestamp": shown_time(record.created),
        "labels": {"pipeline/runid": record.run_id},
        "annotations": {"pipelines.kubeflow.org/run_name": record.display_name},
    }
    spec: dict[str, Any] = {
        "entrypoint": "entrypoint",
        "serviceAccountName": record.service_account,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "podMetadata": {
            "annotations": {"pipelines.kubeflow.org/v2_component": "true"},
            "labels": {"pipeline/runid": record.run_id, "pipelines.kubeflow.org/v2_component": "true"},
        },
    }
    if not nodes:
        return {"metadata": metadata, "spec": spec, "status": {"startedAt": None, "finishedAt": None}}
    root = nodes[name]
    is_over = root.ended is not None
    metadata["annotations"] |= {
        "workflows.argoproj.io/last-seen-version": "23878",
        "workflows.argoproj.io/pod-name-format": "v2",
    }
    metadata["labels"]["workflows.argoproj.io/phase"] = root.phase
    if is_over:
        metadata["labels"]["workflows.argoproj.io/completed"] = "true"
    if names.defaults:
        spec["templateDefaults"] = {
            "inputs": {},
            "outputs": {},
            "metadata": {},
            "retryStrategy": {"limit": "2", "retryPolicy": "OnError"},
        }
    if any(state == "CANCELING" for state, _ in record.history):
        # That is how KFP ends a workflow.
        spec["activeDeadlineSeconds"] = 0
    status = {
        "phase": root.phase,
        "startedAt": shown_time(root.started),
        "finishedAt": shown_time(root.ended) if root.ended is not None else None,
        "nodes": {names.id(each.name): describe for each, describe in _described(record, names, nodes)},
        "conditions": [
            {"type": "PodRunning", "status": str(not is_over)},
            *([{"type": "Completed", "status": "True"}] if is_over else []),
        ],
        "artifactRepositoryRef": {"default": True, "artifactRepository": {"archiveLogs": True}},
        "artifactGCStatus": {"notSpecified": True},
    }
    status |= {key: value for key, value in status["nodes"][name].items() if key in ("progress", "resourcesDuration")}
    if root.message:
        status["message"] = root.message
    return {"metadata": metadata, "spec": spec, "status": status}


def _described(record: Record, names: Naming, nodes: Mapping[str, Node]) -> Iterable[tuple[Node, dict[str, Any]]]:
    pods = _pods(nodes)
    for node in nodes.values():
        done, total = pods[node.name] if node.type != "Pod" else (int(node.phase == "Succeeded"), 1)
        made: dict[str, Any] = {
            "id": names.id(node.name),
            "name": node.name,
            "displayName": node.display_name,
            "type": node.type,
            "templateName": node.template,
            "templateScope": f"local/{record.workflow}",
            "phase": node.phase,
            "boundaryID": names.id(node.boundary) if node.boundary else None,
            "message": node.message or None,
            "startedAt": shown_time(node.started),
            "finishedAt": shown_time(node.ended) if node.ended is not None else None,
            "progress": f"{done}/{total}" if total else None,
            "resourcesDuration": {"cpu": 0, "memory": total} if done else None,
            "nodeFlag": node.flag,
            "inputs": {"parameters": _parameters(node.inputs)} if node.inputs else None,
            "outputs": _outputs(record, names, node),
            "children": [names.id(child) for child in node.children] or None,
            "outboundNodes": [names.id(each) for each in node.outbound] or None,
        }
        if node.type == "Pod" and node.phase != "Pending":
            made["hostNodeName"] = "node1"
        if node.type == "Pod" and node.ended is not None:
            made["taskResultSynced"] = True
        kept = {key: value for key, value in made.items() if value is not None}
        yield node, kept if node.ended is not None else {**kept, "finishedAt": None}


def _pods(nodes: Mapping[str, Node]) -> dict[str, tuple[int, int]]:
    """Return for each node how many of the pods that follow from it have succeeded, and how many there are."""
    pods = [name for name, node in nodes.items() if node.type == "Pod"]
    bits = {name: 1 << number for number, name in enumerate(pods)}
    done = sum(bits[name] for name in pods if nodes[name].phase == "Succeeded")
    below: dict[str, int] = {}
    waiting = list(nodes)
    while waiting:
        name = waiting[-1]
        missing = [child for child in nodes[name].children if child in nodes and child not in below]
        if missing and name not in below:
            waiting.extend(missing)
            continue
        waiting.pop()
        below[name] = bits.get(name, 0)
        for child in nodes[name].children:
            below[name] |= below.get(child, 0)
    return {name: ((found & done).bit_count(), found.bit_count()) for name, found in below.items()}


#: Parameters that have a default in the templates of KFP's two drivers, and of the executor.
_DEFAULTS = {
    "runtime-config": {
        **dict.fromkeys(("runtime-config", "task", "task-name", "driver-type"), ""),
        "parent-dag-id": "0",
        "iteration-index": "-1",
    },
    "container": {"iteration-index": "-1", "kubernetes-config": ""},
    "cached-decision": {"cached-decision": "false"},
}


def _parameters(values: Mapping[str, str]) -> list[dict[str, Any]]:
    defaults = next((found for of, found in _DEFAULTS.items() if of in values), {})
    return [
        {"name": name, **({"default": defaults[name]} if name in defaults else {}), "value": value}
        for name, value in values.items()
    ]


def _outputs(record: Record, names: Naming, node: Node) -> dict[str, Any] | None:
    if not node.exit_code:
        return None
    day = time.strftime("%Y/%m/%d", time.gmtime(record.created))
    attempt = node.children[-1] if node.type == "Retry" else node.name
    key = f"private-artifacts/{NAMESPACE}/{record.workflow}/{day}/{names.pod(attempt, node.template)}/main.log"
    made: dict[str, Any] = {
        "artifacts": [{"name": "main-logs", "s3": {"key": key}}],
        "exitCode": node.exit_code,
    }
    if node.outputs:
        made["parameters"] = [
            {
                "name": name,
                **({"default": "false"} if name == "cached-decision" else {}),
                "value": value,
                "valueFrom": {"path": f"/tmp/outputs/{name}"},
            }
            for name, value in node.outputs.items()
        ]
    return made
