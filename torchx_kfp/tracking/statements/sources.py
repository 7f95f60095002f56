"""Sources of a run: the runs that it reads, and other things that it was made of. They make the lineage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torchx_kfp.tracking.statements.entries import SOURCES, Corrupt, Entry, add_entry, no_entry, read_entries
from torchx_kfp.tracking.stores.store import Store


@dataclass(frozen=True)
class Source:
    """What a run was made of.

    ``run_id`` is that of another run, or names something outside, such as a dataset. ``artifact`` is the name of the
    artifact that was used, where that was said; ``alias`` the name under which the pipeline declares the source.
    """

    run_id: str
    artifact: str | None = None
    alias: str | None = None


def encode_sources(sources: Iterable[Source]) -> dict[str, object]:
    """The entry that says these."""
    return {"sources": [{"run_id": s.run_id, "artifact": s.artifact, "alias": s.alias} for s in sources]}


def add_source(store: Store, run_id: str, source: Source) -> None:
    """Say that the run uses the source. To say it again changes nothing.

    Raises:
        TrackerError: the store failed.
    """
    add_entry(store, SOURCES, run_id, encode_sources([source]), "source")


def read_sources(store: Store, run_id: str) -> list[Source]:
    """The sources of the run, in the order in which they were said, each once.

    Raises:
        CorruptResultError: what is stored are no sources.
        TrackerError: the store failed.
    """
    return read_sources_of(store, [run_id]).get(run_id, [])


def read_sources_of(
    store: Store, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
) -> dict[str, list[Source]]:
    """The sources of each of these runs that has any, or of all runs.

    ``corrupt`` is called for what are no sources, in place of an error.
    """
    found = read_entries(store, SOURCES, run_ids, corrupt)
    return {run_id: _decode(store, entries, corrupt) for run_id, entries in found.items()}


def _decode(store: Store, entries: Iterable[Entry], corrupt: Corrupt | None = None) -> list[Source]:
    sources: dict[tuple[str, str | None], Source] = {}
    for entry in entries:
        try:
            for found in entry.content["sources"]:
                source = Source(str(found["run_id"]), found.get("artifact") or None, found.get("alias"))
                sources.setdefault((source.run_id, source.artifact), source)
        except (AttributeError, KeyError, TypeError) as error:
            if corrupt is None:
                raise no_entry(store, entry.key, error) from None
            corrupt(no_entry(store, entry.key, error))
    return list(sources.values())
