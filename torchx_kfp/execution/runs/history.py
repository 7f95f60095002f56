"""Read runs from their folders, as written by ``journal``, during the run and afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torchx_kfp.common.safe_files import open_regular, read_bytes
from torchx_kfp.common.text import counted, did_you_mean, did_you_mean_path, listed, shown
from torchx_kfp.errors import ArgumentError, UnknownRunError, explain
from torchx_kfp.execution.pipeline.load import load_file, verify_depth
from torchx_kfp.execution.pipeline.walk import LATEST, matching_names
from torchx_kfp.execution.runs.events import Event, RunStarted, StageFinished, StageStarted, decode_event, read_fields
from torchx_kfp.execution.runs.journal import (
    EVENTS_FILE,
    LOG_FILE,
    LONGEST_LINE,
    MOST_BAD_LINES,
    PIPELINE_FILE,
    REQUEST_FILE,
    VERSION,
    CommandLine,
    is_running,
)
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.source import Invocation, RunSource, choose_stage, not_started, place_of
from torchx_kfp.execution.runs.state import RunState

#: The largest ``run.json``, in bytes. Arguments that KFP accepts have at most 1.5 MB.
_LONGEST_REQUEST = 16 << 20
#: How many bytes are read at once.
_PIECE = 1 << 20
#: How many lines that are not events are described.
_DESCRIBED = 5
#: The levels of nested lists and dicts in an event: twice those of a value that KFP can pass on.
_DEEPEST = 200
#: The user's variable for the tracker base of commands.
TRACKER_BASE = "TORCHX_KFP_TRACKER_BASE"
#: The names of local runs and pods, which are names of folders.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")


@dataclass(frozen=True)
class _RunFile:
    """The records in ``run.json``."""

    version: Any = VERSION
    run_id: str = ""
    pipeline: str = ""
    created: float | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    command: CommandLine | None = None


class FileTail:
    """Read the lines that another process added to a file since the last call. The file may not exist yet."""

    def __init__(self, path: Path, root: Path | None = None) -> None:
        """Start at the first line. Links below ``root`` are not followed; its default is that of ``open_log``."""
        self.path = path
        self._root = str(path.parent.parent if root is None else root)
        self._offset = 0

    def lines(self, *, is_whole: bool = False) -> Iterator[bytes]:
        """Yield the new lines, without their line breaks. Lines not consumed are yielded again by the next call.

        Args:
            is_whole: whether the file is complete, so that text after the last line break is a line.

        Raises:
            OSError: it is not a regular file, or cannot be read.
        """
        try:
            with open_regular(str(self.path), self._root) as file:
                file.seek(self._offset)
                rest = b""
                while len(rest) < LONGEST_LINE and (data := file.read(_PIECE)):
                    *new, rest = (rest + data).split(b"\n")
                    for line in new:
                        self._offset += len(line) + 1
                        yield line
        except FileNotFoundError:
            return
        if is_whole and rest:
            self._offset += len(rest)
            yield rest


class EventReader:
    """Reads the events of a run in order, as they are added."""

    def __init__(self, folder: Path) -> None:
        self._file = FileTail(folder / EVENTS_FILE, folder)
        self._lines = self._bad = 0
        self._suspects: list[str] = []

    @property
    def corrupt(self) -> list[str]:
        """Messages about lines that are not events, without the partial last line of a killed process."""
        path, more = self._file.path, self._bad - len(self._suspects)
        others = f"So are {counted(more, 'more line')} of {path}."
        if self._bad > MOST_BAD_LINES:
            others = f"{path} has more than {MOST_BAD_LINES:,} such lines: the rest is not read."
        return [*self._suspects, *([others] if more else [])]

    def read_new(self) -> list[Event]:
        """Return the events of the complete lines written since the last call."""
        events: list[Event] = []
        for line in self._file.lines() if self._bad <= MOST_BAD_LINES else ():
            self._lines += 1
            try:
                content = json.loads(line)
                verify_depth(content, _DEEPEST)
                events += filter(None, [decode_event(content)])
            except (ValueError, RecursionError) as error:
                self._bad += 1
                if len(self._suspects) < _DESCRIBED:
                    self._suspects.append(f"Line {self._lines} of {self._file.path} is ignored: {error}.")
                if self._bad > MOST_BAD_LINES:  # this is not a file of events
                    break
        return events


class RunReader(RunSource):
    """Reads the folder of a run repeatedly while it runs."""

    def __init__(self, folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> None:
        """Open the folder. The arguments and errors are those of ``read_run``."""
        self.folder = folder = Path(folder)
        if not is_run(folder):
            raise ArgumentError(f"{str(folder)!r} is not the folder of a run: the file {EVENTS_FILE} is missing.")
        self._corrupt: list[str] = []
        self._request = _read_request(folder, self._corrupt)
        if self._request.version != VERSION:
            raise ArgumentError(
                f"The run in {str(folder)!r} was made by another version of torchx-kfp: it has format version "
                f"{shown(self._request.version)}, and this version reads {VERSION}. Use the version that made it."
            )
        self.run_id = self._request.run_id or folder.name
        self._reader = EventReader(folder)
        self._events: list[Event] = []
        self._run = RunState(stages)
        self._last: RunRecord | None = None

    def read(self) -> RunRecord:
        """Return the current record of the run: the same object as before, if nothing has changed."""
        # First, so that the last events of a process that ends right afterwards are read below.
        alive = is_running(self.folder)
        try:
            new = self._reader.read_new()
        except OSError as error:
            raise ArgumentError(f"The run in {str(self.folder)!r} is unreadable: {explain(error)}.") from None
        if self._last is None or new or alive != self._last.is_running:
            for event in new:
                event = self._relocated(event)
                self._events.append(event)
                self._run.on_event(event)
            if not alive:
                self._run.mark_interrupted()
            self._last = self._record(alive)
        return self._last

    def fetch(self, stages: Collection[str]) -> bool:
        """Return True: the log files are written by the stages themselves."""
        return True

    def invocation(self, stage: str | None = None) -> Invocation:
        """Return the invocation of a stage; see ``RunSource.invocation``."""
        record = self.read()
        name = choose_stage(record, stage)
        pipeline = record.load()
        place = place_of(pipeline, name, record.arguments)
        started = self._started(record, name)
        lost = [each for each in place.component.artifact_inputs if each not in started.artifacts]
        if lost := sorted({*lost} - place.component.optional_artifacts):
            raise ArgumentError(
                f"The folder {str(self.folder)!r} does not record which artifacts {name!r} took ({listed(lost)}). "
                "Run the pipeline again."
            )
        # Names become parts of paths, and the folder may be another user's.
        known = {*place.component.parameter_inputs, *place.component.artifact_inputs}
        inputs = {name: value for name, value in {**started.inputs, **started.artifacts}.items() if name in known}
        return Invocation(record, pipeline, name, place, place.component, inputs, started.pod_name)

    def _started(self, record: RunRecord, stage: str) -> StageStarted:
        """Return the start of a stage's last attempt, or of the stage that produced its cached results."""
        if attempts := record.run.attempts_at(stage):
            return attempts[-1]
        end = record.run.end_of(stage)
        if end is not None and end.cached_from and end.log_file is not None and is_run(end.log_file.parent.parent):
            earlier, pod = read_run(end.log_file.parent.parent).run, end.log_file.parent.name
            found = [one for one in earlier.attempts_at(earlier.stage_of_pod(pod)) if one.pod_name == pod]
            if found:
                return found[-1]
        raise not_started(record, stage)

    def _record(self, alive: bool) -> RunRecord:
        first = next((event for event in self._events if isinstance(event, RunStarted)), None)
        return RunRecord(
            folder=self.folder,
            load=partial(load_file, self.folder / PIPELINE_FILE, self.folder),
            run_id=self.run_id,
            pipeline=self._request.pipeline or (first.pipeline if first else ""),
            created=created(self.folder, self._request),
            events=tuple(self._events),
            run=self._run,
            is_running=alive,
            arguments=self._request.arguments or (first.arguments if first else {}),
            options=self._request.options,
            command=self._request.command,
            named_bases=(os.environ.get(TRACKER_BASE, ""),),
            corrupt=(*self._corrupt, *self._reader.corrupt),
        )

    def _relocated(self, event: Event) -> Event:
        """Return the event with current paths: the folder may have been moved, even to another machine."""
        folder = self.folder.absolute()
        match event:
            case RunStarted(folder=Path()):
                return dataclasses.replace(event, folder=folder)
            case StageStarted():
                return dataclasses.replace(event, log_file=log_now(event.log_file, folder))
            case StageFinished(result):
                log = log_now(result.log_file, folder_of(result.cached_from, folder) if result.cached_from else folder)
                return dataclasses.replace(event, result=dataclasses.replace(result, log_file=log))
        return event


def log_now(log: Path | None, folder: Path | None) -> Path | None:
    """Return the path of a recorded log in the folder of its run.

    The rest of the recorded path is ignored: another user's events could name any file.
    """
    if log is None or folder is None or log.name != LOG_FILE or not _NAME.fullmatch(log.parent.name):
        return None
    return folder / log.parent.name / LOG_FILE


def folder_of(run: str, other: Path) -> Path | None:
    """Return the folder of a recorded run, next to ``other``; None if the name is invalid."""
    folder = other.parent / run if _NAME.fullmatch(run) else None
    return folder if folder is None or is_run(folder) or not folder.exists() else None


def read_run(folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> RunRecord:
    """Read a run from its folder. The run may still be running.

    Args:
        folder: the run's folder.
        stages: the stages of its pipeline, if they are known (see ``walk.outline``).

    Raises:
        ArgumentError: the folder is not that of a run, or another version of torchx-kfp made it.
    """
    return RunReader(folder, stages).read()


def find_runs(output_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of all runs in an output folder, newest first.

    Raises:
        ArgumentError: ``output_dir`` is not a folder.
    """
    times: dict[Path, float] = {}
    try:
        for path in Path(output_dir).iterdir():
            if path.name[0] != "." and is_run(path):
                with contextlib.suppress(FileNotFoundError):  # it may be removed meanwhile
                    times[path] = created(path)
    except OSError as error:
        raise ArgumentError(
            f"There are no runs in {str(output_dir)!r}: {error.strerror}."
            f"{did_you_mean_path(output_dir) or ' Give the --output-dir of the runs.'}"
        ) from None
    return sorted(times, key=lambda folder: (times[folder], folder.name), reverse=True)


def find_run(output_dir: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of a run.

    Args:
        output_dir: the folder that contains the runs.
        name: the run's id, the beginning or the end of it if no other run id has the same, ``latest``, or the path of
            the run's folder.

    Raises:
        UnknownRunError: no run has this name, or several do.
        ArgumentError: there are no runs.
    """
    if os.sep in name and is_run(Path(name)):
        return Path(name)
    folders = {folder.name: folder for folder in find_runs(output_dir)}
    if not folders:
        raise ArgumentError(f"There are no runs in {str(output_dir)!r}. Give the --output-dir of the runs.")
    if name in folders:
        return folders[name]
    if name == LATEST:
        return next(iter(folders.values()))
    matches = matching_names(name, list(folders))
    if len(matches) == 1:
        return folders[matches[0]]
    if matches:
        raise UnknownRunError(
            f"{name!r} matches {len(matches):,} runs in {str(output_dir)!r}: {listed(matches)}. Give more of the "
            f"run id; the newest is {matches[0]}."
        )
    raise UnknownRunError(
        f"There is no run {name!r} in {str(output_dir)!r}.{did_you_mean(name, [LATEST, *folders])} "
        f"Its runs, newest first: {listed(folders)}."
    )


def is_run(folder: Path) -> bool:
    """Return whether a folder is that of a run, even if the run cannot be read."""
    try:
        names = set(os.listdir(folder))
    except PermissionError:
        return True  # it may be one, and reading it says why not
    except (OSError, ValueError):  # a word of a command line may have any characters
        return False
    return EVENTS_FILE in names or REQUEST_FILE in names


def run_with(path: Path, runs: Path) -> Path | None:
    """Return the folder of the run that contains this file, with links resolved; None if none does."""
    path, runs = path.resolve(), runs.resolve()
    # A file next to the runs belongs to none of them.
    inside = path.relative_to(runs).parts if path.is_relative_to(runs) else ()
    return runs / inside[0] if inside and is_run(runs / inside[0]) else None


def _read_request(folder: Path, corrupt: list[str]) -> _RunFile:
    """Return the content of ``run.json``. If unreadable, return an empty one and add a message to ``corrupt``."""
    path = folder / REQUEST_FILE
    try:
        content = json.loads(read_bytes(str(path), str(folder), limit=_LONGEST_REQUEST))
        if not isinstance(content, dict):
            raise ValueError("it does not contain a JSON object")
        verify_depth(content, _DEEPEST)
        return read_fields(_RunFile, content)
    except (OSError, ValueError, RecursionError) as error:
        corrupt.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
        return _RunFile()


def created(folder: Path, request: _RunFile | None = None) -> float:
    """Return the start time of the run in the folder, in seconds since the epoch."""
    when = (request or _read_request(folder, [])).created
    return folder.stat().st_mtime if when is None else float(when)
