"""States of an app and of its replicas, from what a KFP host says of a run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from torchx import specs

from torchx_kfp.backend.states import run_state
from torchx_kfp.pipeline.names import without_indices
from torchx_kfp.runs.result import RunResult, StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.scheduler.roles import StageRoles

_APP_STATES = {
    State.QUEUED: specs.AppState.PENDING,
    State.RUNNING: specs.AppState.RUNNING,
    State.SUCCEEDED: specs.AppState.SUCCEEDED,
    State.FAILED: specs.AppState.FAILED,
    State.CANCELED: specs.AppState.CANCELLED,
}
_REPLICA_STATES = {
    State.FAILED: specs.ReplicaState.FAILED,
    State.INTERRUPTED: specs.ReplicaState.FAILED,
    State.CANCELED: specs.ReplicaState.CANCELLED,
    State.NOT_RUN: specs.ReplicaState.CANCELLED,
    State.RUNNING: specs.ReplicaState.RUNNING,
    State.RETRYING: specs.ReplicaState.RUNNING,
    State.QUEUED: specs.ReplicaState.PENDING,
    State.WAITING: specs.ReplicaState.PENDING,
    State.SUCCEEDED: specs.ReplicaState.SUCCEEDED,
    State.CACHED: specs.ReplicaState.SUCCEEDED,
    State.SKIPPED: specs.ReplicaState.SUCCEEDED,
}


def app_state(run: Mapping[str, Any]) -> specs.AppState:
    """Return the state of an app, from the JSON of its run."""
    if not run.get("state") or run["state"] == "RUNTIME_STATE_UNSPECIFIED":
        return specs.AppState.SUBMITTED
    return summary_state(run_state(run))


def summary_state(state: State) -> specs.AppState:
    """Return the state of an app, from that of its run in a list."""
    return _APP_STATES.get(state, specs.AppState.UNKNOWN)


def restarts(result: RunResult) -> int:
    """Return how often KFP has started a stage again."""
    return sum(max(0, stage.attempts - 1) for stage in result.stages)


def role_statuses(result: RunResult, roles: Mapping[str, StageRoles]) -> list[specs.RoleStatus]:
    """Return the status of each role: that of its stage, which is all that KFP knows.

    If a stage of several replicas has failed, the states of its replicas are unknown, and one more role, with the
    stage's name, has the failure.

    Args:
        result: that of the run, as far as it has come.
        roles: see ``roles_by_stage``.
    """
    statuses: dict[str, specs.RoleStatus] = {}
    for stage in result.stages:
        of_stage = roles.get(without_indices(stage.name))
        is_distributed = of_stage is not None and of_stage.is_distributed
        for role in of_stage.roles if of_stage else ():
            replicas = statuses.setdefault(role.name, specs.RoleStatus(role.name, [])).replicas
            for _ in range(role.num_replicas):
                one = _replica(stage, role.name, len(replicas))
                replicas.append(_of_many(one) if is_distributed else one)
        if is_distributed and _REPLICA_STATES[stage.state] is specs.ReplicaState.FAILED:
            name = f"{stage.name} (all replicas)"
            statuses[name] = specs.RoleStatus(name, [_replica(stage, name, 0)])
    return list(statuses.values())


def error_message(result: RunResult) -> str:
    """Return why an app failed, in the form of TorchX's structured messages; ``NONE`` if it did not."""
    failed = [stage for stage in result.stages if stage.state is State.FAILED]
    if failed:
        return _structured(failed[0], f"{failed[0].name} {failed[0].reason or 'failed'}")
    return _message(result.reason) if result.state is State.FAILED and result.reason else specs.NONE


def _of_many(replica: specs.ReplicaStatus) -> specs.ReplicaStatus:
    """Return the status of one of several replicas: the stage's pod, failure and exit code are not the replica's."""
    is_failed = replica.state is specs.ReplicaState.FAILED
    state = specs.ReplicaState.UNKNOWN if is_failed else replica.state
    return dataclasses.replace(replica, hostname="", state=state, structured_error_msg=specs.NONE)


def _replica(stage: StageResult, role: str, number: int) -> specs.ReplicaStatus:
    state = _REPLICA_STATES[stage.state]
    is_failed = state is specs.ReplicaState.FAILED
    return specs.ReplicaStatus(
        id=number,
        state=state,
        role=role,
        hostname=stage.pod_name,
        structured_error_msg=_structured(stage, stage.reason or "failed") if is_failed else specs.NONE,
    )


def _structured(stage: StageResult, message: str) -> str:
    ended = (stage.started_at or 0.0) + stage.duration
    return _message(message, stage.exit_code, ended)


def _message(message: str, code: int | None = None, when: float = 0.0) -> str:
    """Return a message as torchelastic writes it: TorchX 0.7.0 formats no other."""
    return json.dumps(
        {"message": {"message": message, "errorCode": code or 0, "extraInfo": {"timestamp": str(int(when))}}}
    )
