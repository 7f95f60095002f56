"""Result trackers: the interface of ``torchx.runtime.tracking``, and its implementation on fsspec."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.errors import CorruptResultError, KeyRefusedError
from torchx_kfp.text import shown
from torchx_kfp.tracking.steps import History, read_history
from torchx_kfp.tracking.stores.calls import PATIENCE
from torchx_kfp.tracking.stores.keys import Key, key_text
from torchx_kfp.tracking.stores.store import Store, open_store
from torchx_kfp.tracking.values import Result, check_results, decode_results, encode_results

if TYPE_CHECKING:
    import pandas

_logger = logging.getLogger(__name__)


class ResultTracker(abc.ABC):
    """Records small results under a key, and reads them again.

    ``tracker.put("run", loss=0.1)`` and ``tracker["run"] = {"loss": 0.1}`` are the same, and so are
    ``tracker.get("run")`` and ``tracker["run"]``. Names that are not identifiers work in both:
    ``tracker["run"] = {"l2norm/mean": 1.2}``.
    """

    # Without these, [0], [1], ... would make a tracker a sequence without an end to Python.
    __iter__ = None
    __contains__ = None

    def __getitem__(self, key: Key) -> dict[str, Result]:
        return self.get(key)

    def __setitem__(self, key: Key, results: Mapping[str, Result]) -> None:
        self.put(key, **check_results(key_text(key), results))

    @abc.abstractmethod
    def put(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key, in place of what was there."""

    @abc.abstractmethod
    def get(self, key: Key) -> dict[str, Result]:
        """The results recorded under the key; ``{}`` where there are none."""


class FsspecResultTracker(ResultTracker):
    """Keeps each key's results as one JSON object in the file ``<tracker base>/<key>``.

    Files of ``torchx.runtime.tracking.FsspecResultTracker`` can be read, and it can read these.

    On a local file system a put is atomic and durable: readers see the old results or the new ones, and what
    was put survives a crash of the machine. On an object store a put is one request and a get is one; such
    stores hold ``a`` and ``a/b`` side by side, while a file system (and ``memory://``) refuses the second of them.
    What fails for a moment is tried again, with a warning in the log; a put that has returned is there.

    Args:
        tracker_base: fsspec URL or local directory; made when something is first put below it. A relative
            directory belongs to the current directory of the time of this call.
        patience: seconds for which a call tries again before it raises.

    Raises:
        TrackerError: the base cannot be used; also by put and get where the store fails.
    """

    def __init__(self, tracker_base: str | os.PathLike[str], *, patience: float = PATIENCE) -> None:
        self._store = open_store(tracker_base, patience)

    @property
    def store(self) -> Store:
        """Where the tracker keeps its files."""
        return self._store

    @property
    def tracker_base(self) -> str:
        """The tracker base as it was given."""
        return self._store.base

    def put(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key, in place of what was there.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            ResultRefusedError: a result is not an int, float, bool or short str. Nothing was written.
        """
        text = key_text(key)
        self._store.write(text, encode_results(check_results(text, results)))

    def get(self, key: Key) -> dict[str, Result]:
        """The results recorded under the key; ``{}`` where there are none.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: what is stored under the key is not a JSON object.
        """
        text = key_text(key)
        content = self._store.read(text)
        return {} if content is None else decode_results(content, self._store.location(text))

    def update(self, key: Key, /, **results: Result) -> None:
        """Record these results under the key, beside those that are there under other names.

        What is there may be another program's, of any type, and stays as it is. Where it is no JSON object, as a writer
        that was stopped half way leaves it, it is replaced, and a warning is logged: results of a long run shall not
        be lost over it. Two that update a key at once may lose one's results.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            ResultRefusedError: a result is not an int, float, bool or short str. Nothing was written.
        """
        text = key_text(key)
        new = check_results(text, results)
        try:
            old = self.get(text)
        except CorruptResultError as error:
            _logger.warning("It is replaced: %s", error)
            old = {}
        self._store.write(text, encode_results({**old, **new}))

    def get_many(
        self, keys: Iterable[Key], *, corrupt: Callable[[CorruptResultError], object] | None = None
    ) -> dict[str, dict[str, Result]]:
        """The results recorded under each of the keys, in their order; ``{}`` where there are none.

        They are fetched many at once: from an object store that takes a tenth of the time or less.

        Args:
            keys: the keys.
            corrupt: is called for what is no JSON object, which is then left out.

        Raises:
            KeyRefusedError: a key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: what is stored under a key is not a JSON object, and ``corrupt`` is not given.
        """
        if isinstance(keys, (str, bytes)):
            raise KeyRefusedError(f"get_many takes a list of keys. Got: {shown(keys)}. One key is for get.")
        texts = dict.fromkeys(map(key_text, keys))
        return dict(self._fetch(texts, corrupt))

    def items(
        self, prefix: Key | None = None, *, corrupt: Callable[[CorruptResultError], object] | None = None
    ) -> Iterator[tuple[str, dict[str, Result]]]:
        """Each key that has results, or each below a prefix such as ``<pipeline run>``, and its results; sorted.

        They are fetched many at once, a little ahead of what is taken: memory does not grow with their number. What is
        removed meanwhile is left out. Arguments and errors are those of ``get_many``.
        """
        return ((key, results) for key, results in self._fetch(self.keys(prefix), corrupt) if results)

    def to_frame(self, prefix: Key | None = None) -> pandas.DataFrame:
        """All results, or those below a prefix, as a pandas DataFrame: a row for each key, a column for each name.

        Its index is the key, ``run_id``. Of run ids of stages there are columns ``run``, ``stage`` and ``execution``
        before those of the results, unless a result has that name. What has no value is NaN (or NA).

        Raises:
            TrackerError: pandas is not installed, or the store failed.
            CorruptResultError: what is stored under a key is not a JSON object.
        """
        from torchx_kfp.tracking.frame import frame

        return frame(self.items(prefix))

    def history(self, key: Key) -> History:
        """The curves that a run has logged with ``current_run().log()``, by name; empty where it has none.

        Raises:
            KeyRefusedError: the key would leave the tracker base, or the store cannot hold it.
            CorruptResultError: what is stored is no curve.
        """
        return read_history(self._store, key_text(key))

    def keys(self, prefix: Key | None = None) -> list[str]:
        """All keys that have results, sorted. None is read.

        Args:
            prefix: only this key and those below it: ``<pipeline run>`` or ``<pipeline run>/<stage>``, a folder and
                not the beginning of a name.
        """
        return self._store.keys(None if prefix is None else key_text(prefix))

    def names(self) -> list[str]:
        """What is directly below the tracker base: keys, and folders of keys with a slash behind; sorted."""
        return self._store.names()

    def location(self, key: Key) -> str:
        """Path or URL of the key's file, for messages."""
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
                yield key, {} if content is None else decode_results(content, self._store.location(key))
            except CorruptResultError as error:
                if corrupt is None:
                    raise
                corrupt(error)

    def __repr__(self) -> str:
        return f"FsspecResultTracker({self.tracker_base!r})"
