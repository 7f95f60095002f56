"""The store on any fsspec file system: object stores, memory, SFTP and others."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import itertools
import os
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import fsspec
from fsspec.core import url_to_fs

from torchx_kfp.common.text import shown
from torchx_kfp.errors import KeyRefusedError, MissingCredentialsError, TrackerBaseError, TrackerError
from torchx_kfp.tracking.store import PRIVATE, Concurrency, File, Store, copy_bytes, retried

T = TypeVar("T")

#: The protocols of stores that have named objects, but no folders.
_OBJECT_STORES = {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss", "r2", "tos", "obs"}
#: The longest name of an object on S3 and Google Cloud Storage, in bytes of UTF-8.
_MAX_OBJECT_NAME = 1024
#: How many requests are made at once. S3 allows thousands; a client in Python makes some hundred in a second.
_REQUESTS = 64
#: Seconds for one attempt to write, and the number of bytes that add another second. botocore asks S3 whether it may
#: send ("Expect: 100-continue"), and the HTTP client waits for the answer forever; s3fs has time-outs for everything
#: else.
_WRITE_SECONDS, _BYTES_PER_SECOND = 30.0, 100_000
#: How many parts of a large file are on their way at once, besides as many that wait.
_PARTS = 3
#: How many objects of S3 are removed with one request, and how many such requests are made at once.
_REMOVED, _REMOVALS = 1000, 3
#: The bytes that are read with one request of a large file.
_RANGE = 64 << 20
#: The fields in which fsspec's file systems give the time at which a file was written.
_MODIFIED = ("LastModified", "last_modified", "updated", "mtime", "modified", "created")

#: Exceptions of drivers that find no credentials, botocore and google-auth -> where they look for them.
_NO_CREDENTIALS = {
    "NoCredentialsError": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write ~/.aws/credentials and set "
    "AWS_PROFILE; for a server other than Amazon's, set AWS_ENDPOINT_URL as well.",
    "DefaultCredentialsError": "Set GOOGLE_APPLICATION_CREDENTIALS to the path of a service account's key, or run "
    "`gcloud auth application-default login`.",
}


def open_filesystem(base: str) -> tuple[Any, str]:
    """Return the fsspec file system that the URL names, and the path on it. No request is sent yet.

    For S3, there is a connection for each concurrent request, and the retries of botocore and s3fs are off: ``calls``
    retries for all file systems alike. The user's own configuration of botocore takes precedence.
    """
    options = {}
    for protocol in re.findall(r"(?:^|::)(s3a?)://", base):
        own: dict[str, Any] = {}
        for name in ("s3", "s3a"):
            own |= fsspec.config.conf.get(name, {}).get("config_kwargs", {})
        config = {"max_pool_connections": _REQUESTS, "retries": {"total_max_attempts": 1}, **own}
        options[protocol] = {"config_kwargs": config, "use_listings_cache": False}
    filesystem, path = url_to_fs(base, **options)
    if options and hasattr(filesystem, "retries"):
        filesystem.retries = 1
    return filesystem, path


class FsspecStore(Store):
    """A store with one file or object for each key, on any fsspec file system.

    The base is resolved once. Keys are joined to its path and are never parsed as part of a URL.
    """

    part = 8 << 20

    def __init__(self, base: str, filesystem: Any, path: str, patience: float) -> None:
        # Other file systems, such as SFTP, may not allow calls from several threads.
        self._asynchronous = all(getattr(layer, "async_impl", False) for layer in _layers(filesystem))
        super().__init__(base, patience, Concurrency(_REQUESTS if self._asynchronous else 1))
        self._opened = filesystem
        self._pid = os.getpid()
        self._root = path.rstrip("/")
        found = [layer.protocol for layer in _layers(filesystem)]
        protocols = {name for its in found for name in ([its] if isinstance(its, str) else its)}
        self._objects = bool(protocols & _OBJECT_STORES)
        self._memory = "memory" in protocols
        if self._objects and not self._root:
            raise TrackerBaseError(
                f"The tracker base {base!r} does not name a bucket. Use one such as s3://bucket/results."
            )
        finder = getattr(filesystem, "_find", filesystem.find)
        self._finds_prefixes = self._objects and "prefix" in inspect.signature(finder).parameters
        # s3fs asks for the size before it reads, in order to read large files in pieces. Results are small.
        reader = getattr(filesystem, "_cat_file", filesystem.cat_file)
        self._read_options = {"max_concurrency": 1} if "max_concurrency" in inspect.signature(reader).parameters else {}

    @property
    def _fs(self) -> Any:
        # Clients of object stores do not survive a fork. Nor does the event loop of older fsspec, which then raises.
        if self._pid != os.getpid() and survives_fork():
            self._opened, self._pid = open_filesystem(self.base)[0], os.getpid()
        return self._opened

    def location(self, key: str) -> str:
        return str(self._fs.unstrip_protocol(f"{self._root}/{key}"))

    def read(self, key: str, most: int | None = None) -> bytes | None:
        path = self._path(key)
        options = self._read_options if most is None else {"start": 0, "end": most}
        try:
            return self._tried("read", key, lambda: self._cat(path, options))
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self._problem("read", key, error) from error
            self._refuse_beside(key, path)
            return None
        except Exception as error:  # each store's client raises its own errors
            raise self._problem("read", key, error) from error

    def _cat(self, path: str, options: Mapping[str, int]) -> bytes:
        try:
            return bytes(self._fs.cat_file(path, **options))
        except (FileNotFoundError, PermissionError):
            raise
        except Exception:
            # An empty object does not have the first byte that was asked for: each store says so with another error.
            with contextlib.suppress(Exception):  # the first error says more than one of this question
                if "end" in options and self._fs.size(path) == 0:
                    return b""
            raise

    def write(self, key: str, content: bytes) -> None:
        path = self._path(key)
        self._refuse_beside(key, path)

        def write() -> None:
            try:
                self._pipe(path, content)
            except FileNotFoundError:
                if self._objects:  # the bucket is missing, and buckets are not created here
                    raise
                self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
                self._pipe(path, content)

        try:
            self._tried("write", key, write)
        except Exception as error:
            raise self._problem("write", key, error) from error

    def _pipe(self, path: str, content: bytes) -> None:
        if self._asynchronous:
            self._timed(lambda: self._fs._pipe_file(path, content), len(content))
        else:
            self._fs.pipe_file(path, content)

    def _timed(self, call: Callable[[], Coroutine[Any, Any, T]], size: int) -> T:
        """Return the value of a coroutine that sends or gets bytes, unless it takes too long for this size."""
        loop = self._fs.loop  # an error in a forked process, with older fsspec
        seconds = _WRITE_SECONDS + size / _BYTES_PER_SECOND
        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(call(), seconds), loop)
        try:
            return future.result()
        except asyncio.TimeoutError:
            raise TimeoutError(f"no answer in {seconds:g} s") from None
        except BaseException:
            # After Ctrl-C, an abandoned write must not arrive later and replace the next one.
            future.cancel()
            raise

    def write_parts(self, key: str, parts: Iterable[bytes]) -> None:
        path = self._path(key)
        self._refuse_beside(key, path)
        try:
            if hasattr(type(self._fs), "_call_s3"):
                self._upload(key, path, parts)
            else:
                self._tried("write", key, lambda: self._stream(path, parts))
        except (TrackerError, KeyRefusedError):
            raise
        except Exception as error:
            raise self._problem("write", key, error) from error

    def _stream(self, path: str, parts: Iterable[bytes]) -> None:
        if not self._objects:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
        file = self._fs.open(path, "wb", block_size=self.part)
        try:
            for part in parts:
                file.write(part)
            file.close()
        except BaseException:
            # Closing the file would finish it as it is.
            with contextlib.suppress(Exception):
                file.discard()
            with contextlib.suppress(Exception):
                self._fs.rm_file(path)
            raise

    def _upload(self, key: str, path: str, parts: Iterable[bytes]) -> None:
        """Upload parts to S3, several at once, each with its own retries and time-out; s3fs's files do neither."""
        bucket, name, _ = self._fs.split_path(path)

        def call(method: str, size: int = 0, **words: Any) -> Any:
            def attempt() -> Any:
                return self._timed(lambda: self._fs._call_s3(method, Bucket=bucket, Key=name, **words), size)

            return self._tried("write", key, attempt)

        def send(numbered: tuple[int, bytes]) -> dict[str, Any]:
            number, part = numbered
            sent = call("upload_part", len(part), UploadId=upload, PartNumber=number, Body=part)
            return {"PartNumber": number, "ETag": sent["ETag"]}

        upload = call("create_multipart_upload")["UploadId"]
        try:
            done = list(self.each(send, enumerate(parts, 1), _PARTS))
            try:
                size = len(done) * self.part  # S3 may take minutes to join the parts of a large file
                call("complete_multipart_upload", size, UploadId=upload, MultipartUpload={"Parts": done})
            except FileNotFoundError:
                if not self._fs.exists(path):  # the answer to an earlier attempt was lost
                    raise
        except BaseException:
            with contextlib.suppress(Exception):
                call("abort_multipart_upload", UploadId=upload)
            raise

    def fetch(self, key: str, size: int, path: str) -> None:
        place = self._path(key)
        try:
            if hasattr(type(self._fs), "_call_s3"):
                # A shorter object was changed, which its digest shows.
                size = min(size, self._tried("read", key, lambda: self._fs.size(place)))
                with open(path, "wb") as file:
                    ranges = ((start, min(start + _RANGE, size) - 1) for start in range(0, size, _RANGE))
                    for _ in self.each(lambda its: self._get_range(key, place, its, file.fileno()), ranges, _PARTS):
                        pass
            elif self._tried("read", key, lambda: self._fs.size(place)) > size:
                with self._fs.open(place, "rb") as source, open(path, "wb") as file:
                    copy_bytes(source, file, size, self.part)
            else:
                self._tried("read", key, lambda: self._fs.get_file(place, path))
        except FileNotFoundError:
            raise
        except Exception as error:
            raise self._problem("read", key, error) from error

    def _get_range(self, key: str, place: str, ends: tuple[int, int], file: int) -> None:
        """Copy the bytes from the first to the last of an object of S3 to the same place in a file."""
        bucket, name, _ = self._fs.split_path(place)
        first, last = ends

        async def copy() -> None:
            words = {"Bucket": bucket, "Key": name, "Range": f"bytes={first}-{last}"}
            body = (await self._fs._call_s3("get_object", **words))["Body"]
            try:
                offset = first
                while chunk := await body.read(self.part >> 3):
                    offset += os.pwrite(file, chunk, offset)
            finally:
                body.close()
            if offset <= last:
                raise ConnectionResetError(errno.ECONNRESET, "the answer ended early")

        self._tried("read", key, lambda: self._timed(copy, last - first))

    def remove(self, key: str) -> None:
        path = self._path(key)
        try:
            # rm would read the key as a pattern.
            self._tried("remove", key, lambda: self._fs.rm_file(path))
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self._problem("remove", key, error) from error
        except Exception as error:
            raise self._problem("remove", key, error) from error

    def remove_old(self, file: File) -> bool:
        """Remove a file. An object store cannot be asked to keep a file that was written since it was listed."""
        self.remove(file.key)
        return True

    def remove_many(self, files: Iterable[File]) -> Iterator[bool | TrackerError]:
        if not hasattr(type(self._fs), "_call_s3"):
            yield from super().remove_many(files)
            return
        keys = (file.key for file in files)
        batches = iter(lambda: list(itertools.islice(keys, _REMOVED)), [])
        for found in self.each(self._remove_batch, batches, _REMOVALS):
            yield from found

    def _remove_batch(self, keys: Sequence[str]) -> list[bool | TrackerError]:
        """Remove objects of S3 with one request. (s3fs's ``rm`` hides which ones have stayed.)"""
        names = {self._fs.split_path(self._path(key))[1]: key for key in keys}
        bucket = self._root.partition("/")[0]
        wanted = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        try:
            answer = self._tried(
                "remove", keys[0], lambda: self._fs.call_s3("delete_objects", Bucket=bucket, Delete=wanted)
            )
            left = [names[error["Key"]] for error in answer.get("Errors", ())]
        except Exception:  # servers like S3 may not know this request, or not this form of it
            left = list(keys)
        found: dict[str, bool | TrackerError] = dict.fromkeys(keys, True)
        for number, key in enumerate(left):
            try:
                self.remove(key)  # with retries, and with the reason if it must stay
            except TrackerError as error:
                if not isinstance(error.__cause__, PermissionError):
                    raise
                found.update(dict.fromkeys(left[number:], error))
                break
        return list(found.values())

    def for_this_thread(self) -> FsspecStore:
        """Return the store for a thread other than the one that opened it: its client may work only in that one."""
        if self._asynchronous:
            return self
        return FsspecStore(self.base, *open_filesystem(self.base), self._patience)

    def keys(self, prefix: str | None) -> list[str]:
        path = self._root if prefix is None else self._path(prefix)
        if prefix is not None and self._finds_prefixes:
            # For a folder that does not exist, s3fs would send two more requests.
            above, _, name = path.rpartition("/")
            found = self._listed(lambda: self._fs.find(above, prefix=f"{name}/"))
            found = [name for name in found if name.startswith(f"{path}/")]  # older versions include the prefix itself
        else:
            found = self._listed(lambda: self._fs.find(path))
        own = prefix is not None and prefix.partition("/")[0] == PRIVATE
        if prefix is not None and self._objects and not own and path not in found and self.read(prefix) is not None:
            found.append(path)  # an object may exist as well as others below its name
        keys = self._below(found)
        start = len(prefix or "")
        return [key for key in keys if not key.endswith("/") and PRIVATE not in key[start:].split("/")]

    def names(self, prefix: str | None = None, begin: str = "") -> list[str]:
        path = self._root if prefix is None else self._path(prefix)
        if begin and self._finds_prefixes:
            files = self._below(self._listed(lambda: self._fs.find(path, prefix=begin)), path)
            found = {name + slash for name, slash, _ in (file.partition("/") for file in files)}
        else:
            entries = self._listed(lambda: self._fs.ls(path or self._fs.root_marker, detail=True))
            names = [entry["name"] + "/" * (entry["type"] == "directory") for entry in entries]
            found = set(self._below(names, path))
        return sorted(name for name in found if name != f"{PRIVATE}/" and name.startswith(begin))

    def files(self, prefix: str = "") -> list[File]:
        path = self._path(prefix) if prefix else self._root
        found = self._listed(lambda: self._fs.find(path, detail=True) or {})
        entries = found.items() if isinstance(found, dict) else ()
        return sorted(
            File(path[len(self._root) + 1 :], int(entry["size"] or 0), self._modified(entry))
            for path, entry in entries
            if path.startswith(f"{self._root}/") and not path.endswith("/")
        )

    def _modified(self, entry: Mapping[str, Any]) -> float:
        value = next((entry[name] for name in _MODIFIED if entry.get(name) is not None), None)
        if isinstance(value, str):
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, (int, float)):
            return float(value)
        raise TrackerError(f"The store of the tracker base {self.base!r} does not report when a file was written.")

    def _tried(self, action: str, key: str, function: Callable[[], T]) -> T:
        # A forked process that cannot reach the store will never be able to.
        patience = self._patience if self._pid == os.getpid() else 0.0
        return retried(function, patience, lambda: f"{action} {self.location(key) if key else self.base}")

    def _listed(self, action: Callable[[], T]) -> T | list[Any]:
        def list_anew() -> T:
            self._fs.invalidate_cache()  # other processes also write
            return action()

        try:
            return self._tried("list", "", list_anew)
        except FileNotFoundError as error:
            if _bucket_is_missing(error):
                raise self._problem("list", "", error) from error
            return []
        except Exception as error:
            raise self._problem("list", "", error) from error

    def _below(self, names: list[str], above: str | None = None) -> list[str]:
        root = f"{self._root if above is None else above}/"
        return sorted(name[len(root) :] for name in names if name.startswith(root) and name != root)

    def _path(self, key: str) -> str:
        path = f"{self._root}/{key}"
        if self._objects:
            name = path.partition("/")[2]
            size = len(name.encode())
            if size > _MAX_OBJECT_NAME:
                raise KeyRefusedError(
                    f"The key {shown(key)} is too long for the tracker base {self.base!r}: the object's name would "
                    f"have {size:,} bytes in UTF-8, and object stores allow {_MAX_OBJECT_NAME:,}. Shorten it."
                )
        understood = self._fs._strip_protocol(path)
        if understood == path and hasattr(self._fs, "split_path"):
            bucket, name = self._fs.split_path(path)[:2]
            understood = f"{bucket}/{name}"
        if understood != path:  # for example '?versionId=', which s3fs removes
            raise KeyRefusedError(
                f"The key {shown(key)} means something else to the tracker base {self.base!r}, which reads "
                f"{shown(understood)} from {shown(path)}. Use another key."
            )
        return path

    def _refuse_beside(self, key: str, path: str) -> None:
        """Reject on memory:// the keys that file systems reject, so that tests with it show the error."""
        if not self._memory:
            return
        if self._fs.isfile(self._root):
            raise TrackerBaseError(f"The tracker base {self.base!r} is a file. Name a directory.")
        if self._fs.isdir(path):
            raise KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys below the tracker base {self.base!r}. Use another "
                f"key, for example {shown(key + '/results')}."
            )
        names = key.split("/")
        for end in range(1, len(names)):
            above = "/".join(names[:end])
            if self._fs.isfile(f"{self._root}/{above}"):
                raise KeyRefusedError(
                    f"The key {shown(key)} lies below the key {shown(above)}, which has results. "
                    "Use a key that is not below another one."
                )

    def _problem(self, action: str, key: str, error: Exception) -> TrackerError:
        way_out = _way_to_credentials(error)
        _cut_frames(error)
        if way_out:
            return MissingCredentialsError(f"No credentials were found for the tracker base {self.base!r}. {way_out}")
        where = self.location(key) if key else self.base
        said = f"{type(error).__name__}: {error}"
        if self._pid != os.getpid():
            return TrackerError(
                f"Cannot {action} {where} ({said}): this process was forked, and the installed fsspec cannot reach "
                "object stores from a forked process. Install a newer fsspec, or start processes with 'spawn'."
            )
        # Writing to a missing bucket is "not found". Google's server does not say more.
        missing = action == "write" and self._objects and isinstance(error, FileNotFoundError)
        if missing or _bucket_is_missing(error):
            return TrackerBaseError(
                f"Cannot {action} {where}: the bucket of the tracker base {self.base!r} does not exist. "
                "Create it, or name another one. The tracker does not create buckets."
            )
        if isinstance(error, PermissionError):
            return TrackerError(
                f"No permission to {action} {where} ({said}). Check that the credentials allow reading, writing and "
                "listing there: without permission to list, S3 gives this answer for missing objects as well."
            )
        if isinstance(error, (IsADirectoryError, NotADirectoryError, FileExistsError)):
            return KeyRefusedError(
                f"The key {shown(key)} is a folder of other keys of the tracker base {self.base!r}, or lies below one "
                f"that has results ({said}). Use another key."
            )
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return KeyRefusedError(
                f"The key {shown(key)} is too long for the tracker base {self.base!r} ({said}). Shorten it."
            )
        if type(error).__name__ == "EndpointConnectionError":  # botocore's
            return TrackerError(
                f"Cannot {action} {where} ({said}). Set AWS_ENDPOINT_URL to an address of the server that can be "
                "reached from here."
            )
        return TrackerError(
            f"Cannot {action} {where} ({said}). Check the tracker base {self.base!r}, its credentials, and whether it "
            "can be reached from here."
        )


def _cut_frames(error: BaseException) -> None:
    """Leave out the frames of drivers, and what led to their errors: they would hide the message in a stage's log."""
    error.__traceback__ = None
    error.__suppress_context__ = True
    if error.__cause__ is not None:
        _cut_frames(error.__cause__)


def survives_fork() -> bool:
    """Return whether the installed fsspec makes a new event loop in a forked process."""
    from fsspec import asyn

    return hasattr(asyn, "reset_after_fork")


def _layers(filesystem: Any) -> Iterator[Any]:
    """Yield the file system and those that it wraps."""
    while filesystem is not None:
        yield filesystem
        filesystem = vars(filesystem).get("fs")


def _way_to_credentials(error: BaseException | None) -> str:
    """Return how to provide credentials, if the driver found none at all; else an empty text."""
    while error is not None:
        if type(error).__name__ in _NO_CREDENTIALS:
            return _NO_CREDENTIALS[type(error).__name__]
        error = error.__cause__ or error.__context__
    return ""


def _bucket_is_missing(error: Exception) -> bool:
    response = getattr(error.__cause__, "response", None)  # botocore's
    if isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket":
        return True
    return re.search(r"NoSuchBucket|bucket does not exist", str(error)) is not None
