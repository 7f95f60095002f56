"""``torchx-kfp lineage``: show what a run was made from, and what was made from it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.graphs import artifact_label, dot, mermaid, runs_of, without_links_among
from torchx_kfp.cli.display.printing import (
    print_json,
    print_message,
    print_text,
    show_results,
    styled,
    terminal_width,
    without_run,
)
from torchx_kfp.cli.flags import format_option, output_dir_option
from torchx_kfp.cli.selection import choose, nothing, open_tracker, pipeline_run, read, say_cached
from torchx_kfp.text import counted, moment, printable, shorten

if TYPE_CHECKING:
    from rich.tree import Tree

    from torchx_kfp.tracking import Lineage, Link, Result
    from torchx_kfp.tracking.statements.sources import Start

    Results = Mapping[str, Mapping[str, Result]]

#: How many runs with one alias, and how many levels, a tree shows.
_WIDTH, _DEPTH = 20, 30
#: The characters by which rich indents a level, and the least that are left for a run.
_INDENT, _ROOM = 4, 40
#: How many characters of results, and of an artifact's path, a tree shows.
_RESULTS, _PATH = 60, 40


@click.command("lineage", short_help="Show what a run was made from, and what was made from it.")
@click.argument("tracker_base")
@click.argument("run")
@output_dir_option
@format_option(
    "tree", "mermaid", "dot", "json", text="The format of the output; mermaid and dot (Graphviz) are graphs."
)
def lineage_command(tracker_base: str, run: str, output_dir: str, form: str) -> None:
    """Show what RUN was made from and what was made from it, across all pipelines that use TRACKER_BASE.

    RUN is the id of one stage's run or of a pipeline run (all of its stages), the beginning or end of such an id, or
    "latest". For a run on this machine, the results that its cached stages took from the cache count too.

    \b
    torchx-kfp lineage s3://bucket/results digits-20260101-120000/evaluate

    Runs are shown with their results and artifacts: in brackets the artifacts that were used, in parentheses all
    artifacts of the run if it is not known which were used. RUN itself is shown with its time, host and image. A tree
    shows the first 20 runs that are read under one alias; the other formats show all.
    """
    from torchx_kfp.tracking.lineage import trace
    from torchx_kfp.tracking.statements.artifacts import ARTIFACTS
    from torchx_kfp.tracking.statements.kinds import run_ids as runs_with_entries
    from torchx_kfp.tracking.statements.sources import SOURCES, read_starts

    tracker = open_tracker(tracker_base)
    sources = SOURCES.read_many(tracker.store, corrupt=lambda error: print_message(f"Left out: {error}"))
    recorded = tracker.keys()
    named = (source.run_id for found in sources.values() for source in found)
    known = sorted({*recorded, *runs_with_entries(tracker.store), *named})
    if not known:
        raise nothing(tracker_base, run)
    chosen = choose(run, known, tracker, output_dir)
    say_cached(chosen)
    lineage = trace(chosen.keys, sources, lambda wanted: ARTIFACTS.read_many(tracker.store, wanted))
    if not lineage.links:
        print_message(
            f"Nothing is known about what {run!r} was made from, or what was made from it. "
            "Stages record it if they call current_run() or torchx.tracker.AppRun.run_from_env()."
        )
    results: Results = {}
    starts: Mapping[str, Start] = {}
    if form in ("tree", "json"):
        results = read(tracker, sorted({*recorded} & {*runs_of(lineage)}))
        # A tree shows only the starts of the requested runs.
        starts = read_starts(tracker.store, runs_of(lineage) if form == "json" else lineage.run_ids)
    if form == "json":
        print_json(_as_json(lineage, results, starts))
    elif form == "tree":
        _print_trees(lineage, results, starts)
    else:
        print_text(mermaid(lineage) if form == "mermaid" else dot(lineage))


def _as_json(lineage: Lineage, results: Results, starts: Mapping[str, Start]) -> dict[str, Any]:
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


def _print_trees(lineage: Lineage, results: Results, starts: Mapping[str, Start]) -> None:
    from torchx_kfp.cli.display.tables import rendered

    above: dict[str, list[Link]] = {}
    for link in lineage.links:
        above.setdefault(link.run_id, []).append(link)
    # The first tree already has the links among the requested runs.
    below: dict[str, list[Link]] = {}
    for link in without_links_among(lineage.run_ids, lineage.links):
        below.setdefault(link.source, []).append(link)
    makers = [run_id for run_id in lineage.run_ids if run_id in below]
    trees: list[tuple[str, _Forest, Sequence[str]]] = []
    if any(run_id in above for run_id in lineage.run_ids) or not makers:
        used = {link.source for link in lineage.links}
        ends = [run_id for run_id in lineage.run_ids if run_id not in used]
        trees.append(
            ("Made from", _Forest(above, lambda link: link.source, results, starts), [*ends, *lineage.run_ids])
        )
    if makers:
        trees.append(
            ("Used by", _Forest(below, lambda link: link.run_id, results, starts), makers if trees else lineage.run_ids)
        )
    for number, (heading, forest, run_ids) in enumerate(trees):
        if lineage.links:
            print_text("\n" * bool(number) + styled(heading, bold=True))
        for root in forest.roots(run_ids):
            print_text(rendered(forest.tree(root)))


@dataclass
class _Forest:
    """Trees that show each run once.

    Attributes:
        links: the links to the runs below a run, by its run id.
        other: returns the end of such a link that is below.
        results: the results of all runs.
        starts: the starts of runs that have recorded when and where they ran.
    """

    links: Mapping[str, list[Link]]
    other: Callable[[Link], str]
    results: Results
    starts: Mapping[str, Start]

    def __post_init__(self) -> None:
        self.shown: set[str] = set()

    def roots(self, run_ids: Iterable[str]) -> Iterator[str]:
        """Yield the first of these runs, and those that are not below an earlier root."""
        below: set[str] = set()
        for root in run_ids:
            if root in below:
                continue
            yield root
            waiting = [root]
            below.add(root)
            for run_id in waiting:  # the list grows
                found = {self.other(link) for link in self.links.get(run_id, ())} - below
                below |= found
                waiting += found

    def tree(self, root: str) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        width = terminal_width()
        depth = _DEPTH if width is None else max(2, min(_DEPTH, (width - _ROOM) // _INDENT))
        whole = Tree(Text(self._label(root, root)))
        self.shown.add(root)
        # Depth first and in the order of the lines, so that "above" is above; without recursion.
        waiting: list[tuple[Tree, Iterable[Link | str]]] = [(whole, iter(self._below(root)))]
        while waiting:
            place, rest = waiting[-1]
            link = next(iter(rest), None)
            if link is None:
                waiting.pop()
            elif isinstance(link, str):
                place.add(Text(link, style="dim"))
            else:
                run_id = self.other(link)
                again = run_id in self.shown
                new = place.add(Text(self._label(run_id, root, link, again)))
                if again:
                    continue
                self.shown.add(run_id)
                deeper = self.links.get(run_id) or run_id in self.starts
                if self.links.get(run_id) and len(waiting) >= depth:
                    new.add(Text("... and more; --format json shows all", style="dim"))
                elif deeper:
                    waiting.append((new, iter(self._below(run_id))))
        return whole

    def _below(self, run_id: str) -> list[Link | str]:
        """Return the lines below a run: its start, its links by alias, and a note in place of omitted links."""
        by_alias: dict[str | None, list[Link]] = {}
        for link in self.links.get(run_id, ()):
            by_alias.setdefault(link.alias, []).append(link)
        found: list[Link | str] = []
        if start := self.starts.get(run_id):
            image = f" in {printable(start.image)}" if start.image else ""
            found.append(f"started {moment(start.time)} on {printable(start.host)}{image}")
        for alias, links in by_alias.items():
            found += links[:_WIDTH]
            if len(links) > _WIDTH:
                what = f" of {printable(alias)}" if alias else ""
                found.append(f"... and {len(links) - _WIDTH:,} more{what}; --format json shows all")
        return found

    def _label(self, run_id: str, root: str, link: Link | None = None, again: bool = False) -> str:
        run = pipeline_run(root) if run_id != root else None
        results = "(shown above)" if again else without_run(show_results(self.results.get(run_id, {})), run)
        # Text for a pipe is not cut.
        cut = terminal_width() is not None
        if cut:
            results = shorten(results, _RESULTS)
        alias = f"{printable(link.alias)}: " if link and link.alias else ""
        artifacts = link.artifacts if link else ()
        shown = ", ".join(printable(artifact_label(artifact, _PATH if cut else None)) for artifact in artifacts[:3])
        more = f" and {counted(len(artifacts) - 3, 'more artifact')}" if len(artifacts) > 3 else ""
        brackets = "[]" if link and link.named else "()"
        artifact = f"{brackets[0]}{shown}{more}{brackets[1]}" if shown else ""
        return "  ".join(filter(None, [alias + without_run(printable(run_id), run), results, artifact]))
