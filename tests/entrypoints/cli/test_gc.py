"""``torchx-kfp gc`` as a user calls it."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import S3Server
from tests.entrypoints.cli.conftest import Call
from torchx_kfp.common.text import size_text
from torchx_kfp.tracking import FsspecResultTracker, Source
from torchx_kfp.tracking.cleanup import Cleanup, OldRun
from torchx_kfp.tracking.lineage import add_source, record_start
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.statements import add_artifact, add_metadata

DAY = 86400


def age(base: Path, *runs: str, days: float) -> None:
    """Make the files of these runs this many days old."""
    for path in base.rglob("*"):
        if path.is_file() and any(run in str(path.relative_to(base)) for run in runs):
            os.utime(path, (time.time() - days * DAY,) * 2)


@pytest.fixture
def base(project: Path) -> Path:
    """Old runs, one of them in use, a young run, and a folder with other files."""
    tracker = FsspecResultTracker(project / "base")
    for key in ("old/prepare/1", "old/train/1", "old/train/2", "used/train/1", "new/evaluate/1"):
        tracker[key] = {"loss": 0.25, "note": "x" * 500}
    add_artifact(tracker.store, "old/train/1", "model", "s3://models/1", None)
    add_metadata(tracker.store, "older/train/1", {"note": "without results"})
    add_source(tracker.store, "new/evaluate/1", Source("used/train/1"))
    add_metadata(tracker.store, "used/train/1", {"note": "x"})
    (project / "base/notes").mkdir()
    (project / "base/notes/todo.txt").write_text("buy milk")
    tracker["baseline"] = {"loss": 1}
    age(project / "base", "older", days=800)
    age(project / "base", "old/", "old%", days=45.5)
    age(project / "base", "used/", "used%", days=40)
    age(project / "base", "baseline", days=90)
    return project / "base"


def test_code_goes_with_the_last_run_that_had_it(project: Path, inside: Call) -> None:
    base = project / "base"
    recorder = Recorder.open(str(base))
    for run, text in (("old", "x"), ("both", "y"), ("new", "y")):
        (project / "app.py").write_text(text)
        packed = recorder.pack_workspace(project)
        packed.upload()
        recorder.add_start(run, [packed.code], {})
    age(base, "runs/old", "runs/both", "workspaces/", days=60)
    size = size_text(packed.size)
    for words, what in ((["--dry-run"], "Would remove"), ([], "Removed")):
        done = inside("gc", "--yes", "base", "--older-than", "30d", *words)
        sentence = f"{what} 1 archive of code that no run uses any more, {size}."
        assert done.stdout.splitlines()[-1] == sentence, done.stderr
        assert f"{what} 2 pipeline runs" in done.stdout
        assert len(list((base / ".torchx_kfp/workspaces").iterdir())) == 2 - (what == "Removed")
    age(base, "runs/new", days=60)
    assert "Removed 1 archive" in inside("gc", "--yes", "base", "--older-than", "30d").stdout
    packed.upload()
    age(base, "workspaces/", days=60)
    # An archive without a run, of a submit that was killed.
    assert inside("gc", "--yes", "base", "--older-than", "30d").stdout.startswith("Removed 1 archive")
    assert "Nothing to remove" in inside("gc", "--yes", "base", "--older-than", "30d").stderr


def left(base: Path) -> list[str]:
    return sorted(
        str(path.relative_to(base)) for path in base.rglob("*") if path.is_file() and ".torchx" not in str(path)
    )


TABLE = """\
run     stages          files     size    age   what
────────────────────────────────────────────────────────────────────────────
used    train               2    559 B    40d   kept: used by new/evaluate/1
old     prepare train       4   1.7 kB    45d   would be removed
older   train               1     41 B   800d   would be removed
Would remove 2 pipeline runs, 5 files, 1.7 kB. 1 younger pipeline run kept.
"""
LEFT_ALONE = (
    "Left alone: baseline ('baseline' is not a result of a stage).\n"
    "Left alone: notes ('notes/todo.txt' is not a result of a stage).\n"
)


def test_a_dry_run_and_a_real_one_show_the_same(call: Call, base: Path) -> None:
    before = left(base)
    dry = call("gc", "--yes", "base", "--older-than", "30d", "--dry-run")
    assert dry.stdout == TABLE
    assert (dry.returncode, dry.stderr) == (0, LEFT_ALONE)
    assert left(base) == before

    done = call("gc", "--yes", "base", "--older-than", "30d")
    assert done.stdout == dry.stdout.replace("would be removed", "removed").replace("Would remove", "Removed")
    assert (done.returncode, done.stderr) == (0, LEFT_ALONE)
    assert left(base) == ["baseline", "new/evaluate/1", "notes/todo.txt", "used/train/1"]
    assert sorted(os.listdir(base / ".torchx_kfp")) == ["metadata", "sources"]

    again = call("gc", "--yes", "base", "--older-than", "30d")
    assert again.stdout.splitlines()[-1] == "Removed 0 pipeline runs, 0 files, 0 B. 1 younger pipeline run kept."
    assert again.returncode == 0


def test_a_run_that_is_written_meanwhile_stays(inside: Call, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = Cleanup.remove

    def late(cleanup: Cleanup) -> Iterator[OldRun]:
        FsspecResultTracker(base)["old/train/3"] = {"loss": 0.5}
        yield from remove(cleanup)

    monkeypatch.setattr(Cleanup, "remove", late)
    done = inside("gc", "--yes", "base", "--older-than", "30d")
    assert [line.split("   ")[-1].strip() for line in done.stdout.splitlines()[3:5]] == [
        "kept: in use, or changed meanwhile",
        "removed",
    ]
    assert [key for key in left(base) if key.startswith("old/")] == [
        "old/prepare/1",
        "old/train/1",
        "old/train/2",
        "old/train/3",
    ]


def test_files_of_artifacts_stay(inside: Call, base: Path, project: Path) -> None:
    (project / "model.pt").write_text("weights")
    (base / "models").mkdir()
    (base / "models/model.pt").write_text("weights")
    store = FsspecResultTracker(base).store
    add_artifact(store, "old/train/1", "beside", project / "model.pt", None)
    add_artifact(store, "old/train/1", "inside", base / "models/model.pt", None)
    age(base, "old%", "models", days=45)
    assert "Removed 2 pipeline runs, 7 files, " in inside("gc", "--yes", "base", "--older-than", "30d").stdout
    assert (project / "model.pt").read_text() == (base / "models/model.pt").read_text() == "weights"


def test_one_run(call: Call, base: Path) -> None:
    """A run that was named goes whatever its age, unless it is used; nothing goes unasked."""
    record_start(FsspecResultTracker(base).store, "new/train/1", {})
    before = left(base)
    unasked = call("gc", "base", "--run", "new")
    assert (unasked.returncode, left(base)) == (2, before)
    assert "new may be going on: train has no results, and began" in unasked.stderr
    assert "Nothing was removed: nobody can be asked. Give --yes." in unasked.stderr
    assert "kept: used by new/evaluate/1" in call("gc", "--yes", "base", "--run", "use").stdout
    assert "Removed 1 pipeline run" in call("gc", "--yes", "base", "--run", "new").stdout
    assert left(base) == [path for path in before if "new" not in path]
    assert "nothing is recorded" in call("gc", "--yes", "base", "--run", str(uuid.uuid4())).stderr
    assert "--run names the run" in call("gc", "base", "--run", "old", "--older-than", "1d").stderr


def test_a_question_explains_a_short_age(base: Path, project: Path) -> None:
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    program = "import sys; from torchx_kfp.entrypoints.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", program, "gc", "base", "--older-than", "1m"],
        cwd=project,
        stdin=theirs,
        capture_output=True,
        text=True,
    )
    for descriptor in (ours, theirs):
        os.close(descriptor)
    assert (done.returncode, done.stdout) == (1, "")
    assert "The age is 1m 00s: m means minutes. For months, give days, such as 30d.\n" in done.stderr
    assert "Remove 2 pipeline runs, older than 1m 00s: " in done.stderr
    assert done.stderr.endswith("Nothing was removed.\n")


def test_nothing_to_do(call: Call, base: Path) -> None:
    done = call("gc", "--yes", "base", "--older-than", "2000w")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == LEFT_ALONE + (
        "Nothing to remove under 'base': no pipeline run is that old (4 pipeline runs younger).\n"
    )


def test_an_empty_base(call: Call, project: Path) -> None:
    (project / "empty").mkdir()
    done = call("gc", "--yes", "empty", "--older-than", "1d")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "Nothing to remove under 'empty': no pipeline run is that old.\n"


@pytest.mark.parametrize("text", ["30", "d", "30 d", "-1d", "0d", "0.0h", "1y", "30D", "1e3d", "٣d", "", "nan"])
def test_ages_that_are_none(text: str, inside: Call, base: Path) -> None:
    before = left(base)
    done = inside("gc", "--yes", "base", f"--older-than={text}")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{text!r} is not a duration. Write, for example, 30d, 12h, 1h30m or 45s.\n" in done.stderr
    assert left(base) == before


@pytest.mark.parametrize(
    ("text", "runs"), {"40.5d": 2, "960h": 3, "5w": 3, "57000m": 3, "3456000s": 3, "7w": 1, "100w": 1}.items()
)
def test_ages(text: str, runs: int, inside: Call, base: Path) -> None:
    shown = inside("gc", "--yes", "base", "--older-than", text, "--dry-run").stdout.splitlines()
    assert len(shown) == 2 + runs + 1


def test_the_age_has_no_default(inside: Call, base: Path) -> None:
    done = inside("gc", "--yes", "base")
    assert done.returncode == 2
    assert "Say which runs are to go: --older-than AGE" in done.stderr


@pytest.mark.parametrize("words", [("nowhere",), ("base/baseline",), ("nope://x",)], ids=" ".join)
def test_wrong_bases(words: tuple[str, ...], inside: Call, base: Path) -> None:
    done = inside("gc", "--yes", *words, "--older-than", "1d")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("Error: ")


def test_many_things_that_are_left_alone(inside: Call, project: Path) -> None:
    for number in range(30):
        (project / f"base/thing-{number:02}").mkdir(parents=True)
        (project / f"base/thing-{number:02}/x").write_text("")
    lines = inside("gc", "--yes", "base", "--older-than", "1d").stderr.splitlines()
    assert len(lines) == 12
    assert lines[9] == "Left alone: thing-09 ('thing-09/x' is not a result of a stage)."
    assert lines[10].startswith("Also left alone: thing-10, thing-11, ")
    assert lines[10].endswith("thing-19 and 10 more.")


def test_json_has_every_run(inside: Call, base: Path) -> None:
    done = inside("gc", "--yes", "base", "--older-than", "30d", "--dry-run", "--format", "json")
    found = json.loads(done.stdout)
    assert [run["run"] for run in found["removed"]] == ["old", "older"]
    assert [(run["run"], run["reason"]) for run in found["kept"]] == [("used", "used by new/evaluate/1")]
    assert found["size"] == sum(run["size"] for run in found["removed"]) > 0
    assert (found["dry_run"], found["younger"], found["code"]) == (True, 1, [])
    assert set(found["left_alone"]) == {"notes", "baseline"}
    done = inside("gc", "--yes", "base", "--older-than", "9000d", "--format", "json")
    assert json.loads(done.stdout)["removed"] == []


def test_thousands_of_runs_are_summed_up(inside: Call, project: Path) -> None:
    tracker = FsspecResultTracker(project / "base")
    for number in range(45):
        tracker[f"run-20260101-120000-{number:06}/train/1"] = {"loss": 1}
    for user in ("new", "newer"):
        add_source(tracker.store, f"{user}/s/1", Source(f"run-20260101-120000-00000{len(user)}/train/1"))
    age(project / "base", "run-", days=50)
    age(project / "base", "%2F", days=0)
    done = inside("gc", "--yes", "base", "--older-than", "1d", "--dry-run")
    assert sum(line.startswith("run-") for line in done.stdout.splitlines()) == 40
    assert done.stdout.splitlines()[-3:] == [
        "5 older pipeline runs not shown: --format json has all.",
        "Would remove 43 pipeline runs, 43 files, 645 B. 2 younger pipeline runs kept.",
        "2 kept: used by others.",
    ]


@pytest.mark.parametrize("width", [80, 200])
def test_the_table_fits_the_terminal(width: int, terminal: Callable[..., str], project: Path) -> None:
    tracker = FsspecResultTracker(project / "base")
    for stage in ("prepare", "train-with-a-long-name", "evaluate-with-a-long-name", "deploy"):
        tracker[f"digits-20260101-120000-abcdef/{stage}/1"] = {"loss": 1}
    age(project / "base", "digits", days=50)
    shown = terminal(width, "gc", "--yes", "base", "--older-than", "1d", "--dry-run", NO_COLOR="1").splitlines()
    assert max(map(len, shown)) <= width
    row = "deploy evaluate-with-a-long-name prepare train-with-a-long-name"
    assert any(row in line for line in shown) == (width == 200)
    assert all(any(text in line for line in shown) for text in ("digits-20260101-120000-abcdef", "50d", "would be"))


def test_ctrl_c_says_what_is_gone(project: Path) -> None:
    tracker = FsspecResultTracker(project / "base")
    for run in ("one-20260101-120000-0a1b2c", "two-20260101-120000-0a1b2c"):
        tracker[f"{run}/train/1"] = {"loss": 1}
    program = (
        "import os, signal, sys, time\n"
        "from torchx_kfp.entrypoints.cli import main\n"
        "from torchx_kfp.tracking.disk import DiskStore\n"
        "remove = DiskStore.remove_old\n"
        "def stop(self, file):\n"
        "    if file.key.startswith('one-'): os.kill(os.getpid(), signal.SIGINT); time.sleep(5)\n"
        "    return remove(self, file)\n"
        "DiskStore.remove_old = stop\n"
        "main()\n"
    )
    age(project / "base", "one", days=3)
    age(project / "base", "two", days=2)
    done = subprocess.run(
        [sys.executable, "-c", program, "gc", "--yes", "base", "--older-than", "1d"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130
    assert done.stderr == "'base' has results but no .torchx_kfp. Is it a tracker base?\nInterrupted.\n"
    assert [line[:3] for line in done.stdout.splitlines()[2:4]] == ["two", "one"]
    assert done.stdout.count("not removed, or only in part: run gc again") == 2
    assert done.stdout.endswith("Removed 0 pipeline runs, 0 files, 0 B.\n")


def test_on_s3(call: Call, s3_base: str, s3_server: S3Server) -> None:
    tracker = FsspecResultTracker(s3_base)
    tracker["run/train/1"] = {"loss": 1}
    tracker["baseline"] = {"loss": 1}
    add_metadata(tracker.store, "run/train/1", {"note": "x"})
    nothing = call("gc", "--yes", s3_base, "--older-than", "1d")
    assert (nothing.returncode, nothing.stdout) == (0, "")
    time.sleep(1.1)  # the times of S3 are whole seconds
    done = call("gc", "--yes", s3_base, "--older-than", "1s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("Removed 1 pipeline run, 2 files, ")
    assert [file.key for file in tracker.store.files()] == ["baseline"]
    assert json.loads(call("results", s3_base, "--format", "json").stdout) == {"baseline": {"loss": 1}}
