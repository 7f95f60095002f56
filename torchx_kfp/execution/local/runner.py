"""``run``, which runs a compiled pipeline locally, with stages as processes or in containers."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.signatures import keywords_of, with_keywords
from torchx_kfp.common.text import shown
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.attempt import RunContext
from torchx_kfp.execution.local.cache import FOLDER as CACHE_FOLDER
from torchx_kfp.execution.local.cache import Cache
from torchx_kfp.execution.local.dag_scheduler import Scheduler
from torchx_kfp.execution.local.executors.container import Containers
from torchx_kfp.execution.local.executors.engine import find_engine
from torchx_kfp.execution.local.executors.process import kill_marked, run_mark, stage_environment
from torchx_kfp.execution.local.forecast import forecast
from torchx_kfp.execution.local.given_keys import Given, GivenKeys, verify_given
from torchx_kfp.execution.local.gpus import Gpus
from torchx_kfp.execution.local.kubernetes import has_workspace
from torchx_kfp.execution.local.output import StageLines
from torchx_kfp.execution.local.own_code import LocalCode
from torchx_kfp.execution.local.preflight import (
    check_bases,
    check_code,
    check_gpus,
    check_supported,
    find_gpus,
    find_not_applied,
)
from torchx_kfp.execution.local.run_options import RunKeywords, RunOptions
from torchx_kfp.execution.model.findings import Finding, refuse
from torchx_kfp.execution.pipeline.artifacts import is_artifact, parameters_of
from torchx_kfp.execution.pipeline.load import PipelineLike, load_pipeline, pipeline_errors
from torchx_kfp.execution.pipeline.python_components import PROJECT
from torchx_kfp.execution.pipeline.walk import (
    PodNames,
    check_run_name,
    known_stages,
    make_run_name,
    outline,
    walk_tasks,
)
from torchx_kfp.execution.runs import OUTPUT_DIR
from torchx_kfp.execution.runs.events import Event, RunFinished, RunStarted
from torchx_kfp.execution.runs.journal import CommandLine, Journal, make_folder
from torchx_kfp.execution.runs.prepared_run import PreparedRun, prepare
from torchx_kfp.execution.runs.result import RunResult, StageResult
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Watch, awaitable_processes, default_watch, ending_signals, raise_for_signal

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


@with_keywords(keywords_of(RunKeywords))
def run(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    tracker_base: str | os.PathLike[str] | None = None,
    workspace: str | os.PathLike[str] | None = None,
    name: str = "",
    output_dir: str | os.PathLike[str] | None = None,
    watch: Watch | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
    env: Collection[str] = (),
    fresh: Collection[str] = (),
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Run a compiled pipeline locally.

    Each stage is a process in the current environment, where ``python`` is the running interpreter, or a container.
    If a stage fails, the stages that depend on it do not run; the others finish. A signal (Ctrl-C) ends all processes.
    Run it again to continue: finished stages come from the cache.

    Args:
        pipeline: the path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        tracker_base: where stages record results: the value of the parameter ``tracker_base``.
        workspace: the folder with the code of the stages. It is stored under the tracker base, once; the parameter
            ``workspace`` gets its URL.
        name: the prefix of the run's id, to find it again. Default: the pipeline's name.
        output_dir: the folder in which the run's folder is created, named by its run id. Default: ``OUTPUT_DIR``.
        watch: gets the events of the run. Default: a table in a notebook, elsewhere ``Lines()``, which writes to
            stderr; ``Watch()`` is silent.
        secrets: keys and values of Kubernetes secrets, by the secret's name, for stages that use them.
        config_maps: keys and values of config maps, likewise.
        env: the names of local variables that stages in containers may get as keys of secrets and config
            maps. Processes have all of its variables.
        fresh: stages, or nested pipelines, to run even if they are cached. Stages that read them also run.
        options: how to run the pipeline, such as ``parallelism=2``: see ``RunOptions``.

    Returns:
        How the run and its stages ended, even if stages failed: see ``RunResult.raise_for_failure``.

    Raises:
        PipelineError: the file is not a compiled pipeline, or it cannot run locally; nothing was started.
        ArgumentError: the arguments do not fit the pipeline's parameters, an option is wrong, or the workspace cannot
            be packed; nothing was started.
        TorchxKfpError: stages must run in containers, and no engine answers; nothing was started.
        TrackerError: a tracker base cannot be written; nothing was started.
        KeyboardInterrupt: SIGINT ended the run.
        SystemExit: SIGTERM or SIGHUP ended the run; the code is 143 or 129.
    """
    output_dir = OUTPUT_DIR if output_dir is None else output_dir
    if not isinstance(output_dir, (str, os.PathLike)):
        raise ArgumentError(f"output_dir must be the path of a folder, but is {shown(output_dir)}.")
    arguments = {} if arguments is None else arguments
    if tracker_base is not None and isinstance(arguments, Mapping):  # prepare refuses anything else
        if TRACKER_BASE_PARAMETER in arguments:
            raise ArgumentError(
                f"The tracker base is given twice: tracker_base={tracker_base!r} and "
                f"{{{TRACKER_BASE_PARAMETER!r}: {arguments[TRACKER_BASE_PARAMETER]!r}}}. Give it once."
            )
        arguments = {**arguments, TRACKER_BASE_PARAMETER: os.fspath(tracker_base)}
    loaded = load_pipeline(pipeline)
    for parameter in options.keys() & loaded.root.parameter_inputs.keys() - RunKeywords.__annotations__.keys():
        raise TypeError(f"{parameter!r} is a parameter of the pipeline. Pass it as arguments={{{parameter!r}: ...}}.")
    prepared = prepare(
        loaded,
        arguments,
        workspace=workspace,
        fresh=fresh,
        directory=os.fspath(options.get("directory") or os.curdir),
        without=[os.fspath(output_dir)],
    )
    given: dict[str, Any] = {"secrets": secrets, "config_maps": config_maps, "env": env}
    return start(prepared, name=name, output_dir=output_dir, watch=watch, **given, **options)


def start(
    prepared: PreparedRun,
    *,
    name: str = "",
    output_dir: str | os.PathLike[str],
    watch: Watch | None = None,
    secrets: Given | None = None,
    config_maps: Given | None = None,
    env: Collection[str] = (),
    say: Callable[[str], object] | None = None,
    run_id: str = "",
    pod_names: PodNames | None = None,
    done: Mapping[str, StageResult] | None = None,
    command: CommandLine | None = None,
    **options: Unpack[RunKeywords],
) -> RunResult:
    """Run a prepared pipeline locally: see ``run``.

    Args:
        say: gets messages about code that is stored.
        run_id: the run's id, if the caller chooses it. An existing folder is used again.
        pod_names: makes the names of pods. By default, they have the names of stages.
        done: the results, by name, of stages that a retry keeps.
        command: the command line that starts the run.
    """
    loaded, values = prepared.pipeline, prepared.values
    chosen, found = _options_of(prepared, options)
    given = _given_keys(prepared, secrets, config_maps, env, chosen)
    stages = list(known_stages(loaded, values))
    check_bases(stages, chosen)
    is_again = bool(run_id)
    run_id = run_id or make_run_name(check_run_name(name) if name else loaded.name)
    folder = Path(output_dir).absolute() / run_id
    watch = watch if watch is not None else default_watch()
    with connected(chosen, run_id) as containers:
        gpus = _find_gpus(prepared, containers)
        prepared.upload(say)
        check_code(stages, chosen)
        if chosen.kfp_workspace and has_workspace(loaded):
            make_folder(Path(chosen.kfp_workspace), "kfp_workspace")
        with Journal(folder, loaded, values, chosen.as_json(), watch.on_warning, command, exist_ok=is_again) as journal:
            context = make_context(folder, chosen, given, containers, gpus)
            context = dataclasses.replace(context, pod_names=pod_names or PodNames())
            prepared.record(run_id, watch.on_warning)
            return _execute(prepared, found, context, journal, watch, done or {})


def dry_run(
    prepared: PreparedRun,
    *,
    name: str = "",
    output_dir: str | os.PathLike[str],
    secrets: Given | None = None,
    config_maps: Given | None = None,
    env: Collection[str] = (),
    **options: Unpack[RunKeywords],
) -> list[tuple[str, str]]:
    """Return the plan for each stage of a prepared run; see ``run`` for the arguments and errors."""
    chosen, _ = _options_of(prepared, options)
    given = _given_keys(prepared, secrets, config_maps, env, chosen)
    run_id = make_run_name(check_run_name(name) if name else prepared.pipeline.name)
    with tempfile.TemporaryDirectory() as place, connected(chosen, run_id) as containers:
        folder = Path(place) / run_id
        folder.mkdir()
        gpus = _find_gpus(prepared, containers)
        context = make_context(folder, chosen, given, containers, gpus, str(Path(output_dir).absolute()))
        cache = _cache_of(prepared, context, Watch()) if chosen.cache else None
        return forecast(prepared.pipeline, prepared.values, context, cache, prepared.fresh)


def _options_of(prepared: PreparedRun, keywords: RunKeywords) -> tuple[RunOptions, list[Finding]]:
    """Return the options of a run, and the findings about its pipeline."""
    chosen = RunOptions.of(keywords)
    # Whoever gives a URL as an argument trusts its server.
    urls = (value for value in prepared.arguments.values() if isinstance(value, str) and "://" in value)
    chosen = dataclasses.replace(chosen, copy_from=(*chosen.copy_from, *urls))
    return chosen, check_supported(prepared.pipeline, prepared.values, in_containers=chosen.docker)


def _find_gpus(prepared: PreparedRun, containers: Containers | None) -> Gpus:
    """Return the GPUs that the stages of a run share.

    Raises:
        PipelineError: a stage asks for more.
    """
    stages = list(known_stages(prepared.pipeline, prepared.values))
    gpus = find_gpus(stages, containers)
    refuse(prepared.pipeline.name, check_gpus(stages, gpus))
    return gpus


def _given_keys(
    prepared: PreparedRun,
    secrets: Given | None,
    config_maps: Given | None,
    env: Collection[str],
    options: RunOptions,
) -> GivenKeys:
    """Return the keys of secrets and config maps that a run has."""
    given = GivenKeys(secrets or {}, config_maps or {}, _named_variables(env), options.docker)
    places = walk_tasks(prepared.pipeline, arguments=prepared.values)
    with pipeline_errors(f"The pipeline {prepared.pipeline.name!r}"):
        verify_given(((place.component, place.scope_inputs) for place in places), given)
    return given


def _named_variables(names: Collection[str]) -> dict[str, str]:
    if isinstance(names, str):
        raise ArgumentError(f"env must be a list of variables such as [{names!r}], but is a text.")
    return {name: os.environ[name] for name in names if name in os.environ}


def make_context(
    folder: Path,
    options: RunOptions,
    given: GivenKeys,
    containers: Containers | None,
    gpus: Gpus,
    runs: str = "",
) -> RunContext:
    """Return the facts shared by all stages of the run in this folder.

    ``runs`` is the folder with the runs whose artifacts the stages take, if different.
    """
    run_id, mark = folder.name, run_mark(folder)
    if containers is not None:
        containers.mark = mark
        if containers.engine.remaps_users:
            folder.chmod(0o711)
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    environ = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", PROJECT)}
    if options.python_path:
        environ["PYTHONPATH"] = options.python_path
    return RunContext(
        run_id=run_id,
        folder=folder,
        environ=stage_environment(folder, mark, environ),
        constants={
            "pipeline_job_name": run_id,
            "pipeline_job_resource_name": run_id,
            "pipeline_job_uuid": run_id,
            "pipeline_job_create_time_utc": moment,
            "pipeline_job_schedule_time_utc": moment,
            "workspace_path": options.workspace_of(folder),
        },
        options=options,
        given=given,
        containers=containers,
        gpus=gpus,
        runs=runs or str(folder.parent),
    )


def _execute(
    prepared: PreparedRun,
    findings: Sequence[Finding],
    context: RunContext,
    journal: Journal,
    watch: Watch,
    done: Mapping[str, StageResult],
) -> RunResult:
    """Run the pipeline in the journal's folder."""
    pipeline, arguments = prepared.pipeline, prepared.values
    run_id, folder = context.run_id, context.folder
    if has_workspace(pipeline):
        Path(context.constants["workspace_path"]).mkdir(0o700, exist_ok=True)
    state = RunState(outline(pipeline))

    def listener(event: Event) -> None:
        # Record the event first: whoever gets it will find it in the folder.
        journal.write(event)
        state.on_event(event)
        watch.on_event(event)

    options = context.options
    cache = _cache_of(prepared, context, watch) if options.cache else None
    not_applied = find_not_applied(pipeline, arguments, context.given, options.mounts, context.gpus)
    started = time.monotonic()
    lines = StageLines(watch)
    scheduler = Scheduler(pipeline, context, lines, listener, done, cache, prepared.fresh)
    with awaitable_processes(), ending_signals(scheduler.interrupt):
        try:
            listener(
                RunStarted(
                    pipeline=pipeline.name,
                    run_id=run_id,
                    folder=folder,
                    not_applied=not_applied,
                    arguments=arguments,
                    differs=tuple(map(str, findings)),
                )
            )
            root = scheduler.run(arguments)
            if (ended := scheduler.signal) is not None:
                listener(RunFinished(run_id, State.CANCELED, time.monotonic() - started, reason=ended.name))
                raise_for_signal(ended)
        finally:
            # The end of a stage ends the processes that it started; this finds any that were started later.
            kill_marked(run_mark(folder))
    outputs = root.outputs()
    artifacts = {name: value for name, value in outputs.items() if is_artifact(value)}
    end, seconds = State.FAILED if root.failed else State.SUCCEEDED, time.monotonic() - started
    listener(RunFinished(run_id, end, seconds, parameters_of(outputs), artifacts, scheduler.reason))
    if lines.error is not None:
        raise lines.error
    return state.result()


def _cache_of(prepared: PreparedRun, context: RunContext, watch: Watch) -> Cache:
    """Return the cache in the folder of runs. Files written by runs are not code."""
    runs = Path(context.runs)
    bases = [prepared.values.get(TRACKER_BASE_PARAMETER), *prepared.bases]
    folders = [os.path.join(context.options.directory, base) for base in bases if isinstance(base, str)]
    workspaces = {packed.url: packed.archive for packed in prepared.workspaces.values()}
    code = LocalCode(context.options.directory, [str(runs), context.constants["workspace_path"], *folders], workspaces)
    name = prepared.pipeline.name
    return Cache(runs / CACHE_FOLDER, context.run_id, name, code, context.options.directory, watch.on_warning)


@contextlib.contextmanager
def connected(options: RunOptions, run_id: str) -> Iterator[Containers | None]:
    """Connect to the engine if the run has containers, and remove them at the end."""
    if not options.docker:
        yield None
        return
    with contextlib.closing(Containers(find_engine(), run_id, options.mounts)) as containers:
        yield containers
