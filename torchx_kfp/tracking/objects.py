"""The store on any fsspec file system: object stores, memory, SFTP and others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

from torchx_kfp.common.text import shown
from torchx_kfp.contract.carried.storage import PRIVATE, TEMPORARY, open_storage, write_whole
from torchx_kfp.errors import MissingCredentialsError, RefusedError, TrackerBaseError, TrackerError
from torchx_kfp.tracking.store import File, Store

T = TypeVar("T")

#: The protocols of object stores, which do not have folders.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2", "tos", "obs"}
#: The longest object name on S3 and Google Cloud Storage, in bytes of UTF-8.
_MAX_OBJECT_NAME = 1024
#: The number of concurrent requests. S3 allows thousands; a Python client makes some hundred in a second.
_REQUESTS = 64
#: Seconds for a write, besides those for retries. botocore waits for permission to send ("Expect: 100-continue")
#: without a time limit.
_WRITE_SECONDS = 30.0
#: The bytes that add one second to the time limit of a write.
_BYTES_PER_SECOND = 100_000
#: The bytes that a file adds to that time limit besides its own: each one is a request.
_BYTES_PER_FILE = 10_000
#: The largest small file, in bytes, and the number of small files sent concurrently. The driver sends parts of a large
#: file concurrently.
_SMALL, _AT_ONCE = 1 << 20, 64
#: The number of concurrent parts of a large file on S3, and the size of a part that is sent; parts that are received
#: have 50 MiB. The defaults of s3fs, 10 parts of 50 MiB, take half a gigabyte of memory.
_CONCURRENT_PARTS, _PART_SIZE = 4, 8 << 20
#: The errors of a full local disk.
_LOCAL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
#: The fields with the modification time of a file in fsspec's file systems.
_MODIFIED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")
#: Matches drivers' messages about a range beyond the end of an object. They also contain names of objects.
_RANGE = re.compile(r"\bInvalidRange\b|[Rr]ange (?:is )?not satisfiable|\b416\b")

#: The exceptions of botocore and google-auth for missing credentials, and where to provide them.
_NO_CREDENTIALS = {
    "NoCredentialsError": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials and set "
    "AWS_PROFILE; for a server other than Amazon's, set AWS_ENDPOINT_URL as well.",
    "DefaultCredentialsError": "Set GOOGLE_APPLICATION_CREDENTIALS to the path of a service account's key, or run "
    "`gcloud auth application-default login`.",
}


def open_filesystem(base: str, patience: float) -> tuple[Any, str]:
    """Return the file system of a tracker base, and the path on it: see ``open_storage``."""
    options = {"use_listings_cache": False, "max_concurrency": _CONCURRENT_PARTS}
    filesystem, path = open_storage(base, patience, {"max_pool_connections": _REQUESTS}, options)
    return filesystem, path


class FsspecStore(Store):
    """A store with one file or object for each key, on any fsspec file system.

    The base is resolved once. Keys are joined to its path and are never parsed as part of a URL.
    """

    def __init__(self, base: str, filesystem: Any, path: str, patience: float) -> None:
        # Others, such as SFTP, may not allow calls from several threads.
        self._asynchronous = all(getattr(layer, "async_impl", False) for layer in _layers(filesystem))
        super().__init__(base, _REQUESTS if self._asynchronous else 1)
        self._patience = patience
        self._opened = filesystem, (os.getpid(), 0 if self._asynchronous else threading.get_ident())
        self._root = path.rstrip("/")
        found = [layer.protocol for layer in _layers(filesystem)]
        protocols = {name for its in found for name in ([its] if isinstance(its, str) else its)}
        self._objects = bool(protocols & _OBJECT_STORES)
        self._is_s3 = hasattr(filesystem, "call_s3")
        if self._objects and not self._root:
            raise TrackerBaseError(
                f"The tracker base {base!r} does not name a bucket. Use one such as s3://bucket/results."
            )

    @property
    def _fs(self) -> Any:
        """The file system of this process, or of this thread if it is not asynchronous."""
        owner = os.getpid(), 0 if self._asynchronous else threading.get_ident()
        opened, of = self._opened
        if of != owner:
            opened = open_filesystem(self.base, self._patience)[0]
            self._opened = opened, owner
        return opened

    def location(self, key: str) -> str:
        return str(self._fs.unstrip_protocol(f"{self._root}/{key}"))

    def _read_many(self, keys: Sequence[str], most: int) -> Iterator[bytes | None]:
        paths = [self._path(key) for key in keys]
        # With a range, s3fs does not request the size first.
        given = {"batch_size": _REQUESTS} if self._asynchronous else {}
        found = self._fs.cat_ranges(paths, 0, most, on_error="return", **given)
        for key, path, content in zip(keys, paths, found, strict=True):
            if not isinstance(content, BaseException):
                yield bytes(content)
            elif _is_missing(content) and not _bucket_is_missing(content):
                yield None
            elif self._is_empty(path, content):
                yield b""
            else:
                raise self.problem("read", key, content) from content

    def _is_empty(self, path: str, error: BaseException) -> bool:
        """Return whether the range was rejected because the object is empty."""
        with contextlib.suppress(Exception):  # the first error is reported
            return bool(_RANGE.search(str(error))) and self._fs.size(path) == 0
        return False

    def write(self, key: str, content: bytes) -> None:
        path = self._path(key)
        try:
            if self._asynchronous:
                self._timed(self._fs._pipe_file(path, content), len(content))
            else:
                write_whole(self._fs, path, content)
        except Exception as error:  # each store's client raises its own errors
            raise self.problem("write", key, error) from error

    def _timed(self, call: Coroutine[Any, Any, T], size: int) -> T:
        """Return the value of a coroutine that sends bytes, within a time limit for this size."""
        seconds = self._patience + _WRITE_SECONDS + size / _BYTES_PER_SECOND
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call, seconds), self._fs.loop)
        try:
            return future.result()
        except asyncio.TimeoutError:
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        except BaseException:
            # After Ctrl-C, an abandoned write must not replace a later one.
            future.cancel()
            raise

    def put_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        given = {"chunksize": _PART_SIZE} if self._is_s3 else {}
        for group, at_once in _groups(files):
            here, there = [path for path, _ in group.values()], [self._path(key) for key in group]
            try:
                if self._asynchronous:
                    size = sum(size for _, size in group.values()) + len(group) * _BYTES_PER_FILE
                    self._timed(self._fs._put(here, there, batch_size=at_once, **given), size)
                else:
                    self._fs.put(here, there)
            except Exception as error:  # each store's client raises its own errors
                raise self.problem("write", next(iter(group)), error) from error

    def get_files(self, files: Mapping[str, tuple[str, int]]) -> None:
        for group, at_once in _groups(files):
            given = {"batch_size": at_once} if self._asynchronous else {}
            try:
                self._fs.get([self._path(key) for key in group], [path for path, _ in group.values()], **given)
            except FileNotFoundError:
                raise
            except Exception as error:  # as above
                if isinstance(error, OSError) and error.errno in _LOCAL_ERRNOS:
                    raise
                raise self.problem("read", next(iter(group)), error) from error

    def remove(self, key: str) -> None:
        try:
            self._fs.rm_file(self._path(key))  # rm would read the key as a pattern
        except Exception as error:  # as above
            if not _is_missing(error) or _bucket_is_missing(error):
                raise self.problem("remove", key, error) from error

    def list_files(self, prefix: str = "", *, private: bool = True) -> list[File]:
        path = self._path(prefix) if prefix else self._root
        where, _, name = path.rpartition("/")
        # An object may have this name while others are below it. One request lists both.
        given = {"path": where, "prefix": name} if prefix and self._objects else {"path": path}
        try:
            self._fs.invalidate_cache()  # other processes write, too
            listing = self._fs.find(**given, detail=True)
            if isinstance(listing, list):  # adlfs returns one for the path of an object
                listing = {}
            # If a driver lists folders only, fsspec knows nothing about a file.
            listing = {it: facts if "size" in facts else self._fs.info(it) for it, facts in listing.items()}
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self.problem("list", "", error) from error
            listing = {}
        except Exception as error:  # as above
            raise self.problem("list", "", error) from error
        files = [
            File(name[len(self._root) + 1 :], int(entry["size"] or 0), _modified(entry))
            for name, entry in listing.items()
            if (name.startswith(f"{path}/") and not name.endswith("/")) or (prefix and name == path)
        ]
        return sorted(
            file
            for file in files
            if (private or PRIVATE not in file.key[len(prefix) :].split("/"))
            and not file.key.rpartition("/")[2].startswith(TEMPORARY)
        )

    def _path(self, key: str) -> str:
        path = f"{self._root}/{key}"
        if self._objects:
            size = len(path.partition("/")[2].encode())
            if size > _MAX_OBJECT_NAME:
                limit = f"the object's name would have {size:,} bytes, and object stores allow {_MAX_OBJECT_NAME:,}"
                raise self.problem("use", key, OSError(errno.ENAMETOOLONG, limit))
        understood = self._fs._strip_protocol(path)
        if understood == path and hasattr(self._fs, "split_path"):
            bucket, name = self._fs.split_path(path)[:2]
            understood = f"{bucket}/{name}"
        if understood != path:  # for example '?versionId=', which s3fs removes
            raise RefusedError(
                f"The key {shown(key)} means something else to the tracker base {self.base!r}, which reads "
                f"{shown(understood)} from {shown(path)}. Use another key."
            )
        return path

    def problem(self, action: str, key: str, error: BaseException) -> TrackerError:
        way_out = _way_to_credentials(error)
        _cut_frames(error)
        if way_out:
            return MissingCredentialsError(f"No credentials were found for the tracker base {self.base!r}. {way_out}")
        where = self.location(key) if key else self.base
        # Google's server only reports "not found" for a missing bucket.
        missing = action == "write" and self._objects and isinstance(error, FileNotFoundError)
        if missing or _bucket_is_missing(error):
            return TrackerBaseError(
                f"Cannot {action} {where}: the bucket of the tracker base {self.base!r} does not exist. "
                "Create it, or name another one. The tracker does not create buckets."
            )
        if type(error).__name__ == "EndpointConnectionError":  # botocore's
            return TrackerError(
                f"Cannot {action} {where} ({error}). Set AWS_ENDPOINT_URL to an address of the server that can be "
                "reached from this machine."
            )
        return super().problem(action, key, error)


def _groups(files: Mapping[str, tuple[str, int]]) -> Iterator[tuple[dict[str, tuple[str, int]], int]]:
    """Yield the small and the large files, each with the number to transfer concurrently."""
    for is_small, at_once in ((True, _AT_ONCE), (False, 1)):
        if group := {key: file for key, file in files.items() if (file[1] <= _SMALL) is is_small}:
            yield group, at_once


def _cut_frames(error: BaseException) -> None:
    """Remove frames and contexts of drivers' errors: they would hide the message in a stage's log."""
    error.__traceback__ = None
    error.__suppress_context__ = True
    if error.__cause__ is not None:
        _cut_frames(error.__cause__)


def _modified(entry: Mapping[str, Any]) -> float:
    value = next((entry[name] for name in _MODIFIED if entry.get(name) is not None), math.inf)
    if isinstance(value, str):
        value = datetime.fromisoformat(value.replace("Z", "+00:00"))
    return value.timestamp() if isinstance(value, datetime) else float(value)


def _layers(filesystem: Any) -> Iterator[Any]:
    """Yield the file system and those that it wraps."""
    while hasattr(filesystem, "protocol"):  # file systems of pyarrow, which fsspec wraps, do not have one
        yield filesystem
        filesystem = vars(filesystem).get("fs")


def _way_to_credentials(error: BaseException | None) -> str:
    """Return how to provide credentials if the driver did not find any; otherwise an empty string."""
    while error is not None:
        if type(error).__name__ in _NO_CREDENTIALS:
            return _NO_CREDENTIALS[type(error).__name__]
        error = error.__cause__ or error.__context__
    return ""


def _is_missing(error: BaseException) -> bool:
    # SMB's errors are OSErrors only.
    return isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.errno == errno.ENOENT)


def _bucket_is_missing(error: BaseException) -> bool:
    response = getattr(error.__cause__, "response", None)  # botocore's
    if isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket":
        return True
    return re.search(r"NoSuchBucket|bucket does not exist", str(error)) is not None
