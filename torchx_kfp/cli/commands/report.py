"""``torchx-kfp report``: a run as a page."""

from __future__ import annotations

from pathlib import Path

import click

from torchx_kfp.cli.display.output import print_text
from torchx_kfp.runs import OUTPUT_DIR


@click.command("report")
@click.argument("run")
@click.option("-o", "--output", metavar="FILE", help="The page.  [default: report.html in the run's folder]")
@click.option("--output-dir", metavar="DIR", default=OUTPUT_DIR, show_default=True, help="Where runs are.")
def report_command(run: str, output: str | None, output_dir: str) -> None:
    """Write RUN, a run on this machine, as one page of HTML that opens offline.

    It has the pipeline's graph, a timeline, the failed stages' logs, plots of results over the iterations of loops, and
    all parameters, results, artifacts and lineage. RUN is a run id, the beginning or end of one, "latest", or the path
    of a run's folder. A run that has not ended is shown as far as it has come.
    """
    from torchx_kfp.report import read_model, write_report
    from torchx_kfp.runs.history import find_run

    folder = find_run(output_dir, run).absolute()
    path = Path(output) if output else folder / "report.html"
    write_report(read_model(folder), path)
    print_text(str(path))
