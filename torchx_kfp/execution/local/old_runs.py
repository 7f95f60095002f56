"""Remove old runs from a folder of runs on this machine, with what the cache has of them.

A run stays while it is running, and while a run that stays has taken a stage from it or resumes it: the stage's log and
files are in its folder. A folder is renamed before it is removed, with the lock of its run held, so that nobody resumes
half of it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.cache import FOLDER
from torchx_kfp.execution.local.replay import REPLAYS
from torchx_kfp.execution.runs.history import find_runs, read_run
from torchx_kfp.execution.runs.journal import EVENTS_FILE, LOCK_FILE
from torchx_kfp.execution.runs.vocabulary import State

#: The end of the name of a folder that is being removed. It begins with a dot, so it is no run any more.
_GOING = ".removed"


@dataclass(frozen=True)
class StoredRun:
    """A run on this machine, and what it takes.

    Attributes:
        folder: its folder.
        state: its state.
        modified: when its last event was recorded, in seconds since the epoch.
        size: the bytes of the files in its folder.
        uses: the runs from which it has taken stages, or which it resumes.
        kept: why it stays; empty if it is to be removed.
    """

    folder: Path
    state: State
    modified: float
    size: int
    uses: frozenset[str]
    kept: str = ""


def select(
    output_dir: str | os.PathLike[str],
    *,
    age: float | None = None,
    keep: int | None = None,
    size: int | None = None,
) -> list[StoredRun]:
    """Return the runs in a folder, the newest first, each with the reason to keep it; then its replays likewise.

    Args:
        output_dir: the folder of the runs.
        age: remove the runs whose last event is older than this, in seconds.
        keep: keep this number of the newest runs and of the newest replays, whatever their age and size; with nothing
            else, remove all others.
        size: remove the oldest runs until the others take no more bytes than this.

    Raises:
        ArgumentError: there is no such folder.
    """
    replays, now = Path(output_dir, REPLAYS), time.time()
    folders = [*enumerate(find_runs(output_dir)), *enumerate(find_runs(replays) if replays.is_dir() else ())]
    runs = [_read(folder) for _, folder in folders]
    reasons: list[str] = []
    total = 0
    for (number, _), run in zip(folders, runs, strict=True):
        total += run.size
        is_old = age is not None and now - run.modified >= age
        is_large = size is not None and total > size
        if run.kept:
            reasons.append(run.kept)
        elif keep is not None and number < keep:
            reasons.append(f"one of the newest {keep:,}")
        else:
            reasons.append("" if is_old or is_large or (age is None and size is None) else "not that old")
    # A run that stays may need an older one.
    needed: dict[str, str] = {}
    for number, run in enumerate(runs):
        name = run.folder.name
        reasons[number] = reasons[number] or (f"used by {needed[name]}" if name in needed else "")
        if reasons[number]:
            needed.update(dict.fromkeys(run.uses - needed.keys(), name))
    return [replace(run, kept=reason) for run, reason in zip(runs, reasons, strict=True)]


def remove(runs: Sequence[StoredRun]) -> Iterator[StoredRun]:
    """Remove the folders of runs that nothing keeps; yield each that is gone. One that has begun to run again stays.

    Raises:
        ArgumentError: a folder cannot be removed.
    """
    for run in runs:
        if not run.kept and _remove(run.folder):
            yield run


def forget(output_dir: str | os.PathLike[str]) -> None:
    """Remove what the cache has of runs whose folders are gone, and folders that an interrupted removal has left."""
    top = Path(output_dir)
    for left in (*top.glob(f".*{_GOING}"), *top.glob(f"{REPLAYS}/.*{_GOING}")):
        shutil.rmtree(left, ignore_errors=True)
    for entry in (top / FOLDER).glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if not (top / str(json.loads(entry.read_bytes())["run_id"])).exists():
                entry.unlink()


def total_size(output_dir: str | os.PathLike[str], seconds: float) -> tuple[int, bool]:
    """Return the bytes of all files in a folder, and whether there was time to count all of them."""
    total, deadline = 0, time.monotonic() + seconds
    for number, size in enumerate(_sizes(output_dir)):
        total += size
        if number % 256 == 0 and time.monotonic() > deadline:
            return total, False
    return total, True


def _read(folder: Path) -> StoredRun:
    try:
        modified = max(path.stat().st_mtime for path in (folder, folder / EVENTS_FILE) if path.exists())
    except (OSError, ValueError):
        modified = time.time()
    size = sum(_sizes(folder))
    try:
        record = read_run(folder)
    except (ArgumentError, OSError) as error:
        return StoredRun(folder, State.INTERRUPTED, modified, size, frozenset(), f"it cannot be read: {error}")
    uses = {record.resumes, *(stage.cached_from for stage in record.run.ends.values())} - {"", folder.name}
    return StoredRun(
        folder, record.state, modified, size, frozenset(uses), "it is running" if record.is_running else ""
    )


def _sizes(folder: str | os.PathLike[str]) -> Iterator[int]:
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(place, name)).st_size


def _remove(folder: Path) -> bool:
    """Remove a run's folder unless the run is running; tell whether it is gone."""
    lock = None
    going = folder.with_name(f".{folder.name}{_GOING}")
    try:
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:
                pass  # a file system without locks
        folder.rename(going)
        shutil.rmtree(going)
    except OSError as error:
        raise ArgumentError(f"The run {folder.name!r} cannot be removed: {error}. The rest of it is {going}.") from None
    finally:
        if lock is not None:
            os.close(lock)
    return True
