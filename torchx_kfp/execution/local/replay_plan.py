"""Plan the replay of a stage: what it runs on this machine, and what is not as it was.

The stage protocol is applied here rather than by the stage's own script (``contract.command``): the application becomes
a child of this process, with the same words and variables. So a debugger works in it, and its exit code arrives. The
programs around it that publish KFP outputs and try again are left out.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import SETS_BASE, DecodedCommand, decode
from torchx_kfp.contract.scripts import workspace_in, workspace_words
from torchx_kfp.execution.local.attempt import RunContext, plan_attempt
from torchx_kfp.execution.local.dag_run import DagRun
from torchx_kfp.execution.local.endpoints import described
from torchx_kfp.execution.local.executors.executor import AttemptPlan
from torchx_kfp.execution.local.given_keys import missing_variables
from torchx_kfp.execution.local.kubernetes import time_limit
from torchx_kfp.execution.local.preflight import stage_not_applied
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.walk import PodNames, StageNames
from torchx_kfp.execution.runs.source import Invocation

#: The variable of a shell that has the file which runs the stage's command.
COMMAND_FILE = "TORCHX_KFP_REPLAY"
#: Starts a program in a folder whose code comes first, in place of the workspace of the run.
_IN_FOLDER = ("sh", "-c", 'cd "$0" && PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}" exec "$@"')


@dataclass(frozen=True)
class Overrides:
    """What the user wants to be different.

    Attributes:
        code: the folder whose code runs in place of that of the run; empty for the run's.
        tracker_base: where it records and reads; empty for the run's place.
        shell: whether a shell runs in place of the application.
        environ: variables that the stage has with other values, or does not have (None).
    """

    code: str = ""
    tracker_base: str = ""
    shell: bool = False
    environ: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayPlan:
    """A stage that is going to be replayed.

    Attributes:
        attempt: the plan of its attempt here.
        application: its own command line.
        differs: what is not as it was, in sentences.
    """

    attempt: AttemptPlan
    application: Sequence[str]
    differs: tuple[str, ...]

    def write_command(self) -> None:
        """Write the file that starts the application again, for a shell in the stage."""
        script = Path(_command_file(self.attempt))
        os.makedirs(self.attempt.made, exist_ok=True)
        script.write_text(f"#!/bin/sh\nexec {shlex.join(self.application)}\n", encoding="utf-8")
        script.chmod(0o755)  # whatever the umask is: the user of an image may be another one


def plan_replay(invocation: Invocation, context: RunContext, overrides: Overrides) -> ReplayPlan:
    """Plan a replay. Nothing is written but folders for the results that a container records.

    Raises:
        ArgumentError: the stage cannot be replayed like this.
        ValueError: an input cannot be passed to the stage; the message continues a sentence that begins with its name.
    """
    attempt, facts = _attempt(invocation, context, overrides)
    environ: dict[str, str] = {}
    run_id = ""
    if facts.stage and facts.tracker_base:
        run_id = f"{context.run_id}/{facts.stage}/{attempt.pod_name}"
        environ = protocol.encode(protocol.StageContext(facts.tracker_base, run_id, facts.reads))
    environ |= facts.variables if facts.application else {}
    application = list(facts.application or attempt.words)
    if attempt.python is not None and attempt.container is None:
        application = attempt.process_command
    application, url = _without_workspace(application, overrides.code)
    url = url if url is not None else facts.workspace
    before = [*_IN_FOLDER, overrides.code] if overrides.code else workspace_words(url) if url else []
    program = _shell(attempt) if overrides.shell else application
    if overrides.shell:
        environ[COMMAND_FILE] = _command_file(attempt)
    every = {**attempt.environ, **environ, **overrides.environ}
    planned = dataclasses.replace(
        attempt,
        environ={name: text for name, text in every.items() if text is not None},
        replaces=[*before, *program],
        recorded_as=run_id,
    )
    return ReplayPlan(planned, application, tuple(_differences(invocation, attempt, facts, context, overrides)))


def _attempt(invocation: Invocation, context: RunContext, overrides: Overrides) -> tuple[AttemptPlan, DecodedCommand]:
    place, component = invocation.place, invocation.component
    run = DagRun(invocation.pipeline, place.scope, place.scope_inputs, StageNames()).runs[place.task.name]
    run.component, run.name, run.inputs = component, invocation.stage, dict(invocation.inputs)
    if overrides.tracker_base and component.container is not None:
        command, args = (
            tuple(SETS_BASE + overrides.tracker_base if word.startswith(SETS_BASE) else word for word in words)
            for words in (component.container.command, component.container.args)
        )
        container = dataclasses.replace(component.container, command=command, args=args)
        run.component = dataclasses.replace(component, container=container)
    attempt = plan_attempt(run, context, PodNames().make(invocation.stage, 1))
    facts = decode(attempt.words)
    if overrides.shell or (facts.stage and facts.tracker_base):
        # What it records takes the place of KFP's outputs, which nobody reads.
        left = dataclasses.replace(run.component, outputs={}, artifact_outputs={})
        attempt = dataclasses.replace(attempt, component=left)
    return attempt, facts


def _command_file(attempt: AttemptPlan) -> str:
    return os.path.join(attempt.made, "command.sh")


def _without_workspace(words: Sequence[str], code: str) -> tuple[list[str], str | None]:
    """Return a command line without the words that unpack a workspace, and the workspace's URL, if it has them.

    Replicas of a distributed stage unpack it themselves: if there is other code, they get no URL.
    """
    url = workspace_in(words)
    if url is not None:
        return list(words[len(workspace_words(url)) :]), url
    return ["" if code and protocol.is_workspace(word) else word for word in words], None


def _shell(attempt: AttemptPlan) -> list[str]:
    if attempt.container is not None:
        return ["sh", "-i"]
    return [os.environ.get("SHELL") or "/bin/sh", "-i"]


def _differences(
    invocation: Invocation, attempt: AttemptPlan, facts: DecodedCommand, context: RunContext, overrides: Overrides
) -> Iterator[str]:
    """Describe what is not as it was, one thing a sentence."""
    component, containers = invocation.component, context.containers
    in_container = attempt.container is not None
    was_process = invocation.record.folder is not None and invocation.record.options.get("docker") is False
    if in_container and was_process:
        yield f"It runs in the image {attempt.image}, not as a process of this machine"
    if not in_container and not was_process:
        yield f"It runs as a process of this machine, not in the image {attempt.image} (--docker)"
    brings_code = attempt.python is not None or any(map(protocol.is_workspace, facts.words))
    if overrides.code:
        place = facts.workspace or ("the run's directory" if was_process else "its image")
        yield f"The code is that of {overrides.code}, not that of {place}"
    elif not (brings_code or in_container or was_process):
        yield f"The code is that of {attempt.directory}, not that in the image (--workspace)"
    # A process of this machine did not have then what it does not have now, except for variables.
    lacks = missing_variables(component, context.given, invocation.place.scope_inputs)
    if in_container or not was_process:
        scoped = dataclasses.replace(invocation.place, component=component)
        lacks = stage_not_applied(scoped, context.given, containers)
    set_there = [*(component.container.env if component.container else ()), *facts.variables.items()]
    ignored = [*lacks, described(set_there, os.environ, in_container=in_container)]
    if time_limit(component.platform):
        ignored.append("its time limit")
    original = invocation.place.component.container
    texts = [*(original.words if original else ()), *map(str, invocation.place.task.inputs.values())]
    if invocation.record.folder is None and any(WORKSPACE in text for text in texts):
        ignored.append("KFP's workspace, which only the pods of the run had")
    if any(ignored):
        yield f"Not applied on this machine: {', '.join(filter(None, ignored))}"
    if invocation.service_account:
        yield f"It has your own rights, not those of the service account {invocation.service_account}"
    if facts.retries or invocation.place.task.retry is not None:
        yield "It is tried only once"
    if overrides.shell:
        yield f"A shell runs in place of the application, which sh ${COMMAND_FILE} runs"
