"""``run``: a compiled pipeline on this machine, its stages as plain processes."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.arguments import complete_arguments
from torchx_kfp.local.artifacts import is_artifact
from torchx_kfp.local.check import check_supported, find_not_applied
from torchx_kfp.local.environment import stage_environment
from torchx_kfp.local.events import Event, Listener, RunFinished, RunStarted, StageFinished, StageRetried
from torchx_kfp.local.journal import Journal
from torchx_kfp.local.kubernetes import GivenKeys, has_workspace
from torchx_kfp.local.load import PipelineLike, load_pipeline
from torchx_kfp.local.names import make_run_name
from torchx_kfp.local.output import LogPump, Terminal
from torchx_kfp.local.prepare import Settings
from torchx_kfp.local.process import GRACE, kill_marked
from torchx_kfp.local.result import RunResult, StageResult, State
from torchx_kfp.local.scheduler import Interrupted, Scheduler
from torchx_kfp.local.scopes import order_of_tasks
from torchx_kfp.local.secrets import Given
from torchx_kfp.local.signals import awaitable_processes, ending_signals, raise_for_signal
from torchx_kfp.local.spec import Pipeline
from torchx_kfp.local.values import shorten

#: Where runs leave their logs and outputs, each in a folder of its run id; below the current directory.
OUTPUT_DIR = "local_outputs"


def default_parallelism() -> int:
    """How many stages run at once unless told otherwise: two for each CPU that this process may use, at least four.

    Stages wait for files and for each other's results much of the time; those that use every CPU by themselves
    (training) are best limited with ``parallelism``.
    """
    return max(4, 2 * len(os.sched_getaffinity(0)))


def run(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    parallelism: int | None = None,
    on_event: Listener | None = None,
    stream: TextIO | None = None,
    quiet: bool = False,
    grace: float = GRACE,
    workspace: str | os.PathLike[str] | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
) -> RunResult:
    """Runs a compiled pipeline on this machine.

    Each stage is a process in the current directory and environment, where ``python`` is the running interpreter.
    A stage that fails ends the stages that depend on it; the others finish. A signal (Ctrl-C) ends all processes.
    What happens is recorded in the run's folder as it does: see ``journal`` and ``history``.

    Args:
        pipeline: path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        output_dir: folder in which the run's folder, named by its run id, is made. Default: ``local_outputs``.
        parallelism: how many stages run at once. Default: ``default_parallelism()``.
        on_event: is called with each event of the run, from this thread.
        stream: where the stages' output is shown, with their names. Default: stderr.
        quiet: shows nothing; the logs are written all the same.
        grace: seconds that processes have to end after a signal before they are killed.
        workspace: folder that the stages share as KFP's workspace. Default: ``workspace`` in the run's folder.
        secrets: keys and values of Kubernetes secrets, by the secret's name: variables of stages that take them.
        config_maps: those of config maps.

    Returns:
        How the run and its stages ended, also if stages failed: see ``RunResult.raise_for_failure``.

    Raises:
        PipelineFileError: the file is not a compiled pipeline.
        UnsupportedPipelineError: the pipeline asks for what cannot run here; nothing was started.
        ArgumentError: the arguments do not fit the pipeline's parameters, or an option is wrong; nothing was started.
        KeyboardInterrupt: SIGINT has ended the run.
        SystemExit: SIGTERM or SIGHUP has ended the run; the code is 143 or 129.
    """
    _verify_options(arguments, output_dir, parallelism, grace)
    loaded = load_pipeline(pipeline)
    check_supported(loaded)
    values = complete_arguments(loaded, arguments or {})
    run_id = make_run_name(loaded.name)
    folder = Path(output_dir if output_dir is not None else OUTPUT_DIR).absolute() / run_id
    _make_folder(folder, "output_dir", "--output-dir")
    shared = Path(workspace).absolute() if workspace is not None else folder / "workspace"
    if has_workspace(loaded.platform):
        _make_folder(shared, "workspace", "--workspace")
    given = GivenKeys(secrets or {}, config_maps or {})
    terminal = Terminal(None if quiet else stream or sys.stderr)

    def listener(event: Event) -> None:
        # First: whoever hears of it finds it in the folder.
        journal.write(event)
        terminal.write_lines(_messages(event))
        if on_event is not None:
            on_event(event)

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    settings = Settings(
        run_id=run_id,
        folder=folder,
        environ=stage_environment(folder, run_id),
        constants={
            "pipeline_job_name": run_id,
            "pipeline_job_resource_name": run_id,
            "pipeline_job_uuid": run_id,
            "pipeline_job_create_time_utc": created,
            "pipeline_job_schedule_time_utc": created,
            "pipeline_root": str(folder),
            "workspace_path": str(shared),
        },
        parallelism=parallelism or default_parallelism(),
        grace=grace,
        given=given,
    )
    started = time.monotonic()
    with (
        Journal.create(
            folder,
            run_id=run_id,
            pipeline=loaded.name,
            text=loaded.text,
            arguments=values,
            options={"parallelism": settings.parallelism, "grace": grace, "directory": os.getcwd()},
            # Also of a quiet run: nobody would look for it.
            warn=lambda message: Terminal(stream or sys.stderr).write_lines([message]),
        ) as journal,
        LogPump(terminal) as pump,
    ):
        scheduler = Scheduler(loaded, settings, pump, listener)
        with awaitable_processes(), ending_signals(scheduler.interrupt):
            try:
                listener(RunStarted(loaded.name, run_id, folder, find_not_applied(loaded, values, given), values))
                root = scheduler.run(values)
            except Interrupted as interrupted:
                listener(RunFinished(run_id, State.CANCELED, time.monotonic() - started))
                terminal.write_lines([f"Run {run_id} was ended by {signal.Signals(interrupted.number).name}."])
                raise_for_signal(interrupted.number)
            finally:
                # Each stage's end ends what it has started; this finds what came after that.
                kill_marked(run_id)
        outputs = root.outputs()
        artifacts = {name: value for name, value in outputs.items() if is_artifact(value)}
        result = RunResult(
            pipeline=loaded.name,
            run_id=run_id,
            state=State.FAILED if root.failed else State.SUCCEEDED,
            folder=folder,
            duration=time.monotonic() - started,
            stages=tuple(_in_order(loaded, scheduler.results)),
            outputs={name: value for name, value in outputs.items() if name not in artifacts},
            artifacts=artifacts,
        )
        listener(RunFinished(run_id, result.state, result.duration, result.outputs, result.artifacts))
        return result


def _make_folder(folder: Path, argument: str, option: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"The run's folder {str(folder)!r} cannot be made: {reason}. Name another place for it ({argument}, or "
            f"{option} of the command)."
        ) from None


def _verify_options(arguments: Any, output_dir: Any, parallelism: Any, grace: Any) -> None:
    """Raises ArgumentError for a value of another type, or one that makes no sense."""
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ArgumentError(
            f"arguments must be a dict of names and values, such as {{'lr': 0.1}}, and is {shorten(arguments)}."
        )
    if output_dir is not None and not isinstance(output_dir, (str, os.PathLike)):
        raise ArgumentError(f"output_dir must be the path of a folder, and is {shorten(output_dir)}.")
    if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
        raise ArgumentError(f"parallelism must be an int, 1 or more, and is {shorten(parallelism)}.")
    if not isinstance(grace, (int, float)) or not 0 <= grace <= threading.TIMEOUT_MAX:
        raise ArgumentError(f"grace must be a number of seconds, 0 or more, and is {shorten(grace)}.")


def _in_order(pipeline: Pipeline, stages: list[StageResult]) -> list[StageResult]:
    positions = order_of_tasks(pipeline)

    def key(stage: StageResult) -> tuple[int, list[int]]:
        # train[2,0] -> train and 2, 0
        indices = [int(number) for group in re.findall(r"\[([\d,]+)\]", stage.name) for number in group.split(",")]
        return positions[re.sub(r"\[[\d,]+\]", "", stage.name)], indices

    return sorted(stages, key=key)


def _messages(event: Event) -> list[str]:
    """What is shown of an event by itself: the rest belongs to the caller."""
    if isinstance(event, RunStarted):
        lines = [f"Run {event.run_id}: logs and outputs are in {event.folder}"]
        if event.not_applied:
            lines.append(f"Not applied on this machine: {', '.join(event.not_applied)}.")
        return lines
    if isinstance(event, StageRetried):
        in_ = f" in {event.delay:g} s" if event.delay else ""
        return [f"{event.name} {event.reason} (attempt {event.attempt}); trying again{in_}."]
    if isinstance(event, StageFinished) and event.result.attempts:
        stage = event.result
        how = stage.reason or "succeeded"
        return [f"{stage.name} {how} ({stage.duration:.1f} s)."]
    return []
