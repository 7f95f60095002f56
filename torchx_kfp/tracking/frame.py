"""Results as a pandas DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.extras import require
from torchx_kfp.tracking.stores.keys import run_id_parts
from torchx_kfp.tracking.values import Result

if TYPE_CHECKING:
    import pandas

    from torchx_kfp.tracking.steps import Curve

_PARTS = ("run", "stage", "execution")


def frame(items: Iterable[tuple[str, Mapping[str, Result]]]) -> pandas.DataFrame:
    """A row for each key and a column for each name; see ``FsspecResultTracker.to_frame``."""
    require("pandas", "A DataFrame")
    import pandas

    found = list(items)  # a fan-in may have a run twice
    names = dict.fromkeys(name for _, results in found for name in results)
    parts = [name for name in _PARTS if name not in names and any(run_id_parts(key) for key, _ in found)]
    rows = []
    for key, results in found:
        own = dict(zip(_PARTS, run_id_parts(key) or (), strict=False))
        rows.append({**{name: own[name] for name in parts if name in own}, **results})
    index = pandas.Index([key for key, _ in found], name="run_id", dtype=object)
    return pandas.DataFrame(rows, index=index, columns=[*parts, *names])


def history_frame(curves: Mapping[str, Curve]) -> pandas.DataFrame:
    """A row for each step and a column for each curve; see ``History.to_frame``."""
    require("pandas", "A DataFrame")
    import pandas

    columns = {name: {point.step: point.value for point in curve.points} for name, curve in curves.items()}
    steps = sorted({step for column in columns.values() for step in column})
    index = pandas.Index(steps, name="step", dtype="int64")
    return pandas.DataFrame(columns, index=index, columns=list(columns), dtype=float)
