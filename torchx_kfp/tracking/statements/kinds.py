"""What is said of a run beside its results: artifacts, metadata, sources, steps. Each statement is a file of its own.

So processes of one run say what they have to say at once without locks, and nothing is ever half replaced. Files are
named by the time, and the latest counts. They lie below the tracker base where no key of a result can be and no listing
of results looks::

    <tracker base>/.torchx_kfp/<kind>/<run id>/<nanoseconds>-<random>

``publisher`` has the same layout for what it reads.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from torchx_kfp.errors import CorruptResultError, ResultRefusedError
from torchx_kfp.tracking.stores.keys import PRIVATE, key_text
from torchx_kfp.tracking.stores.store import Store

ARTIFACTS = "artifacts"
METADATA = "metadata"
SOURCES = "sources"
STEPS = "steps"
KINDS = (ARTIFACTS, METADATA, SOURCES, STEPS)


class Entry(NamedTuple):
    """A statement about a run, and the key of its file."""

    key: str
    content: Mapping[str, Any]


#: What is called with the error for a file that is no entry.
Corrupt = Callable[[CorruptResultError], object]

#: Runs whose entries are listed one by one; of more, all of the kind are listed at once.
_FEW_RUNS = 64

_lock = threading.Lock()
_last = 0


def folder_name(run_id: str) -> str:
    """The run's folder: one name, that ``urllib.parse.unquote`` reads back.

    TorchX's own backend has base32, which is more than a file system takes (255 bytes) for run ids of a cluster.
    ``publisher`` has the same rule, for run ids that a stage makes: those have no ``%``.
    """
    return run_id.replace("%", "%25").replace("/", "%2F")


def run_id_of(key: str) -> str:
    """The run id in the key of an entry."""
    return unquote(key.split("/")[2])


def add_entry(
    store: Store, kind: str, run_id: str, entry: Mapping[str, object], what: str, name: str | None = None
) -> None:
    """Store a statement about the run.

    Args:
        kind: one of ``KINDS``.
        entry: what JSON can hold.
        what: what the entry is, for errors.
        name: of the file, in place of the time: a second entry of that name takes the first one's place.

    Raises:
        KeyRefusedError: the run id cannot be a key.
        ResultRefusedError: JSON cannot hold the entry. Nothing was written.
        TrackerError: the store failed.
    """
    try:
        content = json.dumps(entry).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultRefusedError(
            f"The {what} cannot be written as JSON: {error}. Use dicts with str keys, lists, numbers and text."
        ) from None
    store.write(f"{_folder(kind, run_id)}/{name or time_name()}", content)


def read_entries(
    store: Store, kind: str, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
) -> dict[str, list[Entry]]:
    """The entries of this kind of each of these runs, or of all runs, that has any; the oldest first.

    Args:
        kind: one of ``KINDS``.
        run_ids: the runs; None for all.
        corrupt: is called for what is no entry, which is then left out.

    Raises:
        CorruptResultError: what is stored is no entry, and ``corrupt`` is not given.
        TrackerError: the store failed.
    """
    wanted = None if run_ids is None else list(dict.fromkeys(run_ids))
    if wanted is not None and len(wanted) <= _FEW_RUNS:
        keys = [key for found in store.each(store.keys, [_folder(kind, run_id) for run_id in wanted]) for key in found]
    else:
        folders = None if wanted is None else {folder_name(run_id) for run_id in wanted}
        keys = [key for key in store.keys(f"{PRIVATE}/{kind}") if folders is None or key.split("/")[2] in folders]
    entries: dict[str, list[Entry]] = {}
    for key, content in zip(keys, store.each(store.read, keys), strict=True):
        if content is None:  # removed since it was listed
            continue
        try:
            entry = json.loads(content)
            if not isinstance(entry, dict):
                raise ValueError(f"{entry!r} is no JSON object")
        except (ValueError, RecursionError) as error:
            if corrupt is None:
                raise no_entry(store, key, error) from None
            corrupt(no_entry(store, key, error))
            continue
        entries.setdefault(run_id_of(key), []).append(Entry(key, entry))
    return entries


def run_ids(store: Store) -> list[str]:
    """The runs of which anything is said, sorted."""
    found = store.each(store.names, [f"{PRIVATE}/{kind}" for kind in KINDS])
    return sorted({unquote(name.rstrip("/")) for names in found for name in names})


def no_entry(store: Store, key: str, error: Exception) -> CorruptResultError:
    """The error for a file that is no entry."""
    kind = key.split("/")[1]
    return CorruptResultError(
        f"{store.location(key)} is no entry of {kind}: {error!r}. Something else wrote it: remove it."
    )


def _folder(kind: str, run_id: str) -> str:
    return f"{PRIVATE}/{kind}/{folder_name(key_text(run_id))}"


def time_name() -> str:
    """A name that sorts by time; later ones of a process sort behind, also where the clock is set back."""
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1)
        return f"{_last:019}-{os.urandom(4).hex()}"
