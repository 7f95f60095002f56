"""Which runs a command line means: the tracker base, and runs by their name or its beginning."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from torchx_kfp.cli.display.output import print_message
from torchx_kfp.errors import CorruptResultError, TrackerError
from torchx_kfp.text import counted, printable

if TYPE_CHECKING:
    from torchx_kfp.tracking import FsspecResultTracker, Result

#: Seconds for which a store that fails is tried again: somebody waits at the terminal.
PATIENCE = 5.0
#: Names, or files, that a message lists.
_SHOWN = 5


def open_tracker(base: str) -> FsspecResultTracker:
    """The tracker of this base.

    Raises:
        TrackerError: the base is of an unknown protocol, or a local one that is no directory.
    """
    from torchx_kfp.tracking import FsspecResultTracker
    from torchx_kfp.tracking.stores.disk import DiskStore

    tracker = FsspecResultTracker(base, patience=PATIENCE)
    if isinstance(tracker.store, DiskStore):
        folder = tracker.store.folder
        if not os.path.lexists(folder):
            raise TrackerError(
                f"There is no directory {base!r}. A tracker base is a directory, or a URL such as s3://bucket/results: "
                "the one that the pipeline ran with."
            )
        if not os.path.isdir(folder):
            raise TrackerError(f"{base!r} is not a directory. Name the directory that the pipeline ran with.")
    return tracker


def pipeline_run(key: str) -> str:
    """The pipeline run of a stage's run id; of another key its first part, or all of an app handle."""
    return key if ":/" in key else key.partition("/")[0]


def parts(key: str) -> dict[str, str]:
    """What a run id tells by itself."""
    from torchx_kfp.tracking.stores.keys import run_id_parts

    found = run_id_parts(key)
    return dict(zip(("run", "stage", "execution"), found, strict=True)) if found else {}


def read(tracker: FsspecResultTracker, keys: Iterable[str]) -> dict[str, dict[str, Result]]:
    """The results of the keys; what is none is said on stderr, and left out."""
    corrupt: list[CorruptResultError] = []
    found = tracker.get_many(keys, corrupt=corrupt.append)
    for error in corrupt[:_SHOWN]:
        print_message(f"Left out: {error}")
    if len(corrupt) > _SHOWN:
        print_message(f"Left out, too: {counted(len(corrupt) - _SHOWN, 'more file')} that hold no results.")
    return found


def say_if_misplaced(base: str, keys: Collection[str]) -> None:
    """Say on stderr if the base is probably not the one that was meant, but a folder in it or above it."""
    if any(parts(key) or ":/" in key for key in keys):
        return
    above, _, name = base.rstrip("/").rpartition("/")
    deep = {key.partition("/")[0] for key in keys if key.count("/") >= 3}
    if len(deep) == 1 and all(key.count("/") >= 3 for key in keys):
        folder = f"{base.rstrip('/')}/{deep.pop()}"
        print_message(f"No run ids of stages are here, but deeper. Did you mean the tracker base {printable(folder)}?")
    elif name and all(key.count("/") == 1 for key in keys):
        message = f"No run ids of stages are here. If {name!r} is a pipeline run"
        print_message(f"{printable(message)}, the tracker base is {printable(above or '.')}.")
