"""Results: accepted values, their JSON, and a DataFrame of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from torchx_kfp.common.extras import require
from torchx_kfp.common.text import shown
from torchx_kfp.errors import CorruptResultError, RefusedError
from torchx_kfp.tracking.store import run_id_parts

if TYPE_CHECKING:
    import pandas

T = TypeVar("T")

Result = int | float | bool | str

#: The longest str result in bytes of UTF-8: TorchX's documented limit.
MAX_STR_BYTES = 1024

#: The largest int result in bits. Python's json neither writes nor reads ints of more than 4,300 digits.
_MAX_INT_BITS = 14_280

#: The columns of a DataFrame for the parts of an execution id.
_RUN_ID_COLUMNS = ("run", "stage", "execution")


def check_results(key: str, results: Mapping[str, Result]) -> dict[str, Result]:
    """Validate results, and return them as plain Python values.

    Raises:
        RefusedError: a name is not a non-empty str, or a value is not an int, float, bool or short str.
    """
    return {_name(name): _value(name, value) for name, value in _named(key, results).items()}


def join_named(key: str, given: Iterable[Mapping[str, T]], named: Mapping[str, T]) -> dict[str, T]:
    """Join mappings and keyword arguments.

    Raises:
        RefusedError: a positional argument is not a mapping.
    """
    joined: dict[str, T] = {}
    for each in given:
        joined |= _named(key, each)
    return joined | dict(named)


def _named(key: str, given: Mapping[str, T]) -> dict[str, T]:
    if not hasattr(given, "keys"):  # a database row is not a Mapping, but has keys
        raise RefusedError(
            f"The key {shown(key)} got {shown(given)} of type {type(given).__name__}, which has no names. Give each "
            "value a name: loss=0.3, or {'loss': 0.3}."
        )
    return {**given}


def encode_results(results: Mapping[str, Result]) -> bytes:
    """Return the content of the file: one JSON object, laid out as by TorchX's tracker."""
    return json.dumps(results, indent=2).encode()


def decode_results(content: bytes, location: str) -> dict[str, Result]:
    """Return the results in a file.

    Other programs write such files, too, so values are returned whatever their type.

    Raises:
        CorruptResultError: the content is not a JSON object.
    """
    try:
        results = json.loads(content)
    except (ValueError, RecursionError) as error:
        what = f"not valid JSON ({error})" if content.strip() else "empty"
        raise CorruptResultError(
            f"{location} is {what}. A result is one JSON object; another program wrote this file, and was stopped or "
            "is still writing. Remove the file, or record the results again."
        ) from error
    if not isinstance(results, dict):
        raise CorruptResultError(
            f"{location} holds the JSON value {shown(results)}, but a result is one JSON object, "
            'for example {"accuracy": 0.9}. Remove the file, or record the results again.'
        )
    return results


def results_frame(items: Iterable[tuple[str, Mapping[str, Result]]]) -> pandas.DataFrame:
    """Return a DataFrame with a row for each key and a column for each result: see ``FsspecResultTracker.to_frame``."""
    require("pandas", "A DataFrame")
    import pandas

    found = list(items)  # a fan-in may contain a run twice
    names = dict.fromkeys(name for _, results in found for name in results)
    parts = [name for name in _RUN_ID_COLUMNS if name not in names and any(run_id_parts(key) for key, _ in found)]
    rows = []
    for key, results in found:
        own = dict(zip(_RUN_ID_COLUMNS, run_id_parts(key) or (), strict=False))
        rows.append({**{name: own[name] for name in parts if name in own}, **results})
    index = pandas.Index([key for key, _ in found], name="run_id", dtype=object)
    return pandas.DataFrame(rows, index=index, columns=[*parts, *names])


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise RefusedError(f"A result has the name {shown(name)} of type {type(name).__name__}. Names are str.")
    if not name:
        raise RefusedError("A result has an empty name. Give it one.")
    _utf8(name, name)
    return str.__str__(name)


def _value(name: str, value: object) -> Result:
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise RefusedError(
                f"The result {shown(name)} is an int of more than 4,298 digits, which JSON readers do not accept. Put "
                "it as a float."
            )
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, str):
        size = len(_utf8(name, value))
        if size > MAX_STR_BYTES:
            raise RefusedError(
                f"The result {shown(name)} is a str of {size:,} bytes in UTF-8; the limit is {MAX_STR_BYTES:,} bytes. "
                "Store the text elsewhere and put its URL."
            )
        return str.__str__(value)
    item = scalar(value)
    if item is not None:
        return _value(name, item)
    module = type(value).__module__
    kind = type(value).__qualname__ if module == "builtins" else f"{module}.{type(value).__qualname__}"
    found = "None" if value is None else f"of type {kind}: {shown(value)}"
    raise RefusedError(
        f"The result {shown(name)} is {found}. Results are int, float, bool and str of at most {MAX_STR_BYTES:,} "
        "bytes. Convert it with float(...) or str(...), put a number of it, such as its mean(), or record all of it as "
        f"metadata, current_run().add_metadata({{{shown(name)}: ...}}), which a stage that declares a list or dict "
        "(results={name: list}) also passes on to KFP."
    )


def scalar(value: object) -> Result | None:
    """Return the Python value of a scalar of NumPy, PyTorch, JAX or pandas, or of an array with one item; else None."""
    item = getattr(value, "item", None)
    if not callable(item) or isinstance(value, type):
        return None
    try:
        scalar_value = item()
    except Exception:  # an array of several items, or an unrelated method
        return None
    return scalar_value if isinstance(scalar_value, (int, float, str)) else None


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise RefusedError(
            f"The result {shown(name)} contains half of a surrogate pair, which cannot be written as UTF-8. Replace "
            'it, for example with text.encode("utf-8", "replace").decode().'
        ) from None
