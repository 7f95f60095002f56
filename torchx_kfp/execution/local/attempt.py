"""One attempt at a stage, from its command and environment to its outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.common.text import clean_line, listed
from torchx_kfp.contract.command import set_aside
from torchx_kfp.contract.protocol import IMAGE, PIPELINE_RUN, WORKSPACES, is_workspace
from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.errors import TrackerError, explain
from torchx_kfp.execution.local.dag_run import TaskRun
from torchx_kfp.execution.local.executors.container import Containers
from torchx_kfp.execution.local.executors.executor import (
    MADE,
    TAKEN,
    AttemptError,
    AttemptPlan,
    RunningStage,
)
from torchx_kfp.execution.local.executors.mounts import open_to_all
from torchx_kfp.execution.local.executors.process import RUN_MARK, StageProcess, stage_mark
from torchx_kfp.execution.local.given_keys import GivenKeys, given_files, secret_variables
from torchx_kfp.execution.local.gpus import VISIBLE, Gpus, asked
from torchx_kfp.execution.local.kubernetes import field_values
from torchx_kfp.execution.local.output import Log, StageLines
from torchx_kfp.execution.local.packages import activate, provide_environment
from torchx_kfp.execution.local.run_options import RunOptions
from torchx_kfp.execution.local.transfer import (
    copy_here,
    read_execution_id,
    read_outputs,
    registered_files,
    with_copies,
    written_files,
)
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.endpoints import S3_ENDPOINT, own_endpoints
from torchx_kfp.execution.pipeline.inputs import inputs_of_stage, with_defaults
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command, resolve_pod_text
from torchx_kfp.execution.pipeline.python_components import RUNTIME_MARK, names_executor, parse_command
from torchx_kfp.execution.pipeline.walk import PodNames
from torchx_kfp.execution.runs.result import StageResult, last_lines
from torchx_kfp.execution.runs.watch import ending_signals
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, absolute_base


@dataclass(frozen=True)
class RunContext:
    """The facts shared by all stages of a run; ``constants`` are the values of placeholders."""

    run_id: str
    folder: Path
    environ: Mapping[str, str]
    constants: Mapping[str, str]
    options: RunOptions
    given: GivenKeys = field(default_factory=GivenKeys)
    #: Runs stages in containers; None if they are processes.
    containers: Containers | None = None
    #: The GPUs that the stages of the run share.
    gpus: Gpus = field(default_factory=Gpus)
    #: The folder of runs: stages take artifacts from it.
    runs: str = ""
    pod_names: PodNames = field(default_factory=PodNames)


def plan_attempt(run: TaskRun, context: RunContext, pod_name: str) -> AttemptPlan:
    """Plan an attempt at a stage. Only folders for the results of a container are created.

    Raises:
        ValueError: an input cannot be passed to the stage, or it needs something that containers lack.
    """
    component, container = run.component, run.component.container
    assert container is not None
    folder = context.folder / pod_name
    made = folder / MADE
    inputs = inputs_of_stage(run.task, component, run.inputs)
    takes_all = names_executor(container.words)
    values, copies = with_copies(inputs, container.words, folder / TAKEN, runs=context.runs, takes_all=takes_all)
    placeholders = PlaceholderValues(
        parameters=values,
        workspace=context.constants["workspace_path"],
        unset=frozenset((*component.parameter_inputs, *component.artifact_inputs)) - frozenset(values),
        output_files={name: str(made / "outputs" / name) for name in component.parameter_outputs},
        output_artifacts={
            name: Artifact(name, kind, str(made / "artifacts" / name))
            for name, kind in component.artifact_outputs.items()
        },
        executor_output=str(made / "executor_output.json"),
    )
    image = resolve_pod_text(container.image, with_defaults(component, run.inputs))
    if "{{$" in image:
        raise ValueError(f"has the image {image!r}, in which KFP does not fill in the placeholder")
    command, args = resolve_command(container.command, placeholders), resolve_command(container.args, placeholders)
    in_container = context.containers is not None
    endpoints = own_endpoints(context.environ, in_container=in_container)
    if endpoints:
        words = set_aside([*command, *args], S3_ENDPOINT)
        command, args = words[: len(command)], words[len(command) :]
    python = parse_command([*command, *args])
    asks_gpus = asked(component, [*command, *args], placeholders.parameters) if context.gpus.known else {}
    if too_many := context.gpus.too_many(asks_gpus):
        raise ValueError(too_many)
    secrets = secret_variables(component, context.given, run.dag.inputs)
    variables = {**dict(container.env), **secrets}
    if endpoints:
        variables = {name: value for name, value in variables.items() if not S3_ENDPOINT.fullmatch(name)}
    programs: dict[str, str] = {}
    uid = str(uuid.uuid4())
    fields = field_values(component, context.run_id, pod_name, uid)
    pod = {**variables, **fields, PIPELINE_RUN: context.run_id, **context.pod_names.variables(pod_name, uid)}
    if in_container:
        environ = {IMAGE: image, **endpoints, **pod}
    else:
        mark = stage_mark(context.environ, pod_name)
        marks = {RUN_MARK: mark, **({} if python is None else {RUNTIME_MARK: "true"})}
        shared = context.environ
        if any(map(is_workspace, [*command, *args])):
            shared = _without_project(shared, context.options)
        environ = {**shared, **pod, **marks, WORKSPACES: str(folder)}
        if asks_gpus:
            environ.pop(VISIBLE, None)  # it gets its own, which are no difference to the cache
        if python is not None:
            # Not in a temporary folder: the path in a traceback must exist, also for debuggers.
            programs[str(folder / "program" / "ephemeral_component.py")] = python.source
    plan = AttemptPlan(
        stage=run.name,
        task=run.task.name,
        pod_name=pod_name,
        folder=folder,
        directory=Path(context.options.directory),
        component=component,
        inputs=inputs,
        placeholders=placeholders,
        image=image,
        command=command,
        args=args,
        variables=variables,
        secrets=frozenset(secrets),
        environ=environ,
        copies=copies,
        sources=_sources(context),
        python=python,
        programs=programs,
        asks_gpus=asks_gpus,
    )
    if context.containers is None:
        return plan
    files = given_files(component, context.given, run.dag.inputs)
    return dataclasses.replace(plan, container=context.containers.place(plan, files))


def _sources(context: RunContext) -> list[str]:
    """Return the locations from which files may be copied for a stage. A process has the user's own permissions."""
    options = context.options
    shown = [context.runs, *(mount.source for mount in options.mounts)]
    return [*options.copy_from, *(shown if options.docker else [os.sep])]


def _without_project(environ: Mapping[str, str], options: RunOptions) -> dict[str, str]:
    """Return the variables of a stage with a workspace, which sees no other modules, as on a cluster."""
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    left = os.pathsep.join(folder for folder in folders if folder != options.project)
    return {**environ, "PYTHONPATH": left}


class AttemptThread(threading.Thread):
    """An attempt to run a stage, in a thread. Other threads can end it.

    ``run`` performs all steps: prepare the folder and inputs, install packages, run the process, and collect outputs.
    """

    def __init__(
        self,
        plan: AttemptPlan,
        containers: Containers | None,
        lines: StageLines,
        on_message: Callable[[StageResult | ReplicaCount], object],
    ) -> None:
        """Prepare the attempt.

        Args:
            plan: its plan.
            containers: the runner of containers, if it needs one.
            lines: shows its output.
            on_message: is called from its threads with its result, and with each number of running replicas.
        """
        super().__init__(name=plan.pod_name, daemon=True)
        self.plan = plan
        self._containers = containers
        self._lines = lines
        self._on_message = on_message
        self._lock = threading.Lock()
        self._running: RunningStage | None = None
        #: Whether it was asked to end, and the signals that came while it was being started.
        self._is_ending = False
        self._early: list[int] = []
        #: When it began and ended, on the monotonic clock, and the files that it has written meanwhile, by the paths
        #: that it has registered.
        self.began = self.ended = time.monotonic()
        self.written: Mapping[str, Sequence[str]] = {}

    def overlaps(self, other: AttemptThread) -> bool:
        """Return whether it overlapped with another, finished attempt."""
        return self.began < other.ended

    def terminate(self, grace: float) -> None:
        """Ask the stage to stop within ``grace`` seconds, or prevent its start."""
        with self._lock:
            self._is_ending = True
            if self._running is not None:
                self._running.terminate(grace)

    def kill(self) -> None:
        """Kill the stage, or prevent its start."""
        with self._lock:
            self._is_ending = True
            if self._running is not None:
                self._running.kill()

    def release_gpus(self) -> None:
        """Release its GPUs."""
        if self.plan.gpus is not None:
            self.plan.gpus.release()

    def run(self) -> None:
        """Run the attempt, and report its result."""
        self.began, since = time.monotonic(), time.time()
        try:
            result = self._with_records(self._result())
            self.written = written_files(self.plan, since)
        except OSError as error:
            result = self.plan.result(reason=f"could not be run: {explain(error)}")
        except Exception as error:  # an exception would end the thread, and the run would hang
            result = self.plan.result(reason=f"could not be run: {type(error).__name__}: {error}")
        finally:
            self.release_gpus()
        self.ended = time.monotonic()
        self._on_message(result)

    def _result(self) -> StageResult:
        """Run the attempt, and return its result without the recorded results."""
        try:
            self._make_folders()
            self._copy_inputs()
            result = self._execute(dataclasses.replace(self.plan, environ=self._environ()))
            return result if result.reason else self._with_outputs(result)
        except AttemptError as error:
            return self.plan.result(error.exit_code, str(error))

    def _make_folders(self) -> None:
        plan, placeholders = self.plan, self.plan.placeholders
        # A runner that was killed before it recorded this attempt may have left its folder, and outputs in it. If some
        # files cannot be removed, the others are.
        shutil.rmtree(plan.folder, ignore_errors=True)
        files = [
            *placeholders.output_files.values(),
            *(artifact.path for artifact in placeholders.output_artifacts.values()),
        ]
        for path in (str(plan.log_file), *files, *plan.programs):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        for path, text in plan.programs.items():
            Path(path).write_text(text, encoding="utf-8", newline="")
            os.chmod(path, 0o755)  # whatever the umask: the image may have another user

    def _copy_inputs(self) -> None:
        for url, path in self.plan.copies.items():
            if self._is_ending:
                return
            try:
                copy_here(url, path, self.plan.sources)
            except AttemptError as error:
                if self.plan.python is None:
                    raise
                # A Python component may need only the URI; if it opens the file, it fails by itself.
                self._say(f"This stage {error}")
        if self.plan.container is not None:
            open_to_all(self.plan.taken)

    def _environ(self) -> Mapping[str, str]:
        """Install the packages that the stage needs, and return its environment variables."""
        plan = self.plan
        if plan.python is None or plan.container is not None:
            return plan.environ

        def run_command(command: Sequence[str], environ: Mapping[str, str]) -> int:
            own = dataclasses.replace(plan, command=command, args=(), python=None, environ=environ, replaces=None)
            return self._execute(own).exit_code or 0

        folder = provide_environment(plan.python.installs, plan.environ, run_command, self._verify_wanted)
        return plan.environ if folder is None else activate(folder, plan.environ)

    def _execute(self, plan: AttemptPlan) -> StageResult:
        """Run the plan's command, write its output to the log, and return its exit code and failure reason."""
        prepared: contextlib.AbstractContextManager[Callable[[], RunningStage]]
        if plan.container is None:
            prepared = contextlib.nullcontext(lambda: StageProcess(plan))
        else:
            assert self._containers is not None
            prepared = self._containers.prepare(plan, self._verify_wanted, self._say)
        # In a replay, this thread receives the signals; the scheduler's attempts run in other threads.
        with (
            prepared as start,
            contextlib.closing(Log(plan.log_file, self._show)) as log,
            ending_signals(self._pass_on),
        ):
            with self._lock:
                self._verify_wanted()
                self._running = running = start()
            try:
                while self._early:
                    self._pass_on(self._early.pop(0))
                code = running.wait(log)
            finally:
                with self._lock:
                    self._running = None
                os.close(running.pipe)
        if code == 0:
            return plan.result(code)
        reason = running.describe(code, "".join(last_lines(plan.log_file, 1)))
        return plan.result(code, f"{reason} ({log.problem})" if log.problem else reason)

    def _pass_on(self, number: int) -> None:
        if self._running is None:
            self._early.append(number)
        else:
            self._running.send(signal.Signals(number))

    def _verify_wanted(self) -> None:
        """Raise AttemptError if it was ended before its start."""
        if self._is_ending:
            raise AttemptError("was not started: the run was ended")

    def _say(self, line: str) -> None:
        """Write a line from the runner to the log."""
        with self.plan.log_file.open("a", encoding="utf-8") as log:
            log.write(f"{line}\n")
        self._show([clean_line(line.encode())], "")

    def _show(self, lines: Sequence[str], unfinished: str) -> None:
        for count in filter(None, map(ReplicaCount.parse, lines if self.plan.component.decoded.replica_roles else ())):
            self._on_message(count)
        self._lines.show(self.plan.stage, lines, unfinished)

    def _with_outputs(self, result: StageResult) -> StageResult:
        try:
            outputs, artifacts, lost = read_outputs(self.plan)
        except ValueError as error:
            return self.plan.result(result.exit_code, str(error))
        if lost:
            self._say(
                f"Lost, locally as on KFP: {listed(lost)}, next to an artifact's path. Write to the path itself, or "
                "make it a folder and write into that."
            )
        return dataclasses.replace(result, outputs=outputs, artifacts=artifacts)

    def _with_records(self, result: StageResult) -> StageResult:
        """Return the result with the results that the stage recorded, even if it failed."""
        plan = self.plan
        execution_id, base = read_execution_id(plan), plan.tracker_base
        if execution_id is None or base is None:
            return result
        result = dataclasses.replace(result, execution_id=execution_id)
        with contextlib.suppress(TrackerError):  # results are only for display: the stage has ended
            # The directory of the runner may differ from that of the stage.
            tracker = RecordTracker(absolute_base(base, plan.directory), patience=SHORT_PATIENCE)
            result = dataclasses.replace(result, results=tracker.get(execution_id))
            if not result.exit_code:
                artifacts = tracker.record(execution_id, "artifacts").artifacts
                result = dataclasses.replace(result, files=registered_files(plan, artifacts))
        return result
