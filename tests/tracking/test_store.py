"""Calls that are made many at once, and files of NFS."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from torchx_kfp.common import safe_files
from torchx_kfp.tracking import FsspecResultTracker


def test_each_gives_what_was_done_before_the_error(tmp_path: Path) -> None:
    def divide(number: int) -> float:
        return 1 / (5 - number)

    store = FsspecResultTracker(tmp_path).store
    found = store.each(divide, range(20))
    assert [next(found) for _ in range(5)] == [1 / 5, 1 / 4, 1 / 3, 1 / 2, 1]
    with pytest.raises(ZeroDivisionError):
        next(found)
    assert list(store.each(str, range(1000))) == list(map(str, range(1000)))
    assert list(store.each(str, [])) == []


def test_a_file_that_another_client_of_nfs_has_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = FsspecResultTracker(tmp_path)
    tracker["run"] = {"x": 1}
    stale = iter([OSError(errno.ESTALE, os.strerror(errno.ESTALE))])
    opened = safe_files.open_regular

    def open_stale(*given: Any) -> int:
        for error in stale:
            raise error
        return opened(*given)

    monkeypatch.setattr("torchx_kfp.tracking.disk.open_regular", open_stale)
    assert tracker["run"] == {"x": 1}
