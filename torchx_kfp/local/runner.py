"""``run``: a compiled pipeline on this machine, its stages as processes or in containers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.bases import check_bases
from torchx_kfp.local.cache.entries import FOLDER as CACHE_FOLDER
from torchx_kfp.local.cache.entries import Cache
from torchx_kfp.local.cache.recall import Memory
from torchx_kfp.local.check import check_arguments, check_supported, find_not_applied
from torchx_kfp.local.engines.containers import Containers, choose_containers, verify_private
from torchx_kfp.local.engines.docker import DockerEngine, connect
from torchx_kfp.local.engines.engine import Processes
from torchx_kfp.local.engines.environment import stage_environment
from torchx_kfp.local.engines.mounts import Mount, named_paths
from torchx_kfp.local.engines.process import GRACE, kill_marked
from torchx_kfp.local.options import (
    MAX_ITEMS,
    Options,
    default_parallelism,
    options_of,
    verify_limits,
    verify_options,
)
from torchx_kfp.local.platform.kubernetes import GivenKeys, has_workspace, time_limit, verify_given
from torchx_kfp.local.platform.secrets import Given
from torchx_kfp.local.scheduler import Interrupted, Scheduler
from torchx_kfp.local.signals import awaitable_processes, ending_signals, raise_for_signal
from torchx_kfp.local.stage.output import LineListener, LogPump, Terminal
from torchx_kfp.local.stage.prepare import Settings
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.artifacts import is_artifact
from torchx_kfp.pipeline.conditions import LONGEST
from torchx_kfp.pipeline.findings import Finding
from torchx_kfp.pipeline.load import PipelineLike, load_pipeline, reading
from torchx_kfp.pipeline.names import indices_of, make_run_name, without_indices
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.pipeline.walk import positions
from torchx_kfp.runs.events import Event, Listener, RunFinished, RunStarted
from torchx_kfp.runs.history import RunRecord, read_run
from torchx_kfp.runs.journal import Journal
from torchx_kfp.runs.messages import messages
from torchx_kfp.runs.result import RunResult, StageResult, State

#: Where runs leave their logs and outputs, each in a folder of its run id; below the current directory.
OUTPUT_DIR = "local_outputs"


def run(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    parallelism: int | None = None,
    cache: bool = True,
    docker: bool | Collection[str] = False,
    mounts: Sequence[str | Mount] = (),
    on_event: Listener | None = None,
    on_line: LineListener | None = None,
    on_unfinished: LineListener | None = None,
    stream: TextIO | None = None,
    quiet: bool = False,
    grace: float = GRACE,
    timeout: float | None = None,
    fail_fast: bool = False,
    max_items: int = MAX_ITEMS,
    condition_time: float = LONGEST,
    directory: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
) -> RunResult:
    """Runs a compiled pipeline on this machine.

    Each stage is a process in ``directory`` and the current environment, where ``python`` is the running interpreter.
    A stage that fails ends the stages that depend on it; the others finish. A signal (Ctrl-C) ends all processes.
    What happens is recorded in the run's folder as it does (see ``journal``), and ``resume`` goes on from there.

    Args:
        pipeline: path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        output_dir: folder in which the run's folder, named by its run id, is made. Default: ``local_outputs``.
        parallelism: how many stages run at once. Default: ``default_parallelism()``.
        cache: takes what earlier runs in ``output_dir`` have made (see ``keys``), where a task lets KFP cache it, which
            is the default.
        docker: runs stages in their images with Docker or Podman: all of them, or some by name (``train``,
            ``inner/train``).
        mounts: what those containers see of this machine, as ``SRC[:DST][:ro]``, beside what they make, what they take
            from other stages, and paths that are arguments (a tracker base, for one).
        on_event: is called with each event of the run, from this thread.
        on_line: is called with a stage's name and each line of its output, without what a terminal should not get, from
            another thread. If it raises, it is called no more, and the exception is raised when the run has ended.
        on_unfinished: is called like that with a line that has no end yet, such as a progress bar, as it grows.
        stream: where the stages' output is shown, with their names. Default: stderr.
        quiet: shows nothing; the logs are written all the same.
        grace: seconds that processes have to end after a signal before they are killed.
        timeout: seconds after which the run is ended, and has failed. Default: the pipeline's own limit, if it has one.
        fail_fast: ends the run at the first failure of a stage; exit tasks run all the same, and so does what ignores
            failures.
        max_items: how many items all loops of the run may have together.
        condition_time: seconds that the evaluation of a condition may take.
        directory: folder in which stages run, where they find their scripts. Default: the current directory.
        workspace: folder that the stages share as KFP's workspace. Default: ``workspace`` in the run's folder.
        secrets: keys and values of Kubernetes secrets, by the secret's name: variables of stages that take them.
        config_maps: those of config maps.

    Returns:
        How the run and its stages ended, also if stages failed: see ``RunResult.raise_for_failure``.

    Raises:
        PipelineFileError: the file is not a compiled pipeline.
        UnsupportedPipelineError: the pipeline asks for what cannot run here; nothing was started.
        ArgumentError: the arguments do not fit the pipeline's parameters, or an option is wrong; nothing was started.
        ContainerEngineError: stages shall run in containers, and no engine answers; nothing was started.
        TrackerError: a tracker base cannot be written; nothing was started.
        KeyboardInterrupt: SIGINT has ended the run.
        SystemExit: SIGTERM or SIGHUP has ended the run; the code is 143 or 129.
    """
    verify_options(arguments, output_dir, parallelism, grace, timeout)
    verify_limits(max_items, condition_time)
    place = os.path.abspath(directory if directory is not None else os.curdir)
    if not os.path.isdir(place):
        raise ArgumentError(f"directory must be a folder, in which stages run, and is {str(directory)!r}.")
    loaded = load_pipeline(pipeline)
    chosen = choose_containers(loaded, docker, mounts, named_paths(arguments or {}))
    found = check_supported(loaded, chosen)
    keys = GivenKeys(secrets or {}, config_maps or {})
    with reading(f"The pipeline {loaded.name!r}"):
        values = complete_arguments(loaded, arguments or {})
        verify_given(loaded.components.values(), keys, values, os.environ)
    found += check_arguments(values)
    check_bases(loaded, values, place, chosen.mounts)
    run_id = make_run_name(loaded.name)
    folder = Path(output_dir if output_dir is not None else OUTPUT_DIR).absolute() / run_id
    options = Options(
        parallelism=parallelism or default_parallelism(),
        grace=grace,
        timeout=timeout,
        fail_fast=fail_fast,
        max_items=max_items,
        condition_time=condition_time,
        directory=place,
        workspace=os.path.abspath(workspace if workspace is not None else folder / "workspace"),
        python_path=os.environ.get("PYTHONPATH", ""),
        cache=cache,
        docker=docker if isinstance(docker, bool) else tuple(docker),
        mounts=tuple(map(str, chosen.mounts)),
        named=sorted(chosen.named),
    )
    verify_private(chosen, str(folder.parent), options.workspace if has_workspace(loaded.platform) else None)
    with _engine(chosen, run_id) as engine:
        _make_folder(folder, "output_dir", "--output-dir", exist_ok=False)
        if engine is not None and engine.remaps_users:
            folder.chmod(0o711)
        with Journal.create(
            folder,
            run_id=run_id,
            pipeline=loaded.name,
            text=loaded.text,
            arguments=values,
            options=dataclasses.asdict(options),
            warn=_warnings(stream),
        ) as journal:
            view = _View(on_event, on_line, on_unfinished, Terminal(None if quiet else stream or sys.stderr))
            return _execute(loaded, values, options, journal, view, keys, chosen, engine, found)


def resume(
    folder: str | os.PathLike[str],
    *,
    parallelism: int | None = None,
    cache: bool | None = None,
    on_event: Listener | None = None,
    on_line: LineListener | None = None,
    on_unfinished: LineListener | None = None,
    stream: TextIO | None = None,
    quiet: bool = False,
    grace: float | None = None,
    timeout: float | None = None,
    fail_fast: bool | None = None,
    max_items: int | None = None,
    condition_time: float | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
) -> RunResult:
    """Goes on with a run that has failed, was ended, or was killed; no stage that has succeeded runs again.

    A stage whose inputs are others than before runs again, such as an exit task. What the run was asked for, and the
    directory that its stages run in, are those of before. Processes that a killed runner has left are ended first.

    Args:
        folder: the run's folder: see ``history.find_run``.
        parallelism: as in ``run``; what the run had before, where it is None, as are ``cache``, ``grace``,
            ``timeout``, ``fail_fast``, ``max_items`` and ``condition_time``.
        cache: as in ``run``.
        on_event: as in ``run``; stages that do not run again have their ``StageFinished`` again.
        on_line: as in ``run``.
        on_unfinished: as in ``run``.
        stream: as in ``run``.
        quiet: as in ``run``.
        grace: as in ``run``.
        timeout: as in ``run``, from now on.
        fail_fast: as in ``run``.
        max_items: as in ``run``.
        condition_time: as in ``run``.
        secrets: as in ``run``: they are kept nowhere.
        config_maps: as in ``run``.

    Raises:
        ArgumentError: there is no such run, it still runs, or it has succeeded.
        Others: as ``run``.
    """
    verify_options(None, folder, parallelism, 0 if grace is None else grace, timeout)
    verify_limits(max_items, condition_time)
    path = Path(folder).absolute()
    read_run(path)  # or it is no run's folder
    with Journal.reopen(path, _warnings(stream)) as journal:
        # Not before: another process may have gone on with it meanwhile.
        record = read_run(path)
        if record.end is State.SUCCEEDED:
            raise ArgumentError(f"The run {record.run_id} has succeeded: there is nothing left to do in it.")
        loaded = load_pipeline(record.pipeline_file)
        options = options_of(record)
        chosen = choose_containers(loaded, options.docker, options.mounts, options.named)
        found = check_supported(loaded, chosen)
        given: dict[str, Any] = {
            "parallelism": parallelism,
            "cache": cache,
            "grace": grace,
            "timeout": timeout,
            "fail_fast": fail_fast,
            "max_items": max_items,
            "condition_time": condition_time,
        }
        options = dataclasses.replace(options, **{name: value for name, value in given.items() if value is not None})
        if not os.path.isdir(options.directory):
            raise ArgumentError(
                f"The run {record.run_id} was run in the directory {options.directory!r}, which is gone. Make it "
                "again, or start a new run."
            )
        check_bases(loaded, record.arguments, options.directory, chosen.mounts)
        with _engine(chosen, record.run_id) as engine:
            # Of a runner that was killed.
            kill_marked(record.run_id)
            if engine is not None:
                engine.remove_left()
            view = _View(on_event, on_line, on_unfinished, Terminal(None if quiet else stream or sys.stderr))
            keys = GivenKeys(secrets or {}, config_maps or {})
            values = dict(record.arguments)
            return _execute(loaded, values, options, journal, view, keys, chosen, engine, found, record)


@dataclass(frozen=True)
class _View:
    """Who watches a run."""

    on_event: Listener | None
    on_line: LineListener | None
    on_unfinished: LineListener | None
    terminal: Terminal


def _execute(
    pipeline: Pipeline,
    values: Mapping[str, Any],
    options: Options,
    journal: Journal,
    view: _View,
    given: GivenKeys,
    containers: Containers,
    engine: DockerEngine | None,
    found: Sequence[Finding],
    earlier: RunRecord | None = None,
) -> RunResult:
    """Runs the pipeline in the journal's folder; ``earlier`` is what has happened there before."""
    folder, run_id = journal.folder, journal.folder.name
    containers = dataclasses.replace(containers, has_gpus=engine is not None and engine.has_gpus)
    if has_workspace(pipeline.platform):
        _make_folder(Path(options.workspace), "workspace", "--workspace")

    def listener(event: Event) -> None:
        # First: whoever hears of it finds it in the folder.
        journal.write(event)
        view.terminal.write_lines(messages(event))
        if view.on_event is not None:
            view.on_event(event)

    def show(stage: str, lines: list[str]) -> None:
        view.terminal.write_lines([f"{stage} | {line}" for line in lines])
        if view.on_line is not None:
            for line in lines:
                view.on_line(stage, line)

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(earlier.created if earlier else None))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if options.python_path:
        environ["PYTHONPATH"] = options.python_path
    settings = Settings(
        run_id=run_id,
        folder=folder,
        environ=stage_environment(folder, run_id, environ),
        constants={
            "pipeline_job_name": run_id,
            "pipeline_job_resource_name": run_id,
            "pipeline_job_uuid": run_id,
            "pipeline_job_create_time_utc": created,
            "pipeline_job_schedule_time_utc": created,
            "workspace_path": options.workspace,
        },
        parallelism=options.parallelism,
        grace=options.grace,
        time_limit=options.timeout if options.timeout is not None else time_limit(pipeline.platform),
        fail_fast=options.fail_fast,
        max_items=options.max_items,
        condition_time=options.condition_time,
        directory=Path(options.directory),
        given=given,
        containers=containers,
        engine=engine or Processes(),
    )
    cache = Cache(folder.parent / CACHE_FOLDER) if options.cache else None
    memory = Memory(run_id, earlier.finished if earlier else {}, cache)
    started = time.monotonic()
    with LogPump(show, view.on_unfinished) as pump:
        scheduler = Scheduler(pipeline, settings, pump, listener, memory, earlier.attempts if earlier else {})
        with awaitable_processes(), ending_signals(scheduler.interrupt):
            try:
                not_applied = find_not_applied(pipeline, values, given, containers)
                differs = tuple(map(str, found))
                started_again = earlier is not None
                listener(RunStarted(pipeline.name, run_id, folder, not_applied, values, started_again, differs=differs))
                root = scheduler.run(values)
            except Interrupted as interrupted:
                listener(RunFinished(run_id, State.CANCELED, time.monotonic() - started))
                view.terminal.write_lines([f"Run {run_id} was ended by {signal.Signals(interrupted.number).name}."])
                raise_for_signal(interrupted.number)
            finally:
                # Each stage's end ends what it has started; this finds what came after that.
                kill_marked(run_id)
    if pump.error is not None:
        raise pump.error
    outputs = root.outputs()
    artifacts = {name: value for name, value in outputs.items() if is_artifact(value)}
    result = RunResult(
        pipeline=pipeline.name,
        run_id=run_id,
        state=State.FAILED if root.failed else State.SUCCEEDED,
        folder=folder,
        duration=time.monotonic() - started,
        stages=tuple(_in_order(pipeline, scheduler.results)),
        outputs={name: value for name, value in outputs.items() if name not in artifacts},
        artifacts=artifacts,
        reason=scheduler.reason,
    )
    listener(RunFinished(run_id, result.state, result.duration, result.outputs, result.artifacts, result.reason))
    return result


@contextlib.contextmanager
def _engine(containers: Containers, run_id: str) -> Iterator[DockerEngine | None]:
    """What runs the run's containers, if there are any; none is left in the end."""
    if not containers.names:
        yield None
        return
    engine = DockerEngine(connect(), run_id)
    try:
        yield engine
    finally:
        engine.close()


def _warnings(stream: TextIO | None) -> Callable[[str], None]:
    """Where it is said that a run cannot be recorded: also of a quiet one, since nobody would look for it."""
    return lambda message: Terminal(stream or sys.stderr).write_lines([message])


def _make_folder(folder: Path, argument: str, option: str, *, exist_ok: bool = True) -> None:
    try:
        folder.mkdir(0o700, parents=True, exist_ok=exist_ok)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"The run's folder {str(folder)!r} cannot be made: {reason}. Name another place for it ({argument}, or "
            f"{option} of the command)."
        ) from None


def _in_order(pipeline: Pipeline, stages: list[StageResult]) -> list[StageResult]:
    places = positions(pipeline)
    return sorted(stages, key=lambda stage: (places[without_indices(stage.name)], indices_of(stage.name)))
