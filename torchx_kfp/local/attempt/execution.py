"""The execution of one attempt at a stage, from its folder to its outcome."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.contract.specification import ReplicaCount
from torchx_kfp.errors import TrackerError, explain
from torchx_kfp.local.attempt.logs import Log, LogPump
from torchx_kfp.local.attempt.outputs import describe_missing, read_outputs, read_run_id, registered_files
from torchx_kfp.local.attempt.packages import InstallError, activate, provide_environment
from torchx_kfp.local.attempt.transfer import UnavailableError, copy_here
from torchx_kfp.local.engines.engine import AttemptPlan, Engine, RunningStage, StartError, TimeLimit
from torchx_kfp.local.engines.process import Processes
from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.runs.result import last_lines
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.statements.artifacts import ARTIFACTS, UNDELIVERED
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE

# Seconds to wait for more output after its last known writer has ended.
_OUTPUT_PATIENCE = 2.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of an attempt. ``reason`` is empty if it succeeded."""

    exit_code: int | None = None
    reason: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    #: For a tracked stage: its run id, and its results (None if they cannot be read).
    run_id: str | None = None
    results: Mapping[str, Any] | None = None
    #: The files here that it has registered, and the further trackers that lack its records.
    files: tuple[str, ...] = ()
    undelivered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Replicas:
    """How many replicas of a distributed stage run, and of how many."""

    running: int
    total: int


class Execution:
    """An attempt that runs in its own thread and can be ended from outside."""

    def __init__(
        self,
        attempt: AttemptPlan,
        engine: Engine,
        pump: LogPump,
        tell: Callable[[Execution, Outcome | Replicas], None],
        grace: float = 0.0,
    ) -> None:
        """Prepare the attempt.

        Args:
            attempt: the attempt.
            engine: runs it.
            pump: reads its output.
            tell: is called from other threads when it has ended, and when the number of running replicas has changed.
            grace: the seconds from the end of its time limit until it is killed.
        """
        self.attempt = attempt
        self._grace = grace
        self._engine = engine
        self._pump = pump
        self._tell = tell
        self._lock = threading.Lock()
        self._running: RunningStage | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=attempt.pod_name, daemon=True)

    def start(self) -> None:
        """Start the attempt and return at once."""
        self._thread.start()

    def terminate(self, grace: float) -> None:
        """Ask the stage to end within ``grace`` seconds, or prevent its start."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.terminate(grace)

    def kill(self) -> None:
        """Kill the stage, or prevent its start."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.kill()

    def _run(self) -> None:
        try:
            outcome = self._recorded(self._execute())
        except OSError as error:
            outcome = Outcome(reason=f"could not be run: {explain(error)}")
        except Exception as error:  # an exception would end the thread, and the run would wait forever
            outcome = Outcome(reason=f"could not be run: {type(error).__name__}: {error}")
        self._tell(self, outcome)

    def _on_lines(self, lines: Sequence[str]) -> None:
        for count in filter(None, map(ReplicaCount.parse, lines)):
            self._tell(self, Replicas(*count))

    def _recorded(self, outcome: Outcome) -> Outcome:
        """Return the outcome with the results that the stage recorded, even if it failed."""
        run_id, base = read_run_id(self.attempt), self.attempt.tracker_base
        if run_id is None or base is None:
            return outcome
        outcome = dataclasses.replace(outcome, run_id=run_id)
        with contextlib.suppress(TrackerError):  # results are only shown: the stage has ended
            # The runner may be in another directory than the stage.
            base = base if "://" in base else str(self.attempt.directory / base)
            tracker = FsspecResultTracker(base, patience=SHORT_PATIENCE)
            outcome = dataclasses.replace(outcome, results=tracker.get(run_id))
            if outcome.exit_code:
                reason = describe_missing(self.attempt, tracker, run_id, outcome.results or {}) or outcome.reason
                return dataclasses.replace(outcome, reason=reason)
            undelivered = UNDELIVERED.read(tracker.store, run_id)
            files = registered_files(self.attempt, ARTIFACTS.read(tracker.store, run_id))
            outcome = dataclasses.replace(outcome, files=files, undelivered=undelivered)
        return outcome

    def _execute(self) -> Outcome:
        attempt = self.attempt
        made = (artifact.path for artifact in attempt.artifacts.values())
        source = attempt.source[:1] if attempt.source is not None else ()
        # A runner that was killed before it recorded this attempt may have left its folder.
        shutil.rmtree(attempt.folder, ignore_errors=True)
        for path in (str(attempt.log_file), *attempt.output_files.values(), *made, *source):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        try:
            self._copy_inputs()
            if attempt.source is not None:
                Path(attempt.source[0]).write_text(attempt.source[1], encoding="utf-8", newline="")
            with self._secret_files():
                code, failure = self._run_to_end(self._engine, dataclasses.replace(attempt, environ=self._environ()))
        except (StartError, InstallError) as error:
            return Outcome(error.exit_code, str(error))
        except UnavailableError as error:
            return Outcome(None, str(error))
        if failure:
            return Outcome(code, failure)
        try:
            outputs, artifacts = read_outputs(attempt)
            return Outcome(code, outputs=outputs, artifacts=artifacts)
        except ValueError as error:
            return Outcome(code, str(error))

    @contextlib.contextmanager
    def _secret_files(self) -> Iterator[None]:
        """Write the files of a container's secrets, and remove them when the container has ended."""
        files = self.attempt.container.files if self.attempt.container is not None else {}
        try:
            for folder, contents in files.items():
                os.makedirs(folder)
                for name, text in contents.items():
                    Path(folder, name).write_text(text, encoding="utf-8", newline="")
            yield
        finally:
            for folder in files:
                shutil.rmtree(folder, ignore_errors=True)

    def _copy_inputs(self) -> None:
        for url, path in self.attempt.copies.items():
            if self._stopped:
                return
            try:
                copy_here(url, path, self.attempt.copies_root(path), str(self.attempt.folder / "inputs"))
            except UnavailableError as error:
                if not self.attempt.function:
                    raise
                # A Python component may need only the URI; if it opens the file, it fails by itself.
                with self.attempt.log_file.open("a", encoding="utf-8") as log:
                    log.write(f"This stage {error}\n")

    def _environ(self) -> Mapping[str, str]:
        """Install the packages that the stage asks for, and return its environment variables."""
        environ = self.attempt.environ
        folder = provide_environment(self.attempt.installs, environ, self._run_command, lambda: self._stopped)
        return environ if folder is None else activate(folder, environ)

    def _run_command(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Run another command for the stage, as a process that writes into the stage's log."""
        attempt = dataclasses.replace(self.attempt, command=command, environ=environ)
        return self._run_to_end(Processes(), attempt)[0]

    def _run_to_end(self, engine: Engine, attempt: AttemptPlan) -> tuple[int, str]:
        """Run the attempt to its end, and return its exit code and, if it failed, the reason."""
        with self._lock:
            if self._stopped:
                raise StartError("was not started: the run was ended")
            self._running = running = engine.start(attempt)
        log = Log(running.pipe, attempt.log_file, attempt.stage, self._on_lines if attempt.is_distributed else None)
        self._pump.add(log)
        limit = TimeLimit(running, attempt.time_limit, self._grace)
        try:
            with limit:
                code = running.wait(log.closed)
        finally:
            if not log.closed.wait(_OUTPUT_PATIENCE):
                # A process that has left the session and cleared its environment may hold the pipe open.
                self._pump.drop(log)
                log.closed.wait()
        if limit.is_over:
            return code, f"was ended: its time limit of {attempt.time_limit:g} s is over"
        if code == 0:
            return code, ""
        reason = running.describe(code, "".join(last_lines(attempt.log_file, 1)))
        return code, f"{reason} ({log.problem})" if log.problem else reason
