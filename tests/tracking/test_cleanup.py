"""What ``torchx-kfp gc`` removes from a tracker base, and what stays. Its output is in ``tests/transcripts/gc.md``."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.entrypoints.cli.conftest import Call
from tests.proxy import Proxy
from tests.s3 import S3Server
from tests.tracking.conftest import MADE, Gc
from tests.tracking.stages import stage

DAY = 86400.0
#: The content of an entry, by its field.
ENTRIES: dict[str, Any] = {
    "metadata": {"x": "y"},
    "artifacts": {"model": {"path": "s3://models/1", "metadata": {}}},
    "sources": [],
    "steps": {},
    "search": {},
    "tags": {"team": "a"},
    "code": [],
    "resumes": [],
}
#: The name of the file of an entry, by its field: the sources of a stage are in the entry of its start.
NAMES = {"sources": "0-start.sources.started"}
FOREIGN = [
    "run~/notes.txt",
    "run~/train/deep/1",
    "run~/train/settings.json",
    "run~/train/.hidden",
    "run~/.train/2",
    "run~/.torchx_kfp/runs/x/1.metadata",
    "run~/train/.torchx_kfp/notes",
]
#: Folders by the names of tests: a file in each line, with its age in days, and ``-`` if gc removes it with an age of
#: 30 days. ``metadata:run~/train/1`` is an entry about the run id; ``<`` lists the sources that it names, and other
#: contents follow as JSON. Then what gc says of what it keeps and leaves alone.
FOLDERS: dict[str, tuple[str, dict[str, str]]] = {
    "a run goes with all that was said of it": (
        """
        - 60 run~/train/1
        - 60 run~/train/2
        - 60 metadata:run~/train/1
        - 60 artifacts:run~/train/1
        - 60 steps:run~/train/1
        - 60 search:run~/train/2
        - 60 sources:run~/train/2 < run~/train/1
        - 60 tags:run~
        - 60 .torchx_kfp/runs/run~/.torchx_kfp-0123456789abcdef
        - 60 .torchx_kfp/files/run~/train/1/1-a/model.pt weights
        """,
        {},
    ),
    "files that it has registered stay": (
        """
        - 60 run~/train/1
        - 60 artifacts:run~/train/1 {"model": {"path": "models/model.pt", "metadata": {}}}
          60 models/model.pt weights
        """,
        {"models": "'models/model.pt' is not a result of a stage"},
    ),
    "its newest file counts": (
        """
          60 mixed~/train/1
           1 mixed~/train/2
          60 said~/train/1
           1 metadata:said~/train/1
          60 logs~/train/1
           1 steps:logs~/train/1
          60 noted~/train/1
           1 tags:noted~
        - 60 old~/train/1
        """,
        {},
    ),
    "records without results go too": (
        """
        - 60 metadata:gone~/train/1
        - 60 sources:gone~/train/2 < never~/prepare/1
        - 60 steps:without~/train/1
        - 60 tags:only~
        """,
        {},
    ),
    "a run goes that was made by an engine, or of which a stage has recorded something": (
        """
        - 60 digits-20260101-120000-0a1b2c/app/Makefile
        - 60 0b54c2f6-6a5c-4a0e-9e3f-0f3a1e3c5d7b/app/Makefile
        - 60 try/app/1
        - 60 sources:try/app/1
          60 a/b/Makefile
          60 2026-01-01/b/Makefile
          60 digits-20260101/b/Makefile
          60 0b54c2f6-6a5c-4a0e-9e3f/b/Makefile
          60 x-20260101-120000-0A1B2C/b/Makefile
        """,
        {
            name: f"nothing shows that '{name}/b/Makefile' is a result of a stage"
            for name in ("a", "2026-01-01", "digits-20260101", "0b54c2f6-6a5c-4a0e-9e3f", "x-20260101-120000-0A1B2C")
        },
    ),
    "what a kept run uses stays, directly and through others": (
        """
           1 new~/evaluate/1
           1 sources:new~/evaluate/1 < used~/train/1
          60 used~/train/1
          60 sources:used~/train/9 < through~/prepare/1
          60 through~/prepare/1
        - 60 unused~/train/1
        - 60 user~/of/unused
        - 60 sources:user~/of/unused < unused~/train/1
        """,
        {"used~": "used by new~/evaluate/1", "through~": "used by used~/train/9"},
    ),
    "so does what a run without results, a resumed run, and something else use": (
        """
           1 sources:new~/evaluate/1 < old~/train/1
          60 old~/train/1
          60 first~/train/1
          60 second~/train/1
           1 resumes:third~ ["second~", "first~"]
          60 older~/train/1
          60 sources:plain < older~/train/1
          60 mixed~/evaluate/1
          60 mixed~/notes.txt
          60 sources:mixed~/evaluate/1 < oldest~/train/1
          60 metadata:mixed~/evaluate/1
          60 oldest~/train/1
        """,
        {
            "plain": "'.torchx_kfp/runs/plain/0-start.sources.started' is not about a stage of a pipeline run",
            "old~": "used by new~/evaluate/1",
            "first~": "used by third~",
            "second~": "used by third~",
            "older~": "used by plain",
            "oldest~": "used by mixed~/evaluate/1",
            "mixed~": "'mixed~/notes.txt' is not a result of a stage",
        },
    ),
    "runs that use each other go": (
        """
        - 60 a~/s/1
        - 60 b~/s/1
        - 60 sources:a~/s/1 < b~/s/1
        - 60 sources:b~/s/1 < a~/s/1
        """,
        {},
    ),
    "what runs use that go is not read": (
        """
        - 60 old~/train/1
        - 60 sources:old~/s/1 "no entry"
          60 used~/train/1
           1 sources:new~/s/1 < used~/train/1
        """,
        {"used~": "used by new~/s/1"},
    ),
    "what killed writers left goes with the run": (
        """
        - 60 run~/train/1
        - 60 run~/train/.torchx_kfp-0123456789abcdef
        - 2 half~/train/.torchx_kfp-0123456789abcdef
          0.9 writing~/train/.torchx_kfp-0123456789abcdef
        - 60 .torchx_kfp/runs/run~/train/1/.torchx_kfp-0123456789abcdef
        """,
        {},
    ),
    "other files of the tracker stay": (
        """
        - 60 run~/train/1
          60 .torchx_kfp/0123456789abcdef
          60 .torchx_kfp/later/run~/train/1/1.metadata
          60 metadata:odd~/a/b/c
        """,
        {"odd~": "'.torchx_kfp/runs/odd~/a/b/c/1.metadata' is not about a stage of a pipeline run"},
    ),
    "a home directory loses nothing": (
        """
          60 .bashrc export A=1
          60 .aws/sso/cache {"token": "x"}
          60 .config/app/settings {"a": 1}
          60 Documents/letter.txt Dear
          60 project/src/package.json {"name": "x"}
          60 project/src/main.py print()
          60 data/flat/one.json {"a": 1}
          60 todo {"a": 1}
        """,
        {
            name: f"'{key}' is not a result of a stage"
            for name, key in {
                **{name: name for name in (".bashrc", "todo")},
                ".aws": ".aws/sso/cache",
                ".config": ".config/app/settings",
                "Documents": "Documents/letter.txt",
                "project": "project/src/main.py",
                "data": "data/flat/one.json",
            }.items()
        },
    ),
    "code goes that no run has": (
        """
        - 60 old~/train/1
        - 60 code:old~ [{"digest": "OLD"}, {"digest": "BOTH"}]
           1 code:new~ [{"digest": "BOTH"}]
        - 60 .torchx_kfp/workspaces/OLD.tar
          60 .torchx_kfp/workspaces/BOTH.tar
        - 60 .torchx_kfp/workspaces/UNKNOWN.tar
           1 .torchx_kfp/workspaces/TODAY.tar
          60 .torchx_kfp/workspaces/notes.tar
        """,
        {},
    ),
    **{
        f"nothing goes beside {key}": (
            f"60 {key}\n60 run~/train/1\n60 metadata:run~/train/1\n- 60 gone~/train/1",
            {"run~": f"'{key}' is not a result of a stage"},
        )
        for key in FOREIGN
    },
}
DIGESTS = {name: f"{number:064x}" for number, name in enumerate(["OLD", "BOTH", "UNKNOWN", "TODAY"])}


def full(text: str) -> str:
    """Write out the names of runs, and digests."""
    for name, digest in DIGESTS.items():
        text = text.replace(name, digest)
    return text.replace("~", MADE)


def key_of(name: str) -> str:
    """Return the key of an entry (``metadata:run~/train/1``), or the key itself."""
    field, _, run_id = full(name).partition(":")
    if field not in ENTRIES or not run_id:
        return full(name)
    return f".torchx_kfp/runs/{run_id}/{NAMES.get(field, f'1.{field}')}"


def content_of(name: str, more: str = "") -> str:
    """Return what a file holds: results, an entry, or what ``more`` says."""
    field = name.partition(":")[0]
    if more.startswith("<"):
        more = json.dumps([{"run_id": each, "artifact": None} for each in more[1:].split()])
    if field in ENTRIES:
        return json.dumps({field: json.loads(full(more)) if more else ENTRIES[field]})
    return full(more) or json.dumps({"loss": 0.1, "ok": True, "note": "x"})


def put(base: str | Path, *names: str) -> None:
    """Write results and entries as any program could, on any store."""
    filesystem, path = fsspec.core.url_to_fs(str(base))
    for name in names:
        place = f"{path}/{key_of(name)}"
        if not str(base).startswith("s3"):
            filesystem.makedirs(filesystem._parent(place), exist_ok=True)
        filesystem.pipe_file(place, content_of(name).encode())


def fill(base: Path, folder: str) -> set[str]:
    """Write the files of a folder, and return the keys that gc removes."""
    going = set()
    for line in folder.strip().splitlines():
        goes, _, rest = line.strip().rpartition("- ")
        age, name, more = (*rest.split(None, 2), "")[:3]
        path = base / key_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content_of(name, more))
        os.utime(path, (time.time() - float(age) * DAY,) * 2)
        going |= {key_of(name)} if goes or line.strip().startswith("-") else set()
    return going


def age(base: Path, days: float = 60) -> None:
    """Make all files old."""
    for path in base.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - days * DAY,) * 2)


def left(base: str | Path) -> list[str]:
    """Return the keys below the base, with short names of runs."""
    filesystem, path = fsspec.core.url_to_fs(str(base))
    return sorted(found[len(path.rstrip("/")) + 1 :].replace(MADE, "~") for found in filesystem.find(path))


def removed(found: Any) -> list[str]:
    return sorted(run["run"] for run in found["removed"])


@pytest.mark.parametrize("name", FOLDERS)
def test_what_goes_and_what_stays(name: str, gc: Gc, tmp_path: Path) -> None:
    folder, reasons = FOLDERS[name]
    base = tmp_path / "base"
    going = fill(base, folder)
    before = set(left(base))
    planned = gc(base, "--dry-run")
    assert set(left(base)) == before, "a dry run removes nothing"
    found = gc(base)
    assert {run["run"]: run["reason"] for run in found["kept"]} | found["left_alone"] == reasons
    assert set(left(base)) == before - {key.replace(MADE, "~") for key in going}
    for field in ("removed", "kept", "younger", "left_alone", "code"):
        assert planned[field] == found[field], field


def test_a_run_that_may_go_on_stays_with_what_it_reads(gc: Gc, tmp_path: Path) -> None:
    """A training takes longer than the age; a stage that has failed looks the same, so days count."""
    fill(
        tmp_path / "base",
        """
        2 source~/prepare/1
        2 run~/prepare/1
        2 sources:run~/train/1 < source~/prepare/1
        2 ended~/train/pod_0a1b2c3d_2
        2 sources:ended~/train/pod_0a1b2c3d
        2 sources:ended~/train/pod_0a1b2c3d_2
        8 failed~/prepare/1
        8 sources:failed~/train/1
        """,
    )
    found = gc(tmp_path / "base", older="1d")
    assert removed(found) == ["ended~", "failed~"], "the second attempt has results"
    assert {run["run"]: run["reason"] for run in found["kept"]} == {
        "run~": "may be going on: train has no results, and began 2d 00h ago",
        "source~": "used by run~/train/1",
    }


def test_code_of_the_last_day_stays_whatever_the_age(gc: Gc, tmp_path: Path) -> None:
    """The run may not have been recorded yet."""
    fill(tmp_path, "0.9 .torchx_kfp/workspaces/TODAY.tar\n1.1 .torchx_kfp/workspaces/OLD.tar")
    assert [each["digest"] for each in gc(tmp_path, older="1h")["code"]] == [DIGESTS["OLD"]]


def test_a_large_file_is_not_a_result(gc: Gc, tmp_path: Path) -> None:
    put(tmp_path, "run~/train/1", "run~/train/2")
    (tmp_path / key_of("run~/train/2")).write_text("x" * (1 << 20) + "x")
    age(tmp_path)
    assert gc(tmp_path)["left_alone"] == {"run~": "'run~/train/2' is larger than results can be"}
    assert left(tmp_path) == ["run~/train/1", "run~/train/2"]


def test_links_in_the_base_lose_nothing_behind_them(gc: Gc, tmp_path: Path) -> None:
    put(tmp_path / "base", "run~/train/1", "other~/train/1")
    put(tmp_path / "elsewhere", "train/1")
    age(tmp_path)
    for link, place in {"base/linked": "elsewhere", key_of("base/run~/train/2"): "elsewhere/train/1"}.items():
        (tmp_path / link).symlink_to(tmp_path / place)
        os.utime(tmp_path / link, (0, 0), follow_symlinks=False)
    found = gc(tmp_path / "base")
    assert removed(found) == ["other~", "run~"], "the link goes, not the file"
    assert found["left_alone"] == {
        "linked": "'linked' is not a result of a stage",
    }
    assert left(tmp_path / "elsewhere") == ["train/1"]


@pytest.mark.parametrize(
    ("key", "facts"),
    [("sources:new~/s/1", ["sources", "Remove"]), ("code:new~", ["new", "Remove"])],
)
def test_nothing_goes_where_use_cannot_be_read(key: str, facts: list[str], inside: Call, tmp_path: Path) -> None:
    folder = f'60 old~/train/1\n60 .torchx_kfp/workspaces/OLD.tar\n1 {key} [{{"size": 1}}]'
    fill(tmp_path / "base", folder)
    before = left(tmp_path / "base")
    done = inside("gc", "--tracker-base", str(tmp_path / "base"), "--yes", "--older-than", "30d")
    assert done.returncode == 1
    assert all(fact in done.stderr for fact in facts), done.stderr
    assert ".torchx_kfp/workspaces/" + full("OLD.tar") in left(tmp_path / "base")
    assert left(tmp_path / "base") == before


def test_on_every_store(base: str, gc: Gc, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are new on all of them, so the clock of gc goes ahead."""
    run = stage(base, f"run{MADE}/train/1", {"trials": (f"run{MADE}/trial/1", f"run{MADE}/trial/2")})
    run.put(loss=0.1)
    run.add_metadata(note="x")
    run.add_artifact("model", "s3://models/1")
    run.log(1, loss=0.5)
    run.flush()
    others = ["baseline", "experiment/1", "a/b/c/d", "local_cwd://torchx/app-1", "odd~/train/1"]
    put(base, *others, "two~/train/1", ".torchx_kfp/runs/two~/.torchx_kfp-0123456789abcdef")
    others.append("odd~/train/notes.txt")
    put(base, others[-1])
    found = gc(base)
    assert (found["removed"], found["younger"], sorted(found["left_alone"])) == (
        [],
        2,
        ["a", "baseline", "experiment", "local_cwd:", "odd~"],
    )
    ahead = time.time
    monkeypatch.setattr(time, "time", lambda: ahead() + 60 * DAY)
    found = gc(base)
    assert removed(found) == ["run~", "two~"]
    assert all(abs(each["modified"] - ahead()) < 300 for each in found["removed"])
    assert left(base) == sorted(map(os.path.normpath, others) if base.startswith("/") else others)


# On S3


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the clock of this process, not of the server, go ahead."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 60 * DAY)


@pytest.mark.usefixtures("ahead")
def test_few_requests(s3_base: str, s3_server: S3Server, gc: Gc) -> None:
    put(s3_base, *(f"run-{number}~/train/{execution}" for number in range(5) for execution in range(4)), "tags:run-1~")
    assert len(s3_server.requests(lambda: gc(s3_base, "--dry-run"))) <= 8
    assert len(s3_server.requests(lambda: gc(s3_base, older="90d"))) <= 8
    # Each run is listed again, and all are removed with one request.
    made = s3_server.requests(lambda: gc(s3_base))
    assert len(made) <= 12 + 5 * 7
    assert len([request for request in made if request.startswith("POST")]) <= 2
    assert left(s3_base) == []


@pytest.mark.usefixtures("ahead")
def test_s3_says_which_files_must_stay(s3_base: str, inside: Call) -> None:
    """The answer to the removal of many objects is a success, with the errors of some in its body."""
    import s3fs

    put(s3_base, "one~/train/1", "two~/a b?*[1]&<é>/1", "locked~/train/1")
    bucket = s3_base.split("/")[2]
    deny = {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject"}
    deny |= {"Resource": f"arn:aws:s3:::{bucket}/*/locked*"}
    policy = json.dumps({"Version": "2012-10-17", "Statement": [deny]})
    s3fs.S3FileSystem().call_s3("put_bucket_policy", Bucket=bucket, Policy=policy)
    done = inside("gc", "--tracker-base", s3_base, "--yes", "--older-than", "30d")
    assert done.returncode == 1
    assert f"No permission to remove {s3_base}/locked{MADE}/train/1" in done.stderr
    assert left(s3_base) == ["locked~/train/1"]


@pytest.mark.usefixtures("ahead")
@pytest.mark.parametrize("status", [403, 501])
def test_a_server_without_the_removal_of_many(status: int, s3_base: str, proxy: Proxy, inside: Call, gc: Gc) -> None:
    put(s3_base, "one~/train/1", "two~/train/1")
    proxy.refused = {"POST": status}
    assert removed(gc(s3_base)) == ["one~", "two~"]
    assert left(s3_base) == []
    put(s3_base, "one~/train/1")
    proxy.refused = {"POST": status, "DELETE": 403}
    done = inside("gc", "--tracker-base", s3_base, "--yes", "--older-than", "30d")
    assert done.returncode == 1
    assert f"No permission to remove {s3_base}/one{MADE}/train/1" in done.stderr
