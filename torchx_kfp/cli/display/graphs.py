"""Write a lineage for programs that draw graphs: Mermaid and Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx_kfp.text import shorten

if TYPE_CHECKING:
    from torchx_kfp.tracking import Artifact, Lineage, Link

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


def without_links_among(runs: Sequence[str], links: Iterable[Link]) -> list[Link]:
    """Return the links that have at least one end outside these runs."""
    inside = set(runs)
    return [link for link in links if not (link.source in inside and link.run_id in inside)]


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
