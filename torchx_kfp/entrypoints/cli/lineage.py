"""Show what a run was made from, and what was made from it: ``torchx-kfp show --lineage``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

from torchx_kfp.common.text import listed, printable
from torchx_kfp.entrypoints.cli.display.printing import (
    print_json,
    print_message,
    print_text,
    show_results,
    styled,
    without_run,
)
from torchx_kfp.entrypoints.cli.display.tables import rendered
from torchx_kfp.entrypoints.cli.recorded import Recorded, earlier_attempts
from torchx_kfp.tracking import Artifact, Lineage, Link, Result
from torchx_kfp.tracking.lineage import read_lineage
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.store import is_key, pipeline_run

#: Results by run id.
Results: TypeAlias = "Mapping[str, Mapping[str, Result]]"
#: Links by the run above them in a tree, each with the run below.
_Branches: TypeAlias = "dict[str, list[tuple[str, Link]]]"

#: How many runs with one alias, how many levels, and how many artifacts of a run a tree shows.
_WIDTH, _DEPTH, _ARTIFACTS = 20, 12, 3


def show_lineage(located: Recorded, *, as_json: bool) -> None:
    """Print the runs that a run, or a part of one, was made from, and those made from it.

    Runs are shown with their results and artifacts: in brackets the artifacts that were used, or in parentheses all
    artifacts of the run if the used ones are unknown. A tree has the first runs that are read under one alias; JSON has
    all, with their starts and code.
    """
    recorder = located.recorder
    sources = {run_id: record.sources for run_id, record in recorder.records(None, "sources").items()}
    named = {source.run_id for found in sources.values() for source in found}
    known = located.recorded() | sources.keys() | named
    chosen = located.choose(known)
    earlier = earlier_attempts(recorder, known, located.stages, located.earlier) - {*chosen.keys}
    sources = {run_id: found for run_id, found in sources.items() if run_id not in earlier}
    lineage = read_lineage(recorder.store, chosen.keys, sources)
    if not lineage.links:
        print_message(
            f"No lineage is recorded for {located.word!r}. "
            "Stages record it if they call current_run() or torchx.tracker.AppRun.run_from_env()."
        )
    # Other sources than runs have no results, and their names need not be keys.
    results = recorder.get_many(sorted({*recorder.keys()} & {*runs_of(lineage)}))
    if as_json:
        print_json(_as_json(lineage, results, recorder))
    else:
        _print_trees(lineage, results)


def _as_json(lineage: Lineage, results: Results, recorder: Recorder) -> dict[str, Any]:
    role = {**dict.fromkeys(lineage.ancestors, "ancestor"), **dict.fromkeys(lineage.run_ids, "asked")}
    runs = list(filter(is_key, runs_of(lineage)))
    records = recorder.records([*runs, *map(pipeline_run, runs)], "started", "code")

    def node(run_id: str) -> dict[str, Any]:
        started = records[run_id].started if run_id in records else None
        code = records[pipeline_run(run_id)].code if run_id in records else ()
        return {
            "execution_id": run_id,
            "role": role.get(run_id, "descendant"),
            "results": results.get(run_id, {}),
            "started": vars(started) if started else None,
            "code": list(map(asdict, code)),
        }

    links = [
        {**named_execution(vars(it)), "artifacts": list(map(_artifact_as_json, it.artifacts))} for it in lineage.links
    ]
    nodes = list(map(node, dict.fromkeys(runs_of(lineage))))
    return {"execution_ids": list(lineage.run_ids), "nodes": nodes, "links": links}


def named_execution(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts from the tracker, which has TorchX's ``run_id`` for the id of an execution, for our JSON."""
    return {"execution_id" if name == "run_id" else name: value for name, value in facts.items()}


def _artifact_as_json(artifact: Artifact) -> dict[str, Any]:
    return {**vars(artifact), "stored": artifact.stored.encode() if artifact.stored else None}


def runs_of(lineage: Lineage) -> list[str]:
    """Return all runs of the lineage, the farthest ancestor first."""
    return [*reversed(lineage.ancestors), *lineage.run_ids, *lineage.descendants]


def _print_trees(lineage: Lineage, results: Results) -> None:
    """Print what the requested runs were made from, and what was made from them."""
    asked = set(lineage.run_ids)
    above: _Branches = {}
    below: _Branches = {}
    for link in lineage.links:
        above.setdefault(link.run_id, []).append((link.source, link))
        # The first tree already has the links among the requested runs.
        if not asked.issuperset((link.source, link.run_id)):
            below.setdefault(link.source, []).append((link.run_id, link))
    used = {link.source for link in lineage.links}
    makers = [run_id for run_id in lineage.run_ids if run_id in below]
    forests = [("Used by", below, makers)] if makers else []
    if not asked.isdisjoint(above) or not makers:
        last = lineage.run_ids[::-1]
        ends = [run_id for run_id in last if run_id not in used]
        forests.insert(0, ("Made from", above, [*ends, *last]))
    for number, (heading, branches, run_ids) in enumerate(forests):
        if lineage.links:
            print_text("\n" * bool(number) + styled(heading, bold=True))
        shown: set[str] = set()
        for root in run_ids:
            if root not in shown:
                print_text(_drawn(root, branches, shown, results))


def _drawn(root: str, branches: _Branches, shown: set[str], results: Results) -> str:
    """Draw the runs below a run, each once: ``shown`` has those in earlier trees, and gets those in this one."""
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, run_id: str, level: int) -> None:
        found = branches.get(run_id, ())
        counts: Counter[str | None] = Counter()
        for other, link in found if level <= _DEPTH else ():
            counts[link.alias] += 1
            again = other in shown
            shown.add(other)
            if counts[link.alias] <= _WIDTH:
                new = tree.add(Text(_label(other, root, results, link, again)))
                if not again:
                    grow(new, other, level + 1)
        more = [
            f"{count - _WIDTH:,} more of {alias or 'no alias'}" for alias, count in counts.items() if count > _WIDTH
        ]
        for text in more or (["more"] if found and level > _DEPTH else []):
            tree.add(Text(f"... and {printable(text)}; --json shows all", style="dim"))

    whole = Tree(Text(_label(root, root, results)))
    shown.add(root)
    grow(whole, root, 1)
    return rendered(whole)


def _label(run_id: str, root: str, results: Results, link: Link | None = None, again: bool = False) -> str:
    run = pipeline_run(root) if run_id != root else None
    its = "(shown above)" if again else without_run(show_results(results.get(run_id, {})), run)
    alias = f"{printable(link.alias)}: " if link and link.alias else ""
    used = printable(listed((f"{it.name} {it.path}".strip() for it in (link.artifacts if link else ())), _ARTIFACTS))
    if used:
        used = f"[{used}]" if link and link.named else f"({used})"
    return "  ".join(filter(None, [alias + without_run(printable(run_id), run), its, used]))
