"""``replay``: run one stage of any run on this machine, attached to the terminal, with what it was given then.

A replay has its own run id, and its own folder ``replays/<run id>`` in the output folder, in the form of that of a run.
It is not a run: ``latest`` never means it. Nothing of the original run is changed.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import duration, shown
from torchx_kfp.contract.protocol import EXIT_CODE
from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.errors import ArgumentError, TrackerBaseError
from torchx_kfp.execution.local.attempt import Attempt, RunContext
from torchx_kfp.execution.local.executors.executor import (
    AttemptPlan,
    Containers,
    Setup,
    Start,
    verify_private,
)
from torchx_kfp.execution.local.executors.mounts import Mount, named_places
from torchx_kfp.execution.local.given_keys import Given, GivenKeys, verify_given
from torchx_kfp.execution.local.kubernetes import has_workspace
from torchx_kfp.execution.local.output import StageLines
from torchx_kfp.execution.local.replay_plan import Overrides, ReplayPlan, plan_replay
from torchx_kfp.execution.local.run_options import RunKeywords, RunOptions
from torchx_kfp.execution.local.runner import connected, make_context
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.walk import make_run_name
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished, StageStarted
from torchx_kfp.execution.runs.history import RunReader, find_run
from torchx_kfp.execution.runs.journal import Journal
from torchx_kfp.execution.runs.record import RunRecord, missing, why_not_read
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.source import Invocation, RunSource
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Terminal, Watch, awaitable_processes
from torchx_kfp.tracking.recorder import REPLAY, REPLAY_OF, Recorder

#: The folder of replays in an output folder.
REPLAYS = "replays"
#: What the user has set for the tracker base of runs on a host.
_NAMED_BASE = "TORCHX_KFP_TRACKER_BASE"


@dataclass(frozen=True)
class ReplayResult:
    """How a replay has ended.

    Attributes:
        run_id: the run id of the replay.
        replayed: the stage that it has replayed, as ``<run>/<stage>``.
        stage: how it has ended here.
        original: how it had ended there; None if it was still running.
        folder: its folder.
        differs: what was not as it was, in sentences.
    """

    run_id: str
    replayed: str
    stage: StageResult
    original: StageResult | None
    folder: Path
    differs: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """The exit code of the application, as a shell reports it; 1 if it succeeded and the stage has not."""
        code = self.stage.exit_code
        if code is None or (code == 0 and self.stage.state is State.FAILED):
            return 1
        return code if code >= 0 else 128 - code

    def compare(self) -> list[str]:
        """Return the results beside those of the original, each as a line: ``loss 0.31 (was 0.29)``."""
        now = _values(self.stage)
        before = _values(self.original) if self.original is not None else {}
        if EXIT_CODE in before and self.stage.results is not None:
            # The program that records it is left out.
            now[EXIT_CODE] = self.exit_code
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
        """Return how it ended, and the results beside the original's."""
        how = self.stage.reason or str(self.stage.state)
        was = "" if self.original is None else f"; it had {self.original.reason or self.original.state}"
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
    """Run one stage of a run on this machine, as it was there: the same arguments, variables, inputs and parents.

    It runs attached to this process's terminal, so that ``breakpoint()`` and prompts work. It is a process, which
    records its results under its own run id. Whether the original has succeeded, failed or still runs does not matter.

    Args:
        run: a run of this machine (its id, the beginning or end of one, ``latest``, or its folder), or a ``HostRun``.
        stage: the stage's name, such as ``inner/train[2]``. Default: the only one that has failed.
        output_dir: the folder with the folders of runs. Default: ``OUTPUT_DIR``.
        docker: whether it runs in its image, in a container.
        mounts: folders and files of this machine that the container sees, as for ``run``.
        copy_from: URLs from which, or from below which, artifacts may be copied besides object stores.
        secrets: keys and values of Kubernetes secrets, by the secret's name, if the stage uses them.
        config_maps: keys and values of config maps, likewise.
        directory: the folder in which it runs. Default: that of the run, or the current directory.
        workspace: a folder whose code runs in place of the code that travelled with the run; nothing is copied.
        tracker_base: where it records and finds what its parents recorded. Default: the tracker base of the run.
        shell: whether to open a shell in place of the application.
        env: variables that the stage gets with other values than then, or does not get (None).
        say: gets sentences about what is not as it was, before it starts. Default: they are written to stderr.

    Raises:
        ArgumentError: there is no such stage, or it cannot be replayed like this; nothing was started.
        HostError: the host does not say what the stage was started with.
        TrackerError: the tracker base cannot be written.
        ContainerEngineError: there is no container engine.
    """
    code = os.path.abspath(workspace) if workspace else ""
    if isinstance(run, (str, os.PathLike)):
        run = RunReader(find_run(output_dir or OUTPUT_DIR, os.fspath(run)))
    return replay_invocation(
        run.invocation(stage),
        Overrides(code, tracker_base, shell, env or {}),
        {"docker": docker, "mounts": mounts, "copy_from": copy_from, "directory": directory},
        output_dir=output_dir,
        secrets=secrets or {},
        config_maps=config_maps or {},
        named_base=os.environ.get(_NAMED_BASE, ""),
        say=say,
    )


def replay_invocation(
    invocation: Invocation,
    overrides: Overrides,
    options: RunKeywords,
    *,
    output_dir: str | os.PathLike[str] | None,
    secrets: Given,
    config_maps: Given,
    named_base: str,
    say: Callable[[str], object] | None = None,
) -> ReplayResult:
    """Replay a stage: see ``replay``. ``named_base`` is the tracker base of runs on a host that the user has named."""
    say = say or (lambda sentence: Terminal(sys.stderr).write_lines([sentence]))
    record = invocation.record
    if overrides.code and not os.path.isdir(overrides.code):
        raise ArgumentError(f"The workspace {overrides.code!r} is not a folder.")
    chosen = _options(record, options, overrides, named_base)
    runs = str(record.folder.absolute().parent) if record.folder else ""
    containers = Containers(chosen.mounts, runs) if chosen.docker else None
    variables = {name: value for name, value in overrides.environ.items() if value is not None}
    given = GivenKeys(secrets, config_maps, variables, chosen.docker)
    verify_given([(invocation.component, invocation.place.scope_inputs)], given)
    run_id = f"{REPLAY}{make_run_name(invocation.pipeline.name)}"
    folder = Path(output_dir or runs or OUTPUT_DIR).absolute() / REPLAYS / run_id
    if containers is not None:
        verify_private(containers, str(folder.parent), None)
    stored = {"replays": invocation.name}
    watch = _Notices()
    with (
        connected(chosen, run_id) as docker,
        Journal(folder, invocation.pipeline, record.arguments, stored, watch.on_warning) as journal,
    ):
        context = make_context(folder, chosen, given, containers, docker)
        plan = _plan(invocation, context, overrides, named_base)
        where = record.link or str(record.folder)
        say(f"Replays {invocation.name} ({where}).{' What is not as it was:' if plan.differs else ''}")
        for sentence in plan.differs:
            say(f"- {sentence}.")
        return _run(invocation, plan, context, journal, StageLines(watch))


class _Notices(Watch):
    """Shows what precedes the stage: artifacts that could not be copied, the installation of packages, pulls."""

    def on_lines(self, stage: str, lines: Sequence[str]) -> None:
        Terminal(sys.stderr).write_lines(lines)


def _options(record: RunRecord, keywords: RunKeywords, overrides: Overrides, named_base: str) -> RunOptions:
    """Return the options of a replay: paths that are not given are those of a run on this machine."""
    stored = record.options if record.folder is not None else {}
    directory = keywords.get("directory")
    if directory is None and os.path.isdir(str(stored.get("directory") or "")):
        directory = str(stored["directory"])
    named = named_places([named_base, overrides.tracker_base])
    named += record.bases_among(named_places(record.arguments.values()))
    chosen = RunOptions.of({**keywords, "directory": directory}, named)
    kept: dict[str, Any] = {name: stored.get(name) for name in ("python_path", "project")}
    kept = {name: path for name, path in kept.items() if isinstance(path, str)}
    if chosen.docker and overrides.code:
        kept["mounts"] = (*chosen.mounts, Mount(overrides.code, overrides.code, read_only=True))
    return dataclasses.replace(chosen, **kept)


def _plan(invocation: Invocation, context: RunContext, overrides: Overrides, named_base: str) -> ReplayPlan:
    _refuse_workspace(invocation)
    try:
        plan = plan_replay(invocation, context, overrides)
    except ValueError as error:
        if isinstance(error, ArgumentError):
            raise
        raise ArgumentError(f"{invocation.stage!r} cannot be replayed: it {error}.") from None
    base, ran_here = plan.attempt.tracker_base, invocation.record.folder is not None
    if base and not overrides.tracker_base:
        why = why_not_read(base, [named_base], ran_here=ran_here)
        if why:
            raise TrackerBaseError(f"{missing(base, why)} Or name another place that has them: --tracker-base.")
    return plan


def _refuse_workspace(invocation: Invocation) -> None:
    """Raise ArgumentError if a stage of a run on this machine uses KFP's workspace: it must not change it."""
    record, container = invocation.record, invocation.component.container
    if record.folder is None or container is None or not has_workspace(invocation.pipeline):
        return
    path = str(record.options.get("kfp_workspace") or record.folder.absolute() / "workspace")
    texts = [*container.words, *map(str, invocation.inputs.values())]
    if any(place in text for place in (WORKSPACE, path) for text in texts):
        raise ArgumentError(
            f"{invocation.stage!r} cannot be replayed: it uses KFP's workspace, which others may have changed since. "
            f"Run it in a new run: run --resume {record.run_id} --from {invocation.place.name}."
        )


def _run(
    invocation: Invocation, plan: ReplayPlan, context: RunContext, journal: Journal, lines: StageLines
) -> ReplayResult:
    attempt, original = plan.attempt, invocation.result
    if attempt.recorded_as and attempt.tracker_base:
        # This also shows at once whether it can record anything.
        metadata = {REPLAY_OF: (original.run_id if original is not None else None) or invocation.name}
        Recorder.open(attempt.tracker_base, attempt.directory).add(attempt.recorded_as, {"metadata": metadata})
    messages: list[StageResult | ReplicaCount] = []

    def prepare(attempt: AttemptPlan, setup: Setup) -> AbstractContextManager[Start]:
        plan.write_command()
        return context.prepare(attempt, setup)

    began, started = time.time(), time.monotonic()
    arguments = dict(invocation.record.arguments)
    journal.write(RunStarted(invocation.pipeline.name, context.run_id, context.folder, plan.differs, arguments))
    journal.write(StageStarted(attempt.stage, attempt.pod_name, 1, attempt.task, attempt.log_file))
    with awaitable_processes():
        # It runs in this thread, which gets the signals.
        Attempt(attempt, prepare, lines, messages.append).run()
    seconds = time.monotonic() - started
    (ended,) = (message for message in messages if isinstance(message, StageResult))
    result = dataclasses.replace(ended, duration=seconds, attempts=1, started_at=began)
    journal.write(StageFinished(result))
    journal.write(RunFinished(context.run_id, result.state, seconds))
    return ReplayResult(context.run_id, invocation.name, result, original, context.folder, plan.differs)
