"""``torchx-kfp results``: what the stages of runs have recorded."""

from __future__ import annotations

import difflib

import click

from torchx_kfp.cli.output import print_json, print_table, show_results
from torchx_kfp.errors import CorruptResultError, MissingResultsError
from torchx_kfp.tracking import FsspecResultTracker

#: Runs that a message lists.
_SHOWN = 5


@click.command("results")
@click.argument("tracker_base")
@click.argument("run", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: run id -> results.")
def results_command(tracker_base: str, run: str | None, as_json: bool) -> None:
    """Show what stages have recorded under TRACKER_BASE.

    RUN is a run of a pipeline, or the run id of one stage; without it, the runs that have results are listed. The
    tracker base is an fsspec URL or a directory.
    """
    tracker = FsspecResultTracker(tracker_base)
    run = run.rstrip("/") if run else run
    keys = tracker.keys(run)
    if run is not None and not keys and tracker.get(run):
        keys = [run]
    if not keys:
        raise MissingResultsError(_nothing(tracker, run))
    if run is None and not as_json:
        _list_runs(keys)
        return
    results = {}
    for key in keys:
        try:
            results[key] = tracker.get(key)
        except CorruptResultError as error:
            click.echo(f"Left out: {error}", err=True)
    if as_json:
        print_json(results)
        return
    print_table(("run id", "results"), [(key, show_results(found)) for key, found in results.items()])


def _list_runs(keys: list[str]) -> None:
    stages: dict[str, list[str]] = {}
    for key in keys:
        run, _, rest = key.partition("/")
        stages.setdefault(run, []).append(rest.partition("/")[0] or key)
    rows = [(run, str(len(names)), " ".join(dict.fromkeys(names))) for run, names in stages.items()]
    print_table(("run", "with results", "stages"), rows, right=("with results",))


def _nothing(tracker: FsspecResultTracker, run: str | None) -> str:
    base = tracker.tracker_base
    there = [name.rstrip("/") for name in tracker.names()]
    if not there:
        return f"There are no results under {base!r}. Is it the tracker base that the pipeline ran with?"
    near = difflib.get_close_matches(run or "", there, n=_SHOWN, cutoff=0.0) if len(there) > _SHOWN else there
    more = f" and {len(there) - len(near)} more" if len(there) > len(near) else ""
    return f"There are no results of {run!r} under {base!r}. Runs that have some: {', '.join(near)}{more}."
