"""The files of runs below a tracker base: where they are, and how they are opened, read and written.

Programs that commands carry need no more than this; ``torchx_kfp.tracking`` adds checks, listings and many at once.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

#: The folder for everything that a tracker keeps besides results. Listings leave it out.
PRIVATE = ".torchx_kfp"
#: The folders below which each run has one for its entries (``tracking.entries``), and one for files that it stores.
RUNS = f"{PRIVATE}/runs"
FILES = f"{PRIVATE}/files"
#: Begins the names of temporary files. Listings leave them out.
TEMPORARY = f"{PRIVATE}-"
#: Seconds for which stages keep trying to reach S3, about. A restart of a storage server or of a node's network takes
#: less.
PATIENCE = 60.0
#: Seconds for a write to an object store, besides those in which it is tried again. botocore asks whether it may send
#: ("Expect: 100-continue"), and its HTTP client waits for the answer forever.
WRITE_SECONDS = 30.0


def open_storage(base: str, patience: float = PATIENCE, config: Any = (), options: Any = (), /) -> Any:
    """Return fsspec's file system for a URL or a directory, and the path on it. No request is sent yet.

    The drivers try again by themselves. For S3, botocore's waits are doubled, and sum up to half of the patience in the
    mean; s3fs tries again if a connection fails, also in the middle of an answer. The user's own configuration of
    botocore takes precedence.

    Args:
        base: the URL or directory.
        patience: seconds for which S3 is tried again before a call raises, about.
        config: further settings of botocore.
        options: further arguments of s3fs.

    Raises:
        ValueError: the URL is a chain with a cache, whose files would stay on this machine.
    """
    import fsspec

    if "cache" in base.rpartition("::")[0]:
        raise ValueError(f"a cache keeps files on this machine: use {base.split('::')[-1]}")
    # As many waits as powers of two make up the patience. "standard" gives up when many calls fail at once.
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
    """Write a file of a store: readers see the old content or the new one. Missing folders are created.

    Object stores take a file whole. Others get it under a temporary name, and move it. Where nothing moves to a name
    that exists (SMB, WebHDFS), readers see no file for a moment.
    """
    import fsspec

    inner = store
    while getattr(inner.__dict__.get("fs"), "protocol", ()):  # it wraps another one
        inner = inner.fs
    # Drivers of object stores are asynchronous, or inherit the ``mv`` that copies, and reads names as patterns.
    if inner.async_impl:
        store.pipe_file(path, content, timeout=PATIENCE + WRITE_SECONDS)
        return
    if type(inner).mv is fsspec.AbstractFileSystem.mv:
        store.pipe_file(path, content)
        return
    if store.isdir(path):  # some would move the file into it
        raise IsADirectoryError(path)
    folder = path.rpartition("/")[0]
    # On SFTP, ``makedirs`` asks for each folder of the path, and may ask for those that others own.
    if not store.isdir(folder):
        store.makedirs(folder, exist_ok=True)
    part = f"{folder}/{TEMPORARY}{os.urandom(8).hex()}"
    store.pipe_file(part, content)
    try:  # noqa: SIM105 (shorter than contextlib)
        store.mv(part, path)
    except Exception:  # each store has its own errors
        pass
    if store.exists(part):
        if store.exists(path):
            store.rm_file(path)
        store.mv(part, path)


def fields_of(key: str, /) -> set[str]:
    """Return the fields that an entry has, which are in its name: ``<time>-<random>.<field>[.<field>]``."""
    return {*key.rpartition("/")[2].split(".")[1:]}


def read_json(store: Any, path: str, /, **options: Any) -> Any:
    """Return the content of a JSON file in a store."""
    return json.loads(store.cat_file(path), **options)


def read_field(store: Any, folder: str, field: str, /, **options: Any) -> dict[str, Any]:
    """Return what the entries in a folder have in a field; the latest one counts."""
    found: dict[str, Any] = {}
    for path in sorted(store.ls(folder, False) if store.exists(folder) else ()):
        if field in fields_of(path):
            found.update(read_json(store, path, **options)[field])
    return found
