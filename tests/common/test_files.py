"""Files that are written atomically, in any place that users name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from torchx_kfp.common.files import write_file, write_output
from torchx_kfp.common.safe_files import special_kind


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_made_with_its_folders_and_replaced_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_file(bytes(path), b"old", durable=durable)
    with path.open("rb") as before:
        write_file(bytes(path), b"new", durable=durable)
        assert (before.read(), path.read_bytes()) == (b"old", b"new")
    assert os.listdir(path.parent) == ["file"]


def test_only_what_has_to_survive_a_crash_is_forced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    for _ in range(2):
        write_file(bytes(tmp_path / "a" / "file"), b"x", durable=False)
    assert not synced
    write_file(bytes(tmp_path / "a" / "file"), b"x")
    assert synced


def test_an_output_goes_to_the_file_behind_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    for content in (b"one", b"two"):
        write_output(tmp_path / "link", content)
        assert (tmp_path / "folder/file").read_bytes() == content
    assert (tmp_path / "link").is_symlink()


def test_an_output_keeps_the_permissions_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    (tmp_path / "file").touch(0o600)
    write_output(tmp_path / "file", b"x")
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600


def test_an_output_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_output(tmp_path / "typo" / "file", b"x")
    assert os.listdir(tmp_path) == []
    with pytest.raises(IsADirectoryError):
        write_output(tmp_path, b"x")


@pytest.mark.parametrize("to", ["a pipe", "a file"])
def test_an_output_to_dev_stdout(tmp_path: Path, to: str) -> None:
    code = "from torchx_kfp.common.files import write_output; write_output('/dev/stdout', b'text')"
    with (tmp_path / "file").open("wb") as file:
        done = subprocess.run([sys.executable, "-c", code], stdout=file if to == "a file" else -1, check=True)
    assert (done.stdout or (tmp_path / "file").read_bytes()) == b"text"
    assert stat.S_ISLNK(os.lstat("/dev/stdout").st_mode)


def test_an_output_in_a_folder_that_takes_no_new_files(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"something longer")
    code = (
        "import ctypes, os, sys; "
        "os.geteuid() or ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()); "
        "from torchx_kfp.common.files import write_output; write_output(sys.argv[1], b'text')"
    )
    tmp_path.chmod(0o555)
    try:
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "file")], check=True)
        refused = subprocess.run([sys.executable, "-c", code, str(tmp_path / "new")], capture_output=True, check=False)
    finally:
        tmp_path.chmod(0o755)
    assert (tmp_path / "file").read_bytes() == b"text"
    assert b"PermissionError" in refused.stderr


def test_kinds(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    kinds = {str(path): special_kind(path.lstat().st_mode) for path in (*tmp_path.iterdir(), Path("/dev/null"))}
    assert kinds == {f"{tmp_path}/pipe": "FIFO", f"{tmp_path}/link": "symbolic link", "/dev/null": "device"}
    assert special_kind(tmp_path.stat().st_mode) == ""
