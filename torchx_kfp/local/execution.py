"""One attempt at a stage: its folder, its command and environment, what runs it, and what it left behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.errors import TrackerError
from torchx_kfp.local.artifacts import Artifact, read_report
from torchx_kfp.local.containers import ContainerPlan
from torchx_kfp.local.engine import Engine, Processes, RunningStage, StartError, TimeLimit
from torchx_kfp.local.output import Log, LogPump
from torchx_kfp.local.transfer import UnavailableError, copy_here
from torchx_kfp.local.values import convert, from_output
from torchx_kfp.local.venvs import InstallError, activate, provide_environment
from torchx_kfp.tracking import FsspecResultTracker

# Seconds that output is still waited for when its last known writer is gone.
_OUTPUT_PATIENCE = 2.0
# Seconds for which reading a stage's results is tried again.
_RESULTS_PATIENCE = 5.0


@dataclass(frozen=True)
class Attempt:
    """What is to be started."""

    stage: str
    pod_name: str
    folder: Path
    #: In which it runs.
    directory: Path
    command: Sequence[str]
    environ: Mapping[str, str]
    #: Output parameters: their types, and the files in which the stage leaves them.
    output_types: Mapping[str, str]
    output_files: Mapping[str, str]
    #: Output artifacts as the stage is told them, and the file in which it may report otherwise.
    artifacts: Mapping[str, Artifact]
    report: str
    #: Input parameters, for those who watch.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: Of a Python component: its function, the file that gets its source, and what it has pip install.
    function: str = ""
    source: tuple[str, str] | None = None
    #: Files on other storage, by their URLs, and where the stage finds copies of them.
    copies: Mapping[str, str] = field(default_factory=dict)
    installs: Sequence[Sequence[str]] = ()
    #: Of a stage that runs in a container.
    container: ContainerPlan | None = None
    #: Seconds that it may take, and those that it has to end by itself then.
    time_limit: float | None = None
    grace: float = 0.0

    @property
    def log_file(self) -> Path:
        return self.folder / "log.txt"

    @property
    def tracker_base(self) -> str | None:
        """The tracker base that the command of a tracked stage sets."""
        name = f"{protocol.TRACKER_BASE}="
        return next((word.removeprefix(name) for word in self.command if word.startswith(name)), None)

    def read_run_id(self) -> str | None:
        """The run id that a tracked stage has made; a stage that fails afterwards has made it, too."""
        path = self.output_files.get("run_id")
        if path is None or self.tracker_base is None:
            return None
        try:
            return _read_file(path) or None
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class Outcome:
    """What became of an attempt. ``reason`` is empty if it succeeded."""

    exit_code: int | None = None
    reason: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    #: Of a tracked stage: its run id, and what is recorded under it (None where that cannot be read).
    run_id: str | None = None
    results: Mapping[str, Any] | None = None


class Execution:
    """An attempt that runs in a thread of its own, and can be ended from outside."""

    def __init__(
        self, attempt: Attempt, engine: Engine, pump: LogPump, done: Callable[[Execution, Outcome], None]
    ) -> None:
        self.attempt = attempt
        self._engine = engine
        self._pump = pump
        self._done = done
        self._lock = threading.Lock()
        self._running: RunningStage | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=attempt.pod_name, daemon=True)

    def start(self) -> None:
        """Starts the attempt and returns; ``done`` is called from another thread when it has ended."""
        self._thread.start()

    def terminate(self, grace: float) -> None:
        """Asks the stage to end within ``grace`` seconds, or prevents its start."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.terminate(grace)

    def kill(self) -> None:
        """Ends the stage, or prevents its start."""
        with self._lock:
            self._stopped = True
            if self._running is not None:
                self._running.kill()

    def _run(self) -> None:
        try:
            outcome = self._recorded(self._execute())
        except Exception as error:  # a thread's exception would be lost, and the run would wait for ever
            outcome = Outcome(reason=f"could not be run: {type(error).__name__}: {error}")
        self._done(self, outcome)

    def _recorded(self, outcome: Outcome) -> Outcome:
        """The outcome with what the stage has recorded; one that failed may have recorded something, too."""
        run_id, base = self.attempt.read_run_id(), self.attempt.tracker_base
        if run_id is None or base is None:
            return outcome
        results = None
        with contextlib.suppress(TrackerError):  # the stage has ended, and its results are shown and no more
            results = FsspecResultTracker(base, patience=_RESULTS_PATIENCE).get(run_id)
        return dataclasses.replace(outcome, run_id=run_id, results=results)

    def _execute(self) -> Outcome:
        attempt = self.attempt
        made = (artifact.path for artifact in attempt.artifacts.values())
        source = attempt.source[:1] if attempt.source is not None else ()
        # Of a runner that was killed before it had told of it: what is in it is not this attempt's.
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
            reported, artifacts = _read_report(attempt)
            outputs = _read_outputs(attempt, reported)
            return Outcome(code, outputs=outputs, artifacts={name: made.stored() for name, made in artifacts.items()})
        except ValueError as error:
            return Outcome(code, str(error))

    @contextlib.contextmanager
    def _secret_files(self) -> Iterator[None]:
        """The files of secrets that a container has; they are gone when it has ended."""
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
                copy_here(url, path)
            except UnavailableError as error:
                if not self.attempt.function:
                    raise
                # A Python component may take its URI alone; one that opens it fails by itself.
                with self.attempt.log_file.open("a", encoding="utf-8") as log:
                    log.write(f"This stage {error}\n")

    def _environ(self) -> Mapping[str, str]:
        """The stage's environment variables; what it has pip install is there then."""
        environ = self.attempt.environ
        folder = provide_environment(self.attempt.installs, environ, self._run_command, lambda: self._stopped)
        return environ if folder is None else activate(folder, environ)

    def _run_command(self, command: Sequence[str], environ: Mapping[str, str]) -> int:
        """Runs a command beside the stage's own, as a process; its output is in the stage's log."""
        attempt = dataclasses.replace(self.attempt, command=command, environ=environ)
        return self._run_to_end(Processes(), attempt)[0]

    def _run_to_end(self, engine: Engine, attempt: Attempt) -> tuple[int, str]:
        """Runs the attempt, and all that it starts, to its end: its exit code, and why it failed if it has."""
        with self._lock:
            if self._stopped:
                raise StartError("was not started: the run was ended")
            self._running = running = engine.start(attempt)
        log = Log(running.pipe, attempt.log_file, attempt.stage)
        self._pump.add(log)
        limit = TimeLimit(running, attempt.time_limit, attempt.grace)
        try:
            with limit:
                code = running.wait(log.closed)
        finally:
            if not log.closed.wait(_OUTPUT_PATIENCE):
                # A process that has left the session and cleared its environment holds the pipe.
                self._pump.drop(log)
                log.closed.wait()
        if limit.is_over:
            return code, f"was ended: its time limit of {attempt.time_limit:g} s is over"
        return code, "" if code == 0 else running.describe(code)


class _NoFile(ValueError):
    """A path leads to something else than a regular file."""


def _read_file(path: str) -> str:
    # Reading a pipe or a device would not come to an end.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise _NoFile(f"{path} is not a regular file")
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def _read_report(attempt: Attempt) -> tuple[dict[str, Any], dict[str, Artifact]]:
    try:
        text = _read_file(attempt.report)
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ValueError(f"left its report {attempt.report} unreadable: {error}") from None
    try:
        return read_report(text, attempt.artifacts)
    except ValueError as error:
        raise ValueError(f"wrote a report that {error}: {attempt.report}") from None


def _read_outputs(attempt: Attempt, reported: Mapping[str, Any]) -> dict[str, Any]:
    outputs = {}
    for name, type_ in attempt.output_types.items():
        if name in reported:
            outputs[name] = convert(reported[name], type_)
            continue
        path = attempt.output_files[name]
        try:
            text = _read_file(path)
        except FileNotFoundError:
            if attempt.function:
                raise ValueError(
                    f"did not give its output {name!r} a value: the function {attempt.function!r} returned None, and "
                    f"the file {path} is missing"
                ) from None
            raise ValueError(
                f"did not write its output {name!r}: the file {path} is missing, though the process ended with "
                "exit code 0"
            ) from None
        except UnicodeDecodeError:
            raise ValueError(f"wrote its output {name!r} in something else than UTF-8: {path}") from None
        except (OSError, _NoFile) as error:
            raise ValueError(f"left its output {name!r} unreadable: {error}") from None
        try:
            outputs[name] = from_output(text, type_)
        except ValueError as error:
            raise ValueError(f"wrote something into its output {name!r} that {error}") from None
    return outputs
