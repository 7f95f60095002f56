"""``torchx-kfp show``: show everything that is known about one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.printing import print_json, show_results, show_value, sparkline
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.hosts import Flags, host_options
from torchx_kfp.cli.resolver import locate, records_argument
from torchx_kfp.cli.selection import choose_located, open_tracker, read, recorded, say_cached, titled
from torchx_kfp.errors import UnknownRunError
from torchx_kfp.text import counted, listed, moment

if TYPE_CHECKING:
    from torchx_kfp.tracking.statements.search import Search


@click.command("show", short_help="Show everything that is known about a stage's run.")
@records_argument("RUN")
@output_dir_option
@format_option("table", "json")
@host_options
def show_command(words: tuple[str, ...], output_dir: str, form: str, flags: Flags) -> None:
    """Show everything known about RUN: its start, results, metrics, metadata, artifacts, and the runs that it reads.

    RUN is the id of one stage's run, the beginning or end of such an id, or a name such as "latest/train": of a run on
    this machine, or on the KFP host. The run knows its tracker base. With TRACKER_BASE, RUN is any run that has
    recorded anything there. A cached stage of a run on this machine is shown with what it took from the cache, and a
    stage of a search with the search as it was then.

    \b
    torchx-kfp show latest/evaluate
    torchx-kfp show s3://bucket/results digits-20260101-120000/evaluate
    """
    from torchx_kfp.tracking.statements.artifacts import ARTIFACTS, METADATA, UNDELIVERED
    from torchx_kfp.tracking.statements.search import SEARCH
    from torchx_kfp.tracking.statements.sources import SOURCES, read_starts
    from torchx_kfp.tracking.statements.steps import STEPS

    [located] = locate(words, output_dir, flags)
    tracker = open_tracker(located.base)
    chosen = choose_located(located, recorded(tracker), tracker)
    run_id, *others = chosen.keys
    if others:
        raise UnknownRunError(
            f"{located.run!r} has {len(others) + 1:,} runs of stages under {located.base!r}: "
            f"{listed([run_id, *others])}. Give the run id of one."
        )
    found = {
        "run_id": run_id,
        "results": read(tracker, [run_id]).get(run_id, {}),
        "steps": {
            name: {
                "count": curve.count,
                "last": curve.last._asdict(),
                "min": curve.min._asdict(),
                "max": curve.max._asdict(),
                "points": [point._asdict() for point in curve.points],
            }
            for name, curve in STEPS.read(tracker.store, run_id).items()
        },
        "search": asdict(search) if (search := SEARCH.read(tracker.store, run_id)) else None,
        "metadata": METADATA.read(tracker.store, run_id),
        "artifacts": {
            name: {"path": artifact.path, "metadata": dict(artifact.metadata)}
            for name, artifact in ARTIFACTS.read(tracker.store, run_id).items()
        },
        "sources": [vars(source) for source in SOURCES.read(tracker.store, run_id)],
        "undelivered": UNDELIVERED.read(tracker.store, run_id),
        "started": vars(start) if (start := read_starts(tracker.store, [run_id]).get(run_id)) else None,
    }
    say_cached(chosen)
    if form == "json":
        print_json(found)
    else:
        _print_table(found, search, located.name)


def _print_table(found: dict[str, Any], search: Search | None, name: str) -> None:
    from torchx_kfp.cli.display.tables import print_table

    started = found["started"] or {}
    if started:
        started = {**started, "time": moment(started["time"])}
    rows = [
        *(("result", name, show_value(value)) for name, value in found["results"].items()),
        *(("steps", name, _curve(it)) for name, it in found["steps"].items()),
        *(("search", name, value) for name, value in (_search(search) if search else ())),
        *(("metadata", name, show_value(value)) for name, value in found["metadata"].items()),
        *(
            ("artifact", name, "  ".join(filter(None, [it["path"], it["metadata"] and json.dumps(it["metadata"])])))
            for name, it in found["artifacts"].items()
        ),
        *(
            ("reads", it["alias"] or "", it["run_id"] + (f"  [{it['artifact']}]" if it["artifact"] else ""))
            for it in found["sources"]
        ),
        *(("lacks records", name, why) for name, why in found["undelivered"].items()),
        *(("started", name, value) for name, value in started.items() if value is not None),
    ]
    print_table(("what", "name", "value"), rows, above=f"Run {titled(name, found['run_id'])}")


def _curve(found: dict[str, Any]) -> str:
    """Format a curve: ``▇▅▃▂▁  0.1 at 999, min 0.09 at 950, max 2.3 at 0  (1000 values)``."""
    line = sparkline([point["value"] for point in found["points"]])
    ends = [
        f"{label}{show_value(found[which]['value'])} at {found[which]['step']}"
        for which, label in (("last", ""), ("min", "min "), ("max", "max "))
    ]
    return "  ".join(filter(None, [line, ", ".join(ends), f"({counted(found['count'], 'value')})"]))


def _search(search: Search) -> Iterator[tuple[str, str]]:
    """Describe a search as far as the stage knew it: its best trials, and what it asked for."""
    from torchx_kfp.tracking.searches import best_trials, is_complete

    failed = sum(not is_complete(search, trial) for trial in search.trials)
    yield "trials", f"{len(search.trials):,}{f', of which {failed:,} failed' if failed else ''}"
    for trial in best_trials(search):
        yield "best", f"{show_results(trial.results)}  {show_results(trial.parameters)}  ({trial.run_id})"
    if search.asked:
        yield "asks for", f"{counted(len(search.asked), 'trial')}, round {search.round:,} of {search.rounds:,}"
