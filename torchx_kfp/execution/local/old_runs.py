"""Remove old runs from a folder of runs on this machine, with what the cache has of them.

A run stays while it is running, and while a run that stays has taken a stage from it or resumes it: the stage's log and
files are in its folder. A folder is renamed before it is removed, with the lock of its run held, so that nobody resumes
half of it. A run that takes a stage says so before it looks whether the files are there, and before it records that
(``Cache.take``). What the file system cannot tell is taken for use: without locks, a run stays unless its end is
recorded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchx_kfp.common.safe_files import read_bytes, remove_tree, walk
from torchx_kfp.common.text import listed
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.local.cache import FOLDER, taken_file
from torchx_kfp.execution.local.replay import REPLAYS
from torchx_kfp.execution.runs.history import find_runs, read_run
from torchx_kfp.execution.runs.journal import EVENTS_FILE, LOCK_FILE, LONGEST_LINE, is_running
from torchx_kfp.execution.runs.source import RunRecord
from torchx_kfp.execution.runs.vocabulary import State

#: The end of the name of a folder that is being removed. It begins with a dot, so it is no run any more.
_GOING = ".removed"
#: Seconds after which it is looked again what the runs use that are running.
_LOOK = 1.0
#: Seconds within which a run records that it has taken a stage from another one.
_RECORDED = 60.0


@dataclass(frozen=True)
class StoredRun:
    """A run on this machine, and what it takes.

    Attributes:
        folder: its folder.
        state: its state.
        modified: when its last event was recorded, in seconds since the epoch.
        size: the bytes of the files in its folder.
        uses: the runs from which it has taken stages, or which it resumes or, while it is running, replays.
        looked: when all this was read, in seconds since the epoch.
        kept: why it stays; empty if it is to be removed.
    """

    folder: Path
    state: State
    modified: float
    size: int
    uses: frozenset[str]
    looked: float
    kept: str = ""


def select(
    output_dir: str | os.PathLike[str],
    *,
    age: float | None = None,
    keep: int | None = None,
    size: int | None = None,
    one: str | None = None,
) -> list[StoredRun]:
    """Return the runs in a folder, the newest first, each with the reason to keep it; then its replays likewise.

    Args:
        output_dir: the folder of the runs.
        age: remove the runs whose last event is older than this, in seconds.
        keep: keep this number of the newest runs and of the newest replays, whatever their age and size; with nothing
            else, remove all others.
        size: remove the oldest runs until the others take no more bytes than this.
        one: remove only the run with this id.

    Raises:
        ArgumentError: there is no such folder.
    """
    replays, now = Path(output_dir, REPLAYS), time.time()
    folders = [*enumerate(find_runs(output_dir)), *enumerate(find_runs(replays) if replays.is_dir() else ())]
    # Another gc may have removed some of them since.
    folders = [(number, folder) for number, folder in folders if folder.exists()]
    runs = [_read(folder) for _, folder in folders]
    reasons: list[str] = []
    total = 0
    for (number, _), run in zip(folders, runs, strict=True):
        total += run.size
        is_old = age is not None and now - run.modified >= age
        is_large = size is not None and total > size
        if run.kept or (one is not None and run.folder.name != one):
            reasons.append(run.kept or "another run")
        elif keep is not None and number < keep:
            reasons.append(f"one of the newest {keep:,}")
        else:
            reasons.append("" if is_old or is_large or (age is None and size is None) else "not that old")
    # A run that stays may need others, also younger ones: it may have been resumed.
    numbers = {run.folder.name: number for number, run in enumerate(runs)}
    waiting = [run for run, reason in zip(runs, reasons, strict=True) if reason]
    for run in waiting:  # the list grows
        for number in sorted(numbers[name] for name in run.uses if name in numbers):
            if not reasons[number]:
                reasons[number] = f"used by {run.folder.name}"
                waiting.append(runs[number])
    return [replace(run, kept=reason) for run, reason in zip(runs, reasons, strict=True)]


def remove(output_dir: str | os.PathLike[str], runs: Sequence[StoredRun]) -> Iterator[StoredRun]:
    """Remove the folders of runs that nothing keeps; yield each that is gone. One that is used meanwhile stays.

    What an interrupted removal has left is removed, too, and what the cache has of runs that are gone.

    Raises:
        ArgumentError: some folders could not be removed, after all others.
    """
    top = Path(output_dir)
    used, looked, failures = set[str](), -_LOOK, list[str]()
    for run in runs:
        if time.monotonic() - looked > _LOOK:
            used, looked = used | _used_now(top), time.monotonic()
        try:
            if not run.kept and run.folder.name not in used and _remove(run):
                yield run
                continue
        except OSError as error:
            failures.append(f"{run.folder.name} ({explain(error)})")
        except ArgumentError:  # it cannot be read any more, so nothing says that it is over
            pass
        used |= run.uses  # what stays may need others
    for left in (*top.glob(f".*{_GOING}"), *top.glob(f"{REPLAYS}/.*{_GOING}")):
        try:
            _delete(left)
        except OSError as error:
            failures.append(f"{left} ({explain(error)})")
    _forget(top)
    if failures:
        raise ArgumentError(f"Some runs cannot be removed, or not completely: {listed(failures)}.")


def _used_now(top: Path) -> set[str]:
    """Return the runs that are used by those that are running now."""
    used: set[str] = set()
    for folder in (*_folders(top), *_folders(top / REPLAYS)):
        if is_running(folder):
            with contextlib.suppress(ArgumentError, OSError):
                used |= _uses(read_run(folder))
    return used


def _folders(top: Path) -> list[Path]:
    return [folder for folder in top.iterdir() if folder.name[0] != "."] if top.is_dir() else []


def _forget(top: Path) -> None:
    """Remove what the cache has of runs whose folders are gone."""
    for mark in taken_file(top / FOLDER, "").glob("*"):
        with contextlib.suppress(OSError):
            if not (top / mark.name).exists():
                mark.unlink()
    for entry in (top / FOLDER).glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if not (top / str(json.loads(read_bytes(str(entry), limit=LONGEST_LINE))["run_id"])).exists():
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
    looked = time.time()
    try:
        modified = max(path.stat().st_mtime for path in (folder, folder / EVENTS_FILE) if path.exists())
    except (OSError, ValueError):
        modified = time.time()
    if folder.is_symlink():
        return StoredRun(folder, State.INTERRUPTED, modified, 0, frozenset(), looked, "it is a symbolic link")
    size = sum(_sizes(folder))
    try:
        record = read_run(folder)
    except (ArgumentError, OSError) as error:
        return StoredRun(folder, State.INTERRUPTED, modified, size, frozenset(), looked, f"it cannot be read: {error}")
    kept = (
        "it is running"
        if record.is_running
        else ""
        if _is_over(record, folder)
        else "whether it is running is unknown here"
    )
    if not kept and _is_taken(folder, looked):
        kept = "a run has just taken a stage from it"
    return StoredRun(folder, record.state, modified, size, frozenset(_uses(record)), looked, kept)


def _is_taken(folder: Path, looked: float) -> bool:
    """Tell whether a stage was taken from the run by one that may not have recorded it at the time ``looked``."""
    try:
        return taken_file(folder.parent / FOLDER, folder.name).stat().st_mtime > looked - _RECORDED
    except OSError:
        return False


def _is_over(record: RunRecord, folder: Path) -> bool:
    """Tell whether no process is running a run: its lock says so, or its end is recorded."""
    return record.state is not State.INTERRUPTED or not is_running(folder, unknown=True)


def _uses(record: RunRecord) -> set[str]:
    """Return the runs that a run needs."""
    uses = {record.resumes, *(stage.cached_from for stage in record.run.ends.values())}
    if record.is_running:
        uses.add(str(record.options.get("replays") or "").partition("/")[0])
    return uses - {"", record.run_id}


def _sizes(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Yield the size of each file in a folder. One that has several names there counts once."""
    seen: set[tuple[int, int]] = set()
    for place, _, files in walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                state = os.lstat(os.path.join(place, name))
                own = state.st_dev, state.st_ino
                if state.st_nlink == 1 or own not in seen:
                    yield state.st_size
                if state.st_nlink > 1:
                    seen.add(own)


def _remove(run: StoredRun) -> bool:
    """Remove a run's folder unless the run is running or a stage was taken from it; tell whether it is gone.

    Raises:
        OSError: it cannot be removed. What is left of it has another name.
    """
    folder, lock = run.folder, None
    try:
        with contextlib.suppress(FileNotFoundError):
            lock = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            except OSError:  # a file system without locks
                if not _is_over(read_run(folder), folder):
                    return False
        going = folder.with_name(f".{folder.name}{_GOING}")
        try:
            folder.rename(going)
        except FileNotFoundError:  # another gc was faster
            return True
        if _is_taken(folder, run.looked):
            going.rename(folder)
            return False
        _delete(going)
    finally:
        if lock is not None:
            os.close(lock)
    return True


def _delete(folder: Path) -> None:
    """Remove a folder. Another gc may be removing it as well, and a stage may have forbidden to write to its folders.

    Raises:
        OSError: it cannot be removed.
    """
    is_allowed = False
    while os.path.lexists(folder):
        try:
            remove_tree(folder)
        except FileNotFoundError:
            continue
        except PermissionError:
            if is_allowed:
                raise
            is_allowed = True
            os.chmod(folder, 0o700)
            for place, names, _ in walk(folder):
                for name in names:
                    os.chmod(os.path.join(place, name), 0o700)
