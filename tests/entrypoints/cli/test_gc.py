"""``torchx-kfp gc``: code, artifacts, questions, S3. Its tables and errors are in ``tests/transcripts``."""

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import S3Server
from tests.entrypoints.cli.conftest import Call
from tests.transcripts import given
from tests.transcripts.given import age
from torchx_kfp.common.text import size_text
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.cleanup import Cleanup, OldRun
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.statements import add_artifact, add_metadata


@pytest.fixture
def base(project: Path) -> Path:
    given.old_runs(project)
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
