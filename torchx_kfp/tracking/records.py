"""The records of runs: the entries about each run, folded in the order of time.

To add a kind of record, add a field to ``Record``, and a function to ``_FOLDS`` that applies an entry to it. Write it
with ``add_entry(store, run_id, {field: value})``, and describe it in ``docs/reference/protocol.md``.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torchx_kfp.common.git import GitState
from torchx_kfp.contract.carried.storage import fields_of
from torchx_kfp.errors import CorruptResultError
from torchx_kfp.tracking.artifacts import Artifact, parse_artifact
from torchx_kfp.tracking.curves import History, join_curves
from torchx_kfp.tracking.entries import Found, from_json, list_entries, run_id_of, warn_once
from torchx_kfp.tracking.searches import Search, parse_search
from torchx_kfp.tracking.store import Store

#: The prefix of the execution ids of replays, which otherwise look like those of local runs.
REPLAY = "replay_"
_REPLAY = re.compile(rf"{REPLAY}[^/]+-\d{{8}}-\d{{6}}-[0-9a-f]{{6}}(?:/|$)")
#: The metadata of a replay with the id of the replayed execution.
REPLAY_OF = "replays"


def is_replay(run_id: str) -> bool:
    """Return whether ``replay`` made this id of an execution or a pipeline run."""
    return _REPLAY.match(run_id) is not None


@dataclass(frozen=True)
class Code:
    """A workspace that travelled with a run.

    Attributes:
        digest: the SHA-256 of its archive, in hexadecimal digits.
        size: the size of the archive in bytes; None if only its URL is known.
        files: the number of its files; None if only its URL is known.
        git: the commit of the files, if the folder is in a repository.
    """

    digest: str
    size: int | None = None
    files: int | None = None
    git: GitState | None = None


@dataclass(frozen=True)
class Source:
    """A source from which an execution was made.

    Attributes:
        run_id: the id of another execution, or the name of an external source, such as a dataset.
        artifact: the name of the artifact that was used, if known.
        alias: the alias with which the pipeline declares it, if it does.
    """

    run_id: str
    artifact: str | None = None
    alias: str | None = None


@dataclass(frozen=True)
class Start:
    """The start of an execution: the first one, if several of its processes start one after the other.

    Attributes:
        time: seconds since 1970.
        host: the name of the host; on Kubernetes, the name of the pod.
        image: the image; None if it is not known, since a container does not know its image.
    """

    time: float
    host: str
    image: str | None = None


@dataclass(frozen=True)
class Record:
    """All records of a run except its results. ``code`` and ``submitted`` are those of pipeline runs.

    Attributes:
        artifacts: its artifacts by name; of several with one name, the last one.
        metadata: its metadata by name; of several values with one name, the last one.
        sources: its sources in order, each once.
        started: when and where it first started.
        steps: its curves; those of several processes with one name are merged.
        search: the state of its search at that time.
        code: its workspaces.
        arguments: the arguments of the stage's function by parameter: values and origins, as text.
        submitted: its stages when it was submitted: see ``RecordTracker.add_start``.
    """

    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    metadata: Mapping[str, object] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    started: Start | None = None
    steps: History = field(default_factory=History)
    search: Search | None = None
    code: tuple[Code, ...] = ()
    arguments: Mapping[str, str] = field(default_factory=dict)
    submitted: Mapping[str, Any] = field(default_factory=dict)


#: The fields of whole pipeline runs, and all fields.
OF_PIPELINE_RUNS = ("code", "submitted")
FIELDS = tuple(Record.__dataclass_fields__)


class Records(Found[Record]):
    """The records of runs by id. A run without records has an empty one."""

    def __missing__(self, run_id: str) -> Record:
        return Record()


def read_records(store: Store, run_ids: Iterable[str] | None = None, fields: Collection[str] = FIELDS) -> Records:
    """Return the records of these runs and their executions, or of all runs.

    A warning is logged for each malformed entry. Stored artifacts can be read.

    Args:
        store: the store of the tracker base.
        run_ids: ids of pipeline runs or executions; by default, all.
        fields: the fields to read. Entries without any of them are skipped.

    Raises:
        TrackerError: the store failed.
    """
    records = fold_records(store, list_entries(store, run_ids), fields)
    for problem in records.problems:
        warn_once(f"Left out: {problem}")
    return records


def fold_records(store: Store, keys: Iterable[str], fields: Collection[str] = FIELDS) -> Records:
    """Return the records in the entries with these keys: see ``read_records``. No warnings are logged."""
    records = Records()
    folds: dict[str, _Fold] = {**_FOLDS, "artifacts": functools.partial(_fold_artifacts, store)}
    wanted = [key for key in keys if not fields_of(key).isdisjoint(fields)]
    for key, text in zip(wanted, store.read_files(wanted), strict=True):
        if isinstance(text, CorruptResultError):
            records.problems.append(text)
        elif text is not None:  # otherwise, it was removed after the listing
            run_id = run_id_of(key)
            old = records[run_id]
            try:
                given = json.loads(text).items()
                changes = {name: folds[name](getattr(old, name), value) for name, value in given if name in fields}
                records[run_id] = replace(old, **changes)
            except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
                what = " and ".join(sorted(fields_of(key)))
                where = f"{store.location(key)} does not hold {what}: {error!r}"
                records.problems.append(CorruptResultError(f"{where}. Another program wrote it. Remove it."))
    return records


def read_record(store: Store, run_id: str, *fields: str) -> Record:
    """Return the record of one run: see ``read_records``."""
    return read_records(store, [run_id], fields or FIELDS)[run_id]


def _fold_artifacts(store: Store, old: Mapping[str, Artifact], new: Mapping[str, Any]) -> dict[str, Artifact]:
    # A new artifact of the same name moves to the end.
    kept = {name: artifact for name, artifact in old.items() if name not in new}
    return {**kept, **{name: parse_artifact(store, name, content) for name, content in new.items()}}


def _fold_sources(old: tuple[Source, ...], new: Iterable[Mapping[str, Any]]) -> tuple[Source, ...]:
    unique: dict[tuple[str, str | None], Source] = {}
    for source in (*old, *(from_json(Source, content) for content in new)):
        unique.setdefault((source.run_id, source.artifact), source)
    return tuple(unique.values())


def _fold_started(old: Start | None, new: Mapping[str, Any]) -> Start:
    start = from_json(Start, new)
    return start if old is None or start.time < old.time else old


def _fold_code(old: tuple[Code, ...], new: Iterable[Mapping[str, Any]]) -> tuple[Code, ...]:
    code = {each.digest: each for each in old}
    for each in (from_json(Code, content) for content in new):
        if each.digest not in code or each.size is not None:
            code[each.digest] = each
    return tuple(code.values())


_Fold = Callable[[Any, Any], Any]
#: For each field, the function that applies an entry to the earlier ones; that of ``artifacts`` needs the store.
_FOLDS: Mapping[str, _Fold] = {
    "metadata": lambda old, new: {**old, **new},
    "sources": _fold_sources,
    "started": _fold_started,
    "steps": join_curves,
    "search": lambda old, new: parse_search(new),
    "code": _fold_code,
    "arguments": lambda old, new: {**old, **{str(name): str(how) for name, how in new.items()}},
    "submitted": lambda old, new: dict(new),
}
