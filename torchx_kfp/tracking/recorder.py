"""The tracker base for programs that run stages, or show runs: everything that is recorded there, and its layout."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from torchx_kfp.contract.carried.shared import PARTS
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.artifact_files import StoredFiles
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.lineage import SOURCES, STARTS, Source, Start
from torchx_kfp.tracking.run_facts import (
    CODE,
    RESUMES,
    RUN_FACTS,
    SCHEDULE_FACTS,
    TAGS,
    Code,
    describe_code,
    encode_code,
    parse_tags,
)
from torchx_kfp.tracking.searches import SEARCH, Search, Trial
from torchx_kfp.tracking.statements import (
    FOLDERS,
    METADATA,
    REPLAY,
    REPLAY_OF,
    Artifact,
    Corrupt,
    add_metadata,
    read_artifacts,
    replays_among,
    run_id_of,
    stated_runs,
)
from torchx_kfp.tracking.steps import STEPS, Curve, History, Point
from torchx_kfp.tracking.store import PRIVATE, SHORT_PATIENCE, is_key, pipeline_run, run_id_parts
from torchx_kfp.tracking.tracker import FsspecResultTracker
from torchx_kfp.tracking.workspaces import PackedWorkspace, pack_folders, read_workspace

__all__ = [
    "REPLAY",
    "REPLAY_OF",
    "Artifact",
    "Code",
    "Curve",
    "History",
    "PackedWorkspace",
    "Point",
    "Recorder",
    "Search",
    "Start",
    "StoredFiles",
    "Trial",
    "describe_code",
    "parse_tags",
]

#: A key that results cannot have. All runs use the same one, so that a store that forbids removal keeps only one file.
_PROBE = f"{PRIVATE}/probe"


class Recorder(FsspecResultTracker):
    """A tracker of results that also has the other records of runs.

    Methods that take several run ids fetch many at once, and leave out runs without such a record. ``corrupt`` is
    called with the error for each file that cannot be understood; without it, the error is raised.
    """

    @classmethod
    def open(cls, base: str, directory: str | os.PathLike[str] = "") -> Recorder:
        """Open a tracker base for somebody who waits: calls are retried for a few seconds only.

        Args:
            base: the tracker base.
            directory: the directory to which a relative base is relative, by default the current one.

        Raises:
            TrackerBaseError: the base cannot be used.
        """
        return cls(base if "://" in base else os.path.join(directory, base), patience=SHORT_PATIENCE)

    @property
    def folder(self) -> str | None:
        """The directory of a local tracker base as an absolute path, and None for another store."""
        return self.store.folder if isinstance(self.store, DiskStore) else None

    def pack_workspace(
        self, folder: str | os.PathLike[str] | Mapping[str, str], without: Iterable[str] = ()
    ) -> PackedWorkspace:
        """Return the files of a folder, or of several, ready to be stored; see ``pack_folders``."""
        folders = folder if isinstance(folder, Mapping) else {os.fspath(folder): ""}
        return pack_folders(self.store, folders, without)

    def read_workspace(self, digest: str) -> bytes:
        """Return the archive of a workspace; see ``read_workspace``."""
        return read_workspace(self.store, digest)

    def add_facts(self, run: str, **facts: object) -> None:
        """Record facts about a pipeline run as a whole; see ``run_facts``.

        Raises:
            TrackerError: the store cannot be written.
        """
        RUN_FACTS.add(self.store, run, facts, f"facts of the run {run!r}")

    def change_facts(self, run: str, **facts: object) -> None:
        """Record facts that take the place of earlier ones, even if those are from a machine whose clock is ahead."""
        RUN_FACTS.add_last(self.store, run, facts, f"facts of the run {run!r}")

    def add_start(
        self, run: str, code: Sequence[Code], tags: Mapping[str, str | None], resumes: Sequence[str] = ()
    ) -> None:
        """Record the code that travelled with a pipeline run, its tags, and the runs from which it keeps stages."""
        facts = {CODE: encode_code(code), TAGS: dict(tags), RESUMES: list(resumes)}
        self.add_facts(run, **{name: value for name, value in facts.items() if value})

    def add_schedule(self, schedule: str, code: Sequence[Code]) -> None:
        """Record the code that travels with all runs of a schedule: ``gc`` keeps it."""
        SCHEDULE_FACTS.add(self.store, schedule, {CODE: encode_code(code)}, f"code of the schedule {schedule!r}")

    def end_schedule(self, schedule: str, runs: Mapping[str, bool]) -> None:
        """Hand the code of a schedule that was deleted over to its runs: ``gc`` removes it with the last of them.

        Args:
            schedule: the id of the schedule.
            runs: the ids of its runs, each with whether it goes on. Those that are over and have no records are left
                out.
        """
        code = SCHEDULE_FACTS.read(self.store, schedule).get(CODE)
        if code:
            known = {pipeline_run(key) for key in (*self.keys(), *self.run_ids())}
            for run in [run for run, goes_on in runs.items() if goes_on or run in known]:
                self.add_start(run, code, {})
        SCHEDULE_FACTS.remove(self.store, schedule)

    def code_of(self, runs: Iterable[str], corrupt: Corrupt | None = None) -> dict[str, list[Code]]:
        """Return the code of each pipeline run that had any."""
        return {run: facts[CODE] for run, facts in self.facts_of(runs, corrupt).items() if facts.get(CODE)}

    def tags_of(self, runs: Iterable[str] | None = None, corrupt: Corrupt | None = None) -> dict[str, dict[str, str]]:
        """Return the tags of each pipeline run that has any, by default of all runs."""
        return {run: facts[TAGS] for run, facts in self.facts_of(runs, corrupt).items() if facts.get(TAGS)}

    def facts_of(self, runs: Iterable[str] | None = None, corrupt: Corrupt | None = None) -> dict[str, dict[str, Any]]:
        """Return the facts of each pipeline run by field, by default of all runs; see ``run_facts``."""
        return RUN_FACTS.read_many(self.store, runs, corrupt)

    def runs_with_facts(self) -> list[str]:
        """Return the pipeline runs that have any facts, sorted."""
        return [unquote(name.rstrip("/")) for name in self.store.names(f"{PRIVATE}/{RUN_FACTS.folder}")]

    def run_ids(self, run: str | None = None) -> list[str]:
        """Return the runs that have recorded anything besides results, sorted. ``keys`` are those with results.

        Args:
            run: the pipeline run to which they belong, by default any.
        """
        return stated_runs(self.store, "" if run is None else f"{run}/")

    def replays_among(self, keys: Iterable[str]) -> set[str]:
        """Return the run ids of replays; see ``statements.replays_among``."""
        return replays_among(self.store, keys)

    def artifacts(self, run_id: str) -> dict[str, Artifact]:
        """Return the artifacts that a run has registered, by name."""
        return self.artifacts_of([run_id]).get(run_id, {})

    def metadata(self, run_id: str) -> dict[str, object]:
        """Return the metadata that a run has recorded, by name."""
        return METADATA.read(self.store, run_id)

    def add_metadata(self, run_id: str, metadata: Mapping[str, object]) -> None:
        """Record metadata of a run; see ``statements.add_metadata``."""
        add_metadata(self.store, run_id, metadata)

    def search(self, run_id: str) -> Search | None:
        """Return the search that a run belongs to, as far as it had come then."""
        return SEARCH.read(self.store, run_id)

    def sources(self, run_id: str) -> list[Source]:
        """Return the runs and other things that a run was made from."""
        return SOURCES.read(self.store, run_id)

    def artifacts_of(self, run_ids: Iterable[str]) -> dict[str, dict[str, Artifact]]:
        """Return the artifacts of each run."""
        return read_artifacts(self.store, run_ids)

    def metadata_of(self, run_ids: Iterable[str]) -> dict[str, dict[str, object]]:
        """Return the metadata of each run."""
        return METADATA.read_many(self.store, run_ids)

    def histories_of(self, run_ids: Iterable[str], corrupt: Corrupt | None = None) -> dict[str, History]:
        """Return the curves that each run has logged."""
        return STEPS.read_many(self.store, run_ids, corrupt)

    def searches_of(self, run_ids: Iterable[str], corrupt: Corrupt | None = None) -> dict[str, Search | None]:
        """Return the search that each run belongs to, as far as it had come then."""
        return SEARCH.read_many(self.store, run_ids, corrupt)

    def sources_of(
        self, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
    ) -> dict[str, list[Source]]:
        """Return the sources of each run, by default of all runs."""
        return SOURCES.read_many(self.store, run_ids, corrupt)

    def starts_of(self, run_ids: Iterable[str]) -> dict[str, Start]:
        """Return when and where each run started."""
        return STARTS.read_many(self.store, run_ids, corrupt=lambda error: None)

    def written(self, run: str) -> dict[str, float]:
        """Return when the results of a pipeline run were written, in seconds since 1970, by run id."""
        return {file.key: file.modified for file in self.store.files(run)}

    def last_written(self) -> dict[str, float]:
        """Return when each pipeline run recorded something last, in seconds since 1970."""
        times: dict[str, float] = {}
        for file in self.store.files():
            names = file.key.split("/")
            if names[0] == PRIVATE and (len(names) < 4 or names[1] not in FOLDERS):
                continue
            run = (run_id_of(file.key) if names[0] == PRIVATE else file.key).partition("/")[0]
            times[run] = max(times.get(run, 0.0), file.modified)
        return times

    def verify_writable(self) -> None:
        """Write a small file, read it, and remove it.

        Raises:
            TrackerError: it cannot be written or read. A file that cannot be removed is not an error.
        """
        self.store.write(_PROBE, b"{}")
        self.store.read(_PROBE)
        with contextlib.suppress(TrackerError):
            self.store.remove(_PROBE)


def written_folders(base: Path, run: str) -> list[Path]:
    """Return the folders below a local tracker base to which stages of a pipeline run write."""
    return [base / run, base / PARTS, *(base / PRIVATE / kind for kind in FOLDERS)]


def is_run_id(text: str, run: str) -> bool:
    """Return whether the text is the run id of a stage of a pipeline run, and can be a key."""
    parts = run_id_parts(text)
    return parts is not None and parts[0] == run and is_key(text)
