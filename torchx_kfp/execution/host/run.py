"""A run on a KFP host, polled while it is in progress; the counterpart of ``runs.history.RunReader``."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Literal
from urllib.parse import quote

from torchx_kfp.common.text import counted, printable, shorten
from torchx_kfp.contract.carried.cluster_stage import object_name
from torchx_kfp.errors import (
    ArgumentError,
    HostError,
    HostNotFoundError,
    HostRefusedError,
    HostUnreachableError,
    PipelineError,
    UnknownRunError,
)
from torchx_kfp.execution.host.answers import as_object, refuse_run_id
from torchx_kfp.execution.host.connection import V1BETA1, V2BETA1, Connection
from torchx_kfp.execution.host.nodes import Nodes, PodSpec, manifest_of, read_manifest
from torchx_kfp.execution.host.outcomes import ends_with_launcher, explained
from torchx_kfp.execution.host.pod_logs import StageLogs
from torchx_kfp.execution.host.results import ResultReader, cached_execution_ids
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.host.states import run_state, seconds
from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import outline, without_indices
from torchx_kfp.execution.report import ReadableRun
from torchx_kfp.execution.runs.events import Event, RunFinished, StageFinished, StageStarted
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.source import Invocation, choose_stage, not_started, place_of
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.execution.runs.watch import Terminal

#: The most failed stages whose logs are searched for a reason.
_MOST_EXPLAINED = 20
#: The least and the most seconds between two polls; while nothing changes, the interval grows by the factor.
SHORTEST, LONGEST, FACTOR = 1.0, 10.0, 1.4
#: The seconds for which errors of the host and rejected credentials are retried: its database may restart, and a token
#: may be renewed late.
PATIENCE = 60.0


class HostRun(ReadableRun):
    """Reads a run from a KFP host. Its log files are in a folder that is removed at the end of the process.

    ``wait`` retries an unresponsive host indefinitely. Errors, rejected credentials and wrong settings, such
    as a token file that is being rewritten, are retried for some time. A host that has never answered is not retried.
    """

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        *,
        say: Callable[[str], object] | None = None,
        reads: Literal["all", "execution ids", "none"] = "all",
        named_bases: Collection[str] = (),
        raw_logs: bool = False,
    ) -> None:
        """Create a reader; nothing is requested yet.

        Args:
            connection: the host.
            run_id: the run's id: see ``Host.find``.
            say: receives messages about a host that does not answer and logs that cannot be read. Default: print them
                on stderr.
            reads: what to read of stages: all, or only the ids of executions, or nothing.
            named_bases: the tracker bases that the user has named for this run, besides the setting: see
                ``RunRecord.why_not_read``.
            raw_logs: keep the lines of KFP's launcher in logs.
        """
        self.run_id = run_id
        self.link = connection.link(run_id)
        self._path = f"{V2BETA1}/runs/{quote(run_id, safe='')}"
        self._connection = connection
        self._say = say if say is not None else lambda sentence: Terminal(sys.stderr).write_lines([sentence])
        self._named_bases = {connection.settings.tracker_base, *named_bases}
        self._reads = reads
        self._results = ResultReader(self._named_bases, execution_ids_only=reads == "execution ids")
        self._logs = StageLogs(connection, run_id, self._say, raw=raw_logs)
        #: The run's pipeline, and a sentence about why it is unknown.
        self._pipeline: RunPipeline | None = None
        self._problem = ""
        #: The nodes of the last manifest, and a sentence about why there are none.
        self._nodes: Nodes | None = None
        self._manifest = self._no_nodes = ""
        #: The relevant parts of the last answers, and the run according to them.
        self._facts: tuple[Any, ...] = ()
        self._snapshot = Snapshot()
        self._events: list[Event] = []
        self._run = RunState()
        self._last: RunRecord | None = None
        #: Whether the last record lacks events.
        self._has_news = False
        #: The seconds before the last poll.
        self._wait = SHORTEST
        #: The time since which the host does not answer.
        self._lost_at: float | None = None
        #: The last answer of the host, as JSON of v2beta1.
        self.answer: Mapping[str, Any] = {}
        #: The starts of all attempts, by stage.
        self._started: dict[str, list[StageStarted]] = {}
        #: The remaining number of failures that are looked up in logs.
        self._most_explained = _MOST_EXPLAINED

    def __repr__(self) -> str:
        return f"<HostRun {self.run_id} on {self._connection.name}>"

    def read(self) -> RunRecord:
        """Poll the host once and return the run; if nothing has changed, the same object as before.

        Raises:
            UnknownRunError: the host has no such run.
            HostNotFoundError: the run has since been deleted.
            HostError: the host does not answer, or reports an error.
        """
        self.answer = run = self._ask()
        self._load_pipeline(run)
        self._read_nodes()
        self._has_news |= bool(self._take_events(run))
        if self._has_news:
            self._complete_cached()
        is_running = not run_state(run).is_over
        problems = tuple(filter(None, (self._problem, self._no_nodes, self._unknown_pods(), *self._results.problems)))
        last = self._last
        if last is None or self._has_news or is_running != last.is_running or problems != last.corrupt:
            self._last = self._record(run, is_running, problems)
            self._has_news = False
        assert self._last is not None
        return self._last

    def _look(self) -> RunRecord:
        """Return the run like ``read``, or the last record while the host does not answer."""
        try:
            record = self.read()
        except HostError as error:
            if self._last is None or isinstance(error, HostNotFoundError | HostRefusedError):
                raise
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at = now
                self._say(f"{self._connection.name} does not answer: trying again. ({error})")
            elif not isinstance(error, HostUnreachableError) and now - self._lost_at >= PATIENCE:
                raise
            return self._last
        if self._lost_at is not None:
            self._say(f"{self._connection.name} answers again.")
            self._lost_at = None
        return record

    def _pause(self, *, changed: bool, longest: float | None) -> None:
        self._wait = SHORTEST if changed else min(self._wait * FACTOR, LONGEST)
        time.sleep(self._wait if longest is None else min(self._wait, longest))

    def fetch(self, stages: Collection[str]) -> bool:
        """Update the log files of these stages; return False if one cannot be read, and print the reason once."""
        record = self._last or self.read()
        wanted, has_all = [], True
        for name in stages:
            attempts = record.run.attempts_at(name)
            # A retry of the run reuses the name of the failed pod, whose log is lost.
            for started in {started.pod_name: started for started in attempts}.values():
                is_over = started is not attempts[-1] or record.run.has_ended(name) or not record.is_running
                if started.log_file is None:  # its pod is unknown
                    has_all = False
                else:
                    wanted.append((started.log_file, is_over))
        return self._logs.fetch_all(wanted) and has_all

    def invocation(self, stage: str | None = None) -> Invocation:
        """Return the invocation of a stage; see ``RunSource.invocation``."""
        record = self.read()
        if self._no_nodes:
            raise self._unknown_inputs(stage or "STAGE", self._no_nodes)
        found = choose_stage(record, stage)
        end, patch = record.run.end_of(found), self._snapshot.patches.get(found)
        if patch is None and end is not None and (end.cached_from or end.state in (State.SKIPPED, State.NOT_RUN)):
            raise not_started(record, found)
        if patch is None:
            is_cached = end is not None and end.state is State.CACHED
            why = "KFP took its outputs from its cache" if is_cached else "KFP has not created a pod for it yet"
            raise self._unknown_inputs(found, why)
        try:
            spec = PodSpec.parse(patch)
        except ValueError as error:
            raise self._unknown_inputs(found, str(error)) from None
        pipeline = record.load()
        place = place_of(pipeline, found, record.arguments)
        started = record.run.attempts_at(found)
        return Invocation(
            record,
            pipeline,
            found,
            place,
            spec.component(place.component),
            spec.inputs(place.component),
            started[-1].pod_name if started else "",
            str(self.answer.get("service_account") or ""),
        )

    def _unknown_inputs(self, stage: str, why: str) -> HostError:
        return HostError(
            f"The inputs of {stage!r} in the run {self.run_id} are unknown: {why.rstrip('.')}. To run the whole "
            "pipeline locally: torchx-kfp run"
        )

    def _results_of(self, ends: Iterable[StageResult]) -> dict[str, tuple[str, Mapping[str, Any]]]:
        """Return the full ids and results of readable executions, by their known ids."""
        by_base: dict[str, list[str]] = {}
        earlier: dict[str, list[str]] = {}
        for end in ends if self._reads != "none" else ():
            if end.execution_id:
                by_base.setdefault(end.tracker_base or "", []).append(end.execution_id)
                if self._pipeline is not None and self._pipeline.is_distributed(end.name):
                    stage = end.execution_id.rpartition("/")[0]
                    pods = (started.pod_name for started in self._started.get(end.name, ()))
                    earlier[end.execution_id] = [f"{stage}/{pod}" for pod in pods if pod != end.pod_name]
        results: dict[str, tuple[str, Mapping[str, Any]]] = {}
        for base, run_ids in by_base.items():
            results |= self._results.read(base, run_ids, earlier)
        return results

    def terminate(self) -> None:
        """Request the termination of the run, which takes a moment.

        Raises:
            UnknownRunError: there is no such run.
            HostError: the host does not answer, or the run has already ended.
        """
        try:
            self._connection.post(f"{self._path}:terminate")
        except HostNotFoundError as error:
            raise self._unknown(error) from None

    def left_replicas(self) -> list[str]:
        """Return messages about replicas that may still run after a cancel.

        The launcher of a distributed stage has only about a second to delete them.
        """
        if self._pipeline is None or self._nodes is None or self._run.state is not State.CANCELED:
            return []
        said = []
        for stage in self._run.by_name.values():
            place = self._pipeline.places.get(stage.path)
            launcher = place.decoded.specification if place is not None else None
            if launcher is None or stage.state is not State.CANCELED or not stage.attempts:
                continue
            pod = stage.attempts[-1].started.pod_name
            name = object_name(launcher.stage, self.run_id, self._nodes.node_of(pod))
            with contextlib.suppress(HostError):
                log = self._logs.ask(pod)
                if any(f"{name} {end}".encode() in log for end in ("is deleted", "does not exist")):
                    continue
            kind = f"{launcher.plural}.{launcher.api.split('/')[1]}"
            command = shlex.join(["kubectl", "delete", kind, name, "-n", self._connection.pods])
            said.append(f"Replicas of {stage.name} may still run. To end them: {command}")
        return said

    def retry(self) -> HostRun:
        """Retry the failed stages in the same run, with KFP's retry, and return the run, for ``.wait()``.

        Raises:
            UnknownRunError: there is no such run.
            ArgumentError: the run has succeeded, or is running.
            HostError: the host does not answer, or cannot retry the run because its workflow is gone.
        """
        if (state := run_state(self._ask())) not in (State.FAILED, State.CANCELED):
            raise ArgumentError(
                f"The state of the run {self.run_id} is {state}: KFP only retries failed runs, and those that "
                "`torchx-kfp cancel` ended."
            )
        self._connection.post(f"{self._path}:retry")
        return self

    def close(self) -> None:
        """Remove the log files."""
        self._logs.close()

    # The host's answers

    def _ask(self) -> dict[str, Any]:
        try:
            answer = self._connection.get(self._path)
        except HostNotFoundError as error:
            raise (self._unknown(error) if self._last is None else self._deleted(error)) from None
        refuse_run_id(answer.get("run_id"), f"GET {self._connection.name}{self._path}", self.run_id)
        return answer

    def _unknown(self, error: HostError) -> UnknownRunError:
        return UnknownRunError(f"There is no run {self.run_id!r} on {self._connection.name}. ({error})")

    def _deleted(self, error: HostError) -> HostNotFoundError:
        return HostNotFoundError(f"The run {self.run_id} was deleted on {self._connection.name}. ({error})")

    def _load_pipeline(self, run: Mapping[str, Any]) -> None:
        """Load the run's pipeline, even if the run refers to an uploaded one."""
        if self._pipeline is not None:
            return
        self._problem = ""
        try:
            reference = run.get("pipeline_version_reference")
            if not run.get("pipeline_spec") and isinstance(reference, Mapping):
                ids = [quote(str(reference.get(name)), safe="") for name in ("pipeline_id", "pipeline_version_id")]
                version = self._connection.get(f"{V2BETA1}/pipelines/{ids[0]}/versions/{ids[1]}")
                run = {**run, "pipeline_spec": version.get("pipeline_spec")}
            self._pipeline = RunPipeline.of(run)
        except PipelineError as error:
            self._problem = str(error)
        except HostUnreachableError:
            raise
        except HostError as error:
            self._problem = f"The pipeline and the stages of this run cannot be read: {error}"
        if self._pipeline is not None:
            self._run = RunState(outline(self._pipeline.pipeline))
            for event in self._events:
                self._run.on_event(event)
        elif not self._problem:
            self._problem = "The pipeline and the stages of this run are unknown: the host does not report them."

    def _read_nodes(self) -> None:
        """Read the nodes, unless the manifest is the same as before.

        Raises:
            HostError: the host no longer reports them.
        """
        path = f"{V1BETA1}/runs/{quote(self.run_id, safe='')}"
        try:
            answer = self._connection.get(path)
            refuse_run_id(as_object(answer, "run").get("id"), f"GET {self._connection.name}{path}", self.run_id)
            manifest = manifest_of(answer)
            if manifest != self._manifest:
                self._nodes, self._manifest = read_manifest(manifest), manifest
            self._no_nodes = ""
        except (HostError, ValueError) as error:
            if self._manifest and isinstance(error, HostError):
                raise self._deleted(error) if isinstance(error, HostNotFoundError) else error from None
            # A host may lack this version of the API, or refuse it.
            self._no_nodes = (
                f"{self._connection.name} reports only the state of the run (v2beta1), not its nodes (v1beta1): its "
                f"stages, their logs, exit codes and results are missing. ({error})"
            )

    def _unknown_pods(self) -> str:
        """Return the message about pods with unknown nodes; empty if there are none."""
        if not (unread := self._snapshot.unread):
            return ""
        return (
            f"This version of torchx-kfp does not know {counted(len(unread), 'pod')} of this run, such as "
            f"{printable(shorten(unread[0], 200))}: states, results and logs of stages may be missing. See the run in "
            "KFP's UI."
        )

    # Events

    def _take_events(self, run: Mapping[str, Any]) -> list[Event]:
        """Return the events since the last responses, in order of time."""
        facts = (run.get("state"), run.get("state_history"), run.get("finished_at"), self._pipeline, self._nodes)
        if facts == self._facts:
            return []
        snapshot = Snapshot.of(run, self._pipeline, self._nodes, self.link, self._snapshot)
        events = self._completed([step.event for step in snapshot.new], snapshot.patches)
        # If a signal comes before this, the next answer has all of these events.
        self._facts, self._snapshot = facts, snapshot
        for event in events:
            self._run.on_event(event)
        self._events += events
        return events

    def _complete_cached(self) -> None:
        """Add ids and results to cached stages once their executions are known."""
        ends = {end.name: end for end in self._run.ends}
        unknown = any(end.state is State.CACHED and end.tracker_base and not end.execution_id for end in ends.values())
        if self._pipeline is None or self._reads == "none" or not unknown:
            return
        places = self._pipeline.places
        given: dict[str, Mapping[str, Any]] = {}
        for stage, patch in self._snapshot.patches.items():
            with contextlib.suppress(ValueError):  # of another version of KFP
                given[stage] = PodSpec.parse(patch).inputs(places[without_indices(stage)].component)
        run_ids = cached_execution_ids(places.values(), ends, given, self._results.parents)
        completed = {
            name: dataclasses.replace(
                ends[name],
                execution_id=run_id,
                tracker_base=self._pipeline.tracked[without_indices(name)].tracker_base,
                cached_from=run_id.partition("/")[0],
            )
            for name, run_id in run_ids.items()
        }
        results = self._results_of(completed.values())
        ended = {event.result.name: at for at, event in enumerate(self._events) if isinstance(event, StageFinished)}
        reported = len(self._last.events) if self._last is not None else 0
        again: list[Event] = []
        for name, result in completed.items():
            if result.execution_id in results:
                result = dataclasses.replace(result, results=results[result.execution_id][1])
            at = ended[name]
            event = StageFinished(result, self._events[at].time, again=at < reported)
            self._run.on_event(event)
            if event.again:
                again.append(event)
            else:
                self._events[at] = event
        # The end of the run stays the last event.
        end = len(self._events) - isinstance(self._events[-1], RunFinished)
        self._events[end:end] = again

    def _completed(self, events: list[Event], patches: Mapping[str, str]) -> list[Event]:
        """Return the events with log files, results, artifacts, and reasons of failures."""
        events = [self._with_log(event) if isinstance(event, StageStarted) else event for event in events]
        results = self._results_of(event.result for event in events if isinstance(event, StageFinished))
        return [
            self._with_results(event, results, patches) if isinstance(event, StageFinished) else event
            for event in events
        ]

    def _with_log(self, event: StageStarted) -> StageStarted:
        if event.pod_name:
            is_of_kfp = self._pipeline is not None and self._pipeline.is_import(event.name)
            log_file = self._logs.add(event.name, event.pod_name, is_of_kfp=is_of_kfp)
            event = dataclasses.replace(event, log_file=log_file)
        self._started.setdefault(event.name, []).append(event)
        return event

    def _with_results(
        self, event: StageFinished, found: Mapping[str, tuple[str, Mapping[str, Any]]], patches: Mapping[str, str]
    ) -> StageFinished:
        result = event.result
        if not result.pod_name:
            return event
        run_id, results = found.get(result.execution_id or "", (result.execution_id, result.results))
        started = self._started.get(result.name)
        log = started[-1].log_file if started else None
        artifacts = self._made_by(result, patches.get(result.name, ""))
        result = dataclasses.replace(result, log_file=log, execution_id=run_id, results=results, artifacts=artifacts)
        return dataclasses.replace(event, result=self._explained(result))

    def _made_by(self, result: StageResult, patch: str) -> Mapping[str, Artifact | list[Artifact]]:
        """Return the artifacts of a successful stage."""
        component = self._pipeline.places[without_indices(result.name)].component if self._pipeline else None
        if component is not None and component.artifact_outputs and result.state is State.SUCCEEDED:
            with contextlib.suppress(ValueError):  # of another version of KFP
                return PodSpec.parse(patch).made(component)
        return {}

    def _explained(self, result: StageResult) -> StageResult:
        """Return a result with the application's own exit code, or the reason why it did not run, from its log."""
        if result.log_file is None or self._most_explained <= 0 or not ends_with_launcher(result):
            return result
        self._most_explained -= 1
        self._logs.fetch(result.log_file, is_over=True)
        return explained(result, self._logs.launcher_error(result.log_file))

    def _record(self, run: Mapping[str, Any], is_running: bool, problems: tuple[str, ...]) -> RunRecord:
        first = self._run.first
        assert first is not None
        return RunRecord(
            run_id=self.run_id,
            pipeline=first.pipeline,
            created=seconds(run.get("created_at")) or first.time,
            events=tuple(self._events),
            run=self._run,
            is_running=is_running,
            load=self._load,
            link=self.link,
            name=str(run.get("display_name") or ""),
            arguments=first.arguments,
            named_bases=self._named_bases,
            corrupt=problems,
        )

    def _load(self) -> Pipeline:
        if self._pipeline is None:
            raise PipelineError(f"There is no pipeline for the run {self.run_id}. {self._problem}")
        return self._pipeline.pipeline
