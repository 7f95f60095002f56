"""Files that are written atomically, and folders of any depth."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from torchx_kfp.common.safe_files import UnfitFileError, copy, special_kind, verify_tree, write_file


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


@pytest.mark.parametrize(
    ("target", "is_inside"),
    [("../a", True), ("../none", True), ("..", True), ("/etc", False), ("../../top/a", False), ("up/../..", False)],
)
def test_links_in_a_folder_stay_inside_whatever_its_name(tmp_path: Path, target: str, is_inside: bool) -> None:
    folder = tmp_path / "top" / "folder"
    folder.mkdir(parents=True)
    (tmp_path / "top" / "a").write_text("a")
    (folder / "up").symlink_to("..")
    (folder / "link").symlink_to(target)
    with contextlib.nullcontext() if is_inside else pytest.raises(UnfitFileError, match="link"):
        verify_tree(str(tmp_path / "top"), str(tmp_path))


def test_a_whole_copy_of_a_folder_leaves_one_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    for content in ("first", "second"):
        (tmp_path / "source" / "a").write_text(content)
        copy(str(tmp_path / "source"), str(tmp_path / "copies" / "it"), target_root=str(tmp_path), whole=True)
        assert (tmp_path / "copies" / "it" / "a").read_text() == "first"
