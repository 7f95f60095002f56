"""What a message says of a run that has no results: which others have."""

from __future__ import annotations

from torchx_kfp.errors import TrackerError
from torchx_kfp.text import listed
from torchx_kfp.tracking.tracker import FsspecResultTracker


def recorded_nearby(tracker: FsspecResultTracker, run_id: str) -> str:
    """Which runs have results: of the same stage, or else of the same pipeline run, or else any."""
    folder = run_id
    try:
        while (above := folder.rpartition("/")[0]) and not above.endswith("/"):
            folder = above
            there = tracker.keys(folder)
            if there:
                return f"These runs under {folder!r} have: {listed(map(repr, there))}."
        names = tracker.names()
    except TrackerError as error:
        return f"Which runs have results cannot be told: {error}"
    if not names:
        return "Nothing at all is there."
    none = f"No run under {folder!r} has. " if folder != run_id else ""
    return f"{none}What is there: {listed(map(repr, names))}."
