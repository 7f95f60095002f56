"""``torchx-kfp compare``: show runs side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.printing import (
    is_number,
    print_csv,
    print_json,
    print_message,
    print_text,
    show_value,
    sparkline,
)
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.hosts import Flags, host_options
from torchx_kfp.cli.resolver import locate, records_argument
from torchx_kfp.cli.selection import Chosen, choose_located, open_tracker, parts, read, recorded, say_cached, titled
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE

if TYPE_CHECKING:
    from torchx_kfp.tracking.statements.search import Search
    from torchx_kfp.tracking.statements.steps import History

_RESULT, _METADATA, _CACHED, _PARAMETER, _SEARCH = "result", "metadata", "cached", "parameter", "search"
#: The rows of a metric that was logged for each step: its last, smallest and largest value.
_STEPS = ("last", "min", "max")


@dataclass(frozen=True)
class Row:
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


@click.command("compare", short_help="Show runs side by side.")
@records_argument("RUN RUN ...")
@click.option("--changed", is_flag=True, help="Show only what differs between the runs.")
@output_dir_option
@format_option("table", "json", "csv")
@host_options
def compare_command(words: tuple[str, ...], changed: bool, output_dir: str, form: str, flags: Flags) -> None:
    """Compare runs: their parameters, results, metrics logged by step, and metadata.

    RUN is the id of a pipeline run or of one stage's run, the beginning or end of such an id, "latest", or a part of
    these: a run on this machine, or on the KFP host. Each run knows its tracker base. With TRACKER_BASE, each RUN is
    any run that has recorded anything there, and parameters are not compared. Cached stages of a run on this machine
    count with the results that they took from the cache.

    \b
    torchx-kfp compare digits-20260101-120000 latest --changed
    torchx-kfp compare s3://bucket/results \\
        digits-20260101-120000 digits-20260102-120000

    A stage that ran several times, such as one in a loop, is shown as minimum, maximum and count. For two runs, the
    last column is the second run's number minus the first run's. A metric that was logged by step is shown as its
    curve and last value, its minimum and its maximum. A search is shown as its best objective, the parameters of its
    best trial, and its number of trials.
    """
    from torchx_kfp.tracking.statements.artifacts import METADATA
    from torchx_kfp.tracking.statements.search import SEARCH
    from torchx_kfp.tracking.statements.steps import STEPS

    located = locate(words, output_dir, flags, least=2, most=None)
    trackers = {it.base: open_tracker(it.base) for it in located}
    known = {base: recorded(tracker) for base, tracker in trackers.items()}
    chosen = [choose_located(it, known[it.base], trackers[it.base]) for it in located]
    labels = [one.name for one in chosen]
    again = next((label for label in labels if labels.count(label) > 1), None)
    if again is not None:
        raise click.UsageError(f"The run {again!r} is given twice. Name different runs.")
    keys = [one.keys for one in chosen]
    results: dict[str, Mapping[str, Any]] = {}
    metadata: dict[str, Mapping[str, Any]] = {}
    history: dict[str, History] = {}
    stated: dict[str, Search | None] = {}
    for base, tracker in trackers.items():
        wanted = list(
            dict.fromkeys(key for found, it in zip(keys, located, strict=True) if it.base == base for key in found)
        )
        results.update(read(tracker, wanted))
        metadata.update(METADATA.read_many(tracker.store, wanted))
        history.update(STEPS.read_many(tracker.store, wanted))
        stated.update(SEARCH.read_many(tracker.store, wanted))
    for key, search in stated.items():
        if search is not None and search.asked:  # rows of the search show what came of it
            results.pop(key, None)
            metadata.pop(key, None)
    rows = [
        *_parameter_rows([it.arguments for it in located]),
        *_search_rows(keys, stated),
        *_rows(keys, _RESULT, results),
        *_step_rows(keys, history),
        *_rows(keys, _METADATA, metadata),
        *_cached_rows(chosen),
    ]
    stages = dict.fromkeys(row.stage for row in rows)
    rows = [row for stage in stages for row in rows if row.stage == stage and (row.changed or not changed)]
    if not rows:
        print_message("The runs do not differ." if changed else "The runs have recorded nothing.")
    for one in chosen:
        say_cached(one)
    if form == "table":
        names = [it.name or run for it, run in zip(located, labels, strict=True)]
        labels = [
            name if names.count(name) == 1 else titled(name, run) for name, run in zip(names, labels, strict=True)
        ]
    {"json": _print_json, "csv": _print_csv, "table": _print_table}[form](labels, rows)


def _parameter_rows(arguments: Sequence[Mapping[str, Any]]) -> list[Row]:
    names = dict.fromkeys(name for its in arguments for name in its if name != TRACKER_BASE)
    return [
        Row("", _PARAMETER, name, tuple((its[name],) if name in its else () for its in arguments)) for name in names
    ]


def _cached_rows(chosen: Sequence[Chosen]) -> list[Row]:
    """Return a row for each stage that was cached in one of the runs: the runs that its results come from."""
    stages = dict.fromkeys(parts(key).get("stage", "") for one in chosen for key in one.cached.values())
    return [
        Row(
            stage,
            _CACHED,
            "state",
            tuple(
                tuple(real.partition("/")[0] for real, key in one.cached.items() if parts(key).get("stage") == stage)
                for one in chosen
            ),
        )
        for stage in stages
    ]


def _rows(keys: Sequence[Sequence[str]], kind: str, values: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    # Single executions are compared even if their stages have different names.
    single = all(len(found) == 1 for found in keys)
    stages = {key: parts(key).get("stage", "") for found in keys for key in found}
    if single and len(set(stages.values())) > 1:
        stages = dict.fromkeys(stages, "")
    names = dict.fromkeys((stages[key], name) for found in keys for key in found for name in values.get(key, ()))
    return [
        Row(
            stage,
            kind,
            name,
            tuple(
                tuple(values[key][name] for key in found if stages[key] == stage and name in values.get(key, ()))
                for found in keys
            ),
        )
        for stage, name in names
    ]


def _search_rows(keys: Sequence[Sequence[str]], stated: Mapping[str, Search | None]) -> list[Row]:
    """Return rows for each search, by its name. A search of several objectives has no best trial."""
    from torchx_kfp.tracking.searches import best_in, best_trials, current, is_complete

    rows: dict[tuple[str, str], list[list[Any]]] = {}
    for place, found in enumerate(keys):
        for search in current(stated.get(key) for key in found):
            best = {name: best_in(search, name) for name in search.objectives}
            values: dict[str, Any] = {f"best {name}": it.results[name] for name, it in best.items() if it is not None}
            winners = best_trials(search)
            if len(best) > 1:
                values["trials on the Pareto front"] = len(winners)
            elif winners:
                values.update({f"best {name}": value for name, value in winners[0].parameters.items()})
            values["trials"] = len(search.trials)
            values["failed trials"] = sum(not is_complete(search, trial) for trial in search.trials)
            for name, value in values.items():
                rows.setdefault((search.name, name), [[] for _ in keys])[place].append(value)
    return [Row(search, _SEARCH, name, tuple(map(tuple, values))) for (search, name), values in rows.items()]


def _step_rows(keys: Sequence[Sequence[str]], history: Mapping[str, History]) -> list[Row]:
    kinds = [
        _rows(
            keys,
            kind,
            {key: {name: getattr(it, kind).value for name, it in found.items()} for key, found in history.items()},
        )
        for kind in _STEPS
    ]
    lines = {
        key: {name: sparkline([point.value for point in it.points]) for name, it in found.items()}
        for key, found in history.items()
    }
    drawn = _rows(keys, _STEPS[0], lines)
    kinds[0] = [
        replace(row, curves=tuple(its[0] if len(its) == 1 else "" for its in line.values))
        for row, line in zip(kinds[0], drawn, strict=True)
    ]
    # The three rows of a name follow one another.
    return [row for rows in zip(*kinds, strict=True) for row in rows]


def _same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    # The order of executions may differ between two runs.
    return len(values) == len(others) and all(map(_equal, sorted(values, key=repr), sorted(others, key=repr)))


def _equal(value: Any, other: Any) -> bool:
    if isinstance(value, bool) != isinstance(other, bool):
        return False
    return bool(value == other) or (value != value and other != other)  # NaN equals NaN


def _print_table(labels: Sequence[str], rows: Sequence[Row]) -> None:
    from torchx_kfp.cli.display.tables import fits, print_table

    differing = len(labels) == 2
    cells = [
        [
            row.stage,
            row.name if row.kind in (_RESULT, _CACHED) else f"{row.name} ({row.kind})",
            *(
                " ".join(filter(None, [curve, _show(values, show_value)]))
                for values, curve in zip_longest(row.values, row.curves, fillvalue="")
                if row.kind != _CACHED
            ),
            # A message names the run that it comes from; here, the name would take the room of values.
            *(("cached" if values else "") for values in row.values if row.kind == _CACHED),
            *([_signed(row.difference)] if differing else []),
        ]
        for row in rows
    ]
    dim = {number for number, row in enumerate(rows) if not row.changed}
    end = ["difference"] if differing else []
    columns = ["stage", "name", *labels, *end]
    if not fits(columns, cells, labels):
        # Names that are wider than their columns go above the table.
        short = [f"run {number}" for number in range(1, len(labels) + 1)]
        print_text("\n".join(f"{name}: {label}" for name, label in zip(short, labels, strict=True)))
        columns, labels = ["stage", "name", *short, *end], short
    if not fits(columns, cells, labels):
        cells = [[*row[:2], label, value] for row in cells for label, value in zip(labels, row[2:], strict=False)]
        dim = {place for place in range(len(cells)) if place // len(labels) in dim}
        columns, labels = ["stage", "name", "run", "value"], ["value"]
    # Values are not cut: two long texts that differ could look the same.
    print_table(columns, cells, right=[*labels, *end] if "run" not in columns else (), fold=labels, dim=dim)


def _print_csv(labels: Sequence[str], rows: Sequence[Row]) -> None:
    print_csv(
        ["stage", "kind", "name", *labels],
        ([row.stage, row.kind, row.name, *map(_cell, row.values)] for row in rows),
    )


def _print_json(labels: Sequence[str], rows: Sequence[Row]) -> None:
    print_json(
        {
            "runs": list(labels),
            "rows": [
                {
                    "stage": row.stage,
                    "kind": row.kind,
                    "name": row.name,
                    "changed": row.changed,
                    "values": dict(zip(labels, map(list, row.values), strict=True)),
                }
                for row in rows
            ],
        }
    )


def _cell(values: Sequence[Any]) -> Any:
    """Return a single value with its type, and several values as text."""
    return values[0] if len(values) == 1 else _show(values, str)


def _show(values: Sequence[Any], show: Callable[[Any], str]) -> str:
    """Format a value, or the range and number of several values."""
    if not values:
        return ""
    if len(values) == 1:
        return show(values[0])
    if all(map(is_number, values)):
        ordered = sorted(value for value in values if not math.isnan(value))
        nan = len(values) - len(ordered)
        ends = _between(ordered, show) if ordered else "nan"
        return f"{ends} ({len(values)}{f', {nan} nan' if nan and ordered else ''})"
    different: list[Any] = []
    different += (value for value in values if value not in different)
    return (
        f"{show(different[0])} ({len(values)})" if len(different) == 1 else f"{len(different)} values ({len(values)})"
    )


def _between(ordered: Sequence[Any], show: Callable[[Any], str]) -> str:
    return show(ordered[0]) if ordered[0] == ordered[-1] else f"{show(ordered[0])} ... {show(ordered[-1])}"


def _signed(difference: int | float | None) -> str:
    if difference is None or difference != difference:
        return ""
    return f"{'+' if difference > 0 else ''}{show_value(difference)}" if difference else "0"
