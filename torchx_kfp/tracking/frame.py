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
    found = dict(items)
    parts = {key: run_id_parts(key) for key in found}
    # A row, whose names are in the order of the first run that has them.
    rows = [{**dict(zip(_PARTS, parts[key] or (), strict=False)), **results} for key, results in found.items()]
    index = pandas.Index(list(found), name="run_id", dtype=object)
    table = pandas.DataFrame(rows, index=index)
    first = [name for name in _PARTS if name in table]
    return table[[*first, *(name for name in table if name not in first)]]
