"""Import the files of ``torchx.tracker.backend.fsspec.FsspecTracker``.

Its layout, as of torchx 0.7.0 and the nightly of 2026-10::

    <root>/<base32 of the run id>/artifacts/<nanoseconds>     {"name": ..., "path": ..., "metadata": ...}
    <root>/<base32 of the run id>/metadata/<nanoseconds>      {"metadata": {...}}
    <root>/<base32 of the run id>/sources/<base32 of a run id>    on each line an artifact's name, or nothing
    <root>/<base32 of the run id>/descendants/...             the same as sources, from the other side
"""

from __future__ import annotations

import binascii
import hashlib
import json
from base64 import b32decode
from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.errors import CorruptResultError, KeyRefusedError, TrackerError
from torchx_kfp.tracking.lineage import SOURCES, Source, encode_sources
from torchx_kfp.tracking.statements import ARTIFACTS, METADATA, Corrupt, StatementKind
from torchx_kfp.tracking.store import Store, key_text

#: TorchX's folders have the same names as this package's.
_KINDS: Mapping[str, StatementKind[Any, Any]] = {kind.folder: kind for kind in (ARTIFACTS, METADATA, SOURCES)}


def import_torchx(theirs: Store, store: Store, *, corrupt: Corrupt | None = None) -> dict[str, int]:
    """Import the files that TorchX's tracker has stored under a root. They stay as they are.

    Importing them again changes nothing. Of several values with one name, the last one counts, according to the time in
    TorchX's file names.

    Args:
        theirs: the store of ``root_path`` in TorchX's configuration.
        store: the store to import into.
        corrupt: called with the error for each file that TorchX did not write. The file is then left out.

    Returns:
        The number of files that were imported for each run id.

    Raises:
        CorruptResultError: a file was not written by TorchX, and ``corrupt`` is not given.
        TrackerError: there are no files of TorchX's tracker, or a store failed.
    """
    parsed = {key: parts for key in theirs.keys(None) if (parts := _parse(key))}
    if not parsed:
        raise TrackerError(
            f"There are no files of TorchX's FsspecTracker under {theirs.base!r}. Name the folder that is root_path in "
            "its configuration."
        )

    def entries() -> Iterator[tuple[str, str, Mapping[str, object], str]]:
        for (key, (run_id, kind, name)), content in zip(parsed.items(), theirs.each(theirs.read, parsed), strict=True):
            if content is None:  # removed since it was listed
                continue
            try:
                entry = _convert(kind, name, content)
            except (binascii.Error, AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
                problem = CorruptResultError(
                    f"{theirs.location(key)} is not a file of TorchX's tracker: {error!r}. Remove it, and import again."
                )
                if corrupt is None:
                    raise problem from None
                corrupt(problem)
                continue
            # The name is the same each time, so that a repeated import replaces its own files. It begins with TorchX's
            # nanoseconds, so that imported statements sort by time. Sources do not have any.
            time = name.zfill(19) if name.isdigit() else "0" * 19
            yield run_id, kind, entry, f"{time}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"

    def write(found: tuple[str, str, Mapping[str, object], str]) -> str:
        run_id, kind, entry, name = found
        _KINDS[kind].add(store, run_id, entry, kind, name)
        return run_id

    count: dict[str, int] = {}
    for run_id in store.each(write, entries()):
        count[run_id] = count.get(run_id, 0) + 1
    return count


def _parse(key: str) -> tuple[str, str, str] | None:
    """Return the run id, kind and file name in a key of TorchX's tracker, or None for another file."""
    parts = key.split("/")
    if len(parts) != 3 or parts[1] not in _KINDS:
        return None
    try:
        return key_text(b32decode(parts[0]).decode()), parts[1], parts[2]
    except (binascii.Error, UnicodeDecodeError, KeyRefusedError):
        return None


def _convert(kind: str, name: str, content: bytes) -> Mapping[str, object]:
    if kind == SOURCES.folder:
        source = b32decode(name).decode()
        lines = [line.strip() for line in content.decode().splitlines()] or [""]
        return encode_sources(Source(source, line or None) for line in dict.fromkeys(lines))
    entry = json.loads(content)
    if kind == METADATA.folder:
        return {"metadata": dict(entry["metadata"])}
    return {"name": str(entry["name"]), "path": str(entry["path"]), "metadata": dict(entry["metadata"] or {}) or None}
