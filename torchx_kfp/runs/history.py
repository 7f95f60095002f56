"""Runs as their folders tell of them, while they run and afterwards: the reading side of ``journal``."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.errors import ArgumentError, UnknownRunError
from torchx_kfp.pipeline.names import LATEST, fitting
from torchx_kfp.runs.events import Event, RunStarted, StageFinished, StageStarted, decode
from torchx_kfp.runs.journal import EVENTS_FILE, PIPELINE_FILE, REQUEST_FILE, VERSION, is_running
from torchx_kfp.runs.state import RunState
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import did_you_mean, listed

# Runs that a message lists.
# Runs that a wrong name is compared with.
_COMPARED = 1000


class EventReader:
    """The events of a run in the order in which they happened; also those that come later."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / EVENTS_FILE
        self._offset = 0
        self._lines = 0
        self._suspects: list[str] = []
        #: Lines that are no events, as sentences. Those at the end are left out: a killed process leaves such.
        self.corrupt: list[str] = []

    def read_new(self) -> list[Event]:
        """What has been written since the last call, in whole lines."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        *lines, rest = data.split(b"\n")
        self._offset += len(data) - len(rest)
        return [event for line in lines if (event := self._decode(line)) is not None]

    def _decode(self, line: bytes) -> Event | None:
        self._lines += 1
        try:
            event = decode(json.loads(line))
        except (ValueError, RecursionError) as error:
            self._suspects.append(f"Line {self._lines} of {self._path} is no event of a run and passed over: {error}.")
            return None
        self.corrupt += self._suspects
        self._suspects.clear()
        return event


@dataclass(frozen=True)
class RunRecord:
    """What a run's folder tells. ``created`` is in seconds since the epoch; ``options`` are those of ``run``."""

    folder: Path
    run_id: str
    pipeline: str
    created: float
    events: tuple[Event, ...] = field(repr=False)
    #: What the events come to.
    run: RunState = field(repr=False)
    #: Whether its process lives.
    is_running: bool
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    #: What of its record could not be read, as sentences.
    corrupt: tuple[str, ...] = ()

    @property
    def pipeline_file(self) -> Path:
        """The compiled pipeline, for ``load_pipeline``."""
        return self.folder / PIPELINE_FILE

    @property
    def state(self) -> State:
        """Running, succeeded, failed, canceled, or interrupted if its process was killed."""
        return self.run.state

    @property
    def duration(self) -> float:
        """Seconds in which a runner was at work, up to now."""
        return self.run.duration(time.time())


class RunReader:
    """Reads the folder of a run, again and again while it runs."""

    def __init__(self, folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> None:
        """Open the folder; arguments and errors are those of ``read_run``."""
        self.folder = folder = Path(folder)
        if not _is_run(folder):
            raise ArgumentError(f"{str(folder)!r} is not the folder of a run: it has no file {EVENTS_FILE}.")
        self._corrupt: list[str] = []
        self._recorded: set[Path] = set()
        self._request = _read_request(folder, self._corrupt)
        if self._request.get("version", VERSION) != VERSION:
            raise ArgumentError(
                f"The run in {str(folder)!r} was made by another version of torchx-kfp: its form is "
                f"{self._request['version']!r}, and this one knows {VERSION}. Use that version for it."
            )
        self._reader = EventReader(folder)
        self._events: list[Event] = []
        self._run = RunState(stages, _last_output)
        self._last: RunRecord | None = None

    def read(self) -> RunRecord:
        """What the folder tells now; the same object as before where that is the same."""
        # First: what a process that has ended just now has written is read afterwards.
        alive = is_running(self.folder)
        new = self._reader.read_new()
        if self._last is None or new or alive != self._last.is_running:
            for event in new:
                event = self._relocated(event)
                self._events.append(event)
                self._run.on_event(event)
            if not alive:
                self._run.lose()
            self._last = self._record(alive)
        return self._last

    def _record(self, alive: bool) -> RunRecord:
        first = next((event for event in self._events if isinstance(event, RunStarted)), None)
        return RunRecord(
            folder=self.folder,
            run_id=str(self._request.get("run_id") or self.folder.name),
            pipeline=str(self._request.get("pipeline") or (first.pipeline if first else "")),
            created=_created(self.folder, self._request),
            events=tuple(self._events),
            run=self._run,
            is_running=alive,
            arguments=self._request.get("arguments") or (first.arguments if first else {}),
            options=self._request.get("options") or {},
            corrupt=(*self._corrupt, *self._reader.corrupt),
        )

    def _relocated(self, event: Event) -> Event:
        """Return the event with the log's place now: the folder may have been moved, or come from another machine."""
        if isinstance(event, RunStarted):
            self._recorded.add(event.folder)
        elif isinstance(event, StageStarted):
            event = dataclasses.replace(event, log_file=self._place_now(event.log_file))
        elif isinstance(event, StageFinished):
            result = dataclasses.replace(event.result, log_file=self._place_now(event.result.log_file))
            event = dataclasses.replace(event, result=result)
        return event

    def _place_now(self, log: Path | None) -> Path | None:
        inside = (before for before in self._recorded if log is not None and log.is_relative_to(before))
        before = next(inside, None)
        return log if log is None or before is None else self.folder.absolute() / log.relative_to(before)


def _last_output(attempt: StageStarted) -> float:
    """Return when the attempt has last printed something."""
    try:
        return attempt.log_file.stat().st_mtime if attempt.log_file is not None else 0.0
    except OSError:
        return 0.0


def read_run(folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> RunRecord:
    """Return what the folder of a run tells. It may be running meanwhile.

    Args:
        folder: the run's folder.
        stages: the stages of its pipeline, if they are known: see ``state.outline``.

    Raises:
        ArgumentError: it is not a run's folder, or one of another version of this program.
    """
    return RunReader(folder, stages).read()


def find_runs(output_dir: str | os.PathLike[str]) -> list[Path]:
    """The folders of all runs in an output folder, the newest first.

    Raises:
        ArgumentError: it is not a folder.
    """
    try:
        folders = [path for path in Path(output_dir).iterdir() if _is_run(path)]
    except OSError as error:
        raise ArgumentError(
            f"There are no runs in {str(output_dir)!r}: {error.strerror}. Name the folder that they were run with "
            "(--output-dir)."
        ) from None
    return sorted(folders, key=lambda folder: (created(folder), folder.name), reverse=True)


def find_run(output_dir: str | os.PathLike[str], name: str) -> Path:
    """The folder of the run that is meant.

    Args:
        output_dir: the folder that it was run with.
        name: its run id, the beginning or the end of one if no other run's is alike, ``latest``, or the folder's path.

    Raises:
        UnknownRunError: there is none, or several.
    """
    if os.sep in name and _is_run(Path(name)):
        return Path(name)
    folders = {folder.name: folder for folder in find_runs(output_dir)}
    if not folders:
        raise UnknownRunError(
            f"There are no runs in {str(output_dir)!r}. Name the folder that they were run with (--output-dir)."
        )
    if name in folders:
        return folders[name]
    if name == LATEST:
        return next(iter(folders.values()))
    found = fitting(name, list(folders))
    if len(found) == 1:
        return folders[found[0]]
    if found:
        raise UnknownRunError(
            f"{name!r} fits {len(found):,} runs in {str(output_dir)!r}: {listed(found)}. Give more of the one "
            "that is meant."
        )
    raise UnknownRunError(
        f"There is no run {name!r} in {str(output_dir)!r}.{did_you_mean(name, folders)} Runs that are there, "
        f"the newest first: {listed(folders)}."
    )


def _is_run(folder: Path) -> bool:
    return (folder / EVENTS_FILE).is_file() or (folder / REQUEST_FILE).is_file()


def _read_request(folder: Path, corrupt: list[str]) -> dict[str, Any]:
    """What ``run.json`` holds; empty, with a sentence in ``corrupt``, if it holds nothing of use."""
    path = folder / REQUEST_FILE
    try:
        request = json.loads(path.read_bytes())
        if not isinstance(request, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError, RecursionError) as error:
        corrupt.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
        return {}
    return request


def created(folder: Path) -> float:
    """When the run in the folder was started, in seconds since the epoch."""
    return _created(folder, _read_request(folder, []))


def _created(folder: Path, request: Mapping[str, Any]) -> float:
    created = request.get("created")
    return float(created) if isinstance(created, int | float) else folder.stat().st_mtime
