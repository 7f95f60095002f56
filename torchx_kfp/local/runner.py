"""``run`` and ``resume``, which run a compiled pipeline on this machine, with stages as processes or in containers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.attempt.logs import LogPump
from torchx_kfp.local.attempt.prepare import RunContext
from torchx_kfp.local.bases import check_bases
from torchx_kfp.local.cache.entries import FOLDER as CACHE_FOLDER
from torchx_kfp.local.cache.entries import Cache, Memory
from torchx_kfp.local.check import check_arguments, check_supported, find_not_applied
from torchx_kfp.local.engines.containers import Containers, choose_containers, verify_private
from torchx_kfp.local.engines.docker import connect
from torchx_kfp.local.engines.docker_stage import DockerEngine
from torchx_kfp.local.engines.environment import stage_environment
from torchx_kfp.local.engines.mounts import named_paths
from torchx_kfp.local.engines.process import Processes, kill_marked
from torchx_kfp.local.options import ResumeKeywords, RunKeywords, RunOptions
from torchx_kfp.local.platform.secrets import Given, GivenKeys, verify_given
from torchx_kfp.local.platform.settings import has_workspace
from torchx_kfp.local.scheduler import Interrupted, Scheduler
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.artifacts import is_artifact
from torchx_kfp.pipeline.findings import Finding
from torchx_kfp.pipeline.load import PipelineLike, load_pipeline, reading
from torchx_kfp.pipeline.names import make_run_name
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs import OUTPUT_DIR
from torchx_kfp.runs.events import Event, RunFinished, RunStarted
from torchx_kfp.runs.history import read_run
from torchx_kfp.runs.journal import Journal
from torchx_kfp.runs.record import RunRecord
from torchx_kfp.runs.result import RunResult
from torchx_kfp.runs.signals import awaitable_processes, ending_signals, raise_for_signal
from torchx_kfp.runs.state import RunState, outline
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.runs.watch import Lines, Watch
from torchx_kfp.text import shown

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


def run(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    output_dir: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Run a compiled pipeline on this machine.

    Each stage is a process in the current environment, where ``python`` is the running interpreter, or a container.
    If a stage fails, the stages that depend on it do not run; the others finish. A signal (Ctrl-C) ends all processes.
    Everything that happens is recorded in the run's folder at once, and ``resume`` goes on from there.

    Args:
        pipeline: the path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        output_dir: the folder in which the run's folder is created, named by its run id. Default: ``OUTPUT_DIR``.
        watch: gets the events of the run. Default: ``Lines()``, which writes to stderr; ``Watch()`` is silent.
        secrets: keys and values of Kubernetes secrets, by the secret's name, for stages that use them.
        config_maps: keys and values of config maps, likewise.
        options: how to run the pipeline, such as ``parallelism=2``: see ``RunOptions``.

    Returns:
        How the run and its stages ended, even if stages failed: see ``RunResult.raise_for_failure``.

    Raises:
        PipelineFileError: the file is not a compiled pipeline.
        UnsupportedPipelineError: the pipeline cannot run on this machine; nothing was started.
        ArgumentError: the arguments do not fit the pipeline's parameters, or an option is wrong; nothing was started.
        ContainerEngineError: stages must run in containers, and no engine answers; nothing was started.
        TrackerError: a tracker base cannot be written; nothing was started.
        KeyboardInterrupt: SIGINT ended the run.
        SystemExit: SIGTERM or SIGHUP ended the run; the code is 143 or 129.
    """
    _verify(arguments, output_dir)
    chosen = RunOptions.of(options, named_paths(arguments or {}))
    loaded = load_pipeline(pipeline)
    containers = choose_containers(loaded, chosen.docker, chosen.mounts, chosen.named)
    found = check_supported(loaded, containers)
    given = GivenKeys(secrets or {}, config_maps or {})
    with reading(f"The pipeline {loaded.name!r}"):
        values = complete_arguments(loaded, arguments or {})
        verify_given(loaded.components.values(), given, values, os.environ)
    found += check_arguments(values)
    check_bases(loaded, values, chosen.directory, containers)
    run_id = make_run_name(loaded.name)
    folder = Path(output_dir if output_dir is not None else OUTPUT_DIR).absolute() / run_id
    verify_private(containers, str(folder.parent), chosen.workspace_of(folder) if has_workspace(loaded) else None)
    watch = watch if watch is not None else Lines()
    with _engine(containers, run_id) as engine:
        _make_folder(folder, "output_dir", "--output-dir", exist_ok=False)
        if engine is not None and engine.remaps_users:
            folder.chmod(0o711)
        with Journal.create(
            folder,
            run_id=run_id,
            pipeline=loaded.name,
            text=loaded.text,
            arguments=values,
            options=chosen.as_json(),
            warn=watch.on_warning,
        ) as journal:
            asked = _Request(loaded, values, chosen, given, containers, found)
            return _execute(asked, journal, watch, engine)


def resume(
    folder: str | os.PathLike[str],
    *,
    watch: Watch | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
    **options: Unpack[ResumeKeywords],
) -> RunResult:
    """Go on with a run that failed, was ended, or was killed; stages that have succeeded do not run again.

    The exception is a stage whose inputs have changed since, such as an exit task. The run keeps its arguments and
    options, and stages run in the same directory. Processes that a killed runner has left are ended first.

    Args:
        folder: the run's folder: see ``history.find_run``.
        watch: as in ``run``; it also gets the events of stages that do not run again.
        secrets: as in ``run``: they are not stored.
        config_maps: as in ``run``.
        options: options of ``run`` to change: see ``ResumeKeywords``. A ``timeout`` counts from now on.

    Raises:
        ArgumentError: there is no such run, it still runs, or it has succeeded.
        Others: as ``run``.
    """
    path = Path(folder).absolute()
    read_run(path)  # raises if it is not a run's folder
    watch = watch if watch is not None else Lines()
    with Journal.reopen(path, watch.on_warning) as journal:
        # Read it again: another process may have gone on with the run before it was locked.
        record = read_run(path)
        if record.state is State.SUCCEEDED:
            raise ArgumentError(f"The run {record.run_id} has succeeded: there is nothing left to do in it.")
        loaded = record.load()
        chosen = RunOptions.of_record(record).resumed(options)
        containers = choose_containers(loaded, chosen.docker, chosen.mounts, chosen.named)
        found = check_supported(loaded, containers)
        if not os.path.isdir(chosen.directory):
            raise ArgumentError(
                f"The run {record.run_id} was run in the directory {chosen.directory!r}, which is gone. Create it "
                "again, or start a new run."
            )
        check_bases(loaded, record.arguments, chosen.directory, containers)
        with _engine(containers, record.run_id) as engine:
            # A runner that was killed may have left processes.
            kill_marked(record.run_id)
            if engine is not None:
                engine.remove_left()
            given = GivenKeys(secrets or {}, config_maps or {})
            asked = _Request(loaded, dict(record.arguments), chosen, given, containers, found)
            return _execute(asked, journal, watch, engine, record)


def _verify(arguments: Any, output_dir: Any) -> None:
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ArgumentError(
            f"arguments must be a dict of names and values, such as {{'lr': 0.1}}, but is {shown(arguments)}."
        )
    if output_dir is not None and not isinstance(output_dir, (str, os.PathLike)):
        raise ArgumentError(f"output_dir must be the path of a folder, but is {shown(output_dir)}.")


@dataclass(frozen=True)
class _Request:
    """A request to run a pipeline; ``values`` are the values of all its parameters."""

    pipeline: Pipeline
    values: Mapping[str, Any]
    options: RunOptions
    given: GivenKeys
    containers: Containers
    findings: Sequence[Finding]


def _execute(
    asked: _Request, journal: Journal, watch: Watch, engine: DockerEngine | None, earlier: RunRecord | None = None
) -> RunResult:
    """Run the pipeline in the journal's folder; ``earlier`` is the run so far if it is resumed."""
    pipeline, options, folder, run_id = asked.pipeline, asked.options, journal.folder, journal.folder.name
    containers = dataclasses.replace(asked.containers, has_gpus=engine is not None and engine.has_gpus)
    workspace = options.workspace_of(folder)
    if has_workspace(pipeline):
        _make_folder(Path(workspace), "workspace", "--workspace")

    state = RunState(outline(pipeline))
    for event in earlier.events if earlier else ():
        state.on_event(event)

    def listener(event: Event) -> None:
        # Record the event first: whoever is told of it will find it in the folder.
        journal.write(event)
        state.on_event(event)
        watch.on_event(event)

    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(earlier.created if earlier else None))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if options.python_path:
        environ["PYTHONPATH"] = options.python_path
    context = RunContext(
        run_id=run_id,
        folder=folder,
        environ=stage_environment(folder, run_id, environ),
        constants={
            "pipeline_job_name": run_id,
            "pipeline_job_resource_name": run_id,
            "pipeline_job_uuid": run_id,
            "pipeline_job_create_time_utc": created,
            "pipeline_job_schedule_time_utc": created,
            "workspace_path": workspace,
        },
        options=options,
        given=asked.given,
        containers=containers,
        engine=engine or Processes(),
    )
    cache = Cache(folder.parent / CACHE_FOLDER) if options.cache else None
    memory = Memory(run_id, earlier.run.ends if earlier else {}, cache, options.directory)
    started = time.monotonic()
    with LogPump(watch) as pump:
        scheduler = Scheduler(pipeline, context, pump, listener, memory, earlier.run.attempts if earlier else {})
        with awaitable_processes(), ending_signals(scheduler.interrupt):
            try:
                listener(
                    RunStarted(
                        pipeline=pipeline.name,
                        run_id=run_id,
                        folder=folder,
                        not_applied=find_not_applied(pipeline, asked.values, asked.given, containers),
                        arguments=asked.values,
                        resumed=earlier is not None,
                        differs=tuple(map(str, asked.findings)),
                    )
                )
                root = scheduler.run(asked.values)
            except Interrupted as interrupted:
                name = signal.Signals(interrupted.number).name
                listener(RunFinished(run_id, State.CANCELED, time.monotonic() - started, reason=name))
                raise_for_signal(interrupted.number)
            finally:
                # The end of a stage ends the processes that it started; this finds any that were started later.
                kill_marked(run_id)
    if pump.error is not None:
        raise pump.error
    outputs = root.outputs()
    artifacts = {name: value for name, value in outputs.items() if is_artifact(value)}
    listener(
        RunFinished(
            run_id,
            State.FAILED if root.failed else State.SUCCEEDED,
            time.monotonic() - started,
            {name: value for name, value in outputs.items() if name not in artifacts},
            artifacts,
            scheduler.reason,
        )
    )
    return state.result()


@contextlib.contextmanager
def _engine(containers: Containers, run_id: str) -> Iterator[DockerEngine | None]:
    """Connect to the engine if the run has containers, and remove them at the end."""
    if not containers.names:
        yield None
        return
    engine = DockerEngine(connect(), run_id)
    try:
        yield engine
    finally:
        engine.close()


def _make_folder(folder: Path, argument: str, option: str, *, exist_ok: bool = True) -> None:
    try:
        folder.mkdir(0o700, parents=True, exist_ok=exist_ok)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ArgumentError(
            f"The run's folder {str(folder)!r} cannot be created: {reason}. Name another place for it ({argument}, or "
            f"{option} on the command line)."
        ) from None
