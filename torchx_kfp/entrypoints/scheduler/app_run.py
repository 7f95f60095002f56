"""An app as its run on a KFP host: its roles, as far as its pipeline has them, and the states and lines of replicas."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchx import specs

from torchx_kfp.common.text import did_you_mean, listed
from torchx_kfp.contract.specification import ReplicaRole
from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.execution.host.connection import Connection
from torchx_kfp.execution.host.run import HostRun
from torchx_kfp.execution.host.states import run_state
from torchx_kfp.execution.pipeline.placeholders import Facts, parse_quantity, read_limits, resolve_value
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import KnownStage, known_stages, without_indices
from torchx_kfp.execution.runs.history import FileTail
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.source import RunRecord, RunSource
from torchx_kfp.execution.runs.vocabulary import State

_logger = logging.getLogger(__name__)

#: The label with the role's name that TorchX's schedulers set.
_ROLE_NAME = "torchx.pytorch.org/role-name"
_GPU = "nvidia.com/gpu"
#: Stands between the name of a replica and its line in the log of a distributed stage.
_SEPARATOR = " | "
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


@dataclass(frozen=True)
class StageRoles:
    """The roles of a stage: one, unless an engine runs its replicas."""

    roles: Sequence[specs.Role]
    is_distributed: bool = False

    @property
    def replicas(self) -> list[str]:
        """The names with which the lines of replicas begin: ``trainer/3``."""
        return [f"{role.name}/{number}" for role in self.roles for number in range(role.num_replicas)]


def open_app(connection: Connection, app_id: str) -> HostRun:
    """Return the app's run without asking the host; its messages go to TorchX's log."""
    return HostRun(connection, app_id, say=lambda sentence: _logger.warning("%s", sentence), reads="none")


def roles_of(record: RunRecord) -> dict[str, StageRoles]:
    """Return the roles of each stage of a run; none if the host does not say which pipeline it runs."""
    try:
        return roles_by_stage(record.load(), record.arguments)
    except PipelineFileError:
        return {}


def roles_by_stage(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, StageRoles]:
    """Return the roles of each stage that is a container, by the stage's name without indices of loops.

    A run that TorchX has not submitted has a role for each stage.
    """
    defaults = {name: one.default for name, one in pipeline.root.inputs.items() if one.has_default}
    stages = known_stages(pipeline, {**defaults, **arguments})
    return {stage.place.name: _roles(stage) for stage in stages if stage.place.is_stage}


def _roles(stage: KnownStage) -> StageRoles:
    place, container, command = stage.place, stage.container, stage.facts
    facts = Facts(parameters=stage.inputs)
    env = {**dict(container.env), **command.variables}
    if command.replica_roles:
        return StageRoles([_replica_role(role, env, facts) for role in command.replica_roles], is_distributed=True)
    labels = (place.component.platform.get("podMetadata") or {}).get("labels") or {}
    try:
        limits = read_limits(container.resources, facts)
    except ValueError:
        resource = _resource(None, None, {})
    else:
        devices = {limits.accelerator_type: limits.accelerators} if limits.accelerators else {}
        resource = _resource(limits.cpus, limits.memory, devices)
    role = specs.Role(
        name=str(labels.get(_ROLE_NAME) or place.name),
        image=str(resolve_value(container.image, facts)),
        entrypoint=command.application[0] if command.application else specs.MISSING,
        args=list(command.application[1:]),
        env=env,
        max_retries=command.retries,
        resource=resource,
    )
    return StageRoles([role])


def _replica_role(role: ReplicaRole, shared: Mapping[str, str], facts: Facts) -> specs.Role:
    limits: dict[str, Any] = dict((role.pod["containers"][0].get("resources") or {}).get("limits") or {})
    amounts = {name: float(parse_quantity(str(value))) for name, value in limits.items()}
    devices = {name: int(count) for name, count in amounts.items() if "/" in name}
    return specs.Role(
        name=role.name,
        image=str(resolve_value(role.image, facts)),
        entrypoint=role.command[0] if role.command else specs.MISSING,
        args=list(role.command[1:]),
        env={**shared, **role.env},
        num_replicas=role.most,
        resource=_resource(amounts.get("cpu"), amounts.get("memory"), devices),
    )


def _resource(cpus: float | None, memory: float | None, devices: dict[str, int]) -> specs.Resource:
    cpu: Any = -1 if cpus is None else int(cpus) if cpus == int(cpus) else cpus
    gpu = devices.pop(_GPU, 0) or -1
    return specs.Resource(cpu=cpu, gpu=gpu, memMB=-1 if memory is None else int(memory // 10**6), devices=devices)


def app_state(run: Mapping[str, Any]) -> specs.AppState:
    """Return the state of an app, from the JSON of its run."""
    if not run.get("state") or run["state"] == "RUNTIME_STATE_UNSPECIFIED":
        return specs.AppState.SUBMITTED
    return summary_state(run_state(run))


def summary_state(state: State) -> specs.AppState:
    """Return the state of an app, from that of its run in a list."""
    return _APP_STATES.get(state, specs.AppState.UNKNOWN)


def role_statuses(result: RunResult, roles: Mapping[str, StageRoles]) -> list[specs.RoleStatus]:
    """Return the status of each role: that of its stage, which is all that KFP knows.

    If a stage of several replicas has failed, the states of its replicas are unknown, and one more role, with the
    stage's name, has the failure.

    Args:
        result: that of the run, as far as it has come.
        roles: the roles of the stages.
    """
    statuses: dict[str, specs.RoleStatus] = {}
    for stage in result.stages:
        of_stage = roles.get(without_indices(stage.name))
        is_distributed = of_stage is not None and of_stage.is_distributed
        for role in of_stage.roles if of_stage else ():
            replicas = statuses.setdefault(role.name, specs.RoleStatus(role.name, [])).replicas
            for _ in range(role.num_replicas):
                replicas.append(_replica(stage, role.name, len(replicas), is_one_of_many=is_distributed))
        if is_distributed and _REPLICA_STATES[stage.state] is specs.ReplicaState.FAILED:
            name = f"{stage.name} (all replicas)"
            statuses[name] = specs.RoleStatus(name, [_replica(stage, name, 0)])
    return list(statuses.values())


def _replica(stage: StageResult, role: str, number: int, *, is_one_of_many: bool = False) -> specs.ReplicaStatus:
    state = _REPLICA_STATES[stage.state]
    is_failed = state is specs.ReplicaState.FAILED
    if is_one_of_many:  # the pod, the failure and the exit code are the stage's
        return specs.ReplicaStatus(number, specs.ReplicaState.UNKNOWN if is_failed else state, role, hostname="")
    message = _message(stage.reason or "failed", stage) if is_failed else specs.NONE
    return specs.ReplicaStatus(number, state, role, hostname=stage.pod_name, structured_error_msg=message)


def error_message(result: RunResult) -> str:
    """Return why an app failed, in the form of TorchX's structured messages; ``NONE`` if it did not."""
    failed = [stage for stage in result.stages if stage.state is State.FAILED]
    if failed:
        return _message(f"{failed[0].name} {failed[0].reason or 'failed'}", failed[0])
    return _message(result.reason) if result.state is State.FAILED and result.reason else specs.NONE


def _message(message: str, stage: StageResult | None = None) -> str:
    """Return a message as torchelastic writes it: TorchX 0.7.0 formats no other."""
    ended = (stage.started_at or 0.0) + stage.duration if stage else 0.0
    code = stage.exit_code or 0 if stage else 0
    return json.dumps({"message": {"message": message, "errorCode": code, "extraInfo": {"timestamp": str(int(ended))}}})


def find_replica(roles: Mapping[str, StageRoles], role: str, number: int) -> str:
    """Return the name of a replica, such as ``trainer/3``.

    Raises:
        ArgumentError: the app has no such replica.
    """
    names = [name for stage in roles.values() for name in stage.replicas]
    if f"{role}/{number}" in names:
        return f"{role}/{number}"
    known = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    if role not in known:
        raise ArgumentError(f"The app has no role {role!r}.{did_you_mean(role, known)} Its roles: {listed(known)}.")
    count = sum(name.rpartition("/")[0] == role for name in names)
    raise ArgumentError(f"The role {role!r} has no replica {number}: it has {count}, and the first is 0.")


def lines_of(
    source: RunSource,
    roles: Mapping[str, StageRoles],
    replica: str,
    *,
    should_tail: bool = False,
    interval: float = 1.0,
) -> Iterator[str]:
    """Yield the replica's lines with their line breaks, those of all attempts in turn.

    Args:
        source: the run.
        roles: the roles of its stages.
        replica: the name of one of its replicas.
        should_tail: whether to wait for more lines until the run has ended.
        interval: the seconds between two looks at the run.
    """
    files: dict[Path, FileTail] = {}
    while True:
        record = source.look()
        mine = {
            name: stage
            for name in record.run.attempts
            if (stage := roles.get(without_indices(name))) and replica in stage.replicas
        }
        source.fetch(mine)
        for name, stage in mine.items():
            for attempt in record.run.attempts[name]:
                if attempt.log_file is not None:
                    file = files.setdefault(attempt.log_file, FileTail(attempt.log_file))
                    new = file.read_new(is_whole=not record.is_running)
                    yield from _selected([f"{line.decode('utf-8', 'replace')}\n" for line in new], stage, replica)
        if not (should_tail and record.is_running):
            return
        time.sleep(interval)


def _selected(lines: list[str], stage: StageRoles, replica: str) -> Iterator[str]:
    """Yield those of a stage's lines that belong to the replica; the launcher's own are the first replica's."""
    if not stage.is_distributed:
        yield from lines
        return
    names = stage.replicas
    for line in lines:
        name, separator, text = line.partition(_SEPARATOR)
        if separator and name in names:
            if name == replica:
                yield text.replace(f"\r{name}{_SEPARATOR}", "\r")
        elif replica == names[0]:
            yield line
