"""The values of several runs, name by name: what ``torchx-kfp compare`` and the page of runs show."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import is_number, show_value, sparkline
from torchx_kfp.entrypoints.cli.recorded import Chosen, Recorded, parts

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.code_comparison import CodeComparison
    from torchx_kfp.tracking.recorder import History, Search

_RESULT, _METADATA, _CACHED, _PARAMETER, _SEARCH, _TAG = "result", "metadata", "cached", "parameter", "search", "tag"
#: The values of a run, from all executions of a stage, by the stage and their name.
_Values = dict[tuple[str, str], list[Any]]


@dataclass(frozen=True)
class Compared:
    """One name in one stage: for each run, the values from all executions of the stage."""

    stage: str
    kind: str
    name: str
    values: tuple[tuple[Any, ...], ...]
    #: For each run, its curve as characters, if it has one.
    curves: tuple[str, ...] = ()

    @property
    def changed(self) -> bool:
        """Whether the values differ between the runs."""
        return self.kind != _CACHED and any(not _same(values, self.values[0]) for values in self.values[1:])

    @property
    def difference(self) -> int | float | None:
        """The second run's number minus the first run's, if both have one."""
        if [len(values) for values in self.values] != [1, 1]:
            return None
        (first,), (second,) = self.values
        if not is_number(first) or not is_number(second):
            return None
        try:
            return second - first  # type: ignore[no-any-return]
        except OverflowError:  # an int larger than any float
            return None

    def as_json(self, labels: Sequence[str]) -> dict[str, Any]:
        """Return the row for JSON."""
        values = dict(zip(labels, map(list, self.values), strict=True))
        return {"stage": self.stage, "kind": self.kind, "name": self.name, "changed": self.changed, "values": values}

    def texts(self) -> list[str]:
        """Return the row for people: the stage, the name, a text for each run, and the difference of two runs."""
        if self.kind == _CACHED:  # a message names the run that it comes from; here, the name would take the room
            values = ["cached" if values else "" for values in self.values]
        else:
            values = [
                " ".join(filter(None, [curve, show_values(values)]))
                for values, curve in zip_longest(self.values, self.curves, fillvalue="")
            ]
        name = self.name if self.kind in (_RESULT, _CACHED) else f"{self.name} ({self.kind})"
        return [self.stage, name, *values, *([_signed(self.difference)] if len(values) == 2 else [])]


@dataclass(frozen=True)
class Comparison:
    """What several runs have recorded.

    Attributes:
        located: the runs.
        chosen: their run ids.
        rows: the values, those of a stage together.
        codes: the code of each run but the first, compared with that of the first.
    """

    located: Sequence[Recorded]
    chosen: Sequence[Chosen]
    rows: Sequence[Compared]
    codes: Sequence[CodeComparison]

    @property
    def labels(self) -> list[str]:
        """The ids of the runs, with the parts of them that are compared."""
        return [one.name for one in self.chosen]


def compare_runs(located: Sequence[Recorded], *, changed: bool) -> Comparison:
    """Compare runs, or parts of runs.

    Args:
        located: the runs.
        changed: whether to leave out what is the same in all of them.

    Raises:
        UsageError: a run is given twice.
        TorchxKfpError: the records of a run cannot be read.
    """
    from torchx_kfp.entrypoints.cli.code_comparison import compare_code

    chosen = [it.choose() for it in located]
    labels = [one.name for one in chosen]
    if again := [label for label in labels if labels.count(label) > 1]:
        raise click.UsageError(f"The run {again[0]!r} is given twice. Name different runs.")
    whole = [label.partition("/")[0] for label in labels]
    codes = [compare_code((whole[0], whole[at]), (located[0], located[at])) for at in range(1, len(whole))]
    tags = [it.recorder.record(run, "tags").tags for it, run in zip(located, whole, strict=True)]
    rows = [
        *_rows(_PARAMETER, [_of_run(_arguments(it)) for it in located]),
        *_rows(_TAG, list(map(_of_run, tags))),
        *_recorded_rows(located, chosen),
        *_cached_rows(chosen),
    ]
    stages = dict.fromkeys(row.stage for row in rows)
    rows = [row for stage in stages for row in rows if row.stage == stage and (row.changed or not changed)]
    return Comparison(located, chosen, rows, codes)


def _of_run(values: Mapping[str, Any]) -> _Values:
    return {("", name): [value] for name, value in values.items()}


def _arguments(located: Recorded) -> dict[str, Any]:
    """Return the arguments of a run without the tracker base. In lists and dicts, KFP makes floats of all numbers."""
    found = {name: value for name, value in located.arguments.items() if name != TRACKER_BASE}
    return {name: _whole(value) if isinstance(value, (list, Mapping)) else value for name, value in found.items()}


def _whole(value: Any) -> Any:
    """Return the value with ints for floats that are whole, as far as a float tells them apart."""
    if isinstance(value, Mapping):
        return {name: _whole(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    is_whole = isinstance(value, float) and value.is_integer() and abs(value) <= 2**53
    return int(value) if is_whole else value


def _recorded_rows(located: Sequence[Recorded], chosen: Sequence[Chosen]) -> list[Compared]:
    """Return the rows of searches, results, metrics logged by step, and metadata."""
    keys = [one.keys for one in chosen]
    results: dict[str, Mapping[str, Any]] = {}
    metadata: dict[str, Mapping[str, Any]] = {}
    history: dict[str, History] = {}
    stated: dict[str, Search | None] = {}
    for base, recorder in {it.base: it.recorder for it in located}.items():
        of_base = (found for found, it in zip(keys, located, strict=True) if it.base == base)
        wanted = list(dict.fromkeys(key for found in of_base for key in found))
        results.update(recorder.get_many(wanted))
        records = recorder.records(wanted, "metadata", "steps", "search")
        metadata.update({key: records[key].metadata for key in wanted})
        history.update({key: records[key].steps for key in wanted})
        stated.update({key: records[key].search for key in wanted})
    for key, search in stated.items():
        if search is not None and search.asked:  # rows of the search show what came of it
            results.pop(key, None)
            metadata.pop(key, None)
    return [
        *_rows(_SEARCH, [_searches({key: stated.get(key) for key in found}) for found in keys]),
        *_rows(_RESULT, _by_stage(keys, results)),
        *_step_rows(keys, history),
        *_rows(_METADATA, _by_stage(keys, metadata)),
    ]


def _rows(kind: str, runs: Sequence[_Values]) -> list[Compared]:
    """Return a row for each name in the values of the runs."""
    names = dict.fromkeys(name for values in runs for name in values)
    return [
        Compared(stage, kind, name, tuple(tuple(values.get((stage, name), ())) for values in runs))
        for stage, name in names
    ]


def _by_stage(keys: Sequence[Sequence[str]], values: Mapping[str, Mapping[str, Any]]) -> list[_Values]:
    """Return the values of each run from those of its run ids."""
    stages = {key: parts(key).get("stage", "") for found in keys for key in found}
    # Single executions are compared even if their stages have different names.
    if all(len(found) == 1 for found in keys) and len(set(stages.values())) > 1:
        stages = dict.fromkeys(stages, "")
    runs: list[_Values] = []
    for found in keys:
        runs.append({})
        for key in found:
            for name, value in values.get(key, {}).items():
                runs[-1].setdefault((stages[key], name), []).append(value)
    return runs


def _cached_rows(chosen: Sequence[Chosen]) -> list[Compared]:
    """Return a row for each stage that was cached in one of the runs: the runs that its results come from."""
    runs: list[_Values] = []
    for one in chosen:
        runs.append({})
        for real, key in one.cached.items():
            runs[-1].setdefault((parts(key).get("stage", ""), "state"), []).append(real.partition("/")[0])
    return _rows(_CACHED, runs)


def _searches(stated: Mapping[str, Search | None]) -> _Values:
    """Return the values of each search of a run, by its name. A search of several objectives has no best trial."""
    from torchx_kfp.tracking.recorder import Search

    found: _Values = {}
    for search in Search.latest(stated).values():
        best = {name: search.best_in(name) for name in search.objectives}
        values: dict[str, Any] = {f"best {name}": it.results[name] for name, it in best.items() if it is not None}
        winners = search.best_trials()
        if len(best) > 1:
            values["trials on the Pareto front"] = len(winners)
        elif winners:
            values.update({f"best {name}": value for name, value in winners[0].parameters.items()})
        values["trials"] = len(search.trials)
        values["failed trials"] = sum(not search.is_complete(trial) for trial in search.trials)
        for name, value in values.items():
            found.setdefault((search.name, name), []).append(value)
    return found


def _step_rows(keys: Sequence[Sequence[str]], history: Mapping[str, History]) -> list[Compared]:
    def rows(kind: str, value: Callable[[Any], Any]) -> list[Compared]:
        values = {key: {name: value(curve) for name, curve in found.items()} for key, found in history.items()}
        return _rows(kind, _by_stage(keys, values))

    drawn = rows("", lambda curve: sparkline([point.value for point in curve.points]))
    last = [
        replace(row, curves=tuple(its[0] if len(its) == 1 else "" for its in lines.values))
        for row, lines in zip(rows("last", lambda curve: curve.last.value), drawn, strict=True)
    ]
    least, most = rows("min", lambda curve: curve.min.value), rows("max", lambda curve: curve.max.value)
    # The three rows of a name follow one another.
    return [row for three in zip(last, least, most, strict=True) for row in three]


def _same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Tell whether two runs have the same values: in any order, with NaN equal to NaN and True not equal to 1."""
    pairs = zip(sorted(values, key=repr), sorted(others, key=repr), strict=False)
    return len(values) == len(others) and all(
        isinstance(value, bool) == isinstance(other, bool) and (value == other or (value != value and other != other))
        for value, other in pairs
    )


def show_values(values: Sequence[Any], show: Callable[[Any], str] = show_value) -> str:
    """Format a value, or the range and number of several values."""
    if not values:
        return ""
    if len(values) == 1:
        return show(values[0])
    if all(map(is_number, values)):
        ordered = sorted(value for value in values if not math.isnan(value))
        nan = len(values) - len(ordered)
        ends = " ... ".join(map(show, dict.fromkeys((ordered[0], ordered[-1])))) if ordered else "nan"
        return f"{ends} ({len(values)}{f', {nan} nan' if nan and ordered else ''})"
    different: list[Any] = []
    different += (value for value in values if value not in different)
    return (
        f"{show(different[0])} ({len(values)})" if len(different) == 1 else f"{len(different)} values ({len(values)})"
    )


def _signed(difference: int | float | None) -> str:
    if difference is None or difference != difference:
        return ""
    return f"{'+' if difference > 0 else ''}{show_value(difference)}" if difference else "0"
