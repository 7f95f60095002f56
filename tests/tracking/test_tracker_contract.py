"""What a tracker promises: on every kind of store, and for every form of a tracker base."""

from __future__ import annotations

import decimal
import enum
import json
import math
import pickle
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import hypothesis
import pytest
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.errors import (
    CorruptResultError,
    RefusedError,
)
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.store import key_text

pytestmark = pytest.mark.lowest

PLAIN_KEYS = [
    "a*b",
    "what?",
    "[a-z]",
    "{a,b}",
    "#1",
    "a#b/c",
    "100%",
    "a%2Fb",
    "%41",
    "a:b",
    "a::b",
    "C:\\x",
    "s3::x",
    "file:x",
    "two words",
    " space around ",
    "tab\tx",
    "ключ/鍵/🔑",
    "a?b=c&d=e",
    "a?b#c",
    "~",
    "~root/x",
    "$HOME",
    "-rf",
    "...",
    ".hidden",
    "+",
    "a'b\"c",
    "a;b@c=d,e!f|g^h`i<j>k",
    "memory",
    "s3:",
]


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "made on demand" / "100% [results]#1?")
    return str(request.getfixturevalue(f"{request.param}_base"))


@pytest.fixture
def tracker(base: str) -> FsspecResultTracker:
    return FsspecResultTracker(base)


@pytest.fixture
def local(tmp_path: Path) -> FsspecResultTracker:
    """For what does not depend on the store."""
    return FsspecResultTracker(tmp_path)


def stored(base: str, key: str) -> bytes:
    """Return the content that fsspec finds at ``<base>/<key>``, where other programs look."""
    filesystem, path = fsspec.core.url_to_fs(base)
    return bytes(filesystem.cat_file(f"{path}/{key}"))


def store(base: str, key: str, content: bytes) -> None:
    filesystem, path = fsspec.core.url_to_fs(base)
    if not base.startswith("s3"):
        filesystem.makedirs(filesystem._parent(f"{path}/{key}"), exist_ok=True)
    filesystem.pipe_file(f"{path}/{key}", content)


# Results


def test_a_uuid_is_its_text(tmp_path: Path) -> None:
    key = uuid.UUID(int=7)
    tracker = FsspecResultTracker(tmp_path)
    tracker[key] = {"x": 1}
    assert (tracker[str(key)], tracker.keys()) == ({"x": 1}, [str(key)])


def test_what_is_put_is_got_with_its_types(tracker: FsspecResultTracker, base: str) -> None:
    tracker.put("run/train/1", loss=0.25, epochs=3, done=True, note="größer")
    tracker["other"] = {"l2norm/mean": 1.2}
    results = tracker.get("run/train/1")
    assert results == {"loss": 0.25, "epochs": 3, "done": True, "note": "größer"}
    assert [type(value) for value in results.values()] == [float, int, bool, str]
    assert tracker["other"]["l2norm/mean"] == 1.2
    assert tracker.get("missing") == tracker["missing/too"] == {}
    assert stored(base, "run/train/1") == json.dumps(dict(results), indent=2).encode(), "one JSON object at its key"
    # Another tracker reads the same.
    assert FsspecResultTracker(base + "/")["run/train/1"] == results
    assert pickle.loads(pickle.dumps(tracker))["run/train/1"] == results
    assert (tracker.tracker_base, repr(tracker)) == (base, f"FsspecResultTracker({base!r})")


def test_reads_what_other_programs_wrote(tracker: FsspecResultTracker, base: str) -> None:
    store(base, "run/sh/1", b'{"accuracy":0.5,"nested":{"a":[1,null]},"text":"\xc3\xa4"}\n')
    assert tracker["run/sh/1"] == {"accuracy": 0.5, "nested": {"a": [1, None]}, "text": "ä"}


#: Content that is no result, and what is said of it.
NO_RESULTS = {
    b"": says("empty", "result", "Remove"),
    b'{"loss": 0.': r"is not valid JSON \(",
    b"\xff\xfe\xfa": "is not valid JSON",
    b"[1, 2]": says("the JSON value [1, 2]", "one JSON object", '"accuracy"', "Remove"),
    b"null": says("the JSON value None", "one JSON object", '"accuracy"', "Remove"),
    b"[" * 100_000: "is not valid JSON",
    b'{"x": 1' + b"0" * 5000 + b"}": "is not valid JSON",
}


def test_a_file_that_is_no_result_is_named_and_replaced(tracker: FsspecResultTracker, base: str) -> None:
    for content, problem in NO_RESULTS.items():
        store(base, "run/bad/1", content)
        with pytest.raises(CorruptResultError, match=problem) as caught:
            tracker.get("run/bad/1")
        assert tracker.store.location("run/bad/1") in str(caught.value)
        assert base.partition("://")[2].lstrip("/") in str(caught.value)
    tracker["run/bad/1"] = {"x": 1}
    assert tracker["run/bad/1"] == {"x": 1}


def test_many_keys_are_read_in_the_order_asked_for(tracker: FsspecResultTracker) -> None:
    keys = [f"run/train/{number:02}" for number in range(40)]
    for number, key in enumerate(keys):
        tracker.put(key, number=number)
    asked = ["run/missing", *reversed(keys), "run/missing", 5]
    found = tracker.get_many(asked)
    assert list(found) == ["run/missing", *reversed(keys), "5"], "in the order in which they were asked for, each once"
    assert found == {"run/missing": {}, "5": {}, **{key: {"number": number} for number, key in enumerate(keys)}}
    assert tracker.get_many([]) == {}
    with pytest.raises(RefusedError, match=says("get_many", "'run/train'")):
        tracker.get_many("run/train")
    with pytest.raises(RefusedError, match=r"'a/\.\./b' would leave the tracker base"):
        tracker.get_many([*keys, "a/../b"])


def test_results_of_a_run_are_yielded_one_by_one(tracker: FsspecResultTracker) -> None:
    for key in ("p1/train/2", "p1/train/1", "p1/prepare/1", "p10/train/1", "p2/train/1"):
        tracker.put(key, key=key)
    assert list(tracker.items("p1")) == [(key, {"key": key}) for key in ("p1/prepare/1", "p1/train/1", "p1/train/2")]
    assert [key for key, _ in tracker.items()] == tracker.keys()
    assert list(tracker.items("none")) == []
    items = tracker.items()
    assert next(items)[0] == "p1/prepare/1", "one by one"
    items.close()  # the threads of the generator would otherwise wait for its reader


def test_a_damaged_result_among_many_is_left_out_and_named_once(
    tracker: FsspecResultTracker, base: str, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.put("run/1", x=1)
    tracker.put("run/3", x=3)
    store(base, "run/2", b"{")
    found = tracker.get_many(["run/1", "run/2", "run/3"])
    assert found == dict(tracker.items()) == {"run/1": {"x": 1}, "run/3": {"x": 3}}
    [problem] = found.problems
    assert re.search(says("run/2", "JSON", "Remove"), str(problem))
    assert caplog.messages == [f"Left out: {problem}"]


def test_a_frame_has_a_row_for_each_run(tracker: FsspecResultTracker) -> None:
    pandas = pytest.importorskip("pandas")
    tracker.put("p1/train/1", accuracy=0.5, epochs=3, note="a")
    tracker.put("p1/train/2", accuracy=0.75)
    tracker.put("other", loss=math.nan)
    table = tracker.to_frame()
    assert list(table.index) == ["other", "p1/train/1", "p1/train/2"]
    assert table.index.name == "run_id"
    assert list(table.columns) == ["run", "stage", "execution", "loss", "accuracy", "epochs", "note"]
    assert table.loc["p1/train/1", ["run", "stage", "execution", "accuracy", "epochs", "note"]].to_list() == [
        "p1", "train", "1", 0.5, 3, "a",
    ]  # fmt: skip
    assert table["accuracy"].mean() == 0.625
    assert pandas.isna(table.loc["other", "run"])
    assert list(tracker.to_frame("p1").index) == ["p1/train/1", "p1/train/2"]
    tracker.put("p1/train/2", accuracy=0.75, stage=7)
    table = tracker.to_frame("p1")
    assert list(table.columns) == ["run", "execution", "accuracy", "epochs", "note", "stage"]
    assert table.loc["p1/train/2", "stage"] == 7, "what is recorded under such a name, and nothing else"
    assert pandas.isna(table.loc["p1/train/1", "stage"])
    assert tracker.to_frame("none").empty
    # If every row has a value, types stay as they were recorded.
    assert tracker.to_frame("p1/train/1").dtypes["epochs"].kind == "i"


# Keys


def test_a_member_of_an_enum_works_like_its_value(tracker: FsspecResultTracker) -> None:
    class Name(str, enum.Enum):
        A = "run/a"

    class Number(enum.IntEnum):
        ONE = 1

    tracker[Name.A] = {"name": Name.A, "number": Number.ONE}
    tracker[Number.ONE] = {"x": 1}
    assert tracker.keys() == ["1", "run/a"]
    assert tracker["run/a"] == {"name": "run/a", "number": 1}


def test_keys_are_plain_text(tracker: FsspecResultTracker, base: str) -> None:
    # The routes of the tests' S3 server do not support line breaks.
    plain = PLAIN_KEYS if base.startswith("s3") else [*PLAIN_KEYS, "new\nline", "control\x01\x7f"]
    # All of them exist together, with keys that they would match or become if they were patterns or URLs.
    keys = [*plain, "axb", "what", "m", "a", "100", "A", "C", "x"]
    for key in keys:
        tracker.put(key, x=key)
    assert {key: tracker.get(key) for key in keys} == {key: {"x": key} for key in keys}
    assert tracker.keys() == sorted(keys)


def test_a_key_that_is_too_long(tracker: FsspecResultTracker, base: str) -> None:
    if base.startswith("memory"):
        tracker["n" * 5000] = {"x": 1}
        assert tracker["n" * 5000] == {"x": 1}
        return
    # With the base's own name, this is longer than S3's 1,024.
    too_long = "n" * (1020 if base.startswith("s3") else 256)
    for key in (too_long, "new/" + too_long, "é" * (len(too_long) // 2)):
        with pytest.raises(RefusedError, match=says("too long", "Shorten")):
            tracker.put(key, x=1)
        with pytest.raises(RefusedError, match="is too long"):
            tracker.get(key)
    assert tracker.keys() == []
    tracker["new"] = {"x": 1}  # the folder is completely removed


@pytest.mark.parametrize("later", ["above", "below"])
def test_a_key_above_or_below_another_one(tracker: FsspecResultTracker, base: str, later: str) -> None:
    first, second = ("a/b/c", "a/b") if later == "above" else ("a/b", "a/b/c/d")
    tracker[first] = {"x": 1}
    if base.startswith(("s3", "memory")):
        assert tracker[second] == {}
        if base.startswith("s3"):
            tracker[second] = {"x": 2}
            assert tracker[second] == {"x": 2}
    else:
        facts = (f"'{second}'", "is a folder of other keys", "below one that has results", "Use another key")
        for action in (lambda: tracker.put(second, x=2), lambda: tracker.get(second)):
            with pytest.raises(RefusedError, match=says("key", *facts)):
                action()
        assert tracker.keys() == [first]
    assert tracker[first] == {"x": 1}


# What does not depend on the store


class Array:
    def __repr__(self) -> str:
        return "<it>"

    def item(self) -> float:
        raise ValueError("there are several")


@pytest.mark.parametrize(
    ("key", "facts"),
    [
        *((key, ("str", "int", f"Got {type(key).__name__}: {key!r}.")) for key in (1.5, b"run", True, ("a", "b"))),
        (Path("a/b"), ("str", "int", "Got PosixPath: ")),
        pytest.param(10**5000, ("key", "digits", "Shorten"), id="int"),
        ("/" + "x" * 3000, ("'/xx", "3,003", "absolute", "'/'")),
        ("", ("''", "is empty")),
        ("/etc/passwd", ("'/etc/passwd'", "is absolute")),
        *((key, (repr(key), "leave the tracker base")) for key in ("..", "../x", "a/../../x", "a/..", "a/../b", "s3://..")),
        *((key, (repr(key), "the part '.'")) for key in (".", "a/./b")),
        *((key, (repr(key), "an empty part")) for key in ("a//b", "a/", "s3:///b", "s3://")),
        ("a\0b", (repr("a\0b"), "a NUL character")),
        ("a\ud800b", ("'a\\ud800b'", "surrogate", "UTF-8")),
        *((key, (repr(key), "'.torchx_kfp'")) for key in (".torchx_kfp", "a/.torchx_kfp/b")),
    ],
)  # fmt: skip
@pytest.mark.usual
def test_keys_that_are_refused(local: FsspecResultTracker, key: Any, facts: tuple[str, ...]) -> None:
    actions: list[Callable[[Any], object]] = [lambda key: local.put(key, x=1), local.get, local.keys]
    for action in actions:
        with pytest.raises(RefusedError, match=says(*facts)):
            action(key)
    assert local.keys() == []


@pytest.mark.parametrize(
    ("value", "facts"),
    [
        (None, ("is None", "float(...)")),
        (b"raw", ("bytes", "b'raw'")),
        ({"a": 1}, ("'a'", "dict", "add_metadata({'loss': ...})")),
        ([1, 2], ("list", "add_metadata({'loss': ...})")),
        ((1,), ("tuple",)),
        (1j, ("1j", "float(...)", "str(...)")),
        (decimal.Decimal("0.1"), ("decimal.Decimal", "Decimal('0.1')", "Convert")),
        (Array(), ("mean()", "Array", "<it>")),
        (Exception(), ("Exception", "Convert")),
        ("é" * 513, ("1,026", "1,024", "Store")),
        ("a\udc80", ("surrogate", "text.encode", '"utf-8"')),
        pytest.param(-(10**4300), ("4,298", "digits", "JSON", "Put"), id="int"),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.usual
def test_nothing_is_written_where_a_value_is_refused(local: FsspecResultTracker, value: Any, facts: Any) -> None:
    for key in ("old", "new/key"):
        before = dict(local["old"])
        with pytest.raises(RefusedError, match=says(*facts)) as caught:
            local[key] = {"good": 1, "loss": value}
        # The key is that of current_run(), or in the caller's line.
        assert re.match(r"The result 'loss' (is|contains) ", str(caught.value))
        assert local["old"] == before
        local.put("old", x=1)
    assert local.keys() == ["old"]


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ({"": 1}, says("result", "name", "Give")),
        ({1: 1}, says("result", "1", "int", "str")),
        ({None: 1}, says("result", "NoneType")),
        (None, says("None", "'run'", "loss=0.3")),
        ({"\ud800": 1}, says("surrogate", "text.encode", '"utf-8"')),
    ],
)
def test_names_that_are_refused(local: FsspecResultTracker, results: Any, message: str) -> None:
    with pytest.raises(RefusedError, match=message):
        local["run"] = results
    assert local.keys() == []


def test_a_str_may_have_1024_bytes(local: FsspecResultTracker) -> None:
    local["run"] = {"ascii": "x" * 1024, "wide": "é" * 512, "very wide": "🔑" * 256}
    assert {name: len(value) for name, value in local["run"].items()} == {
        "ascii": 1024,
        "wide": 512,
        "very wide": 256,
    }


def test_scalars_of_numpy(local: FsspecResultTracker) -> None:
    numpy = pytest.importorskip("numpy")
    local["run"] = {"loss": numpy.float64(0.5), "name": numpy.str_("x")}
    assert local["run"] == {"loss": 0.5, "name": "x"}
    scalars = {"f": numpy.float32(0.5), "i": numpy.int64(1), "b": numpy.bool_(True), "a": numpy.array(1.5)}
    local["run"] = scalars
    values = local["run"]
    assert values == {"f": 0.5, "i": 1, "b": True, "a": 1.5}
    assert [type(value) for value in values.values()] == [float, int, bool, float]
    for value in (numpy.array([1, 2]), numpy.datetime64("2026-01-01"), numpy.complex64(1j)):
        with pytest.raises(RefusedError, match=r"is of type numpy\.\w+: "):
            local["run"] = {"loss": value}


@pytest.mark.usual
def test_a_tracker_cannot_be_iterated(local: FsspecResultTracker) -> None:
    # Python would take a class with [0], [1], ... for a sequence, which would be endless here.
    with pytest.raises(TypeError, match="not iterable"):
        list(local)
    with pytest.raises(TypeError, match="not a container"):
        "run" in local  # noqa: B015 (it raises)


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
    """Return whether both are equal, including types and order, with NaN equal to NaN."""
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
        assert stored(tracker.tracker_base, str(key)).isascii()
        assert same(FsspecResultTracker(tracker.tracker_base)[str(key)], results)
        assert tracker.keys() == [str(key)]
        tracker.put(key, **{**results, "last": 1})
        assert same(tracker[key], {**results, "last": 1})

    check()


@hypothesis.given(st.text() | st.text("./a:~\0\ud800"))
def test_a_key_is_itself_or_refused(text: str) -> None:
    try:
        assert key_text(text) == text
    except RefusedError:
        return
    parts = text.split("/")
    assert not {"..", "."} & set(parts)
    assert parts[0]
    assert parts[-1]
    assert "\0" not in text
    text.encode()
