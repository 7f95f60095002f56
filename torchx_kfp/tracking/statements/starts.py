"""The record of a stage's start: when and where, and what the pipeline declares that it reads.

It is the first thing that a stage writes, before its application works, so that a tracker base that cannot be written
is found out at once and not after a training. It lies among the sources of the run, which it has::

    {"sources": [...], "started": {"time": 1767225600.5, "host": "node-3", "image": "repo/train:1"}}
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torchx_kfp import protocol
from torchx_kfp.tracking.statements.entries import SOURCES, Entry, add_entry, read_entries
from torchx_kfp.tracking.statements.sources import Source, encode_sources
from torchx_kfp.tracking.stores.store import Store

#: Names of the entry, of a stage that reads others and of one that does not: the same for all processes of a stage, and
#: sorted before those that are named by the time. Who asks about a run, without what it reads, takes nothing's place.
_READS, _NONE = "0-reads", "0-start"
#: Of torchrun: it has started this process, as this one of several.
_TORCHRUN, _RANK = "TORCHELASTIC_RUN_ID", "RANK"


@dataclass(frozen=True)
class Start:
    """When a stage started, in seconds since 1970, on which host (a pod's name, on Kubernetes), and in which image.

    The image is None where it is not known: a container is not told its own. Of several processes that a stage starts
    one after the other, it is the start of the last.
    """

    time: float
    host: str
    image: str | None = None


def start_here(environ: Mapping[str, str] = os.environ) -> Start:
    """The start of a stage in this process, at this moment."""
    return Start(time.time(), os.uname().nodename, environ.get(protocol.IMAGE) or None)


def is_first_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this process speaks for its stage: of those that torchrun starts, the first one does."""
    return not environ.get(_TORCHRUN) or environ.get(_RANK, "0") == "0"


def record_start(store: Store, run_id: str, parents: Mapping[str, protocol.RunIds], start: Start | None = None) -> None:
    """Record the start of the run, and what the pipeline declares that it reads: all of it in one file.

    Args:
        parents: alias -> run id, or the run ids of a fan-in; empty run ids are left out.
        start: ``start_here()`` where it is None.

    Raises:
        KeyRefusedError: the store has no place for a record of this run id.
        TrackerError: the store failed.
    """
    sources = [
        Source(source, alias=alias)
        for alias, ids in parents.items()
        for source in ([ids] if isinstance(ids, str) else ids)
        if source
    ]
    entry = {**encode_sources(sources), "started": vars(start or start_here())}
    add_entry(store, SOURCES, run_id, entry, "record of the start", _READS if sources else _NONE)


def read_starts(store: Store, run_ids: Iterable[str]) -> dict[str, Start]:
    """The starts of those of the runs that have recorded one.

    Raises:
        TrackerError: the store failed.
    """
    found = read_entries(store, SOURCES, run_ids, corrupt=lambda error: None)
    starts = {run_id: list(filter(None, map(_decode, entries))) for run_id, entries in found.items()}
    return {run_id: min(its, key=lambda start: start.time) for run_id, its in starts.items() if its}


def _decode(entry: Entry) -> Start | None:
    """The start in an entry; None where there is none of use, which is no reason to fail."""
    try:
        started = entry.content["started"]
        image = started.get("image")
        return Start(float(started["time"]), str(started["host"]), None if image is None else str(image))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
