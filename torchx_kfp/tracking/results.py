"""Result trackers: the interface of ``torchx.runtime.tracking``, and its implementation on fsspec."""

from __future__ import annotations

import abc
import logging
import os
from collections.abc import Mapping

from torchx_kfp.errors import CorruptResultError
from torchx_kfp.tracking.keys import Key, key_text
from torchx_kfp.tracking.store import Store, open_store
from torchx_kfp.tracking.values import Result, check_results, decode_results, encode_results

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

    Args:
        tracker_base: fsspec URL or local directory; made when something is first put below it. A relative
            directory belongs to the current directory of the time of this call.

    Raises:
        TrackerError: the base cannot be used; also by put and get where the store fails.
    """

    def __init__(self, tracker_base: str | os.PathLike[str]) -> None:
        self._store = open_store(tracker_base)

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

    def keys(self, prefix: Key | None = None) -> list[str]:
        """All keys that have results, or those below a prefix such as ``<pipeline run>``; sorted."""
        return self._store.keys(None if prefix is None else key_text(prefix))

    def names(self) -> list[str]:
        """What is directly below the tracker base: keys, and folders of keys with a slash behind; sorted."""
        return self._store.names()

    def location(self, key: Key) -> str:
        """Path or URL of the key's file, for messages."""
        return self._store.location(key_text(key))

    def __repr__(self) -> str:
        return f"FsspecResultTracker({self.tracker_base!r})"
