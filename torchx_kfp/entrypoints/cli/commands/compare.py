"""``torchx-kfp compare``: show runs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.comparison import compare_runs, show_values
from torchx_kfp.entrypoints.cli.display.printing import print_csv, print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.display.tables import print_rows
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
    last column is the second run's number minus the first run's. A metric that was logged by step is shown as its last
    value, its minimum and its maximum. A search is shown as its best objective, the parameters of its best trial, and
    its number of trials. The last line says which files differ of the code that travelled with the
    runs (--workspace); JSON names all of them.
    """
    if len(runs) < 2:
        raise click.UsageError("Give two or more runs to compare; `torchx-kfp results` shows one.")
    compared = compare_runs(lookup.locate(*runs), changed=changed)
    labels, rows = compared.labels, compared.rows
    if not rows and not compared.about_code():
        print_message("The runs do not differ." if changed else "The runs have recorded nothing.")
    for it, one in zip(compared.located, compared.chosen, strict=True):
        if not one.keys:
            print_message(it.nothing_recorded(one.name))
    if as_csv:
        cells = ([row["stage"], row["kind"], row["name"], *map(_cell, row["values"].values())] for row in rows)
        print_csv(["stage", "kind", "name", *labels], cells)
    elif as_json:
        print_json({"runs": labels, "rows": rows, "code": compared.codes})
    else:
        columns = compared.columns(_titles([it.name for it in compared.located], labels))
        print_rows(rows, columns, dim=lambda row: not row["changed"])
        for sentence in compared.about_code():
            print_text(printable(sentence))


def _titles(names: Sequence[str], runs: Sequence[str]) -> list[str]:
    """Return the names of runs, those that several have with the run."""
    names = [name or run for name, run in zip(names, runs, strict=True)]
    return [name if names.count(name) == 1 else titled(name, run) for name, run in zip(names, runs, strict=True)]


def _cell(values: Sequence[Any]) -> Any:
    """Return a single value with its type, and several values as text."""
    return values[0] if len(values) == 1 else show_values(values, str)
