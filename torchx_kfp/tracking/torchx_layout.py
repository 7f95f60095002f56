"""What ``torchx.tracker.backend.fsspec.FsspecTracker`` has stored, taken over.

Its layout, as of torchx 0.7.0 and the nightly of 2026-10::

    <root>/<base32 of the run id>/artifacts/<nanoseconds>     {"name": ..., "path": ..., "metadata": ...}
    <root>/<base32 of the run id>/metadata/<nanoseconds>      {"metadata": {...}}
    <root>/<base32 of the run id>/sources/<base32 of a run id>    an artifact's name, or nothing, on each line
    <root>/<base32 of the run id>/descendants/...             the same as sources, from the other side
"""

from __future__ import annotations

import binascii
import hashlib
import json
import os
from base64 import b32decode
from collections.abc import Callable, Iterator, Mapping

from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerError
from torchx_kfp.tracking.statements.entries import ARTIFACTS, METADATA, SOURCES, add_entry
from torchx_kfp.tracking.statements.sources import Source, encode_sources
from torchx_kfp.tracking.stores.calls import PATIENCE
from torchx_kfp.tracking.stores.keys import key_text
from torchx_kfp.tracking.stores.store import Store, open_store


def import_torchx(
    root: str | os.PathLike[str],
    store: Store,
    *,
    corrupt: Callable[[CorruptResultError], object] | None = None,
    patience: float = PATIENCE,
) -> dict[str, int]:
    """Take over what TorchX's tracker has stored under a root; nothing there is changed.

    To do it again changes nothing. The last value of a name counts by the time in TorchX's file names.

    Args:
        root: fsspec URL or local directory: ``root_path`` of TorchX's configuration.
        store: the store that gets it.
        corrupt: is called for a file that is not what TorchX writes, which is then left out.
        patience: seconds for which what fails for a moment at the root is tried again.

    Returns:
        Run id -> how many of its files were taken over.

    Raises:
        CorruptResultError: a file is not what TorchX writes, and ``corrupt`` is not given.
        TrackerError: nothing of TorchX's tracker is there, or a store failed.
    """
    theirs = open_store(root, patience)
    keys = [key for key in theirs.keys(None) if _parse(key)]
    if not keys:
        raise TrackerError(
            f"There is nothing of TorchX's FsspecTracker under {theirs.base!r}. Name the folder that its configuration "
            "has as root_path."
        )

    def entries() -> Iterator[tuple[str, str, Mapping[str, object], str]]:
        for key, content in zip(keys, theirs.each(theirs.read, keys), strict=True):
            if content is None:  # removed since it was listed
                continue
            run_id, kind, name = _parse(key) or ("", "", "")
            try:
                entry = _convert(kind, name, content)
            except (binascii.Error, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                problem = CorruptResultError(
                    f"{theirs.location(key)} is not what TorchX's tracker writes: {error!r}. Remove it, and import "
                    "again."
                )
                if corrupt is None:
                    raise problem from None
                corrupt(problem)
                continue
            # The same name each time: an import that is repeated replaces what it wrote.
            yield run_id, kind, entry, f"{_time(name)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def write(found: tuple[str, str, Mapping[str, object], str]) -> str:
        run_id, kind, entry, name = found
        add_entry(store, kind, run_id, entry, kind, name)
        return run_id

    count: dict[str, int] = {}
    for run_id in store.each(write, entries()):
        count[run_id] = count.get(run_id, 0) + 1
    return count


def _parse(key: str) -> tuple[str, str, str] | None:
    """Run id, kind and file name in a key of TorchX's; None for another file."""
    parts = key.split("/")
    if len(parts) != 3 or parts[1] not in (ARTIFACTS, METADATA, SOURCES):
        return None
    try:
        return key_text(b32decode(parts[0]).decode()), parts[1], parts[2]
    except (binascii.Error, UnicodeDecodeError, KeyRefusedError):
        return None


def _convert(kind: str, name: str, content: bytes) -> Mapping[str, object]:
    if kind == SOURCES:
        source = b32decode(name).decode()
        lines = [line.strip() for line in content.decode().splitlines()] or [""]
        return encode_sources(Source(source, line or None) for line in dict.fromkeys(lines))
    entry = json.loads(content)
    if kind == METADATA:
        return {"metadata": dict(entry["metadata"])}
    return {"name": str(entry["name"]), "path": str(entry["path"]), "metadata": dict(entry["metadata"] or {}) or None}


def _time(name: str) -> str:
    """TorchX's nanoseconds, so that these entries sort among this package's by time; sources have none."""
    return name.zfill(19) if name.isdigit() else "0" * 19
