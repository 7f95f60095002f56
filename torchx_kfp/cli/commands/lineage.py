"""``torchx-kfp lineage``: show what a run was made from, and what was made from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.attempts import earlier_attempts
from torchx_kfp.cli.display.printing import print_json, print_message, print_text
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.hosts import Flags, host_options
from torchx_kfp.cli.resolver import locate, records_argument
from torchx_kfp.cli.selection import choose_located, open_tracker, read, recorded, say_cached

if TYPE_CHECKING:
    from torchx_kfp.cli.display.lineage import Results
    from torchx_kfp.tracking import Lineage
    from torchx_kfp.tracking.statements.sources import Start


@click.command("lineage", short_help="Show what a run was made from, and what was made from it.")
@records_argument("RUN")
@output_dir_option
@format_option(
    "tree", "mermaid", "dot", "json", text="The format of the output; mermaid and dot (Graphviz) are graphs."
)
@host_options
def lineage_command(words: tuple[str, ...], output_dir: str, form: str, flags: Flags) -> None:
    """Show what RUN was made from and what was made from it, across all pipelines that use its tracker base.

    RUN is the id of one stage's run or of a pipeline run (all of its stages), the beginning or end of such an id,
    "latest", or a part of these, such as "latest/evaluate": a run on this machine, or on the KFP host. The run knows
    its tracker base. With TRACKER_BASE, RUN is any run there. For a run on this machine, the results that its cached
    stages took from the cache count too.

    \b
    torchx-kfp lineage latest/evaluate
    torchx-kfp lineage s3://bucket/results digits-20260101-120000/evaluate

    Runs are shown with their results and artifacts: in brackets the artifacts that were used, in parentheses all
    artifacts of the run if it is not known which were used. RUN itself is shown with its time, host and image. A tree
    shows the first 20 runs that are read under one alias; the other formats show all.
    """
    from torchx_kfp.cli.display.lineage import dot, mermaid, print_trees, runs_of
    from torchx_kfp.tracking.lineage import trace
    from torchx_kfp.tracking.statements.artifacts import ARTIFACTS
    from torchx_kfp.tracking.statements.sources import SOURCES, read_starts

    [located] = locate(words, output_dir, flags)
    tracker = open_tracker(located.base)
    sources = SOURCES.read_many(tracker.store, corrupt=lambda error: print_message(f"Left out: {error}"))
    named = {source.run_id for found in sources.values() for source in found}
    known = recorded(tracker) | named
    chosen = choose_located(located, known, tracker)
    earlier = earlier_attempts(tracker.store, known, located.run_ids) - {*chosen.keys}
    sources = {run_id: found for run_id, found in sources.items() if run_id not in earlier}
    say_cached(chosen)
    lineage = trace(chosen.keys, sources, lambda wanted: ARTIFACTS.read_many(tracker.store, wanted))
    if not lineage.links:
        print_message(
            f"Nothing is known about what {located.run!r} was made from, or what was made from it. "
            "Stages record it if they call current_run() or torchx.tracker.AppRun.run_from_env()."
        )
    results: Results = {}
    starts: Mapping[str, Start] = {}
    if form in ("tree", "json"):
        results = read(tracker, sorted({*tracker.keys()} & {*runs_of(lineage)}))
        # A tree shows only the starts of the requested runs.
        starts = read_starts(tracker.store, runs_of(lineage) if form == "json" else lineage.run_ids)
    if form == "json":
        print_json(_as_json(lineage, results, starts))
    elif form == "tree":
        print_trees(lineage, results, starts)
    else:
        print_text(mermaid(lineage) if form == "mermaid" else dot(lineage))


def _as_json(lineage: Lineage, results: Results, starts: Mapping[str, Start]) -> dict[str, Any]:
    from torchx_kfp.cli.display.lineage import runs_of

    role = dict.fromkeys(lineage.run_ids, "asked")
    role = {**dict.fromkeys(lineage.ancestors, "ancestor"), **role}
    return {
        "run_ids": list(lineage.run_ids),
        "nodes": [
            {
                "run_id": run_id,
                "role": role.get(run_id, "descendant"),
                "results": results.get(run_id, {}),
                "started": vars(starts[run_id]) if run_id in starts else None,
            }
            for run_id in dict.fromkeys(runs_of(lineage))
        ],
        "links": [
            {
                "source": link.source,
                "run_id": link.run_id,
                "alias": link.alias,
                "artifacts": [vars(artifact) for artifact in link.artifacts],
                "named": link.named,
            }
            for link in lineage.links
        ],
    }
