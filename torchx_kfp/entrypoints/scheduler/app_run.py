"""An app as a run on a KFP host: the request that starts it, its roles, and the states and lines of their replicas.

The request is a pipeline of one stage. Variables that TorchX's runner adds to every role, such as ``TORCHX_JOB_ID``,
are removed: the stage protocol sets its own, and the id of TorchX's session would defeat KFP's cache.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchx import specs

from torchx_kfp.common.text import describe_unknown, printable
from torchx_kfp.contract import protocol
from torchx_kfp.entrypoints.scheduler.runopts import Options
from torchx_kfp.errors import AppDefError, ArgumentError, PipelineError
from torchx_kfp.execution.host.settings import read_settings
from torchx_kfp.execution.host.submission import check_submission, refuse_submission
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import known_stages, without_indices
from torchx_kfp.execution.runs.history import FileTail
from torchx_kfp.execution.runs.prepared_run import PreparedRun, prepare
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import RunResult
from torchx_kfp.execution.runs.source import RunSource
from torchx_kfp.execution.runs.vocabulary import State

_logger = logging.getLogger(__name__)

_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
#: The alias of the run of ``--parent_run_id``, which is ``current_run().parent`` in applications.
PARENT = "parent"
#: The annotation of an app's pod with the name of its role, like the label of TorchX's schedulers.
ROLE_NAME = "torchx.pytorch.org/role-name"
#: Separates the name of a replica and its line in the log of a distributed stage.
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
    """The roles of a stage with their numbers of replicas; without an engine, one role with one replica."""

    counts: Mapping[str, int]
    is_distributed: bool = False

    @property
    def replicas(self) -> list[str]:
        """The prefixes of replicas' lines: ``trainer/3``."""
        return [f"{role}/{number}" for role, count in self.counts.items() for number in range(count)]


def roles_of(record: RunRecord) -> dict[str, StageRoles]:
    """Return the roles of each stage of a run, by the stage's name without indices.

    There are none if the pipeline is unknown. A run not submitted by TorchX has one role for each stage.
    """
    try:
        pipeline = record.load()
    except PipelineError:
        return {}
    roles: dict[str, StageRoles] = {}
    defaults = {name: one.default for name, one in pipeline.root.parameter_inputs.items() if one.has_default}
    for stage in known_stages(pipeline, {**defaults, **record.arguments}):
        name = stage.name
        if several := stage.decoded.replica_roles:
            roles[name] = StageRoles({role.name: role.most for role in several}, is_distributed=True)
        else:
            annotations = (stage.component.platform.get("podMetadata") or {}).get("annotations") or {}
            roles[name] = StageRoles({str(annotations.get(ROLE_NAME) or name): 1})
    return roles


def role_statuses(result: RunResult, roles: Mapping[str, StageRoles]) -> list[specs.RoleStatus]:
    """Return the status of each role: its stage's.

    If a distributed stage failed, the states of its replicas are unknown; its pod is the launcher's.
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
    """Yield the replica's lines of all attempts, with line breaks.

    Args:
        should_tail: wait for more lines until the run ends.
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
    """Yield the replica's lines in a stage's log; the launcher's lines count as the first replica's."""
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


@dataclass(frozen=True)
class Request:
    """A request to a KFP host; ``torchx run --dryrun`` shows it."""

    #: The run that the request starts, with the code of its workspaces.
    prepared: PreparedRun
    options: Options

    def __str__(self) -> str:
        """Return the file to upload, below the other parts of the request as comments."""
        options = {**self.options.of_connection, **vars(self.options.submission)}
        said = {name: value for name, value in options.items() if value not in ("", True)}
        arguments = {f"argument {name}": value for name, value in self.prepared.arguments.items()}
        code = {f"workspace {folder}": workspace.url for folder, workspace in self.prepared.workspaces.items()}
        lines = [f"# {name}: {printable(str(value))}" for name, value in {**said, **arguments, **code}.items()]
        return "\n".join([*lines, self.prepared.pipeline.text])


def make_request(app: specs.AppDef, options: Options) -> Request:
    """Return the request that runs the app with its code, after a check for problems on KFP.

    Raises:
        AppDefError: the app cannot become a stage, has a parent run but no tracker base, or the tracker base is wrong.
        PipelineError: the run would surely fail, as with a tracker base that pods cannot reach.
        ArgumentError: the workspace of a role cannot be packed.
    """
    app, trackers, parent = without_runner_variables(app)
    arguments = {protocol.TRACKER_BASE_PARAMETER: options.tracker_base} if options.tracker_base else {}
    if not options.tracker_base and parent:
        raise AppDefError(
            f"The app has the parent run {parent!r} (--parent_run_id), but no tracker base with its results. Give one: "
            "-cfg tracker_base=s3://bucket/results"
        )
    if not options.tracker_base and trackers:
        _logger.warning(
            "Nothing is recorded in the trackers %s: on KFP, TorchX's trackers need a tracker base, such as "
            "-cfg tracker_base=s3://bucket/results.",
            ", ".join(trackers),
        )
    if not options.tracker_base and any(getattr(role, "workspace", None) for role in app.roles):
        raise AppDefError(
            "The app's workspace needs a tracker base, under which it is stored. Give one, such as -cfg "
            "tracker_base=s3://bucket/results, or run the code of the image: --workspace ''"
        )
    prepared = prepare(_compile(app, options, trackers, parent), arguments)
    findings = check_submission(prepared.pipeline, prepared.values, read_settings(options.of_connection))
    refuse_submission(prepared.pipeline, findings)
    for finding in findings:
        _logger.warning("%s: %s", finding.kind.value, finding)
    return Request(prepared, options)


def without_runner_variables(app: specs.AppDef) -> tuple[specs.AppDef, dict[str, str | None], str]:
    """Return a copy of the app without the variables of TorchX's runner, its trackers, and its parent run."""
    trackers: dict[str, str | None] = {}
    parent = ""
    roles = []
    for role in app.roles:
        env = dict(role.env)
        trackers.update(protocol.decode_trackers(env))
        parent = parent or env.get(protocol.PARENT_RUN_ID, "")
        names = [protocol.JOB_ID, protocol.TRACKERS, protocol.PARENT_RUN_ID, _SESSION_ID, protocol.TRACKER_CONFIG]
        for name in (*names, *map(protocol.tracker_config_variable, trackers)):
            env.pop(name, None)
        role = copy.copy(role)
        role.env = env
        roles.append(role)
    app = copy.copy(app)
    app.roles = roles
    return app, trackers, parent


def _compile(app: specs.AppDef, options: Options, trackers: Mapping[str, str | None], parent: str) -> Pipeline:
    from torchx_kfp.authoring.stages import single_stage_pipeline
    from torchx_kfp.execution.pipeline.load import compile_function

    of_stage: dict[str, Any] = {"engine": options.engine, "secrets": options.secrets}
    if app.roles and not options.engine:
        of_stage["annotations"] = {ROLE_NAME: app.roles[0].name}
    if options.tracker_base:
        of_stage["reads"] = {PARENT: parent} if parent else None
        of_stage["trackers"] = trackers
    return compile_function(single_stage_pipeline(app, tracked=bool(options.tracker_base), **of_stage), app.name)
