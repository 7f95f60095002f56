"""An archive of code is stored once and whole by submits that run at once; each is one write to the store."""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.facts import says
from tests.tracking.stages import started
from torchx_kfp.errors import ArgumentError
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, pack_folders

#: Packs the folder, tells so, waits for its turn, and stores it.
SUBMIT = """
import sys
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, pack_folders
packed = pack_folders(RecordTracker(sys.argv[1], patience=SHORT_PATIENCE).store, {sys.argv[2]: ""})
print("ready", flush=True)
sys.stdin.readline()
packed.upload()
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    for number in range(8):
        (folder / f"{number}.bin").write_bytes(bytes([number]) * 500_000)
    return folder


def archives(base: Path) -> list[Path]:
    """Return the archives that a stage may find, and check that each is the one that its name says."""
    found = list(base.glob(".torchx_kfp/workspaces/*.tar"))
    for path in found:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.stem
    return found


@pytest.mark.parametrize("there", ["nothing", "damaged"])
def test_submits_at_once_store_one_archive(tmp_path: Path, code: Path, there: str) -> None:
    base = tmp_path / "base"
    packed = pack_folders(RecordTracker(str(base), patience=SHORT_PATIENCE).store, {str(code): ""})
    if there == "damaged":
        Path(packed.url).parent.mkdir(parents=True)
        Path(packed.url).write_bytes(packed.archive[:-1])
    with ExitStack() as stack:
        submits = [stack.enter_context(started(SUBMIT, base, code)) for _ in range(4)]
        for submit in submits:
            assert submit.stdin is not None
            submit.stdin.write("\n")
            submit.stdin.flush()
        while any(submit.poll() is None for submit in submits):
            if there == "nothing":
                archives(base)
    assert [submit.returncode for submit in submits] == [0] * 4
    assert archives(base) == [Path(packed.url)]
    assert packed.upload() is False


def test_a_workspace_without_files(tmp_path: Path, code: Path) -> None:
    (code / ".torchxignore").write_text("*\n")
    with pytest.raises(ArgumentError, match=says(str(code), "no files", ".torchxignore")):
        pack_folders(RecordTracker(str(tmp_path), patience=SHORT_PATIENCE).store, {str(code): ""})
