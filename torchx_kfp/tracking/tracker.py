"""Result trackers: the interface of ``torchx.runtime.tracking``, and its implementation on fsspec."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.errors import CorruptResultError, KeyRefusedError
from torchx_kfp.named import Named
from torchx_kfp.text import shown
from torchx_kfp.tracking.results import Result, check_results, decode_results, encode_results, results_frame
from torchx_kfp.tracking.statements.steps import STEPS, History
from torchx_kfp.tracking.stores.calls import PATIENCE
from torchx_kfp.tracking.stores.keys import Key, key_text
from torchx_kfp.tracking.stores.store import Store, open_store

if TYPE_CHECKING:
    import pandas

_logger = logging.getLogger(__name__)


class ResultTracker(abc.ABC):
    """Records small results under a key and reads them again.

    ``tracker.put("run", loss=0.1)`` and ``tracker["run"] = {"loss": 0.1}`` do the same, and so do
    ``tracker.get("run")`` and ``tracker["run"]``. The second form accepts names that are not identifiers:
    ``tracker["run"] = {"l2norm/mean": 1.2}``.
    """

    # Without these lines, Python would take a tracker for an endless sequence: [0], [1], ...
    __iter__ = None
    __contains__ = None

    def __getitem__(self, key: Key) -> dict[str, Result]:
        return self.get(key)

    def __setitem__(self, key: Key, results: Mapping[str, Result]) -> None:
        self.put(key, **check_results(key_text(key), results))

    @abc.abstractmethod
    def put(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key. They replace earlier results."""

    @abc.abstractmethod
    def get(self, key: Key) -> dict[str, Result]:
        """Return the results recorded under the key, or ``{}`` if there are none."""


class FsspecResultTracker(ResultTracker):
    """Stores the results of each key as one JSON object in the file ``<tracker base>/<key>``.

    The files have the format of ``torchx.runtime.tracking.FsspecResultTracker``; each tracker reads the other's files.

    On a local file system, put is atomic and durable: readers see the old results or the new ones, and the new ones
    survive a crash of the machine. Symbolic links below the base are not followed. On an object store, put is one
    request, and so is get. Object stores can have both ``a`` and ``a/b``; a file system (and ``memory://``) rejects the
    second of the two. A call that fails for a moment is retried, with a warning in the log.

    Args:
        tracker_base: an fsspec URL or a local directory. It is created when something is first put below it. A relative
            directory is relative to the current directory at the time of this call.
        patience: seconds for which a call is retried before it raises.

    Raises:
        TrackerError: the base cannot be used. All methods raise it if the store fails.
    """

    def __init__(self, tracker_base: str | os.PathLike[str], *, patience: float = PATIENCE) -> None:
        self._store = open_store(tracker_base, patience)

    @property
    def store(self) -> Store:
        """The store that holds the tracker's files."""
        return self._store

    @property
    def tracker_base(self) -> str:
        """The tracker base as it was given."""
        return self._store.base

    def put(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key. They replace earlier results.

        Args:
            key: a run id, or any other path of names below the tracker base.
            results: int, float, bool, or str of at most 1,024 bytes. NumPy and PyTorch scalars are accepted.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            ResultRefusedError: a result has another type or is too long. Nothing was written.
        """
        text = key_text(key)
        self._store.write(text, encode_results(check_results(text, results)))

    def get(self, key: Key) -> dict[str, Result]:
        """Return the results recorded under the key, or ``{}`` if there are none.

        A name that the results do not have is an ``UnknownNameError``, which is a KeyError.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: the key's file is not a JSON object.
        """
        text = key_text(key)
        return self._decode(text, self._store.read(text))

    def _decode(self, key: str, content: bytes | None) -> dict[str, Result]:
        results = {} if content is None else decode_results(content, self._store.location(key))
        return Named(results, f"The run {key!r}", "result")

    def update(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key. Earlier results with other names stay, even those of other programs.

        If the key's file is not a JSON object, because another writer was stopped half way, it is replaced and a
        warning is logged, so that the results of a long run are not lost. When two processes update a key at once, the
        results of one can be lost.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            ResultRefusedError: a result has another type or is too long. Nothing was written.
        """
        text = key_text(key)
        new = check_results(text, results)
        try:
            old = self.get(text)
        except CorruptResultError as error:
            _logger.warning("These results are replaced: %s", error)
            old = {}
        self._store.write(text, encode_results({**old, **new}))

    def get_many(
        self, keys: Iterable[Key], *, corrupt: Callable[[CorruptResultError], object] | None = None
    ) -> dict[str, dict[str, Result]]:
        """Return the results of each key, in the order of the keys. Keys without results have ``{}``.

        Many are fetched at once. From an object store, this takes a tenth of the time or less.

        Args:
            keys: the keys.
            corrupt: called with the error for each file that is not a JSON object. The key is then left out.

        Raises:
            KeyRefusedError: a key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: a file is not a JSON object, and ``corrupt`` is not given.
        """
        if isinstance(keys, (str, bytes)):
            raise KeyRefusedError(f"get_many takes a list of keys. Got: {shown(keys)}. For one key, use get.")
        texts = dict.fromkeys(map(key_text, keys))
        return dict(self._fetch(texts, corrupt))

    def items(
        self, prefix: Key | None = None, *, corrupt: Callable[[CorruptResultError], object] | None = None
    ) -> Iterator[tuple[str, dict[str, Result]]]:
        """Yield each key that has results, with its results, in the order of the keys.

        Many are fetched at once, a little ahead of the caller, so memory does not grow with their number. Keys that are
        removed meanwhile are left out.

        Args:
            prefix: only this key and those below it, such as ``<pipeline run>``.
            corrupt: called with the error for each file that is not a JSON object. The key is then left out.

        Raises:
            KeyRefusedError: the prefix would leave the tracker base, or the store cannot hold it.
            CorruptResultError: a file is not a JSON object, and ``corrupt`` is not given.
        """
        return ((key, results) for key, results in self._fetch(self.keys(prefix), corrupt) if results)

    def to_frame(self, prefix: Key | None = None) -> pandas.DataFrame:
        """Return results as a pandas DataFrame with a row for each key and a column for each name.

        The index is the key, ``run_id``. The parts of run ids of stages are the columns ``run``, ``stage`` and
        ``execution`` before those of the results, unless a result has that name. Missing values are NaN (or NA).

        Args:
            prefix: only this key and those below it, such as ``<pipeline run>``.

        Raises:
            MissingExtraError: pandas is not installed.
            TrackerError: the store failed.
            CorruptResultError: a file is not a JSON object.
        """
        return results_frame(self.items(prefix))

    def history(self, key: Key) -> History:
        """Return the metrics that a run has logged with ``current_run().log()``, one curve for each name.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: a stored file does not contain curves.
        """
        return STEPS.read(self._store, key_text(key))

    def keys(self, prefix: Key | None = None) -> list[str]:
        """Return all keys that have results, sorted. The results are not read.

        Args:
            prefix: only this key and those below it: ``<pipeline run>`` or ``<pipeline run>/<stage>``. It is a whole
                name, not the beginning of one.
        """
        return self._store.keys(None if prefix is None else key_text(prefix))

    def names(self) -> list[str]:
        """Return the names directly below the tracker base, sorted. Names of folders end with a slash."""
        return self._store.names()

    def location(self, key: Key) -> str:
        """Return the path or URL of the key's file, for messages."""
        return self._store.location(key_text(key))

    def _fetch(
        self, keys: Iterable[str], corrupt: Callable[[CorruptResultError], object] | None
    ) -> Iterator[tuple[str, dict[str, Result]]]:
        def read(key: str) -> tuple[str, bytes | CorruptResultError | None]:
            try:
                return key, self._store.read(key)
            except CorruptResultError as error:
                return key, error

        for key, content in self._store.each(read, keys):
            try:
                if isinstance(content, CorruptResultError):
                    raise content
                yield key, self._decode(key, content)
            except CorruptResultError as error:
                if corrupt is None:
                    raise
                corrupt(error)

    def __repr__(self) -> str:
        return f"FsspecResultTracker({self.tracker_base!r})"
