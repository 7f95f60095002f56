"""Read runs from their folders, during the run and afterwards: the other side of ``journal``."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torchx_kfp.errors import ArgumentError, UnknownRunError
from torchx_kfp.pipeline.load import load_pipeline
from torchx_kfp.pipeline.names import LATEST, fitting
from torchx_kfp.runs.events import Event, RunStarted, StageFinished, StageStarted, decode
from torchx_kfp.runs.growing import GrowingFile
from torchx_kfp.runs.journal import EVENTS_FILE, PIPELINE_FILE, REQUEST_FILE, VERSION, is_running
from torchx_kfp.runs.record import RunRecord
from torchx_kfp.runs.state import RunState
from torchx_kfp.text import did_you_mean, did_you_mean_path, listed


class EventReader:
    """Reads the events of a run in order, and later those that have been added since."""

    def __init__(self, folder: Path) -> None:
        self._file = GrowingFile(folder / EVENTS_FILE)
        self._lines = 0
        self._suspects: list[str] = []
        #: Sentences about lines that are not events, except at the end, where a killed process leaves such lines.
        self.corrupt: list[str] = []

    def read_new(self) -> list[Event]:
        """Return the events of the whole lines that have been written since the last call."""
        return [event for line in self._file.read_new() if (event := self._decode(line)) is not None]

    def _decode(self, line: bytes) -> Event | None:
        self._lines += 1
        try:
            event = decode(json.loads(line))
        except (ValueError, RecursionError) as error:
            self._suspects.append(f"Line {self._lines} of {self._file.path} is ignored: {error}.")
            return None
        self.corrupt += self._suspects
        self._suspects.clear()
        return event


class RunReader:
    """Reads the folder of a run, again and again while it runs."""

    #: Seconds between two looks at a run that goes on.
    interval = 0.1

    def __init__(self, folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> None:
        """Open the folder. The arguments and errors are those of ``read_run``."""
        self.folder = folder = Path(folder)
        if not is_run(folder):
            raise ArgumentError(f"{str(folder)!r} is not the folder of a run: the file {EVENTS_FILE} is missing.")
        self._corrupt: list[str] = []
        self._recorded: set[Path] = set()
        self._request = _read_request(folder, self._corrupt)
        if self._request.get("version", VERSION) != VERSION:
            raise ArgumentError(
                f"The run in {str(folder)!r} was made by another version of torchx-kfp: it has format version "
                f"{self._request['version']!r}, and this version reads {VERSION}. Use the version that made it."
            )
        self._reader = EventReader(folder)
        self._events: list[Event] = []
        self._run = RunState(stages, _last_output)
        self._last: RunRecord | None = None

    @property
    def run_id(self) -> str:
        """The run's id."""
        return str(self._request.get("run_id") or self.folder.name)

    def read(self) -> RunRecord:
        """Return the run as it is recorded now: the same object as before, if nothing has changed."""
        # Check this first: if the process ends right afterwards, its last events are read below.
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

    look = read

    def follow(self) -> Iterator[RunRecord]:
        """Yield the run as it is recorded now, and again whenever that has changed, until the run has ended."""
        last = None
        while True:
            record = self.read()
            if record is not last:
                last = record
                yield record
            if not record.is_running:
                return
            time.sleep(self.interval)

    def fetch(self, stages: Collection[str]) -> None:
        """Do nothing: the log files are those that the stages write."""

    def _record(self, alive: bool) -> RunRecord:
        first = next((event for event in self._events if isinstance(event, RunStarted)), None)
        return RunRecord(
            folder=self.folder,
            load=partial(load_pipeline, self.folder / PIPELINE_FILE),
            run_id=self.run_id,
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
        """Return the event with the log's current path: the folder may have been moved, even to another machine."""
        if isinstance(event, RunStarted) and event.folder is not None:
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
    """Return the time at which the attempt last printed something."""
    try:
        return attempt.log_file.stat().st_mtime if attempt.log_file is not None else 0.0
    except OSError:
        return 0.0


def read_run(folder: str | os.PathLike[str], stages: Mapping[str, bool] | None = None) -> RunRecord:
    """Read a run from its folder. The run may still be running.

    Args:
        folder: the run's folder.
        stages: the stages of its pipeline, if they are known (see ``state.outline``).

    Raises:
        ArgumentError: the folder is not that of a run, or another version of torchx-kfp made it.
    """
    return RunReader(folder, stages).read()


def find_runs(output_dir: str | os.PathLike[str]) -> list[Path]:
    """Return the folders of all runs in an output folder, the newest first.

    Raises:
        ArgumentError: ``output_dir`` is not a folder.
    """
    try:
        folders = [path for path in Path(output_dir).iterdir() if is_run(path)]
    except OSError as error:
        raise ArgumentError(
            f"There are no runs in {str(output_dir)!r}: {error.strerror}."
            f"{did_you_mean_path(output_dir) or ' Give the --output-dir of the runs.'}"
        ) from None
    return sorted(folders, key=lambda folder: (created(folder), folder.name), reverse=True)


def find_run(output_dir: str | os.PathLike[str], name: str) -> Path:
    """Return the folder of a run.

    Args:
        output_dir: the folder that contains the runs.
        name: the run's id, the beginning or the end of it if no other run id has the same, ``latest``, or the path of
            the run's folder.

    Raises:
        UnknownRunError: no run has this name, or several do.
    """
    if os.sep in name and is_run(Path(name)):
        return Path(name)
    folders = {folder.name: folder for folder in find_runs(output_dir)}
    if not folders:
        raise UnknownRunError(f"There are no runs in {str(output_dir)!r}. Give the --output-dir of the runs.")
    if name in folders:
        return folders[name]
    if name == LATEST:
        return next(iter(folders.values()))
    found = fitting(name, list(folders))
    if len(found) == 1:
        return folders[found[0]]
    if found:
        raise UnknownRunError(
            f"{name!r} matches {len(found):,} runs in {str(output_dir)!r}: {listed(found)}. Give more of the run id."
        )
    raise UnknownRunError(
        f"There is no run {name!r} in {str(output_dir)!r}.{did_you_mean(name, [LATEST, *folders])} "
        f"Its runs, the newest first: {listed(folders)}."
    )


def is_run(folder: Path) -> bool:
    """Return whether this is the folder of a run on this machine."""
    return os.path.isfile(folder / EVENTS_FILE) or os.path.isfile(folder / REQUEST_FILE)


def _read_request(folder: Path, corrupt: list[str]) -> dict[str, Any]:
    """Return the content of ``run.json``. If it cannot be read, return nothing and add a sentence to ``corrupt``."""
    path = folder / REQUEST_FILE
    try:
        request = json.loads(path.read_bytes())
        if not isinstance(request, dict):
            raise ValueError("it does not contain a JSON object")
    except (OSError, ValueError, RecursionError) as error:
        corrupt.append(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.")
        return {}
    return request


def created(folder: Path) -> float:
    """Return the time at which the run in the folder was started, in seconds since the epoch."""
    return _created(folder, _read_request(folder, []))


def _created(folder: Path, request: Mapping[str, Any]) -> float:
    created = request.get("created")
    return float(created) if isinstance(created, int | float) else folder.stat().st_mtime
