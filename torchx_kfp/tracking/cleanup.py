"""Remove old pipeline runs from a tracker base: their results, records and stored files, and code that no run uses.

The base may be the wrong folder. So a pipeline run is removed only if every file in its folder is the result of a
stage, ``<run>/<stage>/<execution>``, and if it is known to be a pipeline run: it has records, such as each stage makes
that calls ``current_run()``, or its name has the form that an engine gives to runs. Everything else stays, and so does
a run that may still be going on: one of its stages began within the last days, and has no results. Stored files of
artifacts go with their run; those that are elsewhere are not touched.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchx_kfp.common.text import UUID, duration
from torchx_kfp.contract.carried.publisher import FILES, PRIVATE, RUNS, TEMPORARY, fields_of
from torchx_kfp.contract.protocol import superseded
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.entries import run_id_of
from torchx_kfp.tracking.recorder import run_of
from torchx_kfp.tracking.records import OF_PIPELINE_RUNS, Records, fold_records
from torchx_kfp.tracking.store import File, Store, pipeline_run, run_id_parts
from torchx_kfp.tracking.workspaces import KEPT, find_archives

#: A larger file, in bytes, does not contain results. A result has at most 1 kB, and there are hundreds of names.
_MAX_SIZE = 1 << 20
#: The fields that say which other runs a run uses.
_USES = ("sources", "resumes")
#: Seconds for which a stage that has no results keeps its run: it may be a long training, or have failed.
UNFINISHED = 7 * 86400.0
#: Seconds after which nobody writes a temporary file any more: its writer was killed.
_LEFT_OVER = 86400.0
#: The names of pipeline runs: UUIDs from KFP (and from stages that do not know a name), and names of local runs.
_MADE = re.compile(rf"{UUID.pattern}|.+-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}")
#: A file name extension, which executions do not have.
_EXTENSION = re.compile(r"\.[A-Za-z]\w{0,9}$")
#: How many runs are removed together, so that an object store gets few requests.
_MANY = 50


@dataclass(frozen=True)
class OldRun:
    """A pipeline run that is older than the age.

    Attributes:
        run: its name.
        files: the files of its results and records, and its stored files.
        kept: the reason to keep it in spite of its age, if there is one.
    """

    run: str
    files: tuple[File, ...]
    kept: str = ""

    @property
    def modified(self) -> float:
        """When the newest file was written, in seconds since 1970."""
        return max(file.modified for file in self.files)

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in self.files)

    @property
    def stages(self) -> list[str]:
        """The names of its stages."""
        run_ids = [run_id_of(file.key) if _is_entry(file) else file.key for file in self.files]
        return sorted({parts[1] for run_id in run_ids if (parts := run_id_parts(run_id))})

    @property
    def open_stage(self) -> str:
        """Why it may still be going on; empty if no stage says so."""
        begun: dict[str, float] = {}
        for file in self.files:
            if _is_entry(file) and "started" in fields_of(file.key):
                begun[run_id_of(file.key)] = max(file.modified, begun.get(run_id_of(file.key), 0.0))
        done = {file.key: file.modified for file in self.files if not _is_own(file)}
        earlier = superseded({run_id: max(begun.get(run_id, 0.0), done.get(run_id, 0.0)) for run_id in {*begun, *done}})
        late = {when: run_id for run_id, when in begun.items() if run_id not in earlier and run_id not in done}
        newest = max(late, default=0.0)
        if newest <= time.time() - UNFINISHED:
            return ""
        stage = late[newest].partition("/")[2].partition("/")[0]
        return f"may be going on: {stage} has no results, and began {duration(time.time() - newest)} ago"


@dataclass(frozen=True)
class Findings:
    """The pipeline runs and other things under a tracker base.

    Attributes:
        old: the old runs, the newest first.
        younger: the number of younger runs.
        left_alone: the reasons why something is not a pipeline run, by the first name of its keys.
        marked: whether there is anything that only a tracker creates.
    """

    old: tuple[OldRun, ...]
    younger: int
    left_alone: Mapping[str, str]
    marked: bool


def find_old_runs(store: Store, before: float, *, only: str | None = None) -> Findings:
    """Find the pipeline runs under a tracker base that are older than a certain time. The base is listed once.

    Args:
        store: the store of the tracker base.
        before: runs whose newest file was written before this time are old, in seconds since 1970.
        only: the run to find, whatever its age, even if it may be going on.

    Raises:
        CorruptResultError: a record cannot be understood, so it is not known which runs are used.
        TrackerError: the store failed.
    """
    files = store.list_files()
    runs: dict[str, list[File]] = {}
    for file in files:
        name = run_of(file.key)
        if name and not ("/" in name and _is_own(file)):
            runs.setdefault(name.partition("/")[0], []).append(file)
    left_alone = {name: why for name, found in runs.items() if (why := _problem(name, found))}
    known = [OldRun(name, tuple(found)) for name, found in runs.items() if name not in left_alone]
    old = [run for run in known if (run.modified < before if only is None else run.run == only)]
    old.sort(key=lambda run: (-run.modified, run.run))
    kept = {run.run: why for run in old if only is None and (why := run.open_stage)}
    users = _users(store, files, {run.run for run in old} - kept.keys())
    kept |= {run: f"used by {user}" for run, user in users.items()}
    return Findings(
        old=tuple(replace(run, kept=kept.get(run.run, "")) for run in old),
        younger=len(known) - len(old),
        left_alone=left_alone,
        marked=any(map(_is_own, files)),
    )


def remove_runs(store: Store, going: Iterable[OldRun]) -> Iterator[OldRun]:
    """Remove runs, and yield each that is completely gone. One that was written to since it was listed stays.

    Each run is listed again just before it is removed. After an interruption, parts of some runs are gone. These runs
    are as old as before, so the next call removes the rest: records go last, so the run is still known, and protects
    what it uses.

    Raises:
        TrackerError: the store failed; or, after all others, files of some runs may not be removed.
    """
    denied: TrackerError | None = None

    def files_of(run: OldRun) -> set[File]:
        places = (run.run, f"{RUNS}/{run.run}", f"{FILES}/{run.run}")
        return {file for place in places for file in store.list_files(place)}

    waiting = iter(going)
    while batch := list(itertools.islice(waiting, _MANY)):
        there = zip(batch, store.each(files_of, batch), strict=True)
        batch = [run for run, files in there if files <= {*run.files}]
        left: set[str] = set()
        for own in (False, True):
            files = [file for run in batch if run.run not in left for file in run.files if _is_own(file) is own]
            stay = store.remove_many(files)
            left |= {run_of(file.key) for file in stay}
            denied = denied or next(filter(None, stay.values()), None)
        yield from (run for run in batch if run.run not in left)
    store.remove_leftovers(time.time() - _LEFT_OVER)
    if denied is not None:
        raise denied


def find_unused_code(store: Store, before: float, going: Collection[str] = ()) -> dict[str, File]:
    """Find the archives that no run has recorded, by their digests.

    A submit stores an archive again before it is a day old, and younger ones stay: see ``workspaces``.

    Args:
        store: the store of the tracker base.
        before: archives that were stored after this time are used, in seconds since 1970; those of the last day always.
        going: the runs that are about to be removed.

    Raises:
        CorruptResultError: a record cannot be understood, so it is not known which archives are used.
        TrackerError: the store failed.
    """
    # Archives first: a run that has recorded one since then is seen below.
    old = {
        digest: file for digest, file in find_archives(store).items() if file.modified < min(before, time.time() - KEPT)
    }
    if not old:
        return {}
    entries = (file.key for file in store.list_files(RUNS))
    records = _folded(store, (key for key in entries if run_of(key) not in going), ["code"])
    used = {code.digest for record in records.values() for code in record.code}
    return {digest: file for digest, file in sorted(old.items()) if digest not in used}


def remove_code(store: Store, unused: Mapping[str, File]) -> dict[str, File]:
    """Remove archives, and return those that are gone. One that was stored again meanwhile stays."""
    # Object stores remove whatever is there: a submit may have stored it again while gc read what runs have recorded.
    there = find_archives(store) if unused else {}
    going = {digest: file for digest, file in unused.items() if there.get(digest) == file}
    gone = store.each(store.remove, going.values())
    return {digest: file for (digest, file), is_gone in zip(going.items(), gone, strict=True) if is_gone}


def _users(store: Store, files: Iterable[File], candidates: Collection[str]) -> dict[str, str]:
    """Return the candidates that other runs use, directly or indirectly, with the run id that uses each of them.

    What runs use that are about to go does not matter, and is not read.
    """
    by_run: dict[str, list[str]] = {}
    for file in files if candidates else ():
        if _is_entry(file) and not fields_of(file.key).isdisjoint(_USES):
            by_run.setdefault(run_of(file.key), []).append(file.key)
    used: dict[str, str] = {}
    waiting: Collection[str] = by_run.keys() - candidates
    while waiting:
        records = _folded(store, (key for run in sorted(waiting) for key in by_run.get(run, ())), _USES)
        new: dict[str, str] = {}
        for user, record in sorted(records.items()):
            for run in (*(pipeline_run(source.run_id) for source in record.sources), *record.resumes):
                if run in candidates and run not in used:
                    new.setdefault(run, user)
        used |= new
        waiting = new.keys()
    return used


def _folded(store: Store, keys: Iterable[str], fields: Collection[str]) -> Records:
    records = fold_records(store, keys, fields)
    if records.problems:
        raise records.problems[0]
    return records


def _is_own(file: File) -> bool:
    """Tell whether a file is the tracker's own: no result."""
    return file.key.startswith(f"{PRIVATE}/")


def _is_entry(file: File) -> bool:
    return file.key.startswith(f"{RUNS}/")


def _problem(name: str, files: Iterable[File]) -> str:
    """Return why these files are not all those of a pipeline run; empty if they are."""
    is_known = bool(_MADE.fullmatch(name))
    for file in files:
        parts = file.key.split("/")
        if _is_own(file):
            is_known = True
            is_temporary = parts[-1].startswith(TEMPORARY)  # a stage was killed while it recorded its code
            is_fit = fields_of(file.key) <= {*OF_PIPELINE_RUNS} or run_id_parts(run_id_of(file.key))
            if _is_entry(file) and not is_temporary and not is_fit:
                return f"{file.key!r} is not about a stage of a pipeline run"
        elif run_id_parts(file.key) is None or any(part[0] == "." for part in parts) or _EXTENSION.search(parts[2]):
            return f"{file.key!r} is not a result of a stage"
        elif file.size > _MAX_SIZE:
            return f"{file.key!r} is larger than results can be"
    return "" if is_known else f"nothing shows that {file.key!r} is a result of a stage"
