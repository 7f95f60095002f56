"""Show what a run was made from, and what was made from it: ``torchx-kfp show --lineage``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from torchx_kfp.common.text import listed, moment, printable
from torchx_kfp.entrypoints.cli.display.printing import (
    print_json,
    print_message,
    print_text,
    show_results,
    styled,
    without_run,
)
from torchx_kfp.entrypoints.cli.recorded import earlier_attempts

if TYPE_CHECKING:
    from rich.tree import Tree

    from torchx_kfp.entrypoints.cli.recorded import Recorded
    from torchx_kfp.tracking import Lineage, Link, Result
    from torchx_kfp.tracking.lineage import Start
    from torchx_kfp.tracking.recorder import Code

#: Results by run id.
Results: TypeAlias = "Mapping[str, Mapping[str, Result]]"
#: Code by pipeline run.
Codes: TypeAlias = "Mapping[str, Sequence[Code]]"
#: Links by the run above them in a tree, each with the run below.
_Branches: TypeAlias = "dict[str, list[tuple[str, Link]]]"

#: How many runs with one alias, how many levels, and how many artifacts of a run a tree shows.
_WIDTH, _DEPTH, _ARTIFACTS = 20, 12, 3


def show_lineage(located: Recorded, *, as_json: bool) -> None:
    """Print the runs that a run, or a part of one, was made from, and those made from it.

    Runs are shown with their results and artifacts: in brackets the artifacts that were used, or in parentheses all
    artifacts of the run if the used ones are unknown. The run itself is shown with its time, host, image and code. A
    tree has the first runs that are read under one alias; JSON has all.
    """
    from torchx_kfp.tracking.lineage import trace
    from torchx_kfp.tracking.records import artifacts_of
    from torchx_kfp.tracking.store import is_key, pipeline_run

    recorder = located.recorder
    sources = {run_id: record.sources for run_id, record in recorder.records(None, "sources").items()}
    named = {source.run_id for found in sources.values() for source in found}
    known = located.recorded() | sources.keys() | named
    chosen = located.choose(known)
    earlier = earlier_attempts(recorder, known, located.stages) - {*chosen.keys}
    sources = {run_id: found for run_id, found in sources.items() if run_id not in earlier}
    lineage = trace(chosen.keys, sources, partial(artifacts_of, recorder.store))
    if not lineage.links:
        print_message(
            f"No lineage is recorded for {located.word!r}. "
            "Stages record it if they call current_run() or torchx.tracker.AppRun.run_from_env()."
        )
    # Other sources than runs have no results, and their names need not be keys.
    results = recorder.get_many(sorted({*recorder.keys()} & {*runs_of(lineage)}))
    # A tree shows only the starts of the requested runs.
    runs = list(filter(is_key, runs_of(lineage) if as_json else lineage.run_ids))
    records = recorder.records([*runs, *map(pipeline_run, runs)], "started", "code")
    starts = {run_id: start for run_id in runs if (start := records[run_id].started)}
    codes = {run: records[run].code for run in map(pipeline_run, runs) if records[run].code}
    if as_json:
        print_json(_as_json(lineage, results, starts, codes))
    else:
        _print_trees(lineage, results, starts, codes)


def _as_json(lineage: Lineage, results: Results, starts: Mapping[str, Start], codes: Codes) -> dict[str, Any]:
    from torchx_kfp.tracking.store import pipeline_run

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
                "code": [asdict(code) for code in codes.get(pipeline_run(run_id), ())],
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


def runs_of(lineage: Lineage) -> list[str]:
    """Return all runs of the lineage, the farthest ancestor first."""
    return [*reversed(lineage.ancestors), *lineage.run_ids, *lineage.descendants]


def _print_trees(lineage: Lineage, results: Results, starts: Mapping[str, Start], codes: Codes) -> None:
    """Print what the requested runs were made from, and what was made from them."""
    from torchx_kfp.entrypoints.cli.display.tables import rendered

    asked = set(lineage.run_ids)
    above: _Branches = {}
    below: _Branches = {}
    for link in lineage.links:
        above.setdefault(link.run_id, []).append((link.source, link))
        # The first tree already has the links among the requested runs.
        if not asked.issuperset((link.source, link.run_id)):
            below.setdefault(link.source, []).append((link.run_id, link))
    makers = [run_id for run_id in lineage.run_ids if run_id in below]
    trees: list[tuple[str, _Forest, Sequence[str]]] = []
    if not asked.isdisjoint(above) or not makers:
        used = {link.source for link in lineage.links}
        ends = [run_id for run_id in lineage.run_ids if run_id not in used]
        trees.append(("Made from", _Forest(above, results, starts, codes), [*ends, *lineage.run_ids]))
    if makers:
        trees.append(("Used by", _Forest(below, results, starts, codes), makers if trees else lineage.run_ids))
    for number, (heading, forest, run_ids) in enumerate(trees):
        if lineage.links:
            print_text("\n" * bool(number) + styled(heading, bold=True))
        for root in forest.roots(run_ids):
            print_text(rendered(forest.tree(root)))


@dataclass
class _Forest:
    """Trees that show each run once; ``starts`` has the runs whose time, host and image are shown."""

    branches: _Branches
    results: Results
    starts: Mapping[str, Start]
    codes: Codes
    shown: set[str] = field(default_factory=set)

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
                found = {other for other, _ in self.branches.get(run_id, ())} - below
                below |= found
                waiting += found

    def tree(self, root: str) -> Tree:
        """Return the tree below a run."""
        from rich.text import Text
        from rich.tree import Tree

        def grow(tree: Tree, run_id: str, level: int) -> None:
            for line in self._below(run_id):
                if isinstance(line, str):
                    tree.add(Text(line, style="dim"))
                    continue
                other, link = line
                again = other in self.shown
                new = tree.add(Text(self._label(other, root, link, again)))
                if again:
                    continue
                self.shown.add(other)
                if self.branches.get(other) and level >= _DEPTH:
                    new.add(Text("... and more; --json shows all", style="dim"))
                else:
                    grow(new, other, level + 1)

        whole = Tree(Text(self._label(root, root)))
        self.shown.add(root)
        grow(whole, root, 1)
        return whole

    def _below(self, run_id: str) -> list[str | tuple[str, Link]]:
        """Return the lines below a run: its start, its links by alias, and a note in place of omitted links."""
        by_alias: dict[str | None, list[tuple[str, Link]]] = {}
        for other, link in self.branches.get(run_id, ()):
            by_alias.setdefault(link.alias, []).append((other, link))
        found: list[str | tuple[str, Link]] = []
        if start := self.starts.get(run_id):
            image = f" in {printable(start.image)}" if start.image else ""
            found.append(f"started {moment(start.time)} on {printable(start.host)}{image}")
            found += self._code(run_id)
        for alias, links in by_alias.items():
            found += links[:_WIDTH]
            if len(links) > _WIDTH:
                of_alias = f" of {printable(alias)}" if alias else ""
                found.append(f"... and {len(links) - _WIDTH:,} more{of_alias}; --json shows all")
        return found

    def _code(self, run_id: str) -> list[str]:
        from torchx_kfp.tracking.recorder import describe_code
        from torchx_kfp.tracking.store import pipeline_run

        described = map(describe_code, self.codes.get(pipeline_run(run_id), ()))
        return [f"code {printable(', '.join(its.values()))}" for its in described]

    def _label(self, run_id: str, root: str, link: Link | None = None, again: bool = False) -> str:
        from torchx_kfp.tracking.store import pipeline_run

        run = pipeline_run(root) if run_id != root else None
        results = "(shown above)" if again else without_run(show_results(self.results.get(run_id, {})), run)
        alias = f"{printable(link.alias)}: " if link and link.alias else ""
        artifacts = [f"{it.name} {it.path}".strip() for it in (link.artifacts if link else ())]
        used = printable(listed(artifacts, _ARTIFACTS))
        if used:
            used = f"[{used}]" if link and link.named else f"({used})"
        return "  ".join(filter(None, [alias + without_run(printable(run_id), run), results, used]))
