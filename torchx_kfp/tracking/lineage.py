"""Lineage: the sources of executions, and the graph that they form.

The start is the first entry of an execution, written before the application starts its work: an unwritable tracker base
is reported at once, not after a training. It has the sources that the pipeline declares.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried.storage import fields_of
from torchx_kfp.errors import CorruptResultError, RefusedError, TrackerError
from torchx_kfp.tracking.artifacts import Artifact
from torchx_kfp.tracking.entries import add_entry, from_json, list_entries, run_id_of
from torchx_kfp.tracking.records import Source, Start, read_records
from torchx_kfp.tracking.store import Store, is_key, new_entry_name

_logger = logging.getLogger(__name__)

#: The prefix of the names of starts, which sort before names that begin with the time. If several processes start one
#: after the other, each has its own entry, and the first one counts.
_START = "0-start-"
#: The number of this process among those of a launcher, their number, and how many of them are on this machine:
#: torchrun and DeepSpeed, and mpirun of Open MPI and of MPICH.
_RANKS = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"),
)
#: Entries that this process has written: tracker base, execution id, and the source or "start".
_recorded: set[tuple[str, str, object]] = set()
_NO_LINEAGE = "The lineage of the execution %r lacks a source: %s"


def declared_sources(parents: Mapping[str, protocol.RunIds]) -> list[Source]:
    """Return the sources that the pipeline declares for a stage. Empty execution ids are left out."""
    return [
        Source(source, alias=alias)
        for alias, ids in parents.items()
        for source in ([ids] if isinstance(ids, str) else ids)
        if source
    ]


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's rank in its launcher, or else its replica's index. Process 0 speaks for its stage.

    A launcher in one replica counts only that replica's processes: those of other replicas are not the first.
    """
    replica = environ.get(protocol.REPLICA_ID, "0")
    for name, size, local_size in _RANKS:
        if environ.get(size) and name in environ:
            is_inside = environ.get(local_size) == environ[size]
            text = replica if is_inside and replica != "0" else environ[name]
            return int(text) if text.isdecimal() else 1
    return int(replica) if replica.isdecimal() else 1


def record_start_once(store: Store, context: protocol.StageContext, environ: Mapping[str, str]) -> None:
    """Record the start of this execution and its declared sources, once, in one entry. Of several ranks, the first does
    so.

    Raises:
        TrackerError: the tracker base cannot be written, so results could not be recorded either.
    """
    what = (store.base, context.run_id, "start")
    if what in _recorded or rank(environ) != 0:
        return
    sources = declared_sources(context.parents)
    fields: dict[str, object] = {"sources": list(map(vars, sources))} if sources else {}
    fields["started"] = vars(Start(time.time(), os.uname().nodename, environ.get(protocol.IMAGE) or None))
    try:
        add_entry(store, context.run_id, fields, f"{_START}{new_entry_name()}")
    except RefusedError as error:  # results can still be recorded under this name
        _logger.warning(_NO_LINEAGE, context.run_id, error)
    except TrackerError as error:
        raise type(error)(
            f"The stage {context.run_id!r} could not record results: its tracker base {store.base!r} cannot be "
            f"written. {error}"
        ) from error.__cause__
    _recorded.add(what)


def record_use_once(store: Store, run_id: str, source: Source) -> None:
    """Record once that an execution uses a source. Failures are logged: a stage that can read does not fail."""
    what = (store.base, run_id, source)
    if what in _recorded:
        return
    try:
        add_entry(store, run_id, {"sources": [vars(source)]})
        _recorded.add(what)
    except TrackerError as error:
        _logger.warning(_NO_LINEAGE, run_id, error)


def read_parents(store: Store, run_ids: Iterable[str]) -> dict[str, dict[str, list[str]]]:
    """Return the parents that executions recorded at their starts: execution ids by alias, for each execution.

    Unlike the sources of a record, which are unique, the execution ids of a fan-in are complete and in order.
    """
    starts: dict[str, str] = {}
    for key in sorted(list_entries(store, run_ids)):  # several processes may have recorded the same
        if key.rpartition("/")[2].startswith(_START) and "sources" in fields_of(key):
            starts.setdefault(run_id_of(key), key)
    found: dict[str, dict[str, list[str]]] = {}
    for run_id, text in zip(starts, store.read_files(list(starts.values())), strict=True):
        if text is None or isinstance(text, CorruptResultError):
            continue
        with contextlib.suppress(LookupError, RecursionError, TypeError, ValueError):  # something else wrote it
            for source in [from_json(Source, content) for content in json.loads(text)["sources"]]:
                if source.alias is not None:
                    found.setdefault(run_id, {}).setdefault(source.alias, []).append(source.run_id)
    return found


@dataclass(frozen=True)
class Link:
    """A link between an execution and one of its sources.

    Attributes:
        source: the execution id or the name of the external source.
        run_id: the execution that used it.
        alias: the source's alias in the pipeline, if it is declared there.
        artifacts: the artifacts that were used; if the execution did not name any, all artifacts of the source.
        named: whether the execution named the artifacts that it used.
    """

    source: str
    run_id: str
    alias: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Lineage:
    """The lineage of executions.

    Attributes:
        run_ids: the executions themselves.
        ancestors: the executions and external sources that they depend on, directly or indirectly, the nearest first.
        descendants: the executions that depend on them, directly or indirectly, the nearest first.
        links: all links between these, beginning with the farthest ancestor.
    """

    run_ids: tuple[str, ...]
    ancestors: tuple[str, ...] = ()
    descendants: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()


def read_lineage(
    store: Store, run_ids: Iterable[str], sources: Mapping[str, Sequence[Source]] | None = None
) -> Lineage:
    """Return the lineage of executions, over all pipelines that use the tracker base.

    Args:
        store: the store of the tracker base.
        run_ids: the executions.
        sources: the sources of all executions by id; by default, they are read from the store. Each execution records
            its sources in one entry, even a thousand.
    """
    if sources is None:
        sources = {run_id: record.sources for run_id, record in read_records(store, None, ["sources"]).items()}
    starts = tuple(dict.fromkeys(run_ids))
    above: dict[str, dict[str, list[Source]]] = {}
    below: dict[str, list[str]] = {}
    for run_id, its in sources.items():
        for source in its:
            uses = above.setdefault(run_id, {})
            if source.run_id not in uses:
                below.setdefault(source.run_id, []).append(run_id)
            uses.setdefault(source.run_id, []).append(source)
    ancestors = _reachable(starts, above)
    descendants = _reachable(starts, below)
    inside = {*starts, *ancestors, *descendants}
    used = {source for run_id in inside for source in above.get(run_id, ())}
    # The name of an external source need not be a key.
    records = read_records(store, sorted(filter(is_key, used & inside)), ["artifacts"])
    # An execution that names one artifact names all artifacts that it uses.
    naming = {run_id for run_id in inside if any(source.artifact for source in sources.get(run_id, ()))}
    order = {run_id: place for place, run_id in enumerate([*reversed(ancestors), *starts, *descendants])}
    links = [
        _link(run_id, source, between, records[source].artifacts, named=run_id in naming)
        for run_id in sorted(inside & above.keys(), key=order.__getitem__)
        for source, between in above[run_id].items()
        if source in inside
    ]
    return Lineage(starts, ancestors, descendants, tuple(links))


def _reachable(starts: Iterable[str], neighbours: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return everything reachable from the starts, the nearest first. The graph may have cycles."""
    seen = dict.fromkeys(starts)
    own = len(seen)
    waiting = list(seen)
    for run_id in waiting:  # the list grows
        for found in neighbours.get(run_id, ()):
            if found not in seen:
                seen[found] = None
                waiting.append(found)
    return tuple(waiting[own:])


def _link(run_id: str, source: str, between: list[Source], artifacts: Mapping[str, Artifact], *, named: bool) -> Link:
    alias = next((found.alias for found in between if found.alias), None)
    if not named:
        return Link(source, run_id, alias, tuple(artifacts.values()))
    used = [artifacts.get(found.artifact, Artifact(found.artifact, "")) for found in between if found.artifact]
    return Link(source, run_id, alias, tuple(used), named=bool(used))
