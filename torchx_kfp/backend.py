"""The backend that ``torchx.tracker.AppRun.run_from_env()`` finds in a tracked stage: TorchX's own.

Artifacts, metadata and sources are kept below the tracker base, where the results' keys cannot be and no listing of
results looks.
"""

from __future__ import annotations

import os

from fsspec.core import url_to_fs
from torchx.tracker.backend.fsspec import FsspecTracker

from torchx_kfp import protocol
from torchx_kfp.tracking.artifacts import TRACKER_FOLDER
from torchx_kfp.tracking.store import open_store

_KEEP = f"{TRACKER_FOLDER}/.keep"


def create(config: str | None = None) -> FsspecTracker:
    """The backend of this process.

    TorchX calls it through the entry point ``torchx_kfp`` of the group ``torchx.tracker``.

    Args:
        config: the tracker base; ``TORCHX_TRACKER_BASE`` otherwise.

    Raises:
        TrackerError: there is no tracker base, or one that cannot be used.
    """
    base = config or os.environ.get(protocol.TRACKER_BASE, "")
    store = open_store(base)
    # TorchX's backend looks for its folder, and on object stores a folder is what it holds.
    if store.read(_KEEP) is None:
        store.write(_KEEP, b"")
    filesystem, path = url_to_fs(base)
    return FsspecTracker(filesystem, f"{path.rstrip('/')}/{TRACKER_FOLDER}")
