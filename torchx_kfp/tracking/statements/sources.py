"""Sources and start of a run: the runs and other things that it was made from, and when and where it started.

Lineage is derived from the sources. The start is the first statement of a stage, written before its application begins
its work, so that a tracker base that cannot be written is noticed at once rather than after a training. Both are in one
file::

    {"sources": [...], "started": {"time": 1767225600.5, "host": "node-3", "image": "repo/train:1"}}
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.contract import protocol
from torchx_kfp.tracking.statements.kinds import Kind
from torchx_kfp.tracking.stores.store import Store

#: The names of the first statement of a stage that reads others, and of one that does not. They are the same for all
#: processes of a stage, and sort before names made from the time. A process that records a start without the stage's
#: sources does not replace the statement that has them.
_READS, _NONE = "0-reads", "0-start"
#: Set by torchrun: it started this process, and this is the number of the process.
_TORCHRUN, _RANK = "TORCHELASTIC_RUN_ID", "RANK"


@dataclass(frozen=True)
class Source:
    """Something that a run was made from.

    Attributes:
        run_id: the id of another run, or the name of an external source, such as a dataset.
        artifact: the name of the artifact that was used, if known.
        alias: the name with which the pipeline declares the source, if it does.
    """

    run_id: str
    artifact: str | None = None
    alias: str | None = None


@dataclass(frozen=True)
class Start:
    """The start of a stage. If several processes of a stage start one after the other, the last start counts.

    Attributes:
        time: seconds since 1970.
        host: the name of the host; on Kubernetes, the name of the pod.
        image: the image, or None if it is not known. A container is not told its own image.
    """

    time: float
    host: str
    image: str | None = None


def _parse_sources(content: Mapping[str, Any]) -> list[Source]:
    return [
        Source(str(found["run_id"]), found.get("artifact") or None, found.get("alias")) for found in content["sources"]
    ]


def _join_sources(found: list[list[Source]]) -> list[Source]:
    unique: dict[tuple[str, str | None], Source] = {}
    for sources in found:
        for source in sources:
            unique.setdefault((source.run_id, source.artifact), source)
    return list(unique.values())


def _parse_start(content: Mapping[str, Any]) -> Start | None:
    try:
        started = content["started"]
        image = started.get("image")
        return Start(float(started["time"]), str(started["host"]), None if image is None else str(image))
    except (AttributeError, KeyError, TypeError, ValueError):  # a malformed start is not worth an error
        return None


#: The sources of a run in the order in which they were stated, each once.
SOURCES = Kind("sources", _parse_sources, _join_sources)
_STARTS = Kind("sources", _parse_start, lambda found: min(found, key=lambda start: start.time))


def encode_sources(sources: Iterable[Source]) -> dict[str, object]:
    """Return the statement of these sources, in a form that JSON can represent."""
    return {"sources": [{"run_id": s.run_id, "artifact": s.artifact, "alias": s.alias} for s in sources]}


def add_source(store: Store, run_id: str, source: Source) -> None:
    """Record that a run uses a source. Recording it again changes nothing.

    Raises:
        TrackerError: the store failed.
    """
    SOURCES.add(store, run_id, encode_sources([source]), "source")


def record_start(store: Store, run_id: str, parents: Mapping[str, protocol.RunIds], start: Start | None = None) -> None:
    """Record the start of a run and the sources that the pipeline declares, in one file.

    Args:
        store: the store of the tracker base.
        run_id: the run.
        parents: the run id, or the run ids of a fan-in, by alias. Empty run ids are left out.
        start: the start, by default ``start_here()``.

    Raises:
        KeyRefusedError: the store cannot hold a statement about this run id.
        TrackerError: the store failed.
    """
    sources = [
        Source(source, alias=alias)
        for alias, ids in parents.items()
        for source in ([ids] if isinstance(ids, str) else ids)
        if source
    ]
    content = {**encode_sources(sources), "started": vars(start or start_here())}
    SOURCES.add(store, run_id, content, "record of the start", _READS if sources else _NONE)


def read_starts(store: Store, run_ids: Iterable[str]) -> dict[str, Start]:
    """Return the recorded starts of these runs.

    Raises:
        TrackerError: the store failed.
    """
    return _STARTS.read_many(store, run_ids, corrupt=lambda error: None)


def start_here(environ: Mapping[str, str] = os.environ) -> Start:
    """Return the start of a stage in this process, at this moment."""
    return Start(time.time(), os.uname().nodename, environ.get(protocol.IMAGE) or None)


def is_first_rank(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process speaks for its stage: torchrun's first rank, else replica 0."""
    return environ.get(_RANK if environ.get(_TORCHRUN) else protocol.REPLICA_ID, "0") == "0"
