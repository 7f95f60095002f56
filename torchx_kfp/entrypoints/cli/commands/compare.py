"""``torchx-kfp compare``: compare values of several runs, also for the page of runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.entrypoints.cli.display.printing import (
    Column,
    is_number,
    print_json,
    print_message,
    print_rows,
    show_value,
)
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import RunRecords, Selection, parts, titled
from torchx_kfp.execution.pipeline.walk import task_name
from torchx_kfp.tracking.record_tracker import Search

#: The kinds of facts, in the order of their rows; those of a metric are adjacent.
_KINDS = {
    "parameter": 0,
    "code": 0,
    "search": 1,
    "result": 2,
    "last": 3,
    "min": 3,
    "max": 3,
    "metadata": 4,
    "cached": 5,
}
#: The most characters of a value in a table, also in a pipe; JSON has all.
_LONGEST = 60
#: A fact about a run: stage, kind, name, and value.
_Fact = tuple[str, str, str, Any]


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN[/STAGE] ...")
@click.option("--changed", is_flag=True, help="Show only differences between the runs.")
@json_option
@finds_runs(recorded=True)
def compare_command(runs: tuple[str, ...], changed: bool, as_json: bool, lookup: Lookup) -> None:
    """Compare runs: their parameters, results, metrics logged by step, and metadata.

    Parameters are only compared if the runs themselves are found, not just their records. Cached stages have the
    results from the cache.

    \b
    torchx-kfp compare digits-20260101-120000 latest --changed
    torchx-kfp compare 'latest/train[0]' 'latest/train[1]'

    Results of several executions of a stage, as in a loop, are shown as minimum, maximum and count. For two runs, the
    last column is the second run's number minus the first run's. A metric that was logged by step is shown as its last
    value, minimum and maximum, and a search as its best objective, the parameters of its best trial, and the number of
    trials. The code of a run (--workspace) is shown as its digest. Long values are shortened; --json has all.
    """
    if len(runs) < 2:
        raise click.UsageError("Give two or more runs to compare; `torchx-kfp results` shows one.")
    compared = compare_runs(lookup.locate(*runs), changed=changed)
    labels, rows = compared.labels, compared.rows
    if not rows and all(one.keys for one in compared.chosen):
        print_message("The runs do not differ." if changed else "The runs have recorded nothing.")
    for it, one in zip(compared.located, compared.chosen, strict=True):
        if not one.keys:
            print_message(it.nothing_recorded(one.name))
    if as_json:
        print_json({"runs": labels, "rows": rows})
    else:
        print_rows(rows, compared.columns, dim=lambda row: not row["changed"])


@dataclass(frozen=True)
class Comparison:
    """The records of several runs.

    Attributes:
        rows: the values, grouped by stage: the output of ``--json``.
    """

    located: Sequence[RunRecords]
    chosen: Sequence[Selection]
    rows: Sequence[dict[str, Any]]

    @property
    def labels(self) -> list[str]:
        """The ids of the runs, with their compared parts."""
        return [one.name for one in self.chosen]

    @property
    def columns(self) -> list[Column]:
        """The columns of the table: runs have their names, with ids if names are not unique."""
        names = [it.name or label for it, label in zip(self.located, self.labels, strict=True)]
        runs = [
            (name if names.count(name) == 1 else titled(name, label), label)
            for name, label in zip(names, self.labels, strict=True)
        ]
        return [
            Column("stage", lambda row: task_name(row["stage"])),  # as in the tables of runs
            Column("name", _name_of),
            *(Column(title, partial(_text_of, label=label), right=True) for title, label in runs),
            *([Column("difference", _difference_of, right=True)] if len(runs) == 2 else []),
        ]


def compare_runs(located: Sequence[RunRecords], *, changed: bool) -> Comparison:
    """Compare runs, or parts of runs.

    Args:
        changed: omit values that are the same in all of them.

    Raises:
        UsageError: a run is given twice.
    """
    chosen = [it.choose() for it in located]
    labels = [one.name for one in chosen]
    if again := [label for label in labels if labels.count(label) > 1]:
        raise click.UsageError(f"The run {again[0]!r} is given twice. Name different runs.")
    # Single executions are compared even if their stages differ.
    stages = [parts(key).get("stage") for one in chosen for key in one.keys]
    is_alone = all(len(one.keys) == 1 for one in chosen) and len({*stages}) > 1
    rows = _rows(labels, [_facts(it, one, is_alone) for it, one in zip(located, chosen, strict=True)])
    return Comparison(located, chosen, [row for row in rows if row["changed"] or not changed])


def _facts(located: RunRecords, chosen: Selection, is_alone: bool) -> Iterator[_Fact]:
    """Yield the facts about a run; for a single execution (``is_alone``), without the stage's name."""
    tracker, keys = located.tracker, chosen.keys
    for name, value in located.arguments.items():
        # Code is compared by digest, not by URL.
        if name != TRACKER_BASE and not (isinstance(value, str) and workspace_digest(value)):
            yield "", "parameter", name, value
    if digest := _digest(located, chosen.name.partition("/")[0]):
        yield "", "code", "workspace", digest[:12]
    results, records = tracker.get_many(keys), tracker.records(keys, "metadata", "steps", "search")
    yield from _searches({key: records[key].search for key in keys})
    for key in keys:
        stage, record = "" if is_alone else parts(key).get("stage", ""), records[key]
        if record.search is None or not record.search.asked:  # an asking stage is represented by its search
            yield from ((stage, "result", name, value) for name, value in results.get(key, {}).items())
            yield from ((stage, "metadata", name, value) for name, value in record.metadata.items())
        for name, curve in record.steps.items():
            for kind, point in {"last": curve.last, "min": curve.min, "max": curve.max}.items():
                yield stage, kind, name, point.value
    for key in filter(chosen.cached.__contains__, keys):
        yield parts(key).get("stage", ""), "cached", "state", key.partition("/")[0]


def _searches(stated: Mapping[str, Search | None]) -> Iterator[_Fact]:
    """Yield the facts about the searches of a run; a search with several objectives has no best trial."""
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
        yield from ((search.name, "search", name, value) for name, value in values.items())


def _rows(labels: Sequence[str], runs: Sequence[Iterator[_Fact]]) -> list[dict[str, Any]]:
    """Return a row for each name in a stage, with the values of each run from all of the stage's executions."""
    found: dict[tuple[str, str, str], dict[str, list[Any]]] = {}
    for label, facts in zip(labels, runs, strict=True):
        for stage, kind, name, value in facts:
            found.setdefault((stage, kind, name), {each: [] for each in labels})[label].append(value)
    places = {stage: at for at, stage in enumerate(dict.fromkeys(stage for stage, _, _ in found))}
    rows = []
    for stage, kind, name in sorted(found, key=lambda fact: (places[fact[0]], _KINDS[fact[1]])):
        values = found[stage, kind, name]
        first, *others = values.values()
        changed = kind != "cached" and not all(_same(other, first) for other in others)
        rows.append({"stage": stage, "kind": kind, "name": name, "changed": changed, "values": values})
    return rows


def _same(values: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether values are the same, in any order; NaN equals NaN, and True differs from 1."""
    pairs = zip(sorted(values, key=repr), sorted(others, key=repr), strict=False)
    return len(values) == len(others) and all(
        isinstance(value, bool) == isinstance(other, bool) and (value == other or (value != value and other != other))
        for value, other in pairs
    )


def _name_of(row: Mapping[str, Any]) -> str:
    """Return the name in a row for people, with its kind."""
    kind = "" if row["kind"] in ("result", "cached") else f" ({row['kind']})"
    return f"{row['name']}{kind}"


def _text_of(row: Mapping[str, Any], label: str) -> str:
    """Return the values of a run in a row for people. A message names the origin of a cached stage."""
    values = row["values"][label]
    return ("cached" if values else "") if row["kind"] == "cached" else show_values(values)


def show_values(values: Sequence[Any]) -> str:
    """Format a value, or the range and number of several values."""
    if not values:
        return ""
    if len(values) == 1:
        return show_value(values[0], most=_LONGEST)
    if all(map(is_number, values)):
        ordered = sorted(value for value in values if value == value)  # without NaN; an int may be too large for isnan
        nan = len(values) - len(ordered)
        ends = " ... ".join(map(show_value, dict.fromkeys((ordered[0], ordered[-1])))) if ordered else "nan"
        return f"{ends} ({len(values)}{f', {nan} nan' if nan and ordered else ''})"
    different: list[Any] = []
    different += (value for value in values if value not in different)
    return (
        f"{show_value(different[0], most=_LONGEST)} ({len(values)})"
        if len(different) == 1
        else f"{len(different)} values ({len(values)})"
    )


def _difference_of(row: Mapping[str, Any]) -> str:
    """Return the second run's number minus the first run's, if both have one."""
    values = list(row["values"].values())
    if [len(found) for found in values] != [1, 1] or not all(is_number(value) for found in values for value in found):
        return ""
    try:
        difference = values[1][0] - values[0][0]
    except OverflowError:  # an int larger than any float
        return ""
    if difference != difference:
        return ""
    return f"{'+' if difference > 0 else ''}{show_value(difference)}" if difference else "0"


def _digest(located: RunRecords, run: str) -> str | None:
    """Return the digest of a run's code: that of the parameter ``workspace``, or of the first recorded code."""
    given = located.arguments.get(WORKSPACE)
    digest = workspace_digest(given) if isinstance(given, str) else None
    code = () if digest else located.tracker.record(run, "code").code
    return code[0].digest if code else digest
