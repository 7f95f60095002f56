"""Access to all records below a tracker base, for the programs that run stages and show runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import counted, size_text
from torchx_kfp.contract.carried.storage import FILES, PRIVATE, RUNS, fields_of
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.artifacts import Artifact, StoredFiles
from torchx_kfp.tracking.curves import Curve
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.entries import add_entry, list_entries, run_id_of
from torchx_kfp.tracking.lineage import read_parents
from torchx_kfp.tracking.records import (
    FIELDS,
    OF_PIPELINE_RUNS,
    REPLAY,
    REPLAY_OF,
    Code,
    Record,
    Records,
    fold_records,
    is_replay,
    read_record,
    read_records,
)
from torchx_kfp.tracking.searches import Search, Trial
from torchx_kfp.tracking.store import SHORT_PATIENCE, is_key, pipeline_run, run_id_parts
from torchx_kfp.tracking.tracker import FsspecResultTracker, absolute_base, check_tracker_base
from torchx_kfp.tracking.workspaces import PackedWorkspace, WorkspaceFile, list_code, pack_folders

__all__ = [
    "REPLAY",
    "REPLAY_OF",
    "SHORT_PATIENCE",
    "Artifact",
    "Code",
    "Curve",
    "PackedWorkspace",
    "Record",
    "RecordTracker",
    "Search",
    "StoredFiles",
    "Trial",
    "WorkspaceFile",
    "absolute_base",
    "check_tracker_base",
    "describe_code",
    "is_replay",
    "list_code",
    "pack_folders",
]

#: The parts of a stage's cache key, and the fingerprints of its code files by name.
Known = tuple[Mapping[str, Any], Mapping[str, str]]
#: The most submitted runs that are read.
_LAST_SUBMITTED = 20
#: A key that results cannot have. It is always the same, so a store that forbids removal keeps one file.
_PROBE = f"{PRIVATE}/probe"


class RecordTracker(FsspecResultTracker):
    """A tracker that also reads and writes the other records of runs.

    Malformed entries are left out, with a warning in the log, and listed in ``Records.problems``.
    """

    def __init__(self, tracker_base: str | os.PathLike[str], *, patience: float) -> None:
        super().__init__(tracker_base, patience=patience)

    @property
    def folder(self) -> str | None:
        """The absolute path of a local tracker base; None for any other store."""
        return self.store.folder if isinstance(self.store, DiskStore) else None

    def add(self, run_id: str, fields: Mapping[str, object]) -> None:
        """Record fields of an execution or a pipeline run: see ``records.Record``.

        Args:
            run_id: the run.
            fields: JSON values.

        Raises:
            TrackerError: the store cannot be written.
        """
        add_entry(self.store, run_id, fields)

    def records(self, run_ids: Iterable[str] | None = None, *fields: str) -> Records:
        """Return the records of these runs and their executions, by default of all runs: see ``records``.

        Args:
            run_ids: ids of pipeline runs or executions.
            fields: the fields of ``Record`` to read; by default, all.
        """
        return read_records(self.store, run_ids, fields or FIELDS)

    def record(self, run_id: str, *fields: str) -> Record:
        """Return the record of one run."""
        return read_record(self.store, run_id, *fields)

    def add_start(self, run: str, code: Sequence[Code], pipeline: str, stages: Mapping[str, Known]) -> None:
        """Record the workspaces of a pipeline run and, if it was submitted, its stages.

        Args:
            run: the pipeline run.
            code: its workspaces.
            pipeline: the name of its pipeline.
            stages: its stages by name; none if they are not known.
        """
        fields: dict[str, Any] = {"code": [asdict(each) for each in code]} if code else {}
        known: dict[str, Mapping[str, str]] = {}
        of_stages: dict[str, Any] = {}
        for name, (parts, files) in stages.items():
            digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()[:16]
            known[digest] = files
            of_stages[name] = {"parts": parts, "code": digest}
        if of_stages:
            fields["submitted"] = {"pipeline": pipeline, "stages": of_stages, "code": known}
        self.add(run, fields)

    def submitted(self, pipeline: str) -> dict[str, dict[str, Known]]:
        """Return the stages of the last submitted runs of a pipeline by pipeline run, the newest one first.

        Entries that other programs wrote are left out.
        """
        keys = [key for key in list_entries(self.store) if "submitted" in fields_of(key)]
        last = sorted(keys, key=lambda key: key.rpartition("/")[2], reverse=True)[:_LAST_SUBMITTED]
        found: dict[str, dict[str, Known]] = {}
        for run, record in fold_records(self.store, last, ["submitted"]).items():
            with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
                if record.submitted["pipeline"] == pipeline:
                    stages, code = record.submitted["stages"].items(), record.submitted["code"]
                    found[run] = {name: (dict(it["parts"]), dict(code[it["code"]])) for name, it in stages}
        return found

    def parents(self, run_ids: Iterable[str]) -> dict[str, dict[str, list[str]]]:
        """Return the parents of executions by execution id and alias: see ``read_parents``."""
        return read_parents(self.store, run_ids)

    def run_ids(self, run: str | None = None) -> list[str]:
        """Return the executions with records other than results, sorted. ``keys`` returns those with results.

        Args:
            run: the pipeline run to which they belong; by default, any.
        """
        keys = list_entries(self.store, None if run is None else [run])
        return sorted({run_id_of(key) for key in keys if not fields_of(key).issubset(OF_PIPELINE_RUNS)})

    def written(self, run: str = "") -> dict[str, float]:
        """Return the time of the last record of each run, in seconds since 1970, by id.

        Args:
            run: the pipeline run to which they belong; by default, any.
        """
        times: dict[str, float] = {}
        for folder in (run, f"{RUNS}/{run}") if run else ("",):
            for file in self.store.list_files(folder):
                is_entry = file.key.startswith(f"{RUNS}/")
                if is_entry or not file.key.startswith(f"{PRIVATE}/"):
                    run_id = run_id_of(file.key) if is_entry else file.key
                    times[run_id] = max(file.modified, times.get(run_id, 0.0))
        return times

    def last_written(self) -> dict[str, float]:
        """Return the time of the last record of each pipeline run, in seconds since 1970."""
        times: dict[str, float] = {}
        for run_id, modified in self.written().items():
            times[pipeline_run(run_id)] = max(modified, times.get(pipeline_run(run_id), 0.0))
        return times

    def verify_writable(self) -> None:
        """Check the store: write a small file, read it, and remove it.

        Raises:
            TrackerError: the file cannot be written or read. Failing to remove it is not an error.
        """
        self.store.write(_PROBE, b"{}")
        self.store.read(_PROBE)
        with contextlib.suppress(TrackerError):
            self.store.remove(_PROBE)


def written_folders(base: Path, run: str) -> list[Path]:
    """Return the folders of a pipeline run below a local tracker base."""
    return [base / run, base / RUNS / run, base / FILES / run]


def describe_code(code: Code) -> str:
    """Describe a workspace of a run for users."""
    text = code.digest[:12]
    if code.files is not None and code.size is not None:
        text += f" ({counted(code.files, 'file')}, {size_text(code.size)})"
    if git := code.git:
        branch, changed = f" on {git.branch}" if git.branch else "", ", changed" if git.changed else ""
        text += f", commit {git.commit[:7]}{branch}{changed}"
    return text


def is_run_id(text: str, run: str) -> bool:
    """Return whether the text is an execution id of this pipeline run, and a valid key."""
    parts = run_id_parts(text)
    return parts is not None and parts[0] == run and is_key(text)
