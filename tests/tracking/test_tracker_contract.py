"""The promises of a tracker, on every kind of store."""

from __future__ import annotations

import enum
import json
import math
import pickle
import time
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest

from tests.facts import says
from torchx_kfp.errors import CorruptResultError, KeyRefusedError, ResultRefusedError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker

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


class TrackerContract:
    """The tests that every store must pass; subclasses provide the tracker base."""

    #: Whether the store can have both ``a`` and ``a/b``.
    side_by_side = False
    #: A key that makes ``<base>/<key>`` longer than the store accepts.
    too_long: str | None = "n" * 256
    plain_keys: ClassVar[list[str]] = [*PLAIN_KEYS, "new\nline", "control\x01\x7f"]

    @pytest.fixture
    def base(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def tracker(self, base: str) -> FsspecResultTracker:
        return FsspecResultTracker(base)

    def stored(self, base: str, key: str) -> bytes:
        """Return the content that fsspec finds at ``<base>/<key>``, where other programs look."""
        filesystem, path = fsspec.core.url_to_fs(base)
        return bytes(filesystem.cat_file(f"{path}/{key}"))

    def store(self, base: str, key: str, content: bytes) -> None:
        filesystem, path = fsspec.core.url_to_fs(base)
        if filesystem.protocol != ("s3", "s3a"):
            filesystem.makedirs(filesystem._parent(f"{path}/{key}"), exist_ok=True)
        filesystem.pipe_file(f"{path}/{key}", content)

    def test_put_and_get(self, tracker: FsspecResultTracker) -> None:
        tracker.put("run/train/1", loss=0.25, epochs=3, done=True, note="größer")
        results = tracker.get("run/train/1")
        assert results == {"loss": 0.25, "epochs": 3, "done": True, "note": "größer"}
        assert [type(value) for value in results.values()] == [float, int, bool, str]

    def test_works_like_a_mapping(self, tracker: FsspecResultTracker) -> None:
        tracker["run"] = {"l2norm/mean": 1.2, "l2norm/sem": 3.4}
        assert tracker["run"]["l2norm/mean"] == 1.2
        assert tracker["run"]["l2norm/sem"] == 3.4

    def test_a_missing_key_has_no_results(self, tracker: FsspecResultTracker) -> None:
        assert tracker.get("missing") == {}
        assert tracker["missing/too"] == {}
        tracker["other"] = {"x": 1}
        assert tracker["missing"] == {}

    def test_an_int_key_works_like_its_string(self, tracker: FsspecResultTracker) -> None:
        tracker[1] = {"x": 1}
        assert tracker["1"] == {"x": 1}
        tracker["-2"] = {"x": 2}
        assert tracker[-2] == {"x": 2}
        assert tracker.keys() == ["-2", "1"]

    def test_a_member_of_an_enum_works_like_its_value(self, tracker: FsspecResultTracker) -> None:
        class Name(str, enum.Enum):
            A = "run/a"

        class Number(enum.IntEnum):
            ONE = 1

        tracker[Name.A] = {"name": Name.A, "number": Number.ONE}
        tracker[Number.ONE] = {"x": 1}
        assert tracker.keys() == ["1", "run/a"]
        assert tracker["run/a"] == {"name": "run/a", "number": 1}

    def test_put_replaces_all_results_of_the_key(self, tracker: FsspecResultTracker) -> None:
        tracker.put("run", a=1, b="x" * 1000)
        tracker.put("run", c=2)
        assert tracker["run"] == {"c": 2}

    def test_put_without_results(self, tracker: FsspecResultTracker) -> None:
        tracker.put("run")
        assert tracker["run"] == {}
        assert tracker.keys() == ["run"]

    @pytest.mark.parametrize("name", ["key", "self", "results", "name", "tracker", "a b", "größe", "l2norm/mean", "?*"])
    @pytest.mark.usual
    def test_results_may_have_any_name(self, tracker: FsspecResultTracker, name: str) -> None:
        tracker.put("by-keyword", **{name: 1})
        tracker["by-item"] = {name: 1}
        assert tracker["by-keyword"] == tracker["by-item"] == {name: 1}

    def test_numbers_that_diverge_are_results(self, tracker: FsspecResultTracker, base: str) -> None:
        tracker.put("run", nan=math.nan, up=math.inf, down=-math.inf)
        results = tracker["run"]
        assert math.isnan(results["nan"])
        assert (results["up"], results["down"]) == (math.inf, -math.inf)
        assert self.stored(base, "run") == b'{\n  "nan": NaN,\n  "up": Infinity,\n  "down": -Infinity\n}'

    def test_a_result_is_one_json_object_at_its_key(self, tracker: FsspecResultTracker, base: str) -> None:
        tracker.put("run/train/1", loss=0.5, name="ä")
        assert self.stored(base, "run/train/1") == json.dumps({"loss": 0.5, "name": "ä"}, indent=2).encode()

    def test_reads_what_other_programs_wrote(self, tracker: FsspecResultTracker, base: str) -> None:
        self.store(base, "run/sh/1", b'{"accuracy":0.5,"nested":{"a":[1,null]},"text":"\xc3\xa4"}\n')
        assert tracker["run/sh/1"] == {"accuracy": 0.5, "nested": {"a": [1, None]}, "text": "ä"}

    def test_keys_are_plain_text(self, tracker: FsspecResultTracker) -> None:
        # All of them exist together, with keys that they would match or become if they were patterns or URLs.
        keys = [*self.plain_keys, "axb", "what", "m", "a", "100", "A", "C", "x"]
        for key in keys:
            tracker.put(key, x=key)
        assert {key: tracker.get(key) for key in keys} == {key: {"x": key} for key in keys}
        assert tracker.keys() == sorted(keys)

    def test_app_handles_of_torchx_are_keys(self, tracker: FsspecResultTracker) -> None:
        tracker["local_cwd://session/app-1"] = {"x": 1}
        tracker["local_cwd://session/app-2"] = {"x": 2}
        assert tracker["local_cwd://session/app-1"] == {"x": 1}
        assert tracker["local_cwd://session/app-2"] == {"x": 2}

    @pytest.mark.parametrize(
        ("key", "problem"),
        [
            ("", "is empty"),
            ("/etc/passwd", "is absolute"),
            ("..", "would leave the tracker base"),
            ("../x", "would leave the tracker base"),
            ("a/../../x", "would leave the tracker base"),
            ("a/..", "would leave the tracker base"),
            ("a/../b", "would leave the tracker base"),
            ("s3://..", "would leave the tracker base"),
            (".", "the part '.'"),
            ("a/./b", "the part '.'"),
            ("a//b", "has an empty part"),
            ("a/", "has an empty part"),
            ("s3:///b", "has an empty part"),
            ("s3://", "has an empty part"),
            ("a\0b", "a NUL character"),
            ("a\ud800b", says("'a\\ud800b'", "surrogate", "UTF-8")),
            (".torchx_kfp", "'\\.torchx_kfp'"),
            ("a/.torchx_kfp/b", "'\\.torchx_kfp'"),
        ],
    )
    @pytest.mark.usual
    def test_keys_that_are_refused(self, tracker: FsspecResultTracker, key: str, problem: str) -> None:
        for action in (lambda: tracker.put(key, x=1), lambda: tracker.get(key), lambda: tracker.keys(key)):
            with pytest.raises(KeyRefusedError, match=problem) as caught:
                action()
            assert repr(key) in str(caught.value)
        assert tracker.keys() == []

    def test_a_key_that_is_too_long(self, tracker: FsspecResultTracker) -> None:
        if self.too_long is None:
            tracker["n" * 5000] = {"x": 1}
            assert tracker["n" * 5000] == {"x": 1}
            return
        for key in (self.too_long, "new/" + self.too_long, "é" * (len(self.too_long) // 2)):
            with pytest.raises(KeyRefusedError, match=says("too long", "Shorten")):
                tracker.put(key, x=1)
            with pytest.raises(KeyRefusedError, match="is too long"):
                tracker.get(key)
        assert tracker.keys() == []
        tracker["new"] = {"x": 1}  # the folder is completely removed

    def test_a_key_that_is_a_folder_of_other_keys(self, tracker: FsspecResultTracker) -> None:
        tracker["a/b/c"] = {"x": 1}
        if self.side_by_side:
            assert tracker["a"] == tracker["a/b"] == {}
            tracker["a"] = {"x": 2}
            assert tracker["a"] == {"x": 2}
        else:
            for action in (lambda: tracker.put("a/b", x=2), lambda: tracker.get("a/b")):
                with pytest.raises(KeyRefusedError, match=says("'a/b'", "key", "folder", "'a/b/results'")):
                    action()
            assert tracker.keys() == ["a/b/c"]
        assert tracker["a/b/c"] == {"x": 1}

    def test_a_key_below_another_key(self, tracker: FsspecResultTracker) -> None:
        tracker["a/b"] = {"x": 1}
        if self.side_by_side:
            tracker["a/b/c/d"] = {"x": 2}
            assert tracker["a/b/c/d"] == {"x": 2}
        else:
            for action in (lambda: tracker.put("a/b/c/d", x=2), lambda: tracker.get("a/b/c/d")):
                with pytest.raises(KeyRefusedError, match=says("'a/b/c/d'", "'a/b'", "key", "results", "Use")):
                    action()
            assert tracker.keys() == ["a/b"]
        assert tracker["a/b"] == {"x": 1}

    @pytest.mark.parametrize(
        "value", [None, b"x", [1], {"a": 1}, "x" * 1025, "\ud800", pytest.param(10**4300, id="int")]
    )
    @pytest.mark.usual
    def test_nothing_is_written_where_a_result_is_refused(self, tracker: FsspecResultTracker, value: object) -> None:
        with pytest.raises(ResultRefusedError, match=says("'bad'", "'new/key'", "result")):
            tracker.put("new/key", good=1, bad=value)
        assert tracker.keys() == []
        tracker["old"] = {"x": 1}
        with pytest.raises(ResultRefusedError, match=says("'bad'", "'old'", "result", "key")):
            tracker["old"] = {"good": 1, "bad": value}
        assert tracker["old"] == {"x": 1}

    def test_a_str_may_have_1024_bytes(self, tracker: FsspecResultTracker) -> None:
        tracker["run"] = {"ascii": "x" * 1024, "wide": "é" * 512, "very wide": "🔑" * 256}
        assert {name: len(value) for name, value in tracker["run"].items()} == {
            "ascii": 1024,
            "wide": 512,
            "very wide": 256,
        }

    @pytest.mark.parametrize(
        ("content", "problem"),
        [
            (b"", says("empty", "result", "Remove")),
            (b'{"loss": 0.', r"is not valid JSON \("),
            (b"\xff\xfe\xfa", "is not valid JSON"),
            (b"[1, 2]", says("the JSON value [1, 2]", "one JSON object", '"accuracy"', "Remove")),
            (b"null", says("the JSON value None", "one JSON object", '"accuracy"', "Remove")),
            (b"[" * 100_000, "is not valid JSON"),
            (b'{"x": 1' + b"0" * 5000 + b"}", "is not valid JSON"),
        ],
    )
    @pytest.mark.usual
    def test_a_file_that_is_no_result(
        self, tracker: FsspecResultTracker, base: str, content: bytes, problem: str
    ) -> None:
        self.store(base, "run/bad/1", content)
        with pytest.raises(CorruptResultError, match=problem) as caught:
            tracker.get("run/bad/1")
        assert tracker.location("run/bad/1") in str(caught.value)
        assert base.partition("://")[2].lstrip("/") in str(caught.value)
        tracker["run/bad/1"] = {"x": 1}
        assert tracker["run/bad/1"] == {"x": 1}

    def test_many_at_once(self, tracker: FsspecResultTracker) -> None:
        keys = [f"run/train/{number:02}" for number in range(40)]
        for number, key in enumerate(keys):
            tracker.put(key, number=number)
        asked = ["run/missing", *reversed(keys), "run/missing", 5]
        found = tracker.get_many(asked)
        assert list(found) == ["run/missing", *reversed(keys), "5"], (
            "in the order in which they were asked for, each once"
        )
        assert found == {"run/missing": {}, "5": {}, **{key: {"number": number} for number, key in enumerate(keys)}}
        assert tracker.get_many([]) == {}
        with pytest.raises(KeyRefusedError, match=says("get_many", "'run/train'")):
            tracker.get_many("run/train")
        with pytest.raises(KeyRefusedError, match=r"'a/\.\./b' would leave the tracker base"):
            tracker.get_many([*keys, "a/../b"])

    def test_iterates_over_a_run(self, tracker: FsspecResultTracker) -> None:
        for key in ("p1/train/2", "p1/train/1", "p1/prepare/1", "p10/train/1", "p2/train/1"):
            tracker.put(key, key=key)
        assert list(tracker.items("p1")) == [
            (key, {"key": key}) for key in ("p1/prepare/1", "p1/train/1", "p1/train/2")
        ]
        assert [key for key, _ in tracker.items()] == tracker.keys()
        assert list(tracker.items("none")) == []
        items = tracker.items()
        assert next(items)[0] == "p1/prepare/1", "one by one"
        items.close()  # the threads of the generator would otherwise wait for its reader

    def test_what_is_no_result_among_many(self, tracker: FsspecResultTracker, base: str) -> None:
        tracker.put("run/1", x=1)
        tracker.put("run/3", x=3)
        self.store(base, "run/2", b"{")
        with pytest.raises(CorruptResultError, match=says("run/2", "JSON", "Remove")):
            tracker.get_many(["run/1", "run/2", "run/3"])
        with pytest.raises(CorruptResultError, match=says("run/2", "JSON", "Remove")):
            list(tracker.items())
        errors: list[CorruptResultError] = []
        assert tracker.get_many(["run/1", "run/2", "run/3"], corrupt=errors.append) == {
            "run/1": {"x": 1},
            "run/3": {"x": 3},
        }
        assert dict(tracker.items("run", corrupt=errors.append)) == {"run/1": {"x": 1}, "run/3": {"x": 3}}
        assert [type(error) for error in errors] == [CorruptResultError] * 2

    def test_a_frame(self, tracker: FsspecResultTracker) -> None:
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

    def test_removes_and_tells_of_files(self, tracker: FsspecResultTracker) -> None:
        before = time.time()
        tracker.put("p1/train/1", x=1)
        tracker.put("p1/train/2", x=1)
        tracker.store.write(".torchx_kfp/metadata/r/1", b"{}")
        files = tracker.store.files()
        assert [(file.key, file.size) for file in files] == [
            (".torchx_kfp/metadata/r/1", 2), ("p1/train/1", 12), ("p1/train/2", 12),
        ]  # fmt: skip
        # The times of S3 are whole seconds.
        assert all(before - 2 < file.modified < time.time() + 2 for file in files)
        tracker.store.remove("p1/train/1")
        tracker.store.remove("p1/train/1")
        tracker.store.remove("none/at/all")
        assert tracker.keys() == ["p1/train/2"]
        assert tracker["p1/train/1"] == {}
        tracker.put("p1/train/1", x=2)
        assert tracker["p1/train/1"] == {"x": 2}

    def test_names_below_a_key(self, tracker: FsspecResultTracker) -> None:
        for key in ("p1/train/1", "p1/best", "p2/x"):
            tracker.put(key, x=1)
        assert tracker.store.names("p1") == ["best", "train/"]
        assert tracker.store.names("none") == []
        assert tracker.names() == ["p1/", "p2/"]

    def test_lists_keys(self, tracker: FsspecResultTracker) -> None:
        assert tracker.keys() == tracker.keys("a") == tracker.names() == []
        for key in ("b", "a/b/2", "a/b/1", "a/c", "ab/c", 3):
            tracker[key] = {"x": 1}
        assert tracker.keys() == ["3", "a/b/1", "a/b/2", "a/c", "ab/c", "b"]
        assert tracker.keys("a") == ["a/b/1", "a/b/2", "a/c"]
        assert tracker.keys("a/b") == ["a/b/1", "a/b/2"]
        assert tracker.keys("a/c") == ["a/c"]
        assert tracker.keys("missing") == []
        assert tracker.names() == ["3", "a/", "ab/", "b"]

    def test_results_outlive_the_tracker(self, tracker: FsspecResultTracker, base: str) -> None:
        tracker["run"] = {"x": 1}
        assert FsspecResultTracker(base + "/")["run"] == {"x": 1}
        assert pickle.loads(pickle.dumps(tracker))["run"] == {"x": 1}

    @pytest.mark.usual
    def test_is_no_collection(self, tracker: FsspecResultTracker) -> None:
        # Python would take a class with [0], [1], ... for a sequence, which would be endless here.
        with pytest.raises(TypeError, match="not iterable"):
            list(tracker)
        with pytest.raises(TypeError, match="not a container"):
            "run" in tracker  # noqa: B015

    def test_names_its_base(self, tracker: FsspecResultTracker, base: str) -> None:
        assert tracker.tracker_base == base
        assert repr(tracker) == f"FsspecResultTracker({base!r})"


@pytest.mark.lowest
class TestLocalDirectory(TrackerContract):
    @pytest.fixture
    def base(self, tmp_path: Path) -> str:
        return str(tmp_path / "made on demand" / "100% [results]#1?")


class TestPathObject(TrackerContract):
    @pytest.fixture
    def base(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def tracker(self, base: str) -> FsspecResultTracker:
        return FsspecResultTracker(Path(base))


@pytest.mark.lowest
class TestFileUrl(TrackerContract):
    @pytest.fixture
    def base(self, tmp_path: Path) -> str:
        return f"file://{tmp_path}/results"


class TestWithoutUnnamedFiles(TrackerContract):
    """Platforms and file systems without O_TMPFILE, such as NFS."""

    @pytest.fixture
    def base(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        monkeypatch.delattr("os.O_TMPFILE")
        return str(tmp_path / "results")


@pytest.mark.lowest
class TestMemory(TrackerContract):
    too_long = None

    @pytest.fixture
    def base(self, memory_base: str) -> str:
        return memory_base

    def test_a_base_that_is_a_file(self, base: str) -> None:
        FsspecResultTracker(base)["file"] = {"x": 1}
        tracker = FsspecResultTracker(base + "/file")
        with pytest.raises(TrackerError, match=says("'memory://results/file'", "tracker base", "Name")):
            tracker["run"] = {"x": 1}


class TestMemoryRoot(TestMemory):
    @pytest.fixture
    def base(self, memory_base: str) -> str:
        return "memory://"

    def test_names_its_base(self, tracker: FsspecResultTracker, base: str) -> None:
        assert tracker.location("run") == "memory:///run"

    def test_a_base_that_is_a_file(self, base: str) -> None:
        FsspecResultTracker(base)["file"] = {"x": 1}
        with pytest.raises(TrackerError, match=says("'memory://file'", "tracker base", "Name")):
            FsspecResultTracker("memory://file")["run"] = {"x": 1}


@pytest.mark.s3
@pytest.mark.lowest
class TestS3(TrackerContract):
    side_by_side = True
    too_long = "n" * 1020  # with the base's own name, longer than 1,024
    plain_keys = PLAIN_KEYS  # the server's routes do not support line breaks

    @pytest.fixture
    def base(self, s3_base: str) -> str:
        return s3_base
