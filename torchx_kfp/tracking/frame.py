"""Results as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.keys import run_id_parts
from torchx_kfp.tracking.values import Result

if TYPE_CHECKING:
    import pandas

_PARTS = ("run", "stage", "execution")


def frame(items: Iterable[tuple[str, Mapping[str, Result]]]) -> pandas.DataFrame:
    """A row for each key and a column for each name; see ``FsspecResultTracker.to_frame``."""
    try:
        import pandas
    except ImportError as error:
        raise TrackerError('A DataFrame needs pandas: pip install "torchx-kfp[pandas]".') from error
    found = list(items)  # a fan-in may have a run twice
    names = dict.fromkeys(name for _, results in found for name in results)
    parts = [name for name in _PARTS if name not in names and any(run_id_parts(key) for key, _ in found)]
    rows = []
    for key, results in found:
        own = dict(zip(_PARTS, run_id_parts(key) or (), strict=False))
        rows.append({**{name: own[name] for name in parts if name in own}, **results})
    index = pandas.Index([key for key, _ in found], name="run_id", dtype=object)
    return pandas.DataFrame(rows, index=index, columns=[*parts, *names])
