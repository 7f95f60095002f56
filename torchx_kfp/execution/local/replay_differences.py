"""What a replay is asked to change, and what else is not as it was when the stage ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchx_kfp.contract.command import decode
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local import kubernetes
from torchx_kfp.execution.local.attempt import RunContext
from torchx_kfp.execution.local.endpoints import described
from torchx_kfp.execution.local.executors.executor import AttemptPlan, choose_containers
from torchx_kfp.execution.local.given_keys import missing_variables
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.runs.invocation import Invocation

#: The variable of a shell that has the file which runs the stage's command.
COMMAND_FILE = "TORCHX_KFP_REPLAY"


@dataclass(frozen=True)
class Change:
    """What the user wants to be different.

    Attributes:
        code: the folder whose code runs in place of that of the run; empty for the run's.
        replica: the replica of a distributed stage that runs alone, as ``role/index``; empty for the whole stage.
        tracker_base: where it records and reads; empty for the run's place.
        has_shell: whether a shell runs in place of the application.
        environ: variables that the stage has with other values, or does not have (None).
    """

    code: str = ""
    replica: str = ""
    tracker_base: str = ""
    has_shell: bool = False
    environ: Mapping[str, str | None] = field(default_factory=dict)


def differences(invocation: Invocation, attempt: AttemptPlan, context: RunContext, change: Change) -> Iterator[str]:
    """Describe what is not as it was, one thing a sentence."""
    component, given, scope = invocation.component, context.given, invocation.scope
    in_container, facts = attempt.container is not None, decode(attempt.words)
    was_process = _was_process(invocation)
    if in_container and was_process:
        yield f"It runs in the image {attempt.image}, not as a process of this machine"
    if not in_container and not was_process:
        yield f"It runs as a process of this machine, not in the image {attempt.image} (--docker)"
    if change.code:
        place = facts.workspace or ("the run's directory" if was_process else "its image")
        yield f"The code is that of {change.code}, not that of {place}"
    elif not (_brings_code(attempt) or in_container or was_process):
        yield f"The code is that of {attempt.directory}, not that in the image (--workspace, --directory)"
    if change.replica:
        yield f"Only {change.replica} runs: the other replicas are missing"
    missing = missing_variables(component, given, scope, os.environ, in_container=in_container)
    for what in (*missing, *_volumes(invocation, attempt, context)):
        yield f"Missing: {what}"
    container = component.container
    set_there = [*(container.env if container is not None else ()), *facts.variables.items()]
    if other := described(set_there, os.environ, in_container=in_container):
        yield f"Not applied: {other}"
    ignored = []
    if in_container or not was_process:
        ignored = kubernetes.not_applied(component, in_container=in_container, has_gpus=context.containers.has_gpus)
    if kubernetes.time_limit(component.platform):
        ignored.append("its time limit")
    if ignored:
        resources = component.container.resources if component.container is not None else {}
        yield f"Not applied: {', '.join(ignored)}{_resources(resources)}"
    if invocation.service_account:
        yield f"It has your own rights, not those of the service account {invocation.service_account}"
    if facts.retries or invocation.place.task.retry is not None:
        yield "It is tried only once"
    if change.has_shell:
        yield f"A shell runs in place of the application, which sh ${COMMAND_FILE} runs"
    if change.tracker_base:
        yield f"It records in {change.tracker_base}"
    for name, value in change.environ.items():
        yield f"You have {'removed' if value is None else 'set'} the variable {name}"


def _brings_code(attempt: AttemptPlan) -> bool:
    """Tell whether the code of a stage, or of its replicas, comes with its command."""
    python = attempt.python is not None and attempt.python.source is not None
    return python or any(map(workspace_digest, decode(attempt.words).words))


def _was_process(invocation: Invocation) -> bool:
    """Tell whether the stage ran as a process of this machine."""
    record = invocation.record
    if record.folder is None:
        return False
    try:
        return invocation.place.name not in choose_containers(invocation.pipeline, record.options.get("docker", False))
    except (ArgumentError, TypeError):  # the folder is damaged, or somebody else's
        return False


def _volumes(invocation: Invocation, attempt: AttemptPlan, context: RunContext) -> Iterator[str]:
    """Describe the volumes that are missing, unless they were missing there, too."""
    if invocation.record.folder is None and _uses_workspace(invocation):
        yield "KFP's workspace, which only the pods of the run had"
    component, scope = invocation.component, invocation.scope
    if attempt.container is not None:
        mounts = [mount.target for mount in context.containers.mounts]
        yield from kubernetes.missing_mounts(component, context.given, scope, mounts)
    elif not _was_process(invocation):
        yield from kubernetes.missing_folders(component, scope)


def _uses_workspace(invocation: Invocation) -> bool:
    container = invocation.place.component.container
    texts = [*(container.words if container is not None else ()), *map(str, invocation.place.task.inputs.values())]
    return any(WORKSPACE in text for text in texts)


def _resources(resources: Mapping[str, object]) -> str:
    known = {"resourceCpuLimit": "cpu", "resourceMemoryLimit": "memory"}
    named = [f"{name} {resources[key]}" for key, name in known.items() if resources.get(key)]
    accelerator = resources.get("accelerator")
    if isinstance(accelerator, Mapping):
        named.append(f"{accelerator.get('resourceCount') or 1} x {accelerator.get('resourceType') or 'accelerator'}")
    return f" ({', '.join(named)})" if named else ""
