"""Kinds of statements about a run, and how they are stored: each statement in its own file.

So the processes of a run can make statements at the same time without locks, and a statement is never half replaced.
Files are named by the time, and the latest one counts. They are in a folder below the tracker base that keys of results
cannot name and listings of results leave out::

    <tracker base>/.torchx_kfp/<kind>/<run id>/<nanoseconds>-<random>

To add a kind, define a ``Kind`` in a module here, and add its folder to ``FOLDERS``. The
programs that commands carry share the layout (``carried.records``).
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from torchx_kfp.carried.records import folder_name, folder_of
from torchx_kfp.errors import CorruptResultError, ResultRefusedError
from torchx_kfp.tracking.stores.keys import PRIVATE, key_text
from torchx_kfp.tracking.stores.store import Store

S = TypeVar("S")
T = TypeVar("T")

#: The folders of all kinds.
FOLDERS = ("artifacts", "metadata", "search", "sources", "steps", "undelivered")

#: A callable that gets the error for each file that does not contain a statement.
Corrupt = Callable[[CorruptResultError], object]

#: For up to this number of runs, the statements of each run are listed by themselves. For more, the kind is listed.
_FEW_RUNS = 64

_lock = threading.Lock()
_last = 0


@dataclass(frozen=True)
class Kind(Generic[S, T]):
    """One kind of statement.

    Args:
        folder: the name of its folder, one of ``FOLDERS``.
        parse: turns the JSON object in a file into a statement. It may return None for an object that says nothing of
            this kind. For a malformed object it raises an AttributeError, KeyError, OverflowError, TypeError or
            ValueError.
        join: combines all statements about a run, the oldest first, into one value.
    """

    folder: str
    parse: Callable[[Mapping[str, Any]], S | None]
    join: Callable[[list[S]], T]

    def add(self, store: Store, run_id: str, content: Mapping[str, object], what: str, name: str | None = None) -> None:
        """Store a statement about a run.

        Args:
            store: the store of the tracker base.
            run_id: the run.
            content: the statement, in a form that JSON can represent.
            what: describes the statement in errors.
            name: the name of the file, by default the time. A second statement with the same name replaces the first.

        Raises:
            KeyRefusedError: the run id cannot be a key.
            ResultRefusedError: JSON cannot represent the content. Nothing was written.
            TrackerError: the store failed.
        """
        try:
            text = json.dumps(content).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise ResultRefusedError(
                f"The {what} cannot be written as JSON: {error}. Use dicts with str keys, lists, numbers and text."
            ) from None
        store.write(f"{self._folder_of(run_id)}/{name or time_name()}", text)

    def read(self, store: Store, run_id: str) -> T:
        """Return the joined statements about a run.

        Raises:
            CorruptResultError: a file does not contain a statement of this kind.
            TrackerError: the store failed.
        """
        found = self.read_many(store, [run_id])
        return found[run_id] if run_id in found else self.join([])

    def read_many(
        self, store: Store, run_ids: Iterable[str] | None = None, corrupt: Corrupt | None = None
    ) -> dict[str, T]:
        """Return the joined statements about each of these runs, or about all runs. Runs without any are left out.

        Args:
            store: the store of the tracker base.
            run_ids: the runs, by default all.
            corrupt: called with the error for each file that does not contain a statement of this kind. The file is
                then left out.

        Raises:
            CorruptResultError: a file does not contain a statement of this kind, and ``corrupt`` is not given.
            TrackerError: the store failed.
        """
        keys = self._keys(store, run_ids)
        statements: dict[str, list[S]] = {}
        for key, text in zip(keys, store.each(store.read, keys), strict=True):
            if text is None:  # removed since it was listed
                continue
            try:
                content = json.loads(text)
                if not isinstance(content, dict):
                    raise ValueError(f"{content!r} is not a JSON object")
                statement = self.parse(content)
            except (AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError) as error:
                problem = CorruptResultError(
                    f"{store.location(key)} does not hold {self.folder}: {error!r}. Something else wrote it. Remove it."
                )
                if corrupt is None:
                    raise problem from None
                corrupt(problem)
                continue
            if statement is not None:
                statements.setdefault(run_id_of(key), []).append(statement)
        return {run_id: self.join(its) for run_id, its in statements.items()}

    def _keys(self, store: Store, run_ids: Iterable[str] | None) -> list[str]:
        wanted = None if run_ids is None else list(dict.fromkeys(run_ids))
        if wanted is not None and len(wanted) <= _FEW_RUNS:
            return [key for found in store.each(store.keys, map(self._folder_of, wanted)) for key in found]
        folders = None if wanted is None else {folder_name(run_id) for run_id in wanted}
        keys = store.keys(f"{PRIVATE}/{self.folder}")
        return [key for key in keys if folders is None or key.split("/")[2] in folders]

    def _folder_of(self, run_id: str) -> str:
        return folder_of(self.folder, key_text(run_id))


def run_ids(store: Store) -> list[str]:
    """Return the runs that have any statements, sorted."""
    found = store.each(store.names, [f"{PRIVATE}/{folder}" for folder in FOLDERS])
    return sorted({unquote(name.rstrip("/")) for names in found for name in names})


def run_id_of(key: str) -> str:
    """Return the run id in the key of a statement."""
    return unquote(key.split("/")[2])


def time_name() -> str:
    """Return a name that sorts by time. Later names of a process sort last, even if the clock is set back."""
    global _last
    with _lock:
        _last = max(time.time_ns(), _last + 1)
        return f"{_last:019}-{os.urandom(4).hex()}"
