"""What of a tracker base is old and may go: whole pipeline runs, their results and what was said of them.

The base may be a wrong folder. So a pipeline run is removed only if every file in its folder is the result of a stage,
``<run>/<stage>/<execution>``, and if it is known to be one: it has the name that an engine gives to a run, or the
tracker has an entry of it, which each stage that calls ``current_run()`` makes. Whatever else there is stays. The files
of artifacts lie elsewhere, and are not touched.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.statements.entries import KINDS, SOURCES, folder_name, run_id_of
from torchx_kfp.tracking.statements.sources import Source, read_sources_of
from torchx_kfp.tracking.stores.keys import PRIVATE, File, run_id_parts
from torchx_kfp.tracking.stores.store import Store

#: Bytes above which a file is no result. Results have 1 kB at most, and hundreds of names.
_MAX_SIZE = 1 << 20
#: Files that are removed between two looks at the base, and the part of all that is removed at least.
_FILES, _PART = 2000, 8
#: A temporary file of a writer that was killed, in a folder ``.torchx_kfp`` (``tracking.atomic``).
_TEMPORARY = re.compile(r"[0-9a-f]{16}")
#: Names of pipeline runs: KFP's (and those of a stage that is told none) are UUIDs, and those of ``local.names``.
_MADE = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|.+-\d{8}-\d{6}-[0-9a-f]{6}")
#: The end of a file's name that no execution has.
_EXTENSION = re.compile(r"\.[A-Za-z]\w{0,9}$")


@dataclass(frozen=True)
class OldRun:
    """A pipeline run that is older than the age, and why it is kept all the same, if it is.

    ``results`` and ``entries`` are its files, ``size`` is their bytes, and ``modified`` when the newest of
    them was written, in seconds since 1970.
    """

    run: str
    stages: tuple[str, ...]
    results: tuple[File, ...]
    entries: tuple[File, ...]
    size: int
    modified: float
    kept: str = ""

    @property
    def files(self) -> int:
        """How many files it has."""
        return len(self.results) + len(self.entries)

    @property
    def parts(self) -> tuple[list[File], list[File], list[File]]:
        """Its files as they go: results, since entries without results are known to be a rest, and sources last.

        Sources keep other runs from going.
        """
        folder = f"{PRIVATE}/{SOURCES}/"
        others = [file for file in self.entries if not file.key.startswith(folder)]
        return list(self.results), others, [file for file in self.entries if file.key.startswith(folder)]


@dataclass(frozen=True)
class Findings:
    """What is under a tracker base: old runs, the newest first, how many younger ones, and what is no run.

    ``left_alone`` has the first name of its keys -> why it is no pipeline run. ``marked`` says whether anything is
    there that only a tracker makes.
    """

    old: tuple[OldRun, ...]
    younger: int
    left_alone: Mapping[str, str]
    marked: bool


class Cleanup:
    """Finds and removes the pipeline runs under a tracker base whose newest file was written before a time.

    Args:
        store: the store of the tracker base.
        before: seconds since 1970.
    """

    def __init__(self, store: Store, before: float) -> None:
        self._store = store
        self._before = before
        # What was read once need not be read again, unless the file has changed.
        self._problems: dict[File, str] = {}
        self._seen: dict[str, set[File]] = {}
        self._known: dict[str, list[Source]] = {}

    def look(self) -> Findings:
        """What is there now.

        Raises:
            CorruptResultError: what a run was made of cannot be read, so which runs are used is not known.
            TrackerError: the store failed.
        """
        files = self._store.files()
        results, entries = _grouped(files)
        left_alone = {name: why for name, files in results.items() if (why := _shape_problem(files))}
        runs = (results.keys() | entries.keys()) - left_alone.keys()
        newest = {run: max(file.modified for file in [*results.get(run, ()), *entries.get(run, ())]) for run in runs}
        old = sorted((run for run in runs if newest[run] < self._before), key=lambda run: (-newest[run], run))
        self._read(file for run in old for file in results.get(run, ()))
        for run in old:
            problem = next(filter(None, (self._problems.get(file) for file in results.get(run, ()))), "")
            if not problem and run not in entries and not _MADE.fullmatch(run):
                problem = f"nothing tells that {results[run][0].key!r} is a result of a stage"
            if problem:
                left_alone[run] = problem
        candidates = [
            _old_run(run, results.get(run, ()), entries.get(run, ()), newest[run])
            for run in old
            if run not in left_alone
        ]
        users = _users(self._sources(files), {run.run for run in candidates}) if candidates else {}
        return Findings(
            old=tuple(
                replace(run, kept=f"used by {users[run.run]}") if run.run in users else run for run in candidates
            ),
            younger=len(runs) - len(old),
            left_alone=left_alone,
            marked=any(file.key.startswith(f"{PRIVATE}/") for file in files),
        )

    def remove(self) -> Iterator[OldRun]:
        """Remove what may go, and give each run that is gone. A run that was given is gone whole.

        Before every few thousand files it looks again: what was written or used meanwhile stays. On a local file system
        it also looks at each file just before that goes, with writers shut out (``DiskStore.remove_old``). An
        interruption leaves runs of which a part is gone; they are as old as they were, so that the next call finishes
        them.
        """
        done: set[str] = set()
        share = 0
        while going := [run for run in self.look().old if not run.kept and run.run not in done]:
            share = share or sum(run.files for run in going) // _PART
            batch = _first(going, max(share, _FILES))
            written: set[str] = set()
            for part in range(3):
                files = [(run.run, file) for run in batch if run.run not in written for file in run.parts[part]]
                gone = self._store.each(self._store.remove_old, [file for _, file in files])
                written.update(run for (run, _), is_gone in zip(files, gone, strict=True) if not is_gone)
            # What is there again was written since, and not by a run that is over.
            done.update(run.run for run in batch)
            yield from (run for run in batch if run.run not in written)

    def _sources(self, files: Iterable[File]) -> dict[str, list[Source]]:
        """The sources of all runs; those whose files are as they were are not read again."""
        there: dict[str, set[File]] = {}
        for file in files:
            if file.key.startswith(f"{PRIVATE}/{SOURCES}/") and file.key.count("/") >= 3:
                there.setdefault(run_id_of(file.key), set()).add(file)
        changed = [run_id for run_id, its in there.items() if self._seen.get(run_id) != its]
        if changed:
            self._known.update(read_sources_of(self._store, changed))
            self._seen.update((run_id, there[run_id]) for run_id in changed)
        return {run_id: self._known.get(run_id, []) for run_id in there}

    def _read(self, files: Iterable[File]) -> None:
        new = [file for file in files if file not in self._problems]
        self._problems.update(zip(new, self._store.each(self._content_problem, new), strict=True))

    def _content_problem(self, file: File) -> str:
        if PRIVATE in file.key.split("/"):
            return ""
        if file.size > _MAX_SIZE:
            return f"{file.key!r} is larger than results are"
        try:
            content = self._store.read(file.key)
            return "" if content is not None and _is_flat(json.loads(content)) else f"{file.key!r} holds no results"
        except TrackerError:
            return f"{file.key!r} cannot be read"
        except (ValueError, RecursionError):
            return f"{file.key!r} holds no results"


def _grouped(files: Iterable[File]) -> tuple[dict[str, list[File]], dict[str, list[File]]]:
    """The files by the first name of their keys, and entries by the pipeline run that they belong to."""
    results: dict[str, list[File]] = {}
    entries: dict[str, list[File]] = {}
    for file in files:
        names = file.key.split("/")
        if names[0] != PRIVATE:
            results.setdefault(names[0], []).append(file)
        elif (run_id := _run_id_of_entry(names)) and (parts := run_id_parts(run_id)):
            entries.setdefault(parts[0], []).append(file)
    return results, entries


def _run_id_of_entry(names: list[str]) -> str | None:
    if len(names) < 4 or names[1] not in KINDS or (len(names) > 4 and not _is_temporary(names[3:])):
        return None
    run_id = run_id_of("/".join(names))
    return run_id if folder_name(run_id) == names[2] else None


def _is_temporary(names: list[str]) -> bool:
    return len(names) == 2 and names[0] == PRIVATE and _TEMPORARY.fullmatch(names[1]) is not None


def _shape_problem(files: Iterable[File]) -> str:
    """Why these files are not all results of stages; empty if they are."""
    results = 0
    for file in files:
        names = file.key.split("/")
        if len(names) == 4 and _is_temporary(names[2:]):
            continue
        if run_id_parts(file.key) is None or any(name.startswith(".") for name in names) or _EXTENSION.search(names[2]):
            return f"{file.key!r} is no result of a stage"
        results += 1
    return "" if results else "it has no result of a stage"


def _is_flat(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, int | float | str) for item in value.values())


def _old_run(run: str, results: Iterable[File], entries: Iterable[File], modified: float) -> OldRun:
    results, entries = list(results), list(entries)
    run_ids = [*(file.key for file in results), *(run_id_of(file.key) for file in entries)]
    return OldRun(
        run,
        stages=tuple(dict.fromkeys(sorted(run_id.split("/")[1] for run_id in run_ids))),
        results=tuple(results),
        entries=tuple(entries),
        size=sum(file.size for file in [*results, *entries]),
        modified=modified,
    )


def _users(sources: Mapping[str, list[Source]], candidates: set[str]) -> dict[str, str]:
    """Candidates that a run uses which stays, directly or through others -> the run id that uses them."""
    uses: dict[str, list[tuple[str, str]]] = {}
    for run_id, found in sources.items():
        user = run_id.partition("/")[0]
        uses.setdefault(user, []).extend((source.run_id.partition("/")[0], run_id) for source in found)
    used: dict[str, str] = {}
    waiting = [run for run in uses if run not in candidates]
    for run in waiting:  # grows on the way
        for source, run_id in uses.get(run, ()):
            if source in candidates and source not in used:
                used[source] = run_id
                waiting.append(source)
    return used


def _first(runs: list[OldRun], files: int) -> list[OldRun]:
    """The first runs that have this many files together, at least one."""
    taken: list[OldRun] = []
    for run in runs:
        if taken and sum(one.files for one in taken) + run.files > files:
            break
        taken.append(run)
    return taken
