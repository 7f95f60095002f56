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
from collections.abc import Mapping

from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerError
from torchx_kfp.tracking.entries import ARTIFACTS, METADATA, SOURCES, add_entry
from torchx_kfp.tracking.keys import key_text
from torchx_kfp.tracking.sources import Source, encode_sources
from torchx_kfp.tracking.store import Store, open_store


def import_torchx(root: str | os.PathLike[str], store: Store) -> dict[str, int]:
    """Take over what TorchX's tracker has stored under a root; nothing there is changed.

    To do it again changes nothing. The last value of a name counts by the time in TorchX's file names.

    Args:
        root: fsspec URL or local directory: ``root_path`` of TorchX's configuration.
        store: the store that gets it.

    Returns:
        Run id -> how many artifacts, pieces of metadata and sources it has.

    Raises:
        CorruptResultError: a file is not what TorchX writes. What came before it has been taken over.
        TrackerError: nothing of TorchX's tracker is there, or a store failed.
    """
    theirs = open_store(root)
    keys = [(key, found) for key in theirs.keys(None) if (found := _parse(key)) is not None]
    if not keys:
        raise TrackerError(
            f"There is nothing of TorchX's FsspecTracker under {theirs.base!r}. Name the folder that its configuration "
            "has as root_path."
        )
    count: dict[str, int] = {}

    def copy(found: tuple[str, tuple[str, str, str]]) -> str:
        key, (run_id, kind, name) = found
        content = theirs.read(key) or b""
        try:
            entry = _convert(kind, name, content)
        except (binascii.Error, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise CorruptResultError(
                f"{theirs.location(key)} is not what TorchX's tracker writes: {error!r}. Remove it, and import again."
            ) from None
        # The same name each time: an import that is repeated replaces what it wrote.
        add_entry(store, kind, run_id, entry, kind, f"{_time(name)}-{hashlib.sha256(key.encode()).hexdigest()[:8]}")
        return run_id

    for run_id in store.each(copy, keys):
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
