"""``torchx-kfp import``, which imports the files of TorchX's own tracker."""

from __future__ import annotations

from pathlib import Path

import fsspec
from torchx.tracker.backend.fsspec import FsspecTracker

from tests.entrypoints.cli.conftest import Call
from torchx_kfp.tracking.backends.stage import create


def test_takes_over_what_torchx_has_stored(call: Call, tmp_path: Path) -> None:
    (tmp_path / "torchx").mkdir()
    theirs = FsspecTracker(fsspec.filesystem("file"), str(tmp_path / "torchx"))
    theirs.add_metadata("local_cwd://torchx/app-1", epochs=3)
    theirs.add_artifact("local_cwd://torchx/app-1", "model", "s3://models/1")
    for _ in range(2):
        done = call("import", "torchx", "results")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "Imported 2 files from 1 run.\n")
    assert create(str(tmp_path / "results")).metadata("local_cwd://torchx/app-1") == {"epochs": 3}


def test_there_is_nothing(call: Call, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call("import", "empty", "results")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: There are no files of TorchX's FsspecTracker under 'empty'. Name the folder")


def test_there_is_no_folder(call: Call) -> None:
    done = call("import", "nowhere", "results")
    assert (done.returncode, done.stdout) == (2, "")
    way_out = "Name the folder that is root_path in TorchX's configuration."
    assert done.stderr == f"Error: There is no directory 'nowhere'. {way_out}\n"
