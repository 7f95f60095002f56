"""Remove old pipeline runs from a tracker base: their results, and the statements about them.

The base may be the wrong folder. So a pipeline run is removed only if every file in its folder is the result of a
stage, ``<run>/<stage>/<execution>``, and if it is known to be a pipeline run: its name has the form that an engine
gives to runs, or there is a statement about it, such as each stage makes that calls ``current_run()``. Everything else
stays, and so does a run that may still be going on: one of its stages began within the last days, and has no results.
Stored files of artifacts go with their run; those that are elsewhere are not touched.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchx_kfp.common.text import UUID, duration
from torchx_kfp.contract.carried.shared import folder_name
from torchx_kfp.contract.protocol import superseded
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.lineage import SOURCES
from torchx_kfp.tracking.run_facts import RESUMES, RUN_FACTS
from torchx_kfp.tracking.statements import FILES, FOLDERS, StatementCache, run_id_of
from torchx_kfp.tracking.store import PRIVATE, File, Store, pipeline_run, run_id_parts

#: A larger file, in bytes, does not contain results. A result has at most 1 kB, and there are hundreds of names.
_MAX_SIZE = 1 << 20
#: The base is checked again after this many files have been removed, or after one part in this many of all files if
#: that is more.
_FILES, _PART = 2000, 8
#: What begins the keys of statements that stages make when they begin.
_BEGUN = f"{PRIVATE}/{SOURCES.folder}/"
#: What begins the keys of statements that say which other runs a run uses.
_USES = tuple(f"{PRIVATE}/{kind.folder}/" for kind in (SOURCES, RUN_FACTS))
#: Seconds for which a stage that has no results keeps its run: it may be a long training, or have failed.
UNFINISHED = 7 * 86400.0
#: Seconds after which nobody writes a temporary file any more: its writer was killed.
_LEFT_OVER = 86400.0
#: The names of pipeline runs: UUIDs from KFP (and from stages that do not know a name), and names of local runs.
_MADE = re.compile(rf"{UUID.pattern}|.+-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}")
#: A file name extension, which executions do not have.
_EXTENSION = re.compile(r"\.[A-Za-z]\w{0,9}$")


@dataclass(frozen=True)
class OldRun:
    """A pipeline run that is older than the age.

    Attributes:
        run: its name.
        results: the files of its results.
        statements: the files of the statements about it, and the stored files of its artifacts.
        modified: when the newest file was written, in seconds since 1970.
        open_stage: what says that it may be going on, if anything does.
        kept: the reason to keep it in spite of its age, if there is one.
    """

    run: str
    results: tuple[File, ...]
    statements: tuple[File, ...]
    modified: float
    open_stage: str = ""
    kept: str = ""

    @property
    def files(self) -> int:
        """The number of its files."""
        return len(self.results) + len(self.statements)

    @property
    def size(self) -> int:
        """The bytes of all its files."""
        return sum(file.size for file in (*self.results, *self.statements))

    @property
    def stages(self) -> list[str]:
        """The names of its stages."""
        run_ids = [*(file.key for file in self.results), *(run_id_of(file.key) for file in self.statements)]
        return sorted({parts[1] for run_id in run_ids if (parts := run_id_parts(run_id))})

    @property
    def parts(self) -> tuple[list[File], list[File], list[File]]:
        """Its files in the order in which they are removed: results, then statements and files, sources and facts last.

        If the removal is interrupted, statements without results still belong to a known run, sources still protect
        other runs, and facts the code of this one. A stored file goes after the statement that registers it.
        """
        others = sorted(
            (file for file in self.statements if not file.key.startswith(_USES)),
            key=lambda file: file.key.startswith(f"{PRIVATE}/{FILES}/"),
        )
        return list(self.results), others, [file for file in self.statements if file.key.startswith(_USES)]


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


class Cleanup:
    """Finds and removes the pipeline runs under a tracker base that are older than a certain time.

    Args:
        store: the store of the tracker base.
        before: runs whose newest file was written before this time are old, in seconds since 1970.
        begun: runs with a stage that has begun after this time and has no results stay, by default ``UNFINISHED`` ago.
        only: the run to find, whatever its age, even if it may be going on.
    """

    def __init__(self, store: Store, before: float, begun: float | None = None, *, only: str | None = None) -> None:
        self._store = store
        self._before = before
        self._only = only
        self._begun = time.time() - UNFINISHED if begun is None else begun
        # Files are read once, and again only if they have changed.
        self._problems: dict[File, str] = {}
        self._sources, self._facts = StatementCache(SOURCES, store), StatementCache(RUN_FACTS, store)

    def look(self) -> Findings:
        """Return the current findings.

        Raises:
            CorruptResultError: the sources of a run cannot be read, so it is not known which runs are used.
            TrackerError: the store failed.
        """
        files = self._store.files()
        results, entries = _grouped(files)
        left_alone = {name: why for name, files in results.items() if (why := _shape_problem(files))}
        runs = (results.keys() | entries.keys()) - left_alone.keys()
        newest = {run: max(file.modified for file in [*results.get(run, ()), *entries.get(run, ())]) for run in runs}
        wanted = (run for run in runs if (newest[run] < self._before if self._only is None else run == self._only))
        old = sorted(wanted, key=lambda run: (-newest[run], run))
        self._read(file for run in old for file in results.get(run, ()))
        for run in old:
            problem = next(filter(None, (self._problems.get(file) for file in results.get(run, ()))), "")
            if not problem and run not in entries and not _MADE.fullmatch(run):
                problem = f"nothing shows that {results[run][0].key!r} is a result of a stage"
            if problem:
                left_alone[run] = problem
        candidates = [
            OldRun(run, tuple(results.get(run, ())), tuple(entries.get(run, ())), newest[run])
            for run in old
            if run not in left_alone
        ]
        candidates = [replace(run, open_stage=self._open_stage(run)) for run in candidates]
        kept = {run.run: run.open_stage for run in candidates if run.open_stage and self._only is None}
        users = self._users(files, {run.run for run in candidates} - kept.keys())
        kept |= {run: f"used by {user}" for run, user in users.items()}
        return Findings(
            old=tuple(replace(it, kept=kept.get(it.run, "")) for it in candidates),
            younger=len(runs) - len(old),
            left_alone=left_alone,
            marked=any(file.key.startswith(f"{PRIVATE}/") for file in files),
        )

    def remove(self) -> Iterator[OldRun]:
        """Remove the old runs that nothing protects, and yield each run that is completely gone.

        The base is checked again before every few thousand files, so runs that were written to or used meanwhile stay.
        On a local file system, each file is also checked just before it is removed, with writers locked out
        (``DiskStore.remove_old``). After an interruption, parts of some runs are gone. These runs are as old as before,
        so the next call removes the rest.

        Raises:
            TrackerError: the store failed; or, after all others, files of some runs may not be removed.
        """
        done: set[str] = set()
        denied: TrackerError | None = None
        share = 0
        while going := [run for run in self.look().old if not run.kept and run.run not in done]:
            share = share or sum(run.files for run in going) // _PART
            counts = itertools.accumulate(run.files for run in going)
            batch = going[: max(1, sum(count <= max(share, _FILES) for count in counts))]
            written: set[str] = set()
            for part in range(3):
                files = [(run.run, file) for run in batch if run.run not in written for file in run.parts[part]]
                gone = self._store.remove_many([file for _, file in files])
                for (run, _), is_gone in zip(files, gone, strict=True):
                    if is_gone is not True:
                        written.add(run)
                    if isinstance(is_gone, TrackerError):
                        denied = denied or is_gone
            # A file that exists again was written since then, so its run is not over.
            done.update(run.run for run in batch)
            yield from (run for run in batch if run.run not in written)
        self._store.remove_leftovers(time.time() - _LEFT_OVER)
        if denied is not None:
            raise denied

    def _open_stage(self, run: OldRun) -> str:
        """Return why a run may still be going on; empty if no stage says so."""
        begun: dict[str, float] = {}
        for file in run.statements:
            if file.key.startswith(_BEGUN):
                begun[run_id_of(file.key)] = max(file.modified, begun.get(run_id_of(file.key), 0.0))
        done = {file.key: file.modified for file in run.results}
        earlier = superseded({*begun, *done}, lambda run_id: done.get(run_id, 0.0))
        late = {when: run_id for run_id, when in begun.items() if run_id not in earlier and run_id not in done}
        newest = max(late, default=0.0)
        if newest <= self._begun:
            return ""
        stage = late[newest].partition("/")[2].partition("/")[0]
        return f"may be going on: {stage} has no results, and began {duration(time.time() - newest)} ago"

    def _users(self, files: Iterable[File], candidates: Collection[str]) -> dict[str, str]:
        """Return the candidates that other runs use, directly or indirectly, with the run id that uses each of them.

        What runs use that are about to go does not matter, and is not read.
        """
        by_run: dict[str, list[File]] = {}
        for file in files if candidates else ():
            if file.key.startswith(_USES):
                by_run.setdefault(pipeline_run(run_id_of(file.key)), []).append(file)
        used: dict[str, str] = {}
        waiting: Collection[str] = by_run.keys() - candidates
        while waiting:
            found = self._uses([file for run in waiting for file in by_run.get(run, ())])
            new = {run: user for user, run in reversed(found) if run in candidates and run not in used}
            used |= new
            waiting = new.keys()
        return used

    def _uses(self, files: Sequence[File]) -> list[tuple[str, str]]:
        """Return pairs of a run id, or a pipeline run, and a pipeline run that it has read or that it resumes."""
        sources, facts = self._sources.read(files), self._facts.read(files)
        resumes = ((run, earlier) for run, found in facts.items() for earlier in found.get(RESUMES, ()))
        reads = ((run_id, pipeline_run(source.run_id)) for run_id, found in sources.items() for source in found)
        return sorted([*reads, *resumes])

    def _read(self, files: Iterable[File]) -> None:
        new = [file for file in files if file not in self._problems]
        self._problems.update(zip(new, self._store.each(self._content_problem, new), strict=True))

    def _content_problem(self, file: File) -> str:
        if PRIVATE in file.key.split("/"):
            return ""
        if file.size > _MAX_SIZE:
            return f"{file.key!r} is larger than results can be"
        try:
            content = self._store.read(file.key)
            if content is None:  # another gc has removed it since it was listed
                return ""
            found = json.loads(content)
        except TrackerError:
            return f"{file.key!r} cannot be read"
        except (ValueError, RecursionError):
            found = None
        is_flat = isinstance(found, dict) and all(isinstance(item, int | float | str) for item in found.values())
        return "" if is_flat else f"{file.key!r} does not hold results"


def _grouped(files: Iterable[File]) -> tuple[dict[str, list[File]], dict[str, list[File]]]:
    """Group results by the first name of their keys, and statements by the pipeline run that they are about."""
    results: dict[str, list[File]] = {}
    entries: dict[str, list[File]] = {}
    for file in files:
        names = file.key.split("/")
        if names[0] != PRIVATE:
            results.setdefault(names[0], []).append(file)
        elif len(names) == 4 or (len(names) > 4 and names[1] == FILES):
            run_id = run_id_of(file.key)
            parts = run_id_parts(run_id) if names[1] in FOLDERS else None
            run = parts[0] if parts else run_id if names[1] == RUN_FACTS.folder else ""
            if run and "/" not in run and folder_name(run_id) == names[2]:
                entries.setdefault(run, []).append(file)
    return results, entries


def _shape_problem(files: Iterable[File]) -> str:
    """Return why these files are not all results of stages; empty if they are."""
    results = 0
    for file in files:
        names = file.key.split("/")
        if run_id_parts(file.key) is None or any(name.startswith(".") for name in names) or _EXTENSION.search(names[2]):
            return f"{file.key!r} is not a result of a stage"
        results += 1
    return "" if results else "it does not have a result of a stage"
