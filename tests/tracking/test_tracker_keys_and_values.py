"""Keys and results that are accepted, the errors for all others, and that any key and any result can be read again."""

from __future__ import annotations

import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.errors import KeyRefusedError, ResultRefusedError
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.results import check_results, decode_results, encode_results
from torchx_kfp.tracking.store import key_text


@pytest.mark.parametrize("key", [None, 1.5, b"run", True, False, ("a", "b"), Path("a/b"), ["a"]])
def test_keys_are_str_or_int(key: Any) -> None:
    with pytest.raises(KeyRefusedError, match=says("str", "int")) as caught:
        key_text(key)
    assert f"Got {type(key).__name__}: {key!r}." in str(caught.value)


def test_a_key_of_thousands_of_digits() -> None:
    with pytest.raises(KeyRefusedError, match=says("key", "digits", "Shorten")):
        key_text(10**5000)


def test_a_long_key_is_cut_in_messages() -> None:
    with pytest.raises(KeyRefusedError, match=says("'/xx", "3,003", "absolute", "'/'")):
        key_text("/" + "x" * 3000)


class Nameless:
    def __repr__(self) -> str:
        return "<it>"


class Array(Nameless):
    def item(self) -> float:
        raise ValueError("there are several")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, says("None", "float('nan')", "'loss'", "'run/1'")),
        (b"raw", says("bytes", "b'raw'", "'loss'", "'run/1'")),
        (bytearray(b"raw"), says("bytearray", "'loss'", "'run/1'")),
        ({"a": 1}, says("'a'", "'loss/mean'", "dict", "'loss'", "'run/1'")),
        ([1, 2], says("'loss/0'", "list", "'loss'", "'run/1'")),
        ((1,), says("'loss/0'", "tuple", "'loss'", "'run/1'")),
        (1j, says("1j", "float(...)", "str(...)", "'loss'", "'run/1'")),
        (decimal.Decimal("0.1"), says("decimal.Decimal", "Decimal('0.1')", "'loss'", "'run/1'", "Convert")),
        (Array(), says("mean()", "Array", "<it>", "'loss'", "'run/1'")),
        (Nameless(), says("Nameless", "<it>", "'loss'", "'run/1'", "Convert")),
        ("é" * 513, says("1,026", "1,024", "'loss'", "'run/1'", "Store")),
        ("a\udc80", says("surrogate", "text.encode", '"utf-8"')),
        (-(10**4300), says("4,298", "digits", "JSON", "'loss'", "'run/1'", "Put")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_refused(value: Any, message: str) -> None:
    with pytest.raises(ResultRefusedError, match=message) as caught:
        check_results("run/1", {"good": 1, "loss": value})
    assert str(caught.value).startswith("The result 'loss' of the key 'run/1' ")


def test_scalars_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    values = check_results("run", {"loss": numpy.float64(0.5), "name": numpy.str_("x")})
    assert values == {"loss": 0.5, "name": "x"}
    assert [type(value) for value in values.values()] == [float, str]
    scalars = {"f": numpy.float32(0.5), "i": numpy.int64(1), "b": numpy.bool_(True), "a": numpy.array(1.5)}
    values = check_results("run", scalars)
    assert values == {"f": 0.5, "i": 1, "b": True, "a": 1.5}
    assert [type(value) for value in values.values()] == [float, int, bool, float]
    for value in (numpy.array([1, 2]), numpy.datetime64("2026-01-01"), numpy.complex64(1j)):
        with pytest.raises(ResultRefusedError, match=r"is of type numpy\.\w+: "):
            check_results("run", {"loss": value})


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"": 1}, says("'run'", "result", "key", "Give")),
        ({1: 1}, says("'run'", "1", "int", "str")),
        ({None: 1}, says("NoneType", "'run'")),
        ({"\ud800": 1}, says("surrogate", "text.encode", '"utf-8"')),
        ([("a", 1)], says("'run'", "mapping", "Got list: [('a', 1)]")),
        (0.5, says("'run'", "mapping", "Got float: 0.5")),
        (None, says("'run'", "mapping", "Got NoneType: None")),
    ],
)
def test_names_that_are_refused(tmp_path: Path, results: Any, message: str) -> None:
    tracker = FsspecResultTracker(tmp_path)
    with pytest.raises(ResultRefusedError, match=message):
        tracker["run"] = results
    assert tracker.keys() == []


#: Any text that a part of a key may be on a Linux file system.
PARTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1).filter(
    lambda part: part not in (".", "..", ".torchx_kfp") and len(part.encode()) <= 255
)
KEYS = st.lists(PARTS, min_size=1, max_size=4).map("/".join) | st.integers()
VALUES = (
    st.integers()
    | st.floats()
    | st.booleans()
    | st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: len(text.encode()) <= 1024)
)
RESULTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), VALUES, max_size=5)


def same(ours: dict[str, Any], theirs: dict[str, Any]) -> bool:
    """Tell whether both are equal, including types and order, with NaN equal to NaN."""
    return repr(list(ours.items())) == repr(list(theirs.items()))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_any_key_and_results_come_back(kind: str, tmp_path: Path, memory_base: str) -> None:
    base = str(tmp_path) if kind == "local" else memory_base

    @hypothesis.given(key=KEYS, results=RESULTS)
    @hypothesis.settings(max_examples=200)
    def check(key: str | int, results: dict[str, Any]) -> None:
        tracker = FsspecResultTracker(f"{base}/{uuid.uuid4().hex}")
        tracker[key] = results
        assert same(tracker[key], results)
        assert same(FsspecResultTracker(tracker.tracker_base)[str(key)], results)
        assert tracker.keys() == [str(key)]
        tracker.put(key, **{**results, "last": 1})
        assert same(tracker[key], {**results, "last": 1})

    check()


@hypothesis.given(st.text() | st.text("./a:~\0\ud800"))
def test_a_key_is_itself_or_refused(text: str) -> None:
    try:
        assert key_text(text) == text
    except KeyRefusedError:
        return
    parts = text.split("/")
    assert not {"..", "."} & set(parts)
    assert parts[0]
    assert parts[-1]
    assert "\0" not in text
    text.encode()


@hypothesis.given(RESULTS)
def test_encoding_and_decoding_are_a_pair(results: dict[str, Any]) -> None:
    content = encode_results(check_results("run", results))
    assert content.isascii()
    assert same(decode_results(content, "there"), results)


def test_nan_is_written_as_python_writes_it() -> None:
    assert encode_results({"x": math.nan}) == b'{\n  "x": NaN\n}'
