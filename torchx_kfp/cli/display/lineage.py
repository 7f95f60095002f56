"""Draw a lineage: as trees for a terminal, and as a graph for Mermaid and Graphviz."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.text import Text
from rich.tree import Tree

from torchx_kfp.cli.display.printing import print_text, show_results, styled, terminal_width, without_run
from torchx_kfp.cli.display.tables import rendered
from torchx_kfp.text import counted, moment, printable, shorten
from torchx_kfp.tracking import Artifact, Lineage, Link, Result
from torchx_kfp.tracking.statements.sources import Start
from torchx_kfp.tracking.stores.keys import pipeline_run

#: Results by run id.
Results: TypeAlias = Mapping[str, Mapping[str, Result]]

#: How many runs with one alias, and how many levels, a tree shows.
_WIDTH, _DEPTH = 20, 30
#: The characters by which rich indents a level, and the least that are left for a run.
_INDENT, _ROOM = 4, 40
#: How many characters of results, and of an artifact's path, a tree shows.
_RESULTS, _PATH = 60, 40
#: Matches characters to escape: all except those without a meaning inside quotes in any version of Mermaid.
_MERMAID_PLAIN = re.compile(r"[^\w /.:,=@+?!%()\[\]-]|[\r\n]")


def runs_of(lineage: Lineage) -> list[str]:
    """Return all runs of the lineage, the farthest ancestor first."""
    return [*reversed(lineage.ancestors), *lineage.run_ids, *lineage.descendants]


def mermaid(lineage: Lineage) -> str:
    """Write a flow chart for Mermaid; the requested runs are highlighted."""
    ids = {run_id: f"n{number}" for number, run_id in enumerate(runs_of(lineage))}
    lines = ["flowchart LR"]
    lines += [f'    {name}["{_mermaid_text(run_id)}"]' for run_id, name in ids.items()]
    for link in lineage.links:
        label = _mermaid_text(link_label(link))
        lines.append(f"    {ids[link.source]} -->{f'|{_quoted(label)}|' if label else ''} {ids[link.run_id]}")
    lines.append("    classDef asked stroke-width:3px,font-weight:bold")
    lines.append(f"    class {','.join(ids[run_id] for run_id in lineage.run_ids)} asked")
    return "\n".join(lines)


def dot(lineage: Lineage) -> str:
    """Write a graph for Graphviz; the requested runs are highlighted."""
    ids = {run_id: f"n{number}" for number, run_id in enumerate(runs_of(lineage))}
    asked = set(lineage.run_ids)
    lines = ["digraph lineage {", "    rankdir=LR", "    node [shape=box]"]
    for run_id, name in ids.items():
        lines.append(f"    {name} [label={_dot_text(run_id)}{', style=bold' if run_id in asked else ''}]")
    for link in lineage.links:
        label = link_label(link)
        lines.append(f"    {ids[link.source]} -> {ids[link.run_id]}{f' [label={_dot_text(label)}]' if label else ''}")
    return "\n".join([*lines, "}"])


def link_label(link: Link) -> str:
    """Return the label of a link: its alias and its artifacts."""
    artifacts = ", ".join(artifact_label(artifact) for artifact in link.artifacts)
    artifacts = artifacts if link.named or not artifacts else f"({artifacts})"
    return f"{link.alias}: {artifacts}" if link.alias and artifacts else link.alias or artifacts


def artifact_label(artifact: Artifact, width: int | None = 48) -> str:
    """Return the label of an artifact: its name and the end of its path, which tells paths apart."""
    path = artifact.path if width is None else shorten(artifact.path, width, keep="end")
    return f"{artifact.name} {path}" if path else artifact.name


def _mermaid_text(text: str) -> str:
    # As entities, Mermaid and Markdown do not read these characters as syntax.
    return _MERMAID_PLAIN.sub(lambda found: f"#{ord(found[0])};", text)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _dot_text(text: str) -> str:
    # Graphviz reads HTML entities in every label.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    # Graphviz does not draw control characters.
    return _quoted("".join(character if character.isprintable() else " " for character in escaped))


def print_trees(lineage: Lineage, results: Results, starts: Mapping[str, Start]) -> None:
    """Print what the requested runs were made from, and what was made from them.

    Args:
        lineage: the runs and their links.
        results: the results of all runs.
        starts: the starts to show: when and where a run started.
    """
    above: dict[str, list[Link]] = {}
    for link in lineage.links:
        above.setdefault(link.run_id, []).append(link)
    # The first tree already has the links among the requested runs.
    below: dict[str, list[Link]] = {}
    for link in _without_links_among(lineage.run_ids, lineage.links):
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


def _without_links_among(runs: Sequence[str], links: Iterable[Link]) -> list[Link]:
    """Return the links that have at least one end outside these runs."""
    inside = set(runs)
    return [link for link in links if not (link.source in inside and link.run_id in inside)]
