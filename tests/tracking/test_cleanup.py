"""The decisions of gc: in a local directory, in memory and on S3."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import time
from pathlib import Path

import pytest

from tests.conftest import finish_requests
from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from torchx_kfp.errors import CorruptResultError, TrackerError
from torchx_kfp.tracking import FsspecResultTracker, Source
from torchx_kfp.tracking.cleanup import Cleanup
from torchx_kfp.tracking.lineage import add_source, record_start
from torchx_kfp.tracking.run_facts import RUN_FACTS
from torchx_kfp.tracking.searches import SEARCH
from torchx_kfp.tracking.statements import add_artifact, add_metadata
from torchx_kfp.tracking.steps import STEPS
from torchx_kfp.tracking.store import File, Store, run_id_parts

DAY = 86400.0
ENDED = "ended-20260101-120000-0a1b2c"


@pytest.fixture(autouse=True)
def _short_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow runs named ``run`` and ``old``; ``test_cleanup_spares`` tests the names that engines make."""
    monkeypatch.setattr("torchx_kfp.tracking.cleanup._MADE", re.compile(".*"))


@pytest.fixture(params=["local", "memory", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A tracker base of each kind, in which everything is older than the time ``later()``."""
    base = str(tmp_path / "base") if request.param == "local" else request.getfixturevalue(f"{request.param}_base")
    return FsspecResultTracker(base).store


@pytest.fixture
def local(tmp_path: Path) -> Store:
    """A tracker base in a directory, where files can be made old one by one."""
    return FsspecResultTracker(tmp_path / "base").store


def put(store: Store, *keys: str, content: object = None) -> None:
    for key in keys:
        store.write(key, json.dumps({"loss": 0.1, "ok": True, "note": "x"} if content is None else content).encode())


def later() -> float:
    return time.time() + DAY


def age(store: Store, *starts: str, days: float = 60) -> None:
    """Make the files old whose keys begin with one of these texts."""
    for file in store.files():
        if file.key.startswith(starts):
            os.utime(store.location(file.key), (time.time() - days * DAY,) * 2)


def keys(store: Store) -> list[str]:
    return [file.key for file in store.files()]


def removed(store: Store, before: float, begun: float | None = None) -> list[str]:
    return [run.run for run in Cleanup(store, before, begun).remove()]


def test_a_whole_run_goes_with_what_was_said_of_it(store: Store) -> None:
    put(store, "run/train/1", "run/train/2", "run/evaluate/1")
    add_artifact(store, "run/train/1", "model", "s3://models/1", None)
    add_metadata(store, "run/evaluate/1", {"note": "x"})
    STEPS.add(store, "run/train/1", {"metrics": {}}, "steps")
    SEARCH.add(store, "run/evaluate/1", {}, "search")
    RUN_FACTS.add(store, "run", {"note": "x"}, "facts")
    record_start(store, "run/evaluate/1", {"trials": ["run/train/1", "run/train/2"]})
    sizes = sum(file.size for file in store.files())
    (run,) = Cleanup(store, later()).look().old
    assert (run.run, run.stages, run.files, run.size, run.kept) == ("run", ["evaluate", "train"], 9, sizes, "")
    assert abs(run.modified - time.time()) < 300
    assert keys(store) != []  # looking does not remove anything
    assert removed(store, later()) == ["run"]
    assert keys(store) == []


def test_a_run_that_still_logs_steps_is_young(local: Store) -> None:
    put(local, "logs/train/1", "ended/train/1")
    for run in ("logs", "ended", "without"):
        STEPS.add(local, f"{run}/train/1", {"metrics": {}}, "steps", "1")
    age(local, "logs/", "ended/", ".torchx_kfp/steps/ended", ".torchx_kfp/steps/without")
    assert sorted(removed(local, time.time() - 30 * DAY)) == ["ended", "without"]
    assert keys(local) == [".torchx_kfp/steps/logs%2Ftrain%2F1/1", "logs/train/1"]


def test_facts_about_a_run_are_part_of_it(local: Store) -> None:
    for run in ("started", "old", "ended"):
        RUN_FACTS.add(local, run, {"note": "x"}, "facts", "1")
    put(local, "ended/train/1")
    put(local, ".torchx_kfp/runs/old/.torchx_kfp/0123456789abcdef", ".torchx_kfp/runs/other%2Fname/1")
    age(local, ".torchx_kfp/runs/o", ".torchx_kfp/runs/ended")
    assert removed(local, time.time() - 30 * DAY) == ["old"]
    left = ["ended/1", "other%2Fname/1", "started/1"]
    assert keys(local) == [*(f".torchx_kfp/runs/{name}" for name in left), "ended/train/1"]


def test_a_run_that_may_go_on_stays_with_what_it_reads(local: Store) -> None:
    """A training takes longer than the age; a stage that has failed looks the same, so days count."""
    put(local, "source/prepare/1", "run/prepare/1", f"{ENDED}/train/pod_0a1b2c3d_2", "failed/prepare/1")
    record_start(local, "run/train/1", {"data": "source/prepare/1"})
    record_start(local, "failed/train/1", {})
    for attempt in ("", "_2"):  # the second one has results
        record_start(local, f"{ENDED}/train/pod_0a1b2c3d{attempt}", {})
    age(local, "", days=2)
    age(local, "failed/", ".torchx_kfp/sources/failed", days=8)
    before = time.time() - DAY
    assert {run.run: run.kept for run in Cleanup(local, before).look().old} == {
        "run": "may be going on: train has no results, and began 2d 00h ago",
        "source": "used by run/train/1",
        ENDED: "",
        "failed": "",
    }
    assert sorted(removed(local, before)) == [ENDED, "failed"]
    assert sorted(removed(local, before, begun=time.time())) == ["run", "source"]


def test_younger_runs_stay(store: Store) -> None:
    put(store, "run/train/1")
    found = Cleanup(store, time.time() - DAY).look()
    assert (found.old, found.younger, found.left_alone) == ((), 1, {})
    assert removed(store, time.time() - DAY) == []
    assert keys(store) == ["run/train/1"]


def test_the_newest_file_counts(local: Store) -> None:
    put(local, "mixed/train/1", "mixed/train/2", "said/train/1", "old/train/1")
    add_metadata(local, "said/train/1", {"note": "said today"})
    age(local, "mixed/train/1", "said/", "old/")
    assert removed(local, time.time() - 30 * DAY) == ["old"]
    assert [key for key in keys(local) if not key.startswith(".")] == ["mixed/train/1", "mixed/train/2", "said/train/1"]


#: Files next to the results of stages, and the reasons why their folder is left alone.
FOREIGN = {
    "run/notes.txt": "'run/notes.txt' is not a result of a stage",
    "run/train/deep/1": "'run/train/deep/1' is not a result of a stage",
    "run/train/settings.json": "'run/train/settings.json' is not a result of a stage",
    "run/train/.hidden": "'run/train/.hidden' is not a result of a stage",
    "run/.train/2": "'run/.train/2' is not a result of a stage",
    "run/.torchx_kfp/metadata/x/1": "'run/.torchx_kfp/metadata/x/1' is not a result of a stage",
    "run/train/.torchx_kfp/notes": "'run/train/.torchx_kfp/notes' is not a result of a stage",
}


@pytest.mark.parametrize("key", FOREIGN)
def test_a_folder_with_anything_else_is_left_alone(key: str, local: Store) -> None:
    put(local, "run/train/1", key, "gone/train/1")
    assert Cleanup(local, later()).look().left_alone == {"run": FOREIGN[key]}
    assert Cleanup(local, time.time() - DAY).look().younger == 1
    assert removed(local, later()) == ["gone"]
    assert keys(local) == sorted(["run/train/1", key])


#: Contents of a file in the place of a result.
CONTENTS = {
    b"": False,
    b"no results": False,
    b"\xff\xfe\x00": False,
    b"[1]": False,
    b"1": False,
    b'{"a": {"b": 1}}': False,
    b'{"a": [1]}': False,
    b'{"a": null}': False,
    b"[" * 100_000: False,
    b'{"a": "' + b"x" * (1 << 20) + b'"}': False,
    b"{}": True,
    b'{"a": NaN, "b": 1, "c": true, "d": "x"}': True,
}


@pytest.mark.parametrize("number", range(len(CONTENTS)))
def test_only_results_are_removed(number: int, store: Store) -> None:
    content, goes = list(CONTENTS.items())[number]
    put(store, "run/train/1")
    store.write("run/train/2", content)
    gc.collect()  # clients of S3 that other tests have left cannot be closed in the depth of a recursion
    found = Cleanup(store, later()).look()
    if not goes:
        large = "is larger than results can be" if len(content) > 1 << 20 else "does not hold results"
        assert found.left_alone == {"run": f"'run/train/2' {large}"}
    assert removed(store, later()) == (["run"] if goes else [])
    assert keys(store) == ([] if goes else ["run/train/1", "run/train/2"])


def test_a_home_directory_loses_nothing(tmp_path: Path) -> None:
    files = {
        ".bashrc": "export A=1",
        ".aws/sso/cache": '{"token": "x"}',
        ".config/app/settings": '{"a": 1}',
        "Documents/letter.txt": "Dear",
        "project/src/package.json": '{"name": "x"}',
        "project/src/main.py": "print()",
        "data/flat/one.json": '{"a": 1}',
        "todo": '{"a": 1}',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    store = FsspecResultTracker(tmp_path).store
    found = Cleanup(store, later()).look()
    assert (found.old, found.younger) == ((), 0)
    assert sorted(found.left_alone) == [".aws", ".bashrc", ".config", "Documents", "data", "project", "todo"]
    assert removed(store, later()) == []
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_a_file_that_cannot_be_read_keeps_its_run(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local, "run/train/1", "run/train/2")
    read = local.read

    def refuse(key: str) -> bytes | None:
        if key == "run/train/2":
            raise TrackerError("No permission")
        return read(key)

    monkeypatch.setattr(local, "read", refuse)
    assert Cleanup(local, later()).look().left_alone == {"run": "'run/train/2' cannot be read"}


def test_other_keys_are_left_alone(store: Store) -> None:
    put(store, "baseline", "experiment/1", "a/b/c/d", "local_cwd://torchx/app-1", "run/train/1")
    add_metadata(store, "baseline", {"note": "x"})
    add_metadata(store, "local_cwd://torchx/app-1", {"note": "x"})
    before = keys(store)
    assert sorted(Cleanup(store, later()).look().left_alone) == ["a", "baseline", "experiment", "local_cwd:"]
    assert removed(store, later()) == ["run"]
    assert keys(store) == [key for key in before if key != "run/train/1"]


def test_entries_of_runs_without_results_go_too(store: Store) -> None:
    add_metadata(store, "gone/train/1", {"note": "x"})
    record_start(store, "gone/train/2", {"prepare": "never/prepare/1"})
    (run,) = Cleanup(store, later()).look().old
    assert (run.run, run.stages, run.results, run.files) == ("gone", ["train"], (), 2)
    assert removed(store, time.time() - DAY) == []
    assert removed(store, later(), begun=later()) == ["gone"]
    assert keys(store) == []


def test_entries_of_a_folder_that_is_left_alone_stay(store: Store) -> None:
    put(store, "run/train/1", "run/notes")
    add_metadata(store, "run/train/1", {"note": "x"})
    before = keys(store)
    assert removed(store, later()) == []
    assert keys(store) == before


def test_other_files_of_the_tracker_stay(store: Store) -> None:
    others = [
        ".torchx_kfp/0123456789abcdef",
        ".torchx_kfp/later/run%2Ftrain%2F1/1",
        ".torchx_kfp/metadata/run%2Ftrain%2F1/a/b",
        ".torchx_kfp/metadata/run%2ftrain%2f1/1",
    ]
    put(store, *others)
    assert removed(store, later()) == []
    assert keys(store) == sorted(others)


def test_temporary_files_of_killed_writers_go_with_their_run(local: Store) -> None:
    put(local, "run/train/1", "run/train/.torchx_kfp/0123456789abcdef", "half/train/.torchx_kfp/0123456789abcdef")
    put(local, ".torchx_kfp/sources/run%2Ftrain%2F1/.torchx_kfp/0123456789abcdef", content={"sources": []})
    assert removed(local, later()) == ["run"]
    assert keys(local) == ["half/train/.torchx_kfp/0123456789abcdef"]


class TestUse:
    """Runs that a kept run uses are kept."""

    def kept(self, store: Store) -> dict[str, str]:
        return {run.run: run.kept for run in Cleanup(store, time.time() - 30 * DAY).look().old}

    def test_directly_and_through_others(self, local: Store) -> None:
        put(local, "new/evaluate/1", "used/train/1", "through/prepare/1", "unused/train/1", "user/of/unused")
        record_start(local, "new/evaluate/1", {"train": "used/train/1"})
        record_start(local, "used/train/9", {"prepare": "through/prepare/1"})
        record_start(local, "user/of/unused", {"train": "unused/train/1"})
        age(local, "used", "through", "unused", "user", ".torchx_kfp")
        assert self.kept(local) == {
            "used": "used by new/evaluate/1",
            "through": "used by used/train/9",
            "unused": "",
            "user": "",
        }
        assert sorted(removed(local, time.time() - 30 * DAY)) == ["unused", "user"]

    def test_by_a_run_that_was_said_to_use_it_without_results(self, local: Store) -> None:
        put(local, "old/train/1")
        age(local, "old")
        add_source(local, "new/evaluate/1", Source("old/train/1", "model"))
        assert self.kept(local) == {"old": "used by new/evaluate/1"}

    def test_by_a_run_that_resumes_it(self, local: Store) -> None:
        put(local, "first/train/1", "second/train/1", "third/train/1")
        RUN_FACTS.add(local, "third", {"resumes": ["second", "first"]}, "facts")
        age(local, "first", "second")
        assert self.kept(local) == {"first": "used by third", "second": "used by third"}

    def test_by_what_is_left_alone(self, local: Store) -> None:
        put(local, "old/train/1", "mixed/evaluate/1", "mixed/notes")
        add_source(local, "mixed/evaluate/1", Source("old/train/1"))
        put(local, "older/train/1")
        add_source(local, "plain", Source("older/train/1"))
        age(local, "")
        assert self.kept(local) == {"old": "used by mixed/evaluate/1", "older": "used by plain"}

    def test_circles_do_not_keep_each_other(self, local: Store) -> None:
        put(local, "a/s/1", "b/s/1")
        add_source(local, "a/s/1", Source("b/s/1"))
        add_source(local, "b/s/1", Source("a/s/1"))
        age(local, "")
        assert self.kept(local) == {"a": "", "b": ""}

    def test_nothing_goes_where_use_cannot_be_read(self, local: Store) -> None:
        put(local, "old/train/1")
        age(local, "old/")
        local.write(".torchx_kfp/sources/new%2Fs%2F1/1", b"no entry")
        with pytest.raises(
            CorruptResultError,
            match=says("sources", "torchx_kfp", "Remove"),
        ):
            removed(local, time.time() - DAY)
        assert "old/train/1" in keys(local)

    def test_what_runs_use_that_go_is_not_read(self, local: Store) -> None:
        put(local, "old/train/1", "used/train/1")
        local.write(".torchx_kfp/sources/old%2Fs%2F1/1", b"no entry")
        age(local, "")
        add_source(local, "new/s/1", Source("used/train/1"))
        assert removed(local, time.time() - DAY) == ["old"]


class TestInterruptions:
    """Whatever happens in between, a second call finishes the removal, and new files stay."""

    def fill(self, store: Store) -> None:
        for run in ("one", "two"):
            put(store, f"{run}/train/1", f"{run}/train/2")
            add_metadata(store, f"{run}/train/1", {"note": "x"})
            add_source(store, f"{run}/train/2", Source(f"{run}/train/1"))

    @pytest.mark.parametrize("after", range(8))
    @pytest.mark.parametrize("error", [KeyboardInterrupt, TrackerError])
    def test_a_second_call_finishes_it(
        self, after: int, error: type[BaseException], local: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.fill(local)
        age(local, "")
        count = iter(range(100))
        remove = local.remove_old

        def fail(file: File) -> bool:
            if next(count) >= after:
                raise error("stopped")
            return remove(file)

        with monkeypatch.context() as patch:
            patch.setattr(local, "remove_old", fail)
            with pytest.raises(error):
                removed(local, time.time() - 30 * DAY)
        left = keys(local)
        assert len(left) == 8 - after
        # There are never results whose sources are gone.
        if any("/sources/" not in key for key in left):
            assert sum("/sources/" in key for key in left) == 2
        assert removed(local, time.time() - 30 * DAY)
        assert keys(local) == []

    def test_what_is_written_or_used_meanwhile_stays(self, local: Store) -> None:
        put(local, "again/train/1", "used/train/1", "goes/train/1")
        age(local, "")
        cleanup = Cleanup(local, time.time() - 30 * DAY)
        assert len(cleanup.look().old) == 3
        put(local, "again/train/2")
        add_source(local, "new/s/1", Source("used/train/1"))
        assert [run.run for run in cleanup.remove()] == ["goes"]
        assert [key for key in keys(local) if not key.startswith(".")] == [
            "again/train/1",
            "again/train/2",
            "used/train/1",
        ]

    def test_a_result_that_became_something_else_stays(self, local: Store) -> None:
        put(local, "run/train/1")
        cleanup = Cleanup(local, later())
        assert len(cleanup.look().old) == 1
        local.write("run/train/1", b"something else, of another size")
        assert list(cleanup.remove()) == []
        assert keys(local) == ["run/train/1"]

    def test_many_runs_are_looked_at_again_between(self, local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("torchx_kfp.tracking.cleanup._FILES", 2)
        put(local, *(f"run-{number}/train/1" for number in range(32)))
        age(local, "")
        done = Cleanup(local, time.time() - 30 * DAY).remove()
        first = next(done)
        left = next(key for key in keys(local))
        put(local, left.replace("/1", "/2"))
        assert len(list(done)) == 30
        assert first.run not in {key.partition("/")[0] for key in keys(local)}
        assert keys(local) == [left, left.replace("/1", "/2")]


def test_links_in_the_base_lose_nothing_behind_them(local: Store, tmp_path: Path) -> None:
    (tmp_path / "elsewhere/train").mkdir(parents=True)
    (tmp_path / "elsewhere/train/1").write_text('{"loss": 1}')
    put(local, "run/train/1")
    (tmp_path / "base/linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "base/run/train/2").symlink_to(tmp_path / "elsewhere/train/1")
    put(local, "other/train/1")
    assert removed(local, later()) == ["other"]
    assert Cleanup(local, later()).look().left_alone == {
        "linked": "'linked' is not a result of a stage",
        "run": "'run/train/2' cannot be read",
    }
    assert (tmp_path / "elsewhere/train/1").read_text() == '{"loss": 1}'


def test_few_requests(s3_base: str, s3_server: S3Server) -> None:
    store = FsspecResultTracker(s3_base).store
    put(store, *(f"run-{number}/train/{execution}" for number in range(5) for execution in range(4)))
    # There are listings of files, and one request for each result's content.
    assert len(s3_server.requests(lambda: Cleanup(store, later()).look())) <= 20 + 2
    assert len(s3_server.requests(lambda: Cleanup(store, time.time() - DAY).look())) <= 2
    # They are removed with one request.
    assert len(s3_server.requests(lambda: removed(store, later()))) <= 20 + 7
    assert keys(store) == []


def test_a_file_that_is_gone_since_it_was_listed_is_no_problem(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another gc is at work."""
    put(local, "one/train/1", "two/train/1")
    listed = local.files()
    monkeypatch.setattr(local, "files", lambda: listed)
    local.remove("one/train/1")
    assert not Cleanup(local, later()).look().left_alone


def test_runs_of_other_users_do_not_keep_the_others(local: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    put(local, "mine/train/1", "others/train/1", "yours/train/1")
    add_metadata(local, "others/train/1", {"note": "x"})
    unlink = os.unlink

    def refuse(path: bytes, *, dir_fd: int | None = None) -> None:
        if "/others/" in os.readlink(f"/proc/self/fd/{dir_fd}"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refuse)
    gone: list[str] = []
    with pytest.raises(TrackerError, match=says("No permission to remove", "others/train/1")):
        gone.extend(run.run for run in Cleanup(local, later()).remove())
    assert set(gone) == {"mine", "yours"}
    assert len(keys(local)) == 2, "the records of its results stay"


def test_s3_says_which_files_must_stay(s3_base: str) -> None:
    """The answer to the removal of many objects is a success, with the errors of some in its body."""
    import s3fs

    store = FsspecResultTracker(s3_base).store
    put(store, "one/train/1", "two/a b?*[1]&<é>/1", "locked/train/1")
    bucket = s3_base.split("/")[2]
    deny = {
        "Effect": "Deny",
        "Principal": "*",
        "Action": "s3:DeleteObject",
        "Resource": f"arn:aws:s3:::{bucket}/*/locked/*",
    }
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    s3fs.S3FileSystem().call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)
    with pytest.raises(TrackerError, match=says("No permission to remove", f"{s3_base}/locked/train/1")):
        removed(store, later())
    assert keys(store) == ["locked/train/1"]


@pytest.mark.parametrize("status", [403, 501])
def test_a_server_without_the_removal_of_many(
    status: int, s3_base: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    with Proxy(s3_server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        store = FsspecResultTracker(s3_base).store
        put(store, "one/train/1", "two/train/1")
        proxy.refused = {"POST": status}
        assert removed(store, later()) == ["one", "two"]
        assert keys(store) == []
        put(store, "one/train/1")
        proxy.refused = {"POST": status, "DELETE": 403}
        with pytest.raises(TrackerError, match=says("No permission to remove", f"{s3_base}/one/train/1")):
            removed(store, later())
        finish_requests()


@pytest.mark.parametrize(
    ("key", "parts"),
    {
        "run/train/1": ("run", "train", "1"),
        "run/train": None,
        "run/train/1/2": None,
        "run//1": None,
        "local_cwd://torchx/app": None,
        "local_cwd:/torchx/app": None,
    }.items(),
)
def test_what_is_a_run_id_of_a_stage(key: str, parts: tuple[str, str, str] | None) -> None:
    assert run_id_parts(key) == parts
