"""Files that are written atomically, and read if they are regular files of their folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchx_kfp.common.safe_files import UnfitFileError, read_bytes, special_kind, write_file


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_made_with_its_folders_and_replaced_whole(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "a" / "b" / "file"
    write_file(path, b"old", durable=durable)
    with path.open("rb") as before:
        write_file(path, b"new", durable=durable)
        assert (before.read(), path.read_bytes()) == (b"old", b"new")
    assert os.listdir(path.parent) == ["file"]


def test_what_is_no_file_or_folder_is_named_by_its_kind(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("nowhere")
    kinds = {str(path): special_kind(path.lstat().st_mode) for path in (*tmp_path.iterdir(), Path("/dev/null"))}
    assert kinds == {f"{tmp_path}/pipe": "FIFO", f"{tmp_path}/link": "symbolic link", "/dev/null": "device"}
    assert special_kind(tmp_path.stat().st_mode) == ""


def test_a_secret_is_for_its_owner_from_the_first_byte_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []
    monkeypatch.setattr(os, "fchmod", lambda file, mode: modes.append(os.fstat(file).st_mode & 0o777))
    write_file(tmp_path / "token", b"secret", permissions=0o600)
    assert modes == [0o600]


def test_a_file_is_read_if_it_is_a_regular_one_of_its_folder(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "inner", outside):
        folder.mkdir(parents=True)
        (folder / "file").write_text(folder.name)
    os.mkfifo(root / "pipe")
    for name, target in (("in", "inner/file"), ("out", "../outside/file"), ("way", "../outside"), ("loop", "loop")):
        (root / name).symlink_to(target)
    (root / "zero").symlink_to("/dev/zero")
    for number in range(2000):  # more than Python's stack has room for
        (root / f"{number}").symlink_to(f"{number + 1}")
    assert read_bytes(f"{root}/in", str(root), limit=99) == b"inner"
    assert read_bytes(f"{root}/out", limit=99) == b"outside"
    for name, fact in (
        ("out", "link out of"),
        ("way/file", "link out of"),
        ("inner/../../outside/file", "link out of"),
        ("pipe", "FIFO"),
        ("inner", "folder"),
        ("zero", "link out of"),
        ("loop", "Too many levels"),
        ("0", "Too many levels"),
    ):
        with pytest.raises(OSError, match=fact):
            read_bytes(f"{root}/{name}", str(root), limit=99)
    for path, fact in ((root / "zero", "device"), (root / "in", "larger")):
        with pytest.raises(UnfitFileError, match=fact):
            read_bytes(str(path), limit=1)
