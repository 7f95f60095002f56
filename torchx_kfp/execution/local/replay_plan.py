"""Plan the replay of a stage: what it runs on this machine, and what is not as it was.

The stage protocol is applied here rather than by the stage's own script (``contract.command``): the application becomes
a child of this process, with the same words and variables. So a debugger works in it, and its exit code arrives. The
programs around it that publish KFP outputs and try again are left out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.common.text import listed
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import DecodedCommand, decode
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.scripts import assignment, workspace_in, workspace_words
from torchx_kfp.contract.specification import REPLICA, ReplicaRole
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.attempt import RunContext, plan_attempt
from torchx_kfp.execution.local.dag_run import DagRun
from torchx_kfp.execution.local.endpoints import described
from torchx_kfp.execution.local.executors.executor import AttemptPlan, choose_containers
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
        replica: the replica of a distributed stage that runs alone, as ``role/index``; empty for the whole stage.
        tracker_base: where it records and reads; empty for the run's place.
        shell: whether a shell runs in place of the application.
        environ: variables that the stage has with other values, or does not have (None).
    """

    code: str = ""
    replica: str = ""
    tracker_base: str = ""
    shell: bool = False
    environ: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayPlan:
    """A stage that is going to be replayed.

    Attributes:
        invocation: what it was started with.
        attempt: the plan of its attempt here.
        facts: what its command says.
        run_id: the run id with which it records; empty if it is not tracked.
        words: the words that run it in the terminal.
        application: its own command line.
        differs: what is not as it was, in sentences.
    """

    invocation: Invocation
    attempt: AttemptPlan
    facts: DecodedCommand
    run_id: str
    words: Sequence[str]
    application: Sequence[str]
    differs: tuple[str, ...]

    def prepare(self, attempt: AttemptPlan) -> Sequence[str]:
        """Write what the stage's own script would write, and return the words to run."""
        if self.run_id:
            Path(attempt.facts.output_files[RUN_ID]).write_text(self.run_id, encoding="utf-8")
        script = Path(self.command_file)
        os.makedirs(attempt.made, exist_ok=True)
        script.write_text(f"#!/bin/sh\nexec {shlex.join(self.application)}\n", encoding="utf-8")
        script.chmod(0o755)
        return self.words

    @property
    def command_file(self) -> str:
        """The file that starts the application again, for a shell in the stage."""
        return _command_file(self.attempt)


def plan_replay(invocation: Invocation, context: RunContext, overrides: Overrides) -> ReplayPlan:
    """Plan a replay. Nothing is written but folders for the results that a container records.

    Raises:
        ArgumentError: the stage cannot be replayed like this.
        ValueError: an input cannot be passed to the stage; the message continues a sentence that begins with its name.
    """
    attempt, facts = _attempt(invocation, context, overrides)
    is_tracked = bool(facts.stage and facts.tracker_base)
    environ: dict[str, str] = {}
    run_id = ""
    if is_tracked:
        run_id = f"{context.run_id}/{facts.stage}/{attempt.pod_name}"
        environ = protocol.encode(protocol.StageContext(facts.tracker_base or "", run_id, facts.reads))
    environ |= facts.variables if facts.application else {}
    application = list(facts.application or attempt.words)
    if attempt.python is not None and attempt.container is None:
        application = attempt.process_command
    if overrides.replica:
        environ, application = _alone(facts, overrides.replica, environ)
    application, url = _without_workspace(application, overrides.code)
    url = url if url is not None else facts.workspace
    before = [*_IN_FOLDER, overrides.code] if overrides.code else workspace_words(url) if url else []
    program = _shell(attempt) if overrides.shell else application
    if overrides.shell:
        environ[COMMAND_FILE] = _command_file(attempt)
    every = {**attempt.environ, **environ, **overrides.environ}
    return ReplayPlan(
        invocation,
        dataclasses.replace(attempt, environ={name: text for name, text in every.items() if text is not None}),
        facts,
        run_id,
        [*before, *program],
        [*application],
        tuple(_differences(invocation, attempt, facts, context, overrides)),
    )


def _attempt(invocation: Invocation, context: RunContext, overrides: Overrides) -> tuple[AttemptPlan, DecodedCommand]:
    place, component = invocation.place, invocation.component
    run = DagRun(invocation.pipeline, place.scope, invocation.scope, StageNames()).runs[place.task.name]
    run.component, run.name, run.inputs = component, invocation.stage, dict(invocation.inputs)
    if overrides.tracker_base and component.container is not None:
        command, args = (
            tuple(assignment(overrides.tracker_base) if word.startswith(assignment("")) else word for word in words)
            for words in (component.container.command, component.container.args)
        )
        container = dataclasses.replace(component.container, command=command, args=args)
        run.component = dataclasses.replace(component, container=container)
    attempt = plan_attempt(run, context, PodNames().make(invocation.stage, 1))
    facts = decode(attempt.words)
    if overrides.shell or (facts.stage and facts.tracker_base):
        # What it records takes the place of KFP's outputs, which nobody reads.
        kept = {name: kind for name, kind in component.outputs.items() if name == RUN_ID and not overrides.shell}
        left = dataclasses.replace(run.component, outputs=kept, artifact_outputs={})
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


def _alone(facts: DecodedCommand, replica: str, environ: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables and the command line of one replica, as the launcher makes them."""
    roles = {role.name: role for role in facts.replica_roles}
    name, _, index = replica.rpartition("/")
    there = [f"{role.name}/0..{_count(role) - 1}" for role in roles.values()]
    if not roles:
        raise ArgumentError(f"--replica {replica}: the stage is not distributed, so it has no replicas.")
    if name not in roles or not index.isdecimal() or int(index) >= _count(roles[name]):
        raise ArgumentError(f"There is no replica {replica!r}. Replicas are named ROLE/INDEX: {listed(there)}.")
    role = roles[name]
    own = {
        protocol.REPLICA_ID: index,
        protocol.NUM_REPLICAS: str(_count(role)),
        protocol.RANK0_HOST: "localhost",
        **role.env,
    }
    return (
        {**environ, **{name: value.replace(REPLICA, index) for name, value in own.items()}},
        [word.replace(REPLICA, index) for word in role.command],
    )


def _count(role: ReplicaRole) -> int:
    with contextlib.suppress(ValueError):
        return int(float(role.count))
    return role.most


def _differences(
    invocation: Invocation, attempt: AttemptPlan, facts: DecodedCommand, context: RunContext, overrides: Overrides
) -> Iterator[str]:
    """Describe what is not as it was, one thing a sentence."""
    component, containers = invocation.component, context.containers
    in_container, was_process = attempt.container is not None, _was_process(invocation)
    if in_container and was_process:
        yield f"It runs in the image {attempt.image}, not as a process of this machine"
    if not in_container and not was_process:
        yield f"It runs as a process of this machine, not in the image {attempt.image} (--docker)"
    brings_code = (attempt.python is not None and attempt.python.source is not None) or any(
        map(protocol.is_workspace, facts.words)
    )
    if overrides.code:
        place = facts.workspace or ("the run's directory" if was_process else "its image")
        yield f"The code is that of {overrides.code}, not that of {place}"
    elif not (brings_code or in_container or was_process):
        yield f"The code is that of {attempt.directory}, not that in the image (--workspace)"
    # A process of this machine did not have then what it does not have now, except for variables.
    lacks = missing_variables(component, context.given, invocation.scope, os.environ, in_container=in_container)
    if in_container or not was_process:
        scoped = dataclasses.replace(invocation.place, component=component)
        lacks = stage_not_applied(scoped, invocation.scope, context.given, containers, os.environ)
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


def _was_process(invocation: Invocation) -> bool:
    """Tell whether the stage ran as a process of this machine."""
    record = invocation.record
    if record.folder is None:
        return False
    try:
        return invocation.place.name not in choose_containers(invocation.pipeline, record.options.get("docker", False))
    except (ArgumentError, TypeError):  # the folder is damaged, or somebody else's
        return False
