"""A run on a KFP host, read again and again while it goes on: what ``runs.history.RunReader`` is for a folder."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
import shutil
import sys
import tempfile
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from torchx_kfp.backend.answers import refuse_run_id
from torchx_kfp.backend.connection import V1BETA1, V2BETA1, Connection
from torchx_kfp.backend.executions import Sought, read_log
from torchx_kfp.backend.host import Host
from torchx_kfp.backend.logs import PodLog
from torchx_kfp.backend.manifest import manifest_of, read_manifest
from torchx_kfp.backend.nodes import Nodes
from torchx_kfp.backend.observer import Observer
from torchx_kfp.backend.outcomes import ends_with_launcher, explained
from torchx_kfp.backend.polling import DEFAULT_POLICY, PollPolicy, PollTimer
from torchx_kfp.backend.results import NoResults, ResultReader
from torchx_kfp.backend.states import read_progress, run_state, seconds
from torchx_kfp.backend.values import mapping
from torchx_kfp.errors import (
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostRefusedError,
    HostSettingsError,
    HostUnreachableError,
    KeyRefusedError,
    PipelineFileError,
    UnknownRunError,
)
from torchx_kfp.pipeline.names import safe_name
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs.events import Event, RunStarted, StageFinished, StageStarted
from torchx_kfp.runs.record import RunRecord
from torchx_kfp.runs.result import RunResult, StageResult
from torchx_kfp.runs.source import attend
from torchx_kfp.runs.state import RunState, outline
from torchx_kfp.runs.watch import Lines, Terminal, Watch
from torchx_kfp.tracking.stores.keys import key_text, run_id_parts

if TYPE_CHECKING:
    from typing import TypeGuard

#: What KFP's launcher says if the stage's image lacks the program of an engine's launcher.
_NO_PYTHON = 'exec: "python3": executable file not found in $PATH'
#: For no more failed stages than this, the log is asked for the reason.
_MOST_EXPLAINED = 20
#: How many logs are asked for at once.
_LOGS_AT_ONCE = 8
#: The longest part of a log file's name that is made of the stage's.
_LONGEST = 150


class HostRun:
    """Reads a run from a KFP host. Its log files are in a folder that is removed at the end of the process."""

    def __init__(
        self,
        connection: Connection,
        run_id: str,
        *,
        policy: PollPolicy = DEFAULT_POLICY,
        say: Callable[[str], object] | None = None,
        results: ResultReader | None = None,
        named: Collection[str] = (),
        raw_logs: bool = False,
    ) -> None:
        """Name the run. Nothing is asked yet.

        Args:
            connection: the host.
            run_id: the run's id: see ``Host.find``.
            policy: how often ``follow`` asks.
            say: gets sentences about a host that does not answer, and about logs that cannot be read. By default, they
                are written to stderr.
            results: reads the results of stages.
            named: the tracker bases that the user has named for this run, beside the setting: see ``results``.
            raw_logs: whether logs keep the lines that KFP's launcher prints.
        """
        self.run_id = run_id
        self.link = connection.link(run_id)
        self._connection = connection
        self._policy = policy
        self._say = say if say is not None else lambda sentence: Terminal(sys.stderr).write_lines([sentence])
        bases = {connection.settings.tracker_base, *named}
        self._results = results if results is not None else ResultReader(bases)
        self._raw_logs = raw_logs
        self._observer = Observer(self.link)
        self._events: list[Event] = []
        self._run = RunState()
        self._has_outline = False
        self._last: RunRecord | None = None
        #: Since when the host does not answer, and the CPU time that the last look has taken.
        self._lost_at: float | None = None
        self._cost = 0.0
        #: What the host has answered last, as JSON of v2beta1.
        self.answer: Mapping[str, Any] = {}
        #: The pipeline of a run that names an uploaded one; None before the host has been asked.
        self._uploaded: Mapping[str, Any] | None = None
        self._serves_v1beta1 = True
        #: The manifest of the last answer of v1beta1, and its nodes.
        self._manifest = ""
        self._nodes_before: Nodes | None = None
        #: Sentences about what the host does not tell.
        self._missing: dict[str, str] = {}
        #: The folder of the logs, which is made with the first of them.
        self._folder = Path(tempfile.gettempdir(), f"torchx-kfp-{secrets.token_hex(8)}")
        self._has_folder = False
        self._logs: dict[Path, PodLog] = {}
        #: The log files of the last attempts, by stage.
        self._log_files: dict[str, Path] = {}
        #: When each pod of a retried run has started last, by its name.
        self._starts: dict[str, float] = {}
        self._log_numbers = itertools.count(1)
        #: How many more failures are looked up in logs.
        self._most_explained = _MOST_EXPLAINED
        #: Several logs are fetched at once.
        self._lock = threading.Lock()
        self._complete: set[Path] = set()
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"<HostRun {self.run_id} on {self._connection.name}>"

    def read(self) -> RunRecord:
        """Ask the host once, and return the run as it is now: the same object as before, if nothing has changed.

        Raises:
            UnknownRunError: the host has no such run.
            HostNotFoundError: it had, but the run has been deleted.
            HostError: the host does not answer, or reports an error.
        """
        self.answer = run = self._with_pipeline(self._ask())
        events = self._completed(self._observer.observe(run, self._nodes()))
        self._fold(events)
        is_running = not run_state(run).is_over
        problems = tuple(filter(None, (self._observer.problem, *self._missing.values(), *self._results.problems)))
        last = self._last
        if last is None or events or is_running != last.is_running or problems != last.corrupt:
            self._last = self._record(run, is_running, problems)
        assert self._last is not None
        return self._last

    def follow(self, timeout: float | None = None) -> Iterator[RunRecord]:
        """Yield the run as it is now, and again whenever that has changed, until it has ended.

        A host that does not answer is asked again for as long as it takes.

        Args:
            timeout: seconds until the run must have ended.

        Raises:
            TimeoutError: the run did not end in time. It goes on.
            HostError: see ``look``.
        """
        end = None if timeout is None else time.monotonic() + timeout
        seen: RunRecord | None = None
        timer = PollTimer(self._policy)
        while True:
            began = time.thread_time()
            record = self.look()
            changed = record is not seen
            if changed:
                seen = record
                yield record
            if not record.is_running:
                return
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"The run {self.run_id} has not ended within {timeout:g} s. It goes on: .wait() waits again, and "
                    ".terminate() ends it."
                )
            timer.wait(changed=changed, cost=time.thread_time() - began, longest=left)

    def look(self) -> RunRecord:
        """Ask the host as ``read`` does, but return the run as it was before if the host does not answer for a moment.

        Raises:
            HostError: see ``read``. A host that has never answered is not waited for. One that reports errors, or
                refuses the credentials, is asked again for some time; so are settings that are wrong for a moment,
                such as a file in which a token is being renewed.
        """
        began = time.thread_time()
        try:
            record = self.read()
        except HostError as error:
            if self._last is None or isinstance(error, HostNotFoundError | HostRefusedError):
                raise
            now = time.monotonic()
            if self._lost_at is None:
                self._lost_at = now
                self._say(f"{self._connection.name} cannot be asked about the run: trying again. ({error})")
            elif not isinstance(error, HostUnreachableError) and now - self._lost_at >= self._policy.patience:
                raise
            return self._last
        finally:
            self._cost = time.thread_time() - began
        if self._lost_at is not None:
            self._say(f"{self._connection.name} answers again.")
            self._lost_at = None
        return record

    @property
    def interval(self) -> float:
        """The seconds between two looks at a run that goes on; more for a large one, of which a look takes long."""
        return max(self._policy.shortest, self._cost / self._policy.share)

    def wait(self, watch: Watch | None = None, timeout: float | None = None) -> RunResult:
        """Wait for the run's end, and return how it and its stages have ended; see ``RunResult.raise_for_failure``.

        Args:
            watch: gets the events of the run. Default: ``Lines()``, which writes to stderr; ``Watch()`` is silent.
            timeout: seconds to wait at most.

        Raises:
            TimeoutError: the run has not ended by then. It goes on.
            HostError: see ``follow``.
        """
        return attend(self, watch if watch is not None else Lines(), self.follow(timeout)).run.result()

    def fetch(self, stages: Collection[str]) -> bool:
        """Bring the log files of these stages, given by name, up to date; return False if one cannot be read.

        Why it cannot be read is said, once.
        """
        record = self._last or self.read()
        wanted, has_all = [], True
        for name in stages:
            attempts = record.run.attempts.get(name, [])
            # A retry of the run gives the new pod the name of the failed one, whose log is lost then.
            last = {started.pod_name: started for started in attempts}
            for started in last.values():
                if started.log_file is None:
                    has_all = False
                    self._say_once(name, f"The log of {name} cannot be read: {self._why_no_pod()}")
                elif started.log_file not in self._complete:
                    is_over = started is not attempts[-1] or record.run.has_ended(name) or not record.is_running
                    wanted.append((started, started.log_file, is_over))
        if len(wanted) < 2:
            return all(self._fetch(*one) for one in wanted) and has_all
        with ThreadPoolExecutor(min(_LOGS_AT_ONCE, len(wanted))) as pool:
            return all(list(pool.map(lambda one: self._fetch(*one), wanted))) and has_all

    def terminate(self) -> None:
        """Ask the host to end the run. The errors are those of ``Host.terminate``."""
        Host(self._connection).terminate(self.run_id)

    def close(self) -> None:
        """Remove the log files."""
        if self._has_folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    # What the host says

    def _ask(self) -> dict[str, Any]:
        path = f"{V2BETA1}/runs/{quote(self.run_id, safe='')}"
        try:
            answer = self._connection.get(path)
        except HostNotFoundError as error:
            if self._last is None:
                raise UnknownRunError(
                    f"There is no run {self.run_id!r} on {self._connection.name}. ({error})"
                ) from None
            raise HostNotFoundError(
                f"The run {self.run_id} has been deleted on {self._connection.name} in the meantime. ({error})"
            ) from None
        refuse_run_id(answer.get("run_id"), f"GET {self._connection.name}{path}", self.run_id)
        return answer

    def _with_pipeline(self, run: dict[str, Any]) -> dict[str, Any]:
        """Return the run with its pipeline, even if it only refers to one that was uploaded."""
        reference = run.get("pipeline_version_reference")
        if run.get("pipeline_spec") or self._observer.pipeline is not None or not isinstance(reference, Mapping):
            return run
        if self._uploaded is None:
            self._uploaded = {}
            ids = [quote(str(reference.get(name)), safe="") for name in ("pipeline_id", "pipeline_version_id")]
            try:
                version = self._connection.get(f"{V2BETA1}/pipelines/{ids[0]}/versions/{ids[1]}")
            except HostUnreachableError:
                self._uploaded = None
                raise
            except HostError as error:
                self._missing["pipeline"] = f"The pipeline of this run cannot be read, nor its stages: {error}"
            else:
                spec = version.get("pipeline_spec")
                self._uploaded = spec if isinstance(spec, Mapping) else {}
        return {**run, "pipeline_spec": self._uploaded} if self._uploaded else run

    def _nodes(self) -> Nodes | None:
        """Return the nodes that v1beta1 tells; None if they are the same as before, or the host does not tell them."""
        if not self._serves_v1beta1:
            return None
        path = f"{V1BETA1}/runs/{quote(self.run_id, safe='')}"
        lost = "so its stages, their logs, exit codes and results are missing"
        try:
            answer = self._connection.get(path)
            refuse_run_id(mapping(answer.get("run")).get("id"), f"GET {self._connection.name}{path}", self.run_id)
            manifest = manifest_of(answer)
            if manifest == self._manifest:
                return None
            nodes = read_manifest(manifest, self._nodes_before)
        except HostError as error:
            if self._manifest:
                if isinstance(error, HostNotFoundError):
                    self._ask()  # which says so if the run has been deleted
                raise  # it fails for a moment
            # A host may lack this version of the API, or refuse it.
            self._serves_v1beta1 = not isinstance(error, HostNotFoundError | HostRefusedError)
            self._missing["v1beta1"] = (
                f"{self._connection.name} tells the state of the run alone (v2beta1), not its nodes (v1beta1), {lost}. "
                f"({error})"
            )
            return None
        except ValueError as error:
            self._missing["v1beta1"] = f"The nodes of the run cannot be read, {lost}: {error}."
            return None
        self._missing.pop("v1beta1", None)
        self._manifest, self._nodes_before = manifest, nodes
        return nodes

    def _why_no_pod(self) -> str:
        if "v1beta1" in self._missing:
            return f"the host does not say in which pod it runs.{f' Look at {self.link}.' if self.link else ''}"
        return "it has no pod yet."

    # Events

    def _completed(self, events: list[Event]) -> list[Event]:
        """Return the events with log files and results."""
        events = [self._with_log_file(event) for event in events]
        ended = [
            event.result
            for event in events
            if isinstance(event, StageFinished) and event.result.run_id and event.result.tracker_base
        ]
        if not ended or isinstance(self._results, NoResults):
            return [self._completed_one(event, {}) for event in events]
        by_base: dict[str, list[Sought]] = {}
        with ThreadPoolExecutor(_LOGS_AT_ONCE) as pool:
            for result, sought in zip(ended, pool.map(self._sought, ended), strict=True):
                by_base.setdefault(result.tracker_base or "", []).append(sought)
        found = {base: self._results.read(base, sought) for base, sought in by_base.items()}
        return [self._completed_one(event, found) for event in events]

    def _with_log_file(self, event: Event) -> Event:
        if isinstance(event, StageStarted) and event.pod_name:
            # A pod of a run that KFP has retried may have the name of an earlier one.
            if len(read_progress(self.answer).sessions) > 1:
                self._starts[event.pod_name] = event.time
            log_file = self._log_files[event.name] = self._log_file(event.name)
            return dataclasses.replace(event, log_file=log_file)
        if isinstance(event, StageFinished) and event.result.pod_name:
            result = event.result
            run_id = result.run_id if self._is_key(result.run_id) else None
            result = dataclasses.replace(result, log_file=self._log_files.get(result.name), run_id=run_id)
            return dataclasses.replace(event, result=result)
        return event

    def _sought(self, result: StageResult) -> Sought:
        """Return what is known of a stage's run id. Only its log says which attempt in its pod was the last one."""
        sought = Sought(result.run_id or "", self._starts.get(result.pod_name))
        follows = self._observer.is_distributed(result.name) and (result.attempts > 1 or sought.since is not None)
        if result.log_file is None or not (follows or self._observer.restarts(result.name)):
            return sought
        self._fetch(StageStarted(result.name, result.pod_name, result.attempts), result.log_file, is_over=True)
        try:
            with result.log_file.open("rb") as log:
                return read_log(sought, log)
        except OSError:  # it could not be read from the host
            return sought

    def _is_key(self, run_id: str | None) -> TypeGuard[str]:
        """Tell whether the run id of a stage is one of this run: the host names the pod in it."""
        parts = run_id_parts(run_id) if run_id else None
        if run_id is None or parts is None or parts[0] != self.run_id:
            return False
        try:
            return bool(key_text(run_id))
        except KeyRefusedError:
            return False

    def _completed_one(self, event: Event, found: Mapping[str, Mapping[str, tuple[str, Mapping[str, Any]]]]) -> Event:
        if isinstance(event, StageFinished) and event.result.pod_name:
            result = event.result
            one = found.get(result.tracker_base or "", {}).get(result.run_id or "")
            run_id, results = one or (result.run_id, result.results)
            result = dataclasses.replace(result, results=results, run_id=run_id)
            return dataclasses.replace(event, result=self._explained(result))
        return event

    def _explained(self, result: StageResult) -> StageResult:
        """Return a result with what only the log says: the application's own exit code, or why it has not run."""
        if result.log_file is None or self._most_explained <= 0 or not ends_with_launcher(result):
            return result
        self._most_explained -= 1
        self._fetch(StageStarted(result.name, result.pod_name, result.attempts), result.log_file, is_over=True)
        said = self._logs[result.log_file].launcher_error
        if said == _NO_PYTHON and self._observer.is_distributed(result.name):
            said += ". The launcher of the stage's replicas needs python3 in the stage's image"
        return explained(result, said)

    def _fold(self, events: list[Event]) -> None:
        self._events += events
        if self._observer.pipeline is not None and not self._has_outline:
            self._has_outline = True
            self._run = RunState(outline(self._observer.pipeline))
            events = self._events
        for event in events:
            self._run.on_event(event)

    def _record(self, run: Mapping[str, Any], is_running: bool, problems: tuple[str, ...]) -> RunRecord:
        first = next((event for event in self._events if isinstance(event, RunStarted)), None)
        return RunRecord(
            run_id=self.run_id,
            pipeline=first.pipeline if first else "",
            created=seconds(run.get("created_at")) or (first.time if first else 0.0),
            events=tuple(self._events),
            run=self._run,
            is_running=is_running,
            load=self._load,
            link=self.link,
            name=str(run.get("display_name") or ""),
            arguments=first.arguments if first else {},
            corrupt=problems,
        )

    def _load(self) -> Pipeline:
        if self._observer.pipeline is None:
            why = self._observer.problem or self._missing.get("pipeline") or "The host does not tell it."
            raise PipelineFileError(f"There is no pipeline for the run {self.run_id}. {why}")
        return self._observer.pipeline

    # Logs

    def _log_file(self, stage: str) -> Path:
        """Return the log file of another attempt of a stage."""
        # Indices tell the iterations of a loop apart; safe_name alone would make train[1,2] and train[1]-2 the same.
        name = f"{safe_name(stage)[:_LONGEST]}-{zlib.crc32(stage.encode()):08x}"
        return self._folder / f"{name}-{next(self._log_numbers)}.log"

    def _fetch(self, started: StageStarted, path: Path, is_over: bool) -> bool:
        if path in self._complete:
            return True
        log = self._logs.get(path)
        if log is None:
            log = self._logs[path] = PodLog(self._connection, self.run_id, started.pod_name, raw=self._raw_logs)
        try:
            new = log.read_new(is_over=is_over)
        except (HostUnreachableError, HostCredentialsError, HostSettingsError) as error:
            self._say_once("host", str(error))
            return False
        except HostError as error:
            # The container of a pod that has just begun is still being created.
            if is_over:
                self._complete.add(path)
                self._say_once(str(path), f"{started.name}: {error}")
            return not is_over
        self._make_folder()
        with path.open("ab") as file:
            file.write(new)
        if is_over:
            self._complete.add(path)
        return True

    def _make_folder(self) -> None:
        with self._lock:
            if not self._has_folder:
                self._folder.mkdir(mode=0o700)
                weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
                self._has_folder = True

    def _say_once(self, key: str, sentence: str) -> None:
        if key not in self._said:
            self._said.add(key)
            self._say(sentence)
