"""A lineage as text for programs that draw graphs: Mermaid and Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from torchx_kfp.text import shorten

if TYPE_CHECKING:
    from torchx_kfp.tracking import Artifact, Lineage, Link

#: What means nothing to Mermaid inside of quotes, whatever its version.
_MERMAID_PLAIN = re.compile(r"[^\w /.:,=@+?!%()\[\]-]|[\r\n]")


def runs_of(lineage: Lineage) -> list[str]:
    """All runs of the lineage, from the farthest ancestor on."""
    return [*reversed(lineage.ancestors), *lineage.run_ids, *lineage.descendants]


def mermaid(lineage: Lineage) -> str:
    """A flow chart in Mermaid's language; the runs that were asked for are highlighted."""
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
    """A graph in Graphviz's language; the runs that were asked for are highlighted."""
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
    """The alias of a link, and its artifacts."""
    artifacts = ", ".join(artifact_label(artifact) for artifact in link.artifacts)
    artifacts = artifacts if link.named or not artifacts else f"({artifacts})"
    return f"{link.alias}: {artifacts}" if link.alias and artifacts else link.alias or artifacts


def artifact_label(artifact: Artifact, width: int | None = 48) -> str:
    """An artifact's name and the end of its path, which tells paths apart."""
    path = artifact.path if width is None else shorten(artifact.path, width, keep="end")
    return f"{artifact.name} {path}" if path else artifact.name


def without_links_among(runs: Sequence[str], links: Iterable[Link]) -> list[Link]:
    """The links that lead out of these runs, or lie beyond them."""
    inside = set(runs)
    return [link for link in links if not (link.source in inside and link.run_id in inside)]


def _mermaid_text(text: str) -> str:
    # Entities are Mermaid's own way to write what its grammar, or Markdown, would take for something else.
    return _MERMAID_PLAIN.sub(lambda found: f"#{ord(found[0])};", text)


def _quoted(text: str) -> str:
    return f'"{text}"'


def _dot_text(text: str) -> str:
    # Graphviz reads entities of HTML in every label.
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    # Of control characters Graphviz draws none.
    return _quoted("".join(character if character.isprintable() else " " for character in escaped))
