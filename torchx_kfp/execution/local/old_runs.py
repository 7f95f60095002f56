"""Remove old runs from a folder of runs on this machine, with what the cache has of them.

A run stays while it is running, and while a run that stays has taken a stage from it or resumes it: the stage's log and
files are in its folder. A lock is held, shared, from the look whether a stage can be taken until that is recorded, and
exclusively from the look what is used until the folders of the other runs have been renamed. What the file system
cannot tell is taken for use: without locks, a run stays unless its end is recorded.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchx_kfp.common.safe_files import read_bytes, remove_tree, walk
from torchx_kfp.common.text import listed
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.local.cache import FOLDER, locked
from torchx_kfp.execution.local.replay import REPLAYS
from torchx_kfp.execution.runs.history import find_runs, read_run
from torchx_kfp.execution.runs.journal import EVENTS_FILE, LONGEST_LINE, is_running
from torchx_kfp.execution.runs.record import RunRecord
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
        uses: the runs from which it has taken stages, or which it resumes or, while it is running, replays.
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
    now, total = time.time(), 0
    numbers: Counter[bool] = Counter()
    runs = []
    for run in _read_all(Path(output_dir)):
        total += run.size
        is_replay = run.folder.parent.name == REPLAYS
        numbers[is_replay] += 1
        is_old = age is not None and now - run.modified >= age
        is_large = size is not None and total > size
        if run.kept or (one is not None and run.folder.name != one):
            reason = run.kept or "another run"
        elif keep is not None and numbers[is_replay] <= keep:
            reason = f"one of the newest {keep:,}"
        else:
            reason = "" if is_old or is_large or (age is None and size is None) else "not that old"
        runs.append(replace(run, kept=reason))
    return _keep_used(runs)


def remove(output_dir: str | os.PathLike[str], runs: Sequence[StoredRun]) -> Iterator[StoredRun]:
    """Remove the folders of runs that nothing keeps; yield each that is gone. One that is used meanwhile stays.

    What an interrupted removal has left is removed, too, and what the cache has of runs that are gone.

    Raises:
        ArgumentError: some folders could not be removed, after all others.
    """
    top = Path(output_dir)
    going = {run.folder.name: run for run in runs if not run.kept}
    failures: list[str] = []
    with _alone(top):
        with locked(top / FOLDER, fcntl.LOCK_EX):
            there = [
                run if run.folder.name in going else replace(run, kept=run.kept or "another run")
                for run in _read_all(top, sized=False)
            ]
            for run in _keep_used(there):
                name = run.folder.name
                try:
                    if run.kept:
                        going.pop(name, None)
                    else:
                        run.folder.rename(run.folder.with_name(f".{name}{_GOING}"))
                except OSError as error:
                    failures.append(f"{name} ({explain(error)})")
                    del going[name]
            _forget(top)
        for left in (*top.glob(f".*{_GOING}"), *top.glob(f"{REPLAYS}/.*{_GOING}")):
            name = left.name[1:].removesuffix(_GOING)
            try:
                remove_tree(left)
            except OSError as error:
                failures.append(f"{name} ({explain(error)})")
                going.pop(name, None)
    yield from going.values()
    if failures:
        raise ArgumentError(f"Some runs cannot be removed, or not completely: {listed(failures)}.")


def _keep_used(runs: Sequence[StoredRun]) -> list[StoredRun]:
    """Keep also the runs that one that stays needs, also younger ones: it may have been resumed."""
    kept = {run.folder.name: run for run in runs}
    waiting = [run for run in runs if run.kept]
    for run in waiting:  # the list grows
        for name in sorted(run.uses & kept.keys()):
            if not kept[name].kept:
                kept[name] = replace(kept[name], kept=f"used by {run.folder.name}")
                waiting.append(kept[name])
    return [kept[run.folder.name] for run in runs]


@contextlib.contextmanager
def _alone(top: Path) -> Iterator[None]:
    """Let one gc at a time work in the folder, as far as the file system has locks."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


def _forget(top: Path) -> None:
    """Remove what the cache has of runs whose folders are gone."""
    for entry in (top / FOLDER).glob("*/*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            if not (top / str(json.loads(read_bytes(str(entry), limit=LONGEST_LINE))["run_id"])).exists():
                entry.unlink()


def _read_all(top: Path, *, sized: bool = True) -> list[StoredRun]:
    """Return all runs, the newest first, and then all replays."""
    replays = find_runs(top / REPLAYS) if (top / REPLAYS).is_dir() else []
    return [_read(folder, sized=sized) for folder in (*find_runs(top), *replays)]


def _read(folder: Path, *, sized: bool) -> StoredRun:
    try:
        modified = max(path.stat().st_mtime for path in (folder, folder / EVENTS_FILE) if path.exists())
    except (OSError, ValueError):
        modified = time.time()
    if folder.is_symlink():
        return StoredRun(folder, State.INTERRUPTED, modified, 0, frozenset(), "it is a symbolic link")
    size = sum(_sizes(folder)) if sized else 0
    try:
        record = read_run(folder)
    except (ArgumentError, OSError) as error:
        return StoredRun(folder, State.INTERRUPTED, modified, size, frozenset(), f"it cannot be read: {error}")
    return StoredRun(folder, record.run.state, modified, size, frozenset(_uses(record)), _why_busy(record, folder))


def _why_busy(record: RunRecord, folder: Path) -> str:
    """Return why a run may not be over, as a clause; empty if its lock is free, or its end is recorded."""
    if record.is_running:
        return "it is running"
    is_over = record.run.state is not State.INTERRUPTED or not is_running(folder, unknown=True)
    return "" if is_over else "whether it is running is unknown here"


def _uses(record: RunRecord) -> set[str]:
    """Return the runs that a run needs."""
    uses = {record.resumes, *(stage.cached_from for stage in record.run.ends)}
    if record.is_running:
        uses.add(str(record.options.get("replays") or "").partition("/")[0])
    return uses - {"", record.run_id}


def _sizes(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Yield the size of each file in a folder."""
    for place, _, files in walk(folder):
        for name in files:
            with contextlib.suppress(OSError):
                yield os.lstat(os.path.join(place, name)).st_size
