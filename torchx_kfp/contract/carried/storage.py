"""Open, read and write the files of runs below a tracker base.

Programs that commands carry use only this; ``torchx_kfp.tracking`` adds checks, listings and concurrent requests.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

#: The folder for everything besides results. Listings omit it.
PRIVATE = ".torchx_kfp"
#: The folders for the entries of runs (``tracking.entries``) and for their stored files.
RUNS = f"{PRIVATE}/runs"
FILES = f"{PRIVATE}/files"
#: The prefix of temporary files. Listings omit them.
TEMPORARY = f"{PRIVATE}-"
#: About how many seconds stages retry calls of S3: longer than the restart of a storage server or a node's network.
PATIENCE = 60.0


def open_storage(base: str, patience: float = PATIENCE, config: Any = (), options: Any = (), /) -> Any:
    """Return fsspec's file system for a URL or a directory, and the path on it. No request is sent yet.

    The drivers retry failed calls. For S3, botocore doubles its waits, whose mean sum is half of the patience; s3fs
    also retries if a connection fails in the middle of an answer. The user's configuration of botocore takes
    precedence.

    Args:
        base: the URL or directory.
        patience: about how many seconds calls of S3 are retried before they raise.
        config: further settings of botocore.
        options: further arguments of s3fs.

    Raises:
        ValueError: the URL is a chain with a cache, which would keep files on this machine.
    """
    import fsspec

    if "cache" in base.rpartition("::")[0]:
        raise ValueError(f"a cache keeps files on this machine: use {base.split('::')[-1]}")
    # The waits are powers of two, whose sum is the patience. The mode "standard" gives up if many calls fail at once.
    attempts = int(patience + 1).bit_length() + (patience > 0)
    config = {**dict(config), "retries": {"mode": "legacy", "total_max_attempts": attempts}}
    for name in "s3", "s3a":
        config.update(fsspec.config.conf.get(name, {}).get("config_kwargs", {}))
    s3 = re.findall("(s3a?)://", base)
    store, path = fsspec.core.url_to_fs(base, **{name: dict(options, config_kwargs=config) for name in s3})
    if s3:
        store.retries = min(attempts, 3)
    return store, path


def write_whole(store: Any, path: str, content: bytes, /) -> None:
    """Write a file atomically: readers see the old content or the new one. Missing folders are created.

    Writes to object stores are atomic. Other stores get a temporary file, which is moved. Where a move cannot replace a
    file (SMB, WebHDFS), the file is missing for a moment.
    """
    import fsspec

    inner = store
    while getattr(inner.__dict__.get("fs"), "protocol", ()):  # it wraps another one
        inner = inner.fs
    # Drivers of object stores are asynchronous, or inherit ``mv``, which copies and reads names as patterns.
    if inner.async_impl:
        # botocore waits for permission to send ("Expect: 100-continue") without a time limit.
        store.pipe_file(path, content, timeout=2 * PATIENCE)
        return
    if type(inner).mv is fsspec.AbstractFileSystem.mv:
        store.pipe_file(path, content)
        return
    if store.isdir(path):  # some stores would move the file into it
        raise IsADirectoryError(path)
    folder = path.rpartition("/")[0]
    # On SFTP, ``makedirs`` requests each folder of the path, also those of other users.
    if not store.isdir(folder):
        store.makedirs(folder, exist_ok=True)
    part = f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"
    store.pipe_file(part, content)
    try:  # noqa: SIM105 (shorter than contextlib)
        store.mv(part, path)
    except Exception:  # each store raises its own errors
        pass
    if store.exists(part):
        if store.exists(path):
            store.rm_file(path)
        store.mv(part, path)


def fields_of(key: str, /) -> set[str]:
    """Return the fields of an entry, which are in its name: ``<time>-<random>.<field>[.<field>]``."""
    return {*key.rpartition("/")[2].split(".")[1:]}


def read_json(store: Any, path: str, /, **options: Any) -> Any:
    """Return the content of a JSON file in a store."""
    return json.loads(store.cat_file(path), **options)


def read_field(store: Any, folder: str, field: str, /, **options: Any) -> dict[str, Any]:
    """Return a field of the entries in a folder, merged in the order of time."""
    found: dict[str, Any] = {}
    for path in sorted(store.ls(folder, False) if store.exists(folder) else ()):
        if field in fields_of(path):
            found.update(read_json(store, path, **options)[field])
    return found
