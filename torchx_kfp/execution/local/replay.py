"""``replay``: run one stage of any run again, locally and attached to the terminal, with its original inputs.

A replay has its own run id and folder, ``replays/<run id>`` in the output folder, laid out like a run's.
It is not a run: ``latest`` never means it. Nothing of the original run is changed.

The stage protocol is applied here rather than by the stage's own script (``contract.command``): the application becomes
a child of this process, with the same words and variables. So debuggers work, and its exit code is returned. The
programs that publish KFP outputs and retry are left out.
"""

from __future__ import annotations

import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import duration, shown
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import SETS_BASE, DecodedCommand, decode_command
from torchx_kfp.contract.scripts import workspace_in, workspace_words
from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.errors import ArgumentError, TrackerBaseError
from torchx_kfp.execution.local.attempt import AttemptThread, RunContext, plan_attempt
from torchx_kfp.execution.local.dag_run import DagRun
from torchx_kfp.execution.local.executors.executor import AttemptPlan
from torchx_kfp.execution.local.executors.mounts import Mount
from torchx_kfp.execution.local.given_keys import Given, GivenKeys, missing_variables, verify_given
from torchx_kfp.execution.local.kubernetes import has_workspace, time_limit
from torchx_kfp.execution.local.output import StageLines
from torchx_kfp.execution.local.preflight import find_gpus, stage_not_applied
from torchx_kfp.execution.local.run_options import RunKeywords, RunOptions
from torchx_kfp.execution.local.runner import connected, make_context
from torchx_kfp.execution.pipeline.endpoints import described
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.walk import PodNames, StageNames, make_run_name
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished, StageStarted
from torchx_kfp.execution.runs.history import RunReader, find_run
from torchx_kfp.execution.runs.journal import Journal
from torchx_kfp.execution.runs.record import RunRecord, missing
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.source import Invocation, RunSource
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Terminal, Watch, awaitable_processes
from torchx_kfp.tracking.record_tracker import REPLAY, REPLAY_OF, SHORT_PATIENCE, RecordTracker, absolute_base

#: The folder of replays in an output folder.
REPLAYS = "replays"
#: The variable of a shell that has the file which runs the stage's command.
COMMAND_FILE = "TORCHX_KFP_REPLAY"
#: Starts a program in a folder whose code comes first, instead of the workspace of the run.
_IN_FOLDER = ("sh", "-c", 'cd "$0" && PYTHONPATH="$0${PYTHONPATH:+:$PYTHONPATH}" exec "$@"')


@dataclass(frozen=True)
class Overrides:
    """A user's changes to a replay.

    Attributes:
        code: the folder whose code runs instead of that of the run; empty for the run's.
        tracker_base: where it records and reads; empty for the run's tracker base.
        shell: whether a shell runs instead of the application.
        environ: changed variables of the stage; None removes one.
    """

    code: str = ""
    tracker_base: str = ""
    shell: bool = False
    environ: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Attributes:
        run_id: the run id of the replay.
        replayed: the replayed stage, as ``<run>/<stage>``.
        stage: the result of the replay.
        original: the original result; None if it was still running.
        folder: its folder.
        differs: messages about differences from the original.
    """

    run_id: str
    replayed: str
    stage: StageResult
    original: StageResult | None
    folder: Path
    differs: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the application, as in a shell; 1 if it succeeded but the stage failed."""
        code = self.stage.exit_code
        if code is None or (code == 0 and self.stage.state is State.FAILED):
            return 1
        return code if code >= 0 else 128 - code

    def compare(self) -> list[str]:
        """Return the results next to the original ones, one per line: ``loss 0.31 (was 0.29)``."""
        now = _values(self.stage)
        before = _values(self.original) if self.original is not None else {}
        if protocol.EXIT_CODE in before and self.stage.results is not None:
            # The program that records it is left out.
            now[protocol.EXIT_CODE] = self.exit_code
        lines = []
        for name in [*now, *(name for name in before if name not in now)]:
            if name not in before:
                lines.append(f"{name} {shown(now[name])}")
            elif name not in now:
                lines.append(f"{name} is missing (was {shown(before[name])})")
            else:
                same = repr(now[name]) == repr(before[name])
                lines.append(f"{name} {shown(now[name])} ({'as before' if same else f'was {shown(before[name])}'})")
        return lines

    def __str__(self) -> str:
        """Return the state, and the results next to the original ones."""
        how = self.stage.reason or str(self.stage.state)
        was = "" if self.original is None else f"; before: {self.original.reason or self.original.state}"
        head = f"{self.replayed}, replayed as {self.run_id}: {how} ({duration(self.stage.duration)}){was}"
        return "\n".join([head, *(f"  {line}" for line in self.compare())])


def _values(stage: StageResult) -> dict[str, Any]:
    """Return the results of a stage or, if it records none, its outputs."""
    return stage.measures if stage.results is not None else {**stage.outputs, **stage.measures}


def replay(
    run: RunSource | str | os.PathLike[str],
    stage: str | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    docker: bool = False,
    mounts: Sequence[str | Mount] | None = None,
    copy_from: Sequence[str] = (),
    secrets: Given | None = None,
    config_maps: Given | None = None,
    directory: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    tracker_base: str = "",
    shell: bool = False,
    env: Mapping[str, str | None] | None = None,
    say: Callable[[str], object] | None = None,
) -> ReplayResult:
    """Run one stage of a run again, locally: with the same arguments, variables, inputs and parents.

    It runs attached to this process's terminal, so that ``breakpoint()`` and prompts work. It is a process, which
    records its results under its own execution id. The state of the original does not matter.

    Args:
        run: a local run (its id, the beginning or end of one, ``latest``, or its folder), or a ``HostRun``.
        stage: the stage's name, such as ``inner/train[2]``. Default: the only one that has failed.
        output_dir: the folder with the folders of runs. Default: ``OUTPUT_DIR``.
        docker: whether it runs in its image, in a container.
        mounts: local folders and files that the container sees, as for ``run``.
        copy_from: URLs from which, or from below which, artifacts may be copied besides object stores.
        secrets: keys and values of Kubernetes secrets, by the secret's name, if the stage uses them.
        config_maps: keys and values of config maps, likewise.
        directory: the folder in which it runs. Default: that of the run, or the current directory.
        workspace: a folder whose code runs instead of the code that travelled with the run; nothing is copied.
        tracker_base: where it records and finds what its parents recorded. Default: the tracker base of the run.
        shell: whether to open a shell instead of the application.
        env: changed variables of the stage; None removes one.
        say: receives messages about differences from the original before the start. Default: stderr.

    Raises:
        ArgumentError: there is no such stage, or it cannot be replayed like this; nothing was started.
        HostError: the host does not report the inputs of the stage.
        TrackerError: the tracker base cannot be written.
        TorchxKfpError: there is no container engine.
    """
    if isinstance(run, (str, os.PathLike)):
        run = RunReader(find_run(output_dir or OUTPUT_DIR, os.fspath(run)))
    invocation = run.invocation(stage)
    overrides = Overrides(os.path.abspath(workspace) if workspace else "", tracker_base, shell, env or {})
    options: RunKeywords = {"docker": docker, "mounts": mounts, "copy_from": copy_from, "directory": directory}
    say = say or (lambda sentence: Terminal(sys.stderr).write_lines([sentence]))
    record = invocation.record
    if overrides.code and not os.path.isdir(overrides.code):
        raise ArgumentError(f"The workspace {overrides.code!r} is not a folder.")
    chosen = _options(record, options, overrides)
    runs = str(record.folder.absolute().parent) if record.folder else ""
    variables = {name: value for name, value in overrides.environ.items() if value is not None}
    given = GivenKeys(secrets or {}, config_maps or {}, variables, chosen.docker)
    verify_given([(invocation.component, invocation.place.scope_inputs)], given)
    run_id = f"{REPLAY}{make_run_name(invocation.pipeline.name)}"
    folder = Path(output_dir or runs or OUTPUT_DIR).absolute() / REPLAYS / run_id
    stored = {"replays": invocation.name}
    watch = _Notices()
    with (
        connected(chosen, run_id) as containers,
        Journal(folder, invocation.pipeline, record.arguments, stored, watch.on_warning) as journal,
    ):
        place = dataclasses.replace(invocation.place, component=invocation.component)
        context = make_context(folder, chosen, given, containers, find_gpus([place], containers), runs)
        plan, differs = _plan(invocation, context, overrides)
        where = record.link or str(record.folder)
        say(f"Replays {invocation.name} ({where}).{' Differences from the original:' if differs else ''}")
        for sentence in differs:
            say(f"- {sentence}.")
        if plan.asks_gpus:
            plan = plan.with_gpus(context.gpus.wait(plan.asks_gpus, say))
        result = _run(invocation, plan, differs, context, journal, StageLines(watch))
        return ReplayResult(run_id, invocation.name, result, invocation.result, folder, differs)


class _Notices(Watch):
    """Shows the output before the stage: failed copies of artifacts, the installation of packages, pulls."""

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        Terminal(sys.stderr).write_lines(lines)


def _options(record: RunRecord, keywords: RunKeywords, overrides: Overrides) -> RunOptions:
    """Return the options of a replay. Paths default to those of a local run."""
    stored = record.options if record.folder is not None else {}
    directory = keywords.get("directory")
    if directory is None and os.path.isdir(str(stored.get("directory") or "")):
        directory = str(stored["directory"])
    chosen = RunOptions.of({**keywords, "directory": directory})
    kept: dict[str, Any] = {name: stored.get(name) for name in ("python_path", "project")}
    kept = {name: path for name, path in kept.items() if isinstance(path, str)}
    if chosen.docker and overrides.code:
        kept["mounts"] = (*chosen.mounts, Mount(overrides.code, overrides.code, read_only=True))
    return dataclasses.replace(chosen, **kept)


def _refuse_workspace(invocation: Invocation) -> None:
    """Raise ArgumentError if a stage of a local run uses KFP's workspace, which a replay must not change."""
    record, container = invocation.record, invocation.component.container
    if record.folder is None or container is None or not has_workspace(invocation.pipeline):
        return
    path = str(record.options.get("kfp_workspace") or record.folder.absolute() / "workspace")
    texts = [*container.words, *map(str, invocation.inputs.values())]
    if any(place in text for place in (WORKSPACE, path) for text in texts):
        raise ArgumentError(
            f"{invocation.stage!r} cannot be replayed: it uses KFP's workspace, which may have changed since. "
            f"Run the pipeline again: --fresh {invocation.place.name}."
        )


def _run(
    invocation: Invocation,
    plan: AttemptPlan,
    differs: tuple[str, ...],
    context: RunContext,
    journal: Journal,
    lines: StageLines,
) -> StageResult:
    if plan.recorded_as and plan.tracker_base:
        # This also shows at once whether it can record anything.
        original = invocation.result
        metadata = {REPLAY_OF: (original.execution_id if original is not None else None) or invocation.name}
        RecordTracker(absolute_base(plan.tracker_base, plan.directory), patience=SHORT_PATIENCE).add(
            plan.recorded_as, {"metadata": metadata}
        )
    messages: list[StageResult | ReplicaCount] = []
    began, started = time.time(), time.monotonic()
    arguments = dict(invocation.record.arguments)
    journal.write(RunStarted(invocation.pipeline.name, context.run_id, context.folder, differs, arguments))
    journal.write(StageStarted(plan.stage, plan.pod_name, 1, plan.task, plan.log_file))
    with awaitable_processes():
        # It runs in this thread, which gets the signals.
        AttemptThread(plan, context.containers, lines, messages.append).run()
    seconds = time.monotonic() - started
    (ended,) = (message for message in messages if isinstance(message, StageResult))
    result = dataclasses.replace(ended, duration=seconds, attempts=1, started_at=began)
    journal.write(StageFinished(result))
    journal.write(RunFinished(context.run_id, result.state, seconds))
    return result


def _plan(invocation: Invocation, context: RunContext, overrides: Overrides) -> tuple[AttemptPlan, tuple[str, ...]]:
    """Return the plan of the attempt, and messages about its differences from the original.

    Raises:
        ArgumentError: the stage cannot be replayed like this.
        TrackerBaseError: its tracker base cannot be used locally.
    """
    _refuse_workspace(invocation)
    try:
        plan, decoded = _attempt(invocation, context, overrides)
    except ArgumentError:
        raise
    except ValueError as error:
        raise ArgumentError(f"{invocation.stage!r} cannot be replayed: it {error}.") from None
    base = plan.tracker_base
    if base and not overrides.tracker_base and (why := invocation.record.why_not_read(base)):
        raise TrackerBaseError(f"{missing(base, why)} Or name a base that has them: --tracker-base.")
    environ: dict[str, str] = {}
    run_id = ""
    if decoded.stage and decoded.tracker_base:
        run_id = f"{context.run_id}/{decoded.stage}/{plan.pod_name}"
        environ = protocol.encode_context(protocol.StageContext(decoded.tracker_base, run_id, decoded.reads))
    environ |= decoded.variables if decoded.application else {}
    application = list(decoded.application or plan.words)
    if plan.python is not None and plan.container is None:
        application = plan.process_command
    application, url = _without_workspace(application, overrides.code)
    url = url if url is not None else decoded.workspace
    before = [*_IN_FOLDER, overrides.code] if overrides.code else workspace_words(url) if url else []
    program, programs = application, dict(plan.programs)
    if overrides.shell:
        program = ["sh" if plan.container is not None else os.environ.get("SHELL") or "/bin/sh", "-i"]
        environ[COMMAND_FILE] = os.path.join(plan.made, "command.sh")
        programs[environ[COMMAND_FILE]] = f"#!/bin/sh\nexec {shlex.join(application)}\n"
    every = {**plan.environ, **environ, **overrides.environ}
    planned = dataclasses.replace(
        plan,
        environ={name: text for name, text in every.items() if text is not None},
        programs=programs,
        replaces=[*before, *program],
        recorded_as=run_id,
    )
    return planned, tuple(_differences(invocation, plan, decoded, context, overrides))


def _attempt(invocation: Invocation, context: RunContext, overrides: Overrides) -> tuple[AttemptPlan, DecodedCommand]:
    place, component = invocation.place, invocation.component
    run = DagRun(invocation.pipeline, place.scope, place.scope_inputs, StageNames()).runs[place.task.name]
    run.component, run.name, run.inputs = component, invocation.stage, dict(invocation.inputs)
    if invocation.record.folder is not None:  # a local run records constants with their placeholders filled in
        run.task = dataclasses.replace(run.task, parameters={})
    if overrides.tracker_base and component.container is not None:
        command, args = (
            tuple(SETS_BASE + overrides.tracker_base if word.startswith(SETS_BASE) else word for word in words)
            for words in (component.container.command, component.container.args)
        )
        container = dataclasses.replace(component.container, command=command, args=args)
        run.component = dataclasses.replace(component, container=container)
    plan = plan_attempt(run, context, PodNames().make(invocation.stage, 1))
    decoded = decode_command(plan.words)
    if overrides.shell or (decoded.stage and decoded.tracker_base):
        # Its records replace KFP's outputs, which nobody reads.
        left = dataclasses.replace(run.component, parameter_outputs={}, artifact_outputs={})
        plan = dataclasses.replace(plan, component=left)
    return plan, decoded


def _without_workspace(words: Sequence[str], code: str) -> tuple[list[str], str | None]:
    """Return a command line without the words that unpack a workspace, and the URL, if any.

    Replicas of a distributed stage unpack it themselves; with other code, they get no URL.
    """
    url = workspace_in(words)
    if url is not None:
        return list(words[len(workspace_words(url)) :]), url
    return ["" if code and protocol.is_workspace(word) else word for word in words], None


def _differences(
    invocation: Invocation, plan: AttemptPlan, decoded: DecodedCommand, context: RunContext, overrides: Overrides
) -> Iterator[str]:
    """Describe each difference from the original in a message."""
    component = invocation.component
    in_container = plan.container is not None
    was_process = invocation.record.folder is not None and invocation.record.options.get("docker") is False
    if in_container and was_process:
        yield f"It runs in the image {plan.image}, not as a local process"
    if not in_container and not was_process:
        yield f"It runs as a local process, not in the image {plan.image} (--docker)"
    brings_code = plan.python is not None or any(map(protocol.is_workspace, decoded.words))
    if overrides.code:
        place = "the run" if decoded.workspace else "the run's directory" if was_process else "its image"
        yield f"The code is from {overrides.code}, not from {place}"
    elif not (brings_code or in_container or was_process):
        yield f"The code is from {plan.directory}, not the image (--workspace)"
    # A process of this machine did not have then what it does not have now, except for variables.
    lacks = missing_variables(component, context.given, invocation.place.scope_inputs)
    if in_container or not was_process:
        scoped = dataclasses.replace(invocation.place, component=component)
        lacks = stage_not_applied(scoped, context.given, context.options.mounts, context.gpus)
    set_there = [*(component.container.env if component.container else ()), *decoded.variables.items()]
    ignored = [*lacks, described(set_there, os.environ, in_container=in_container)]
    if time_limit(component.platform):
        ignored.append("its time limit")
    original = invocation.place.component.container
    texts = [*(original.words if original else ()), *map(str, invocation.place.task.parameters.values())]
    if invocation.record.folder is None and any(WORKSPACE in text for text in texts):
        ignored.append("KFP's workspace, which only the pods of the run had")
    if any(ignored):
        yield f"Not applied locally: {', '.join(filter(None, ignored))}"
    if invocation.service_account:
        yield f"It has your permissions, not those of the service account {invocation.service_account}"
    if decoded.retries or invocation.place.task.retry is not None:
        yield "It is not retried"
    if overrides.shell:
        yield f"A shell runs instead of the application, which sh ${COMMAND_FILE} runs"
