"""What keys and results may be: refusals read as a user would, and any key and any result comes back."""

from __future__ import annotations

import decimal
import math
import uuid
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from torchx_kfp.errors import KeyRefusedError, ResultRefusedError
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.stores.keys import key_text
from torchx_kfp.tracking.values import check_results, decode_results, encode_results


@pytest.mark.parametrize("key", [None, 1.5, b"run", True, False, ("a", "b"), Path("a/b"), ["a"]])
def test_keys_are_str_or_int(key: Any) -> None:
    with pytest.raises(KeyRefusedError, match=r"A key is a str or an int\. Got") as caught:
        key_text(key)
    assert f"Got {type(key).__name__}: {key!r}." in str(caught.value)


def test_a_key_of_thousands_of_digits() -> None:
    with pytest.raises(KeyRefusedError, match="The key is an int of thousands of digits"):
        key_text(10**5000)


def test_a_long_key_is_cut_in_messages() -> None:
    with pytest.raises(KeyRefusedError, match=r"The key '/x+\.\.\. \(3,003 characters\) is absolute"):
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
        (None, r"is None\. .* Leave the result out, or put float\('nan'\)\."),
        (b"raw", r"is of type bytes: b'raw'\. .* Decode it, or store it elsewhere and put its URL\."),
        (bytearray(b"raw"), r"is of type bytearray: .* Decode it"),
        ({"a": 1}, r"is of type dict: \{'a': 1\}\. .* Put each value under a name of its own, for example 'loss/mean'"),
        ([1, 2], r"is of type list: \[1, 2\]\. .* Put each value under a name of its own, for example 'loss/0'"),
        ((1,), r"is of type tuple: \(1,\)\. .* for example 'loss/0'"),
        (1j, r"is of type complex: 1j\. .* Convert it, for example with float\(\.\.\.\) or str\(\.\.\.\)\."),
        (decimal.Decimal("0.1"), r"is of type decimal\.Decimal: Decimal\('0\.1'\)\. .* Convert it"),
        (Array(), r"is of type .*Array: <it>\. .* Put a number that it is reduced to, such as its \.mean\(\)\."),
        (Nameless(), r"is of type .*Nameless: <it>\. .* Convert it"),
        ("é" * 513, r"is a str of 1,026 bytes in UTF-8; the limit is 1,024 bytes\. Store the text elsewhere"),
        ("a\udc80", r"holds half of a surrogate pair, which cannot be written as UTF-8\. Replace it"),
        (-(10**4300), r"is an int of more than 4,298 digits, which JSON readers do not take\. Put it as a float\."),
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
        ({"": 1}, "A result of the key 'run' has an empty name"),
        ({1: 1}, "A result of the key 'run' has the name 1 of type int. Names are str"),
        ({None: 1}, "has the name None of type NoneType"),
        ({"\ud800": 1}, "holds half of a surrogate pair"),
        ([("a", 1)], r"The results for the key 'run' must be a mapping of names to values\. Got list: \[\('a', 1\)\]"),
        (0.5, r"must be a mapping of names to values\. Got float: 0\.5"),
        (None, r"must be a mapping of names to values\. Got NoneType: None"),
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
    """Equal, in type and order too, with NaN equal to NaN."""
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
