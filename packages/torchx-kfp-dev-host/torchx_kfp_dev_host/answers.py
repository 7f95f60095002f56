"""The answers of KFP's API about a run, in both of its versions, made from the nodes of its workflow; its errors."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from torchx_kfp_dev_host.argo import Naming, Node

#: What KFP says of a time that has not come.
EPOCH = "1970-01-01T00:00:00Z"


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
    #: The runtime config of the request; None if it had none.
    runtime_config: Mapping[str, Any] | None = None
    service_account: str = "pipeline-runner"
    storage_state: str = "AVAILABLE"
    #: States and their times.
    history: list[tuple[str, float]] = field(default_factory=list)
    finished: float | None = None
    #: Why the run could not be run on this machine.
    error: str = ""

    @property
    def state(self) -> str:
        return self.history[-1][0]


def shown_time(seconds: float) -> str:
    """Return a time in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def describe_run(record: Record) -> dict[str, Any]:
    """Return the run in v2beta1."""
    answer: dict[str, Any] = {
        "experiment_id": record.experiment_id,
        "run_id": record.run_id,
        "display_name": record.display_name,
        "storage_state": record.storage_state,
        "description": record.description,
        "pipeline_spec": record.pipeline_spec,
        "runtime_config": record.runtime_config,
        "service_account": record.service_account,
        "created_at": shown_time(record.created),
        "scheduled_at": shown_time(record.created),
        "finished_at": shown_time(record.finished) if record.finished else EPOCH,
        "state": record.state,
        "state_history": [{"update_time": shown_time(when), "state": state} for state, when in record.history],
        "error": {"code": 13, "message": record.error} if record.error else None,
    }
    # Nothing that is empty is sent, except an empty object.
    return {key: value for key, value in answer.items() if value is not None and value not in ("", [])}


def describe_run_v1(record: Record, names: Naming, nodes: Mapping[str, Node]) -> dict[str, Any]:
    """Return the run in v1beta1, with its workflow; Argo's templates are left out."""
    status = "Terminating" if record.state == "CANCELING" else record.state.capitalize()
    run = {"id": record.run_id, "name": record.display_name, "status": status}
    if not nodes:  # Argo has not seen it
        return {"run": run, "pipeline_runtime": {}}
    shown = {names.id(each.name): _describe(names, each) for each in nodes.values()}
    status_of_workflow = {"nodes": shown, "message": nodes[record.workflow].message}
    manifest = json.dumps({"metadata": {"name": record.workflow}, "status": status_of_workflow})
    return {"run": run, "pipeline_runtime": {"workflow_manifest": manifest}}


def _describe(names: Naming, node: Node) -> dict[str, Any]:
    outputs: dict[str, Any] = {"exitCode": node.exit_code} if node.exit_code else {}
    if node.outputs:
        outputs["parameters"] = [{"name": name, "value": value} for name, value in node.outputs.items()]
    return {
        "id": names.id(node.name),
        "name": node.name,
        "type": node.type,
        "templateName": node.template,
        "phase": node.phase,
        "message": node.message,
        "startedAt": shown_time(node.started),
        "finishedAt": shown_time(node.ended) if node.ended is not None else None,
        "outputs": outputs,
    }


class Refused(Exception):
    """The answer is an error; ``code`` is gRPC's, and ``cause`` the innermost error.

    ``answer`` is a JSON object, or text.
    """

    def __init__(self, status: int, code: int, message: str, cause: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.answer: Any = {"code": code, "message": message}
        if cause is not None:
            detail = {"@type": "type.googleapis.com/google.rpc.Status", "code": code, "message": cause}
            self.answer["details"] = [detail]


def proxy_error(status: int) -> dict[str, Any]:
    """Return the answer of a proxy before KFP's API server, with this status."""
    return {"code": 2, "message": HTTPStatus(status).phrase}
