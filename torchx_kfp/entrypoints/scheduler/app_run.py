"""An app as its run on a KFP host: its roles by name, and the states and lines of their replicas."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchx import specs

from torchx_kfp.common.text import describe_unknown
from torchx_kfp.errors import ArgumentError, PipelineFileError
from torchx_kfp.execution.pipeline.walk import known_stages, without_indices
from torchx_kfp.execution.runs.history import FileTail
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import RunResult
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.vocabulary import State

#: The annotation of an app's pod with the name of its role, as the labels of TorchX's schedulers have it.
ROLE_NAME = "torchx.pytorch.org/role-name"
#: Stands between the name of a replica and its line in the log of a distributed stage.
_SEPARATOR = " | "
#: The states of TorchX, which has the same ones for apps and replicas.
STATES = {
    State.FAILED: specs.AppState.FAILED,
    State.INTERRUPTED: specs.AppState.FAILED,
    State.CANCELED: specs.AppState.CANCELLED,
    State.NOT_RUN: specs.AppState.CANCELLED,
    State.RUNNING: specs.AppState.RUNNING,
    State.RETRYING: specs.AppState.RUNNING,
    State.QUEUED: specs.AppState.PENDING,
    State.WAITING: specs.AppState.PENDING,
    State.SUCCEEDED: specs.AppState.SUCCEEDED,
    State.ALLOWED: specs.AppState.SUCCEEDED,
    State.CACHED: specs.AppState.SUCCEEDED,
    State.SKIPPED: specs.AppState.SUCCEEDED,
}


@dataclass(frozen=True)
class StageRoles:
    """The roles of a stage, with their numbers of replicas: one role of one replica, unless an engine runs them."""

    counts: Mapping[str, int]
    is_distributed: bool = False

    @property
    def replicas(self) -> list[str]:
        """The names with which the lines of replicas begin: ``trainer/3``."""
        return [f"{role}/{number}" for role, count in self.counts.items() for number in range(count)]


def roles_of(record: RunRecord) -> dict[str, StageRoles]:
    """Return the roles of each stage of a run, by the stage's name without indices of loops.

    There are none if the host does not say which pipeline it runs. A run that TorchX has not submitted has a role for
    each stage.
    """
    try:
        pipeline = record.load()
    except PipelineFileError:
        return {}
    roles: dict[str, StageRoles] = {}
    defaults = {name: one.default for name, one in pipeline.root.inputs.items() if one.has_default}
    for stage in known_stages(pipeline, {**defaults, **record.arguments}):
        name = stage.name
        if several := stage.decoded.replica_roles:
            roles[name] = StageRoles({role.name: role.most for role in several}, is_distributed=True)
        else:
            annotations = (stage.component.platform.get("podMetadata") or {}).get("annotations") or {}
            roles[name] = StageRoles({str(annotations.get(ROLE_NAME) or name): 1})
    return roles


def role_statuses(result: RunResult, roles: Mapping[str, StageRoles]) -> list[specs.RoleStatus]:
    """Return the status of each role: that of its stage, which is all that KFP knows.

    If a stage of several replicas has failed, the states of its replicas are unknown, and its pod is the launcher's.

    Args:
        result: that of the run, as far as it has come.
        roles: the roles of the stages.
    """
    statuses: dict[str, specs.RoleStatus] = {}
    for stage in result.stages:
        of_stage = roles.get(without_indices(stage.name), StageRoles({}))
        state, pod = STATES[stage.state], stage.pod_name
        if of_stage.is_distributed:
            state, pod = specs.ReplicaState.UNKNOWN if state is specs.ReplicaState.FAILED else state, ""
        for role, count in of_stage.counts.items():
            replicas = statuses.setdefault(role, specs.RoleStatus(role, [])).replicas
            for number in range(len(replicas), len(replicas) + count):
                replicas.append(specs.ReplicaStatus(number, state, role, hostname=pod))
    return list(statuses.values())


def find_replica(roles: Mapping[str, StageRoles], role: str, number: int) -> str:
    """Return the name of a replica, such as ``trainer/3``.

    Raises:
        ArgumentError: the app has no such replica.
    """
    replicas = dict.fromkeys(name for stage in roles.values() for name in stage.replicas)  # stages may share a role
    replica = f"{role}/{number}"
    if replica not in replicas:
        raise ArgumentError(describe_unknown("The app", "replica", replica, replicas))
    return replica


def lines_of(
    source: RunSource, roles: Mapping[str, StageRoles], replica: str, *, should_tail: bool = False
) -> Iterator[str]:
    """Yield the replica's lines with their line breaks, those of all attempts in turn.

    Args:
        source: the run.
        roles: the roles of its stages.
        replica: the name of one of its replicas.
        should_tail: whether to wait for more lines until the run has ended.
    """
    files: dict[Path, FileTail] = {}
    for record in source.follow(closely=True):
        mine = {
            name: stage
            for name in record.run.by_name
            if (stage := roles.get(without_indices(name))) and replica in stage.replicas
        }
        source.fetch(mine)
        for name, stage in mine.items():
            for attempt in record.run.attempts_at(name):
                if attempt.log_file is not None:
                    file = files.setdefault(attempt.log_file, FileTail(attempt.log_file))
                    new = list(file.lines(is_whole=not record.is_running))
                    yield from _selected([f"{line.decode('utf-8', 'replace')}\n" for line in new], stage, replica)
        if not should_tail:
            return


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
