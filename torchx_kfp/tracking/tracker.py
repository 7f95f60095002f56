"""The tracker of results, with the interface of ``torchx.runtime.tracking``."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx_kfp.common.extras import install_line
from torchx_kfp.common.text import SuggestingDict, did_you_mean_path, shown
from torchx_kfp.contract.carried.storage import PATIENCE
from torchx_kfp.errors import CorruptResultError, RefusedError, TrackerBaseError
from torchx_kfp.tracking.disk import DiskStore
from torchx_kfp.tracking.entries import Found, warn_once
from torchx_kfp.tracking.records import is_replay
from torchx_kfp.tracking.results import Result, check_results, decode_results, encode_results, results_frame
from torchx_kfp.tracking.store import Key, Store, key_text

if TYPE_CHECKING:
    import pandas

_logger = logging.getLogger(__name__)

#: The lock of each key that is being updated, and its pending updates: by process, tracker base and key.
_updates: dict[tuple[int, str, str], tuple[threading.RLock, list[Mapping[str, Result]]]] = {}
#: The extras of this package by protocol.
_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
#: Matches ``s3:/bucket``, a typo that fsspec reads as a relative directory.
_ONE_SLASH = re.compile(r"(?!file:|local:)[a-z][a-z0-9+]+:/(?!/)")


class FsspecResultTracker:
    """Stores the results of each key as a JSON object in the file ``<tracker base>/<key>``.

    ``tracker.put("run", loss=0.1)`` and ``tracker["run"] = {"loss": 0.1}`` do the same, and so do
    ``tracker.get("run")`` and ``tracker["run"]``. The second form accepts names that are not identifiers:
    ``tracker["run"] = {"l2norm/mean": 1.2}``.

    The files have the format of ``torchx.runtime.tracking.FsspecResultTracker``, and each tracker reads the files of
    the other.

    On a local file system, ``put`` is atomic and durable: readers see the old results or the new ones, which survive a
    crash of the machine. Symbolic links below the base are not followed. On an object store, ``put`` and ``get`` are
    one request each. Object stores can have both ``a`` and ``a/b``; a file system rejects the second one. Drivers of
    object stores retry temporary failures.

    Args:
        tracker_base: an fsspec URL or a local directory, which the first ``put`` creates. A relative directory is
            relative to the current directory at the time of this call.
        patience: about how many seconds calls of S3 are retried before they raise. Other drivers have their own limits.

    Raises:
        TrackerError: the base cannot be used. All methods raise it if the store fails. Methods with a key raise a
            RefusedError if it would leave the tracker base or the store cannot hold it, and ``get`` a
            CorruptResultError if the file is malformed.
    """

    # Without these lines, Python would take a tracker for an endless sequence: [0], [1], ...
    __iter__ = None
    __contains__ = None

    def __init__(self, tracker_base: str | os.PathLike[str], *, patience: float = PATIENCE) -> None:
        self._store = _open_store(tracker_base, patience)

    def __getitem__(self, key: Key) -> dict[str, Result]:
        return self.get(key)

    def __setitem__(self, key: Key, results: Mapping[str, Result]) -> None:
        self.put(key, **check_results(key_text(key), results))

    @property
    def store(self) -> Store:
        """The store that holds the tracker's files."""
        return self._store

    @property
    def tracker_base(self) -> str:
        """The tracker base as given by the user."""
        return self._store.base

    def put(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key. They replace earlier results.

        Args:
            key: an execution id, or any other path of names below the tracker base. It is positional: a result may be
                named ``key``.
            results: int, float, bool, or str of at most 1,024 bytes. NumPy and PyTorch scalars are accepted.

        Raises:
            RefusedError: a result has another type or is too long. Nothing was written.
        """
        text = key_text(key)
        self._store.write(text, encode_results(check_results(text, results)))

    def get(self, key: Key) -> dict[str, Result]:
        """Return the results recorded under the key, or ``{}`` if there are none.

        An unknown name raises an ``UnknownNameError``, a KeyError.
        """
        [(_, found)] = self._read([key_text(key)])
        if isinstance(found, CorruptResultError):
            raise found
        return found

    def update(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key. Earlier results under other names stay, even those of other programs.

        If the key's file is malformed because another writer was interrupted, it is replaced, and a warning is logged:
        the results of a long run are not lost. Updates of one key are serialized among the threads of a process and, on
        a disk, the processes of a machine. Other concurrent updates can lose results.

        Raises:
            RefusedError: a result has another type or is too long. Nothing was written.
        """
        text = key_text(key)
        new = check_results(text, results)
        # A forked process must not wait for a thread that it does not have.
        lock, begun = _updates.setdefault((os.getpid(), self.tracker_base, text), (threading.RLock(), []))
        with lock:
            # A signal handler that interrupts an update holds the locks. It writes both updates, and so does the other
            # one.
            interrupts = bool(begun)
            begun.append(new)
            try:
                with contextlib.nullcontext() if interrupts else self._store.locked(text):
                    try:
                        old = self.get(text)
                    except CorruptResultError as error:
                        _logger.warning("These results are replaced: %s", error)
                        old = {}
                    count = 0
                    while count < len(begun):
                        count = len(begun)
                        merged = {name: value for its in (old, *begun) for name, value in its.items()}
                        self._store.write(text, encode_results(merged))
            finally:
                if not interrupts:
                    begun.clear()

    def get_many(self, keys: Iterable[Key]) -> Found[dict[str, Result]]:
        """Return the results of each key, in the order of the keys; ``{}`` for keys without results.

        They are fetched concurrently, in at most a tenth of the time on an object store. Malformed files are left out,
        with a warning in the log, and listed in ``problems`` of the returned dict.
        """
        if isinstance(keys, (str, bytes)):
            raise RefusedError(f"get_many takes a list of keys. Got: {shown(keys)}. For one key, use get.")
        results: Found[dict[str, Result]] = Found()
        for key, found in self._read(list(dict.fromkeys(map(key_text, keys)))):
            if isinstance(found, CorruptResultError):
                results.problems.append(found)
                warn_once(f"Left out: {found}")
            else:
                results[key] = found
        return results

    def items(self, prefix: Key | None = None) -> Iterator[tuple[str, dict[str, Result]]]:
        """Yield each key with its results, in the order of the keys.

        They are fetched concurrently in batches, so memory does not grow with their number. Keys that are removed in
        the meantime are left out. So are malformed files, with a warning in the log.

        Args:
            prefix: only this key and those below it, such as ``<pipeline run>``.
        """
        for key, found in self._read(self.keys(prefix)):
            if isinstance(found, CorruptResultError):
                warn_once(f"Left out: {found}")
            elif found:
                yield key, found

    def to_frame(self, prefix: Key | None = None) -> pandas.DataFrame:
        """Return results as a pandas DataFrame with a row for each key and a column for each result.

        The index is the key, ``run_id``. Its parts are the columns ``run``, ``stage`` and ``execution`` before those of
        the results, unless a result has that name. Missing values are NaN (or NA). Without a prefix, replays of stages
        are left out.

        Args:
            prefix: only this key and those below it, such as ``<pipeline run>``.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        return results_frame((key, its) for key, its in self.items(prefix) if prefix is not None or not is_replay(key))

    def keys(self, prefix: Key | None = None) -> list[str]:
        """Return all keys with results, sorted, without reading the results.

        Args:
            prefix: only this key and those below it: ``<pipeline run>`` or ``<pipeline run>/<stage>``, not the
                beginning of a name.
        """
        return [file.key for file in self._store.list_files("" if prefix is None else key_text(prefix), private=False)]

    def _read(self, keys: Sequence[str]) -> Iterator[tuple[str, dict[str, Result] | CorruptResultError]]:
        for key, content in zip(keys, self._store.read_files(keys), strict=True):
            if isinstance(content, CorruptResultError):
                yield key, content
                continue
            try:
                results = {} if content is None else decode_results(content, self._store.location(key))
                yield key, SuggestingDict(results, f"The execution {key!r}", "result")
            except CorruptResultError as error:
                yield key, error

    def __repr__(self) -> str:
        return f"FsspecResultTracker({self.tracker_base!r})"


def _open_store(tracker_base: str | os.PathLike[str], patience: float) -> Store:
    """Open the store of a tracker base, without a request to an object store."""
    base = check_tracker_base(tracker_base)
    if base.startswith("~") and os.path.expanduser(base) == base:
        raise TrackerBaseError(
            f"The tracker base {base!r} begins with '~', but that user has no home folder on this machine. Write the "
            f"whole path, or './{base}' if you mean a directory of that name."
        )
    folder = _local_folder(base)
    if folder is not None:
        return DiskStore(base, folder)
    # Importing fsspec would take most of an application's start.
    from fsspec.implementations.local import LocalFileSystem

    from torchx_kfp.tracking.objects import FsspecStore, open_filesystem

    try:
        filesystem, path = open_filesystem(base, patience)
    except ImportError as error:
        extras = [_EXTRAS[protocol] for protocol in re.findall(r"(\w+)://", base) if protocol in _EXTRAS]
        install = install_line(extras[0]) if extras else f"{error}."
        raise TrackerBaseError(f"The tracker base {base!r} needs a package that is missing: {install}") from error
    except Exception as error:  # each implementation raises its own
        protocol, separator, rest = base.partition("://")
        small = f"{protocol.lower()}{separator}{rest}"
        near = f"Did you mean {small!r}? " if small != base else ""
        raise TrackerBaseError(
            f"The tracker base {base!r} cannot be used: {error or type(error).__name__}. {near}Use a local directory, "
            "or an fsspec URL such as s3://bucket/results, gs://bucket/results or file:///mnt/results."
        ) from error
    if isinstance(filesystem, LocalFileSystem):
        return DiskStore(base, path)
    return FsspecStore(base, filesystem, path, patience)


def _local_folder(base: str) -> str | None:
    """Return the absolute path of a directory as fsspec computes it; None for URLs other than ``file:///...``."""
    path = base[len("file://") :] if base.startswith("file:///") else base
    if ":" in path:
        return None
    if path.startswith("~"):
        return os.path.expanduser(path)
    return path if path.startswith("/") else f"{os.getcwd()}/{'' if path == '.' else path.removeprefix('./')}"


def absolute_base(base: str, directory: str | os.PathLike[str] = "") -> str:
    """Make a tracker base absolute, for processes in other directories. URLs stay as they are.

    Args:
        base: the tracker base.
        directory: the directory to which a relative base is relative; by default, the current one.
    """
    if "://" in base:
        return base
    path = os.path.join(directory, os.path.expanduser(base))
    # For a stage that starts in a link to a folder, ".." is the parent of that folder, not of the link.
    return os.path.realpath(path) if os.pardir in path.split(os.sep) else os.path.abspath(path)


def check_tracker_base(tracker_base: str | os.PathLike[str]) -> str:
    """Validate the form of a tracker base, and return it as text. Its existence is not checked.

    Raises:
        TrackerBaseError: it is empty, or has a typo that would change its meaning.
    """
    base = os.fspath(tracker_base)
    if not isinstance(base, str) or not base.strip() or "\0" in base:
        raise TrackerBaseError(
            f"The tracker base {shown(base)} is not an fsspec URL or a local directory. "
            "Use one such as /tmp/results or s3://bucket/results."
        )
    if _ONE_SLASH.match(base):
        raise TrackerBaseError(
            f"The tracker base {base!r} has only one slash after its protocol, so it would be a local directory. "
            f"Write {base.replace(':/', '://', 1)!r}, or './{base}' if you mean a directory."
        )
    layers, _, rest = base.rpartition("::")
    if "cache" in layers:
        raise TrackerBaseError(
            f"The tracker base {base!r} has a cache, which would keep results on the machine of each stage, out of "
            f"reach of others. Use {rest!r}."
        )
    return base


def verify_there(tracker: FsspecResultTracker) -> None:
    """Raise TrackerBaseError if the base is a directory that does not exist, which reading alone would not report."""
    if not isinstance(tracker.store, DiskStore) or os.path.isdir(folder := tracker.store.folder):
        return
    base = tracker.tracker_base
    wrong = f"{base!r} is not a directory" if os.path.lexists(folder) else f"There is no directory {base!r}"
    way_out = " Give the tracker base with which the pipeline ran: a directory, or a URL such as s3://bucket/results."
    raise TrackerBaseError(
        f"{wrong}.{did_you_mean_path(base if os.path.abspath(base) == folder else folder) or way_out}"
    )


def open_tracker(tracker_base: str | os.PathLike[str], *, patience: float = PATIENCE) -> FsspecResultTracker:
    """Return the tracker of a base, to query the results of all executions: ``open_tracker(base).to_frame()``.

    ``open_run`` reads all records of one execution.

    Args:
        tracker_base: an fsspec URL or a local directory.
        patience: about how many seconds calls of S3 are retried before they raise.

    Raises:
        TrackerError: the base cannot be used, or is a directory that does not exist.
    """
    tracker = FsspecResultTracker(tracker_base, patience=patience)
    verify_there(tracker)
    return tracker
