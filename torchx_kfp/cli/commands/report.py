"""``torchx-kfp report``: write a run as an HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from torchx_kfp.cli.display.printing import print_bytes, print_text
from torchx_kfp.cli.flags import output_dir_option


@click.command("report", short_help="Write a run as an HTML page.")
@click.argument("run")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    help="Where to write the report; - is stdout.  [default: report.html in the run's folder]",
)
@output_dir_option
def report_command(run: str, output: str | None, output_dir: str) -> None:
    """Write RUN, a run on this machine, as one HTML page that opens offline.

    The page has the pipeline's graph, a timeline, the logs of failed stages, plots of results over the iterations of
    loops, and all parameters, results, artifacts and lineage. While a run is in progress, the page shows what has
    happened so far. RUN is a run id, the beginning or end of one, "latest", or the path of a run's folder.
    """
    from torchx_kfp.report import read_model, render, write_report
    from torchx_kfp.runs.history import find_run

    folder = find_run(output_dir, run).absolute()
    if output == "-":
        # Links are relative to the current folder. UTF-8 cannot encode lone surrogates in users' text.
        print_bytes(render(read_model(folder), Path.cwd()).encode("utf-8", "replace"))
        return
    path = Path(output) if output else folder / "report.html"
    write_report(read_model(folder), path)
    print_text(str(path))
