"""``torchx-kfp report``: write a run as an HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from torchx_kfp.entrypoints.cli.display.printing import print_bytes, print_text
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, say_latest


@click.command("report")
@click.argument("run")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where to write the report; - is stdout.  [default: report.html in the run's folder; for a run on KFP, "
    "<pipeline>-<run id>.html]",
)
@finds_runs()
def report_command(run: str, output: str | None, lookup: Lookup) -> None:
    """Write RUN as one HTML page that works offline.

    The page has the pipeline's graph, a timeline, the logs of failed stages, plots of results over the items of loops,
    and all parameters, results, artifacts and lineage. It can also be written while the run is in progress.
    """
    from torchx_kfp.execution.report.model import read_for_page
    from torchx_kfp.execution.report.page import render, write_report

    source = lookup.find(run)
    if output is not None:  # otherwise, the path contains the run's id
        say_latest(run, source.run_id)
    read = read_for_page(source)
    if output == "-":
        # Links are relative to the current folder. UTF-8 cannot encode lone surrogates in users' text.
        print_bytes(render(read, Path.cwd()).encode("utf-8", "replace"))
        return
    print_text(str(write_report(read, output)))
