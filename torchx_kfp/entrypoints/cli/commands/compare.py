"""``torchx-kfp compare``: show runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.comparison import Compared, compare_runs, show_values
from torchx_kfp.entrypoints.cli.display.printing import print_csv, print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.flags import csv_option, json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import titled


@click.command("compare")
@click.argument("runs", nargs=-1, metavar="RUN[/STAGE] ...")
@click.option("--changed", is_flag=True, help="Show only differences between the runs.")
@json_option
@csv_option
@finds_runs(recorded=True)
def compare_command(runs: tuple[str, ...], changed: bool, as_json: bool, as_csv: bool, lookup: Lookup) -> None:
    """Compare runs: their parameters, tags, results, metrics logged by step, and metadata.

    Parameters are compared if the runs themselves are found, and not only their records. Cached stages of a run on this
    machine count with the results that they took from the cache.

    \b
    torchx-kfp compare digits-20260101-120000 latest --changed
    torchx-kfp compare 'latest/train[0]' 'latest/train[1]'

    A stage that ran several times, such as one in a loop, is shown as minimum, maximum and count. For two runs, the
    last column is the second run's number minus the first run's. A metric that was logged by step is shown as its
    curve and last value, its minimum and its maximum. A search is shown as its best objective, the parameters of its
    best trial, and its number of trials. The last line says which files differ of the code that travelled with the
    runs (--workspace); JSON names all of them.
    """
    if len(runs) < 2:
        raise click.UsageError("Give two or more runs to compare; `torchx-kfp results` shows one.")
    compared = compare_runs(lookup.locate(*runs), changed=changed)
    labels, rows, codes = compared.labels, compared.rows, compared.codes
    if not rows and not any(map(str, codes)):
        print_message("The runs do not differ." if changed else "The runs have recorded nothing.")
    for it, one in zip(compared.located, compared.chosen, strict=True):
        one.say_cached()
        if not one.keys:
            print_message(it.nothing_recorded(one.name))
    if as_csv:
        cells = ([row.stage, row.kind, row.name, *map(_cell, row.values)] for row in rows)
        print_csv(["stage", "kind", "name", *labels], cells)
    elif as_json:
        differing = {
            label: {"files": {file.name: file.what for file in code.files}, "problem": code.problem}
            for label, code in zip(labels[1:], codes, strict=True)
        }
        print_json({"runs": labels, "rows": [row.as_json(labels) for row in rows], "code": differing})
    else:
        _print_table(_titles([it.name or run for it, run in zip(compared.located, labels, strict=True)], labels), rows)
        for code in filter(str, codes):
            between = f" ({code.runs[0]} and {code.runs[1]})" if len(codes) > 1 else ""
            print_text(f"{printable(str(code))}{between}")


def _titles(names: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return the names of runs, those that several have with the run."""
    return [name if names.count(name) == 1 else titled(name, run) for name, run in zip(names, runs, strict=True)]


def _print_table(labels: Sequence[str], rows: Sequence[Compared]) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import fits, print_table

    differing = len(labels) == 2
    cells = [row.texts() for row in rows]
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


def _cell(values: Sequence[Any]) -> Any:
    """Return a single value with its type, and several values as text."""
    return values[0] if len(values) == 1 else show_values(values, str)
