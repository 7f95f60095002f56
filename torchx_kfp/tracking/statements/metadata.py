"""Metadata of a run: by name, whatever JSON holds. Unlike results of any size and type, and not for other stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchx_kfp.tracking.statements.entries import METADATA, Entry, add_entry, no_entry, read_entries
from torchx_kfp.tracking.stores.store import Store


def add_metadata(store: Store, run_id: str, metadata: Mapping[str, object]) -> None:
    """Say these of the run. All processes of a run can; of several values under one name, the last one counts.

    Raises:
        ResultRefusedError: JSON cannot hold it. Nothing was written.
        TrackerError: the store failed.
    """
    add_entry(store, METADATA, run_id, {"metadata": dict(metadata)}, f"metadata of the run {run_id!r}")


def read_metadata(store: Store, run_id: str) -> dict[str, object]:
    """What was said of the run, by name.

    Raises:
        CorruptResultError: what is stored is no metadata.
        TrackerError: the store failed.
    """
    return read_metadata_of(store, [run_id]).get(run_id, {})


def read_metadata_of(store: Store, run_ids: Iterable[str] | None = None) -> dict[str, dict[str, object]]:
    """The metadata of each of these runs that has any, or of all runs."""
    found = read_entries(store, METADATA, run_ids)
    return {run_id: _decode(store, entries) for run_id, entries in found.items()}


def _decode(store: Store, entries: Iterable[Entry]) -> dict[str, object]:
    metadata: dict[str, object] = {}
    for entry in entries:
        try:
            metadata.update(entry.content["metadata"])
        except (KeyError, TypeError, ValueError) as error:
            raise no_entry(store, entry.key, error) from None
    return metadata
