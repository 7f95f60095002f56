"""Entries: append-only records about runs, one small file each.

The processes of a run can record concurrently without locks, and no entry is ever replaced in part. An entry's name has
its time, which gives the order, and its fields. Entries are in a folder below the tracker base that keys of results
cannot name and listings of results omit, with one folder for each run::

    <tracker base>/.torchx_kfp/runs/<run id>/<nanoseconds>-<random>.<field>[.<field>]    {"<field>": ...}

``<run id>`` is the id of an execution or of a pipeline run. ``records`` has the fields. The programs that commands
carry use the same layout (``carried.storage``).
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from torchx_kfp.common.text import shown
from torchx_kfp.contract.carried.storage import RUNS
from torchx_kfp.errors import CorruptResultError, RefusedError
from torchx_kfp.tracking.results import scalar
from torchx_kfp.tracking.store import Store, is_key, key_text, new_entry_name, pipeline_run

_logger = logging.getLogger(__name__)

T = TypeVar("T")

#: For more pipeline runs than this, all entries are listed at once: one request lists a thousand keys of S3, and most
#: callers with so many runs want all of them.
_FEW_RUNS = 64
#: The largest array that is recorded as a list, in bytes.
_LARGEST_ARRAY = 1 << 20
#: In a folder, the two slashes of an app handle become one: ``local_cwd://session/app``.
_HANDLE = re.compile(r"^([A-Za-z][A-Za-z0-9_.+-]*:)/(?!/)")
#: The warnings logged by this process, or their kinds.
_warned: set[str] = set()


class Found(dict[str, T]):
    """Values by key or id.

    Attributes:
        problems: the errors of malformed files, which are left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[CorruptResultError] = []


def add_entry(store: Store, run_id: str, fields: Mapping[str, object], name: str = "") -> None:
    """Store an entry about a run.

    Args:
        store: the store of the tracker base.
        run_id: the run.
        fields: JSON values.
        name: the entry's name; the default is the time. A second entry with the same name and fields replaces the
            first.

    Raises:
        RefusedError: the id cannot be a key.
        RefusedError: JSON cannot represent a field. Nothing was written.
    """
    content = encode_json(fields, f"{' and '.join(fields)} of {run_id!r}")
    store.write(".".join([f"{RUNS}/{key_text(run_id)}/{name or new_entry_name()}", *fields]), content)


def list_entries(store: Store, run_ids: Iterable[str] | None = None) -> list[str]:
    """Return the keys of the entries about these runs and their executions; by default, about all runs."""
    groups: dict[str, list[str]] = {}
    for run_id in dict.fromkeys(run_ids or ()):
        groups.setdefault(pipeline_run(run_id), []).append(key_text(run_id))
    prefixes = [RUNS]
    if run_ids is not None and len(groups) <= _FEW_RUNS:
        prefixes = [f"{RUNS}/{group[0] if len(group) == 1 else run}" for run, group in groups.items()]
    listings = store.each(store.list_files, prefixes)
    return [file.key for files in listings for file in files if is_key(run_id_of(file.key))]  # others may write here


def run_id_of(key: str) -> str:
    """Return the run id in the key of an entry."""
    return _HANDLE.sub(r"\1//", key.split("/", 2)[2].rpartition("/")[0])


def warn_once(text: str, kind: str = "") -> None:
    """Log a warning once per process, or once per kind."""
    if (kind or text) not in _warned:
        _warned.add(kind or text)
        _logger.warning("%s", text)


def encode_json(content: Mapping[str, object], what: str) -> bytes:
    """Encode an entry as JSON. Scalars and small arrays of NumPy, PyTorch and similar libraries become numbers and
    lists.

    Raises:
        RefusedError: JSON cannot represent it.
    """
    try:
        verify_keys(content)
        return json.dumps(content, default=plain).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise RefusedError(
            f"The {what} cannot be written as JSON: {error}. Use dicts with str keys, lists, numbers and text."
        ) from None


def plain(value: object) -> object:
    """Convert a scalar to a number, or an array to a list.

    Raises:
        TypeError: the value is neither, or the array is too large.
    """
    if (number := scalar(value)) is not None:
        return number
    listed, size = getattr(value, "tolist", None), getattr(value, "nbytes", None)
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    if not callable(listed) or not isinstance(size, int) or isinstance(value, type):
        raise TypeError(f"{shown(value)} is of type {kind}")
    if size > _LARGEST_ARRAY:
        raise TypeError(f"an array of {size:,} bytes, of type {kind}, is too large: store it in a file, as an artifact")
    return listed()


def verify_keys(content: object) -> None:
    """Raise TypeError if a dict has a key that is not text: JSON would convert it, and two keys could become equal."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            if not isinstance(key, str):
                raise TypeError(f"the key {shown(key)} is of type {type(key).__name__}")
            verify_keys(value)
    elif isinstance(content, (list, tuple)):
        for item in content:
            verify_keys(item)


def from_json(kind: Callable[..., T], content: Mapping[str, Any]) -> T:
    """Make a dataclass from a JSON object, and check the types of its fields. Unknown names are ignored.

    Raises:
        TypeError: a value is missing or has another type.
    """
    hints = _hints(kind)
    return kind(**{name: _checked(hint, content[name]) for name, hint in hints.items() if name in content})


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init}


def _checked(hint: Any, value: Any) -> Any:
    arguments = get_args(hint)
    if hint in (Any, object):
        return value
    if get_origin(hint) is tuple:
        return tuple(_checked(arguments[0], item) for item in list(value))
    if get_origin(hint) is Mapping:
        return {_checked(arguments[0], name): _checked(arguments[1], item) for name, item in value.items()}
    kind: Any = next((each for each in arguments or (hint,) if _fits(each, value)), None)  # arguments: X | Y
    if kind is None:
        raise TypeError(f"{value!r} is not {hint}")
    return from_json(kind, value) if isinstance(value, dict) else float(value) if kind is float else value


def _fits(kind: Any, value: Any) -> bool:
    if is_dataclass(kind):
        return isinstance(value, dict)
    return type(value) in ((int, float) if kind is float else (kind,))
