"""``torchx-kfp show``: show a run, all records of a stage, or the lineage of a run."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, TypeAlias

import click

from torchx_kfp.common.text import counted, duration, listed, moment, printable, without_passwords
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER, workspace_key
from torchx_kfp.entrypoints.cli.commands.runs import run_as_json
from torchx_kfp.entrypoints.cli.declared import describe, is_untracked, untracked_stages
from torchx_kfp.entrypoints.cli.display.printing import (
    print_facts,
    print_json,
    print_message,
    print_text,
    rendered,
    show_results,
    show_stored,
    show_value,
    styled,
    this_command,
    without_run,
)
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.entrypoints.cli.recorded import RunRecords, earlier_attempts, titled
from torchx_kfp.errors import ArgumentError, NotRecordedError, TrackerError, UnknownRunError
from torchx_kfp.execution.pipeline.walk import without_indices
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.source import choose_stage
from torchx_kfp.tracking import Lineage, Link, Result
from torchx_kfp.tracking.curves import Curve
from torchx_kfp.tracking.lineage import read_lineage
from torchx_kfp.tracking.record_tracker import Artifact, Code, RecordTracker, Search, describe_code
from torchx_kfp.tracking.records import Record
from torchx_kfp.tracking.store import is_key, pipeline_run, run_id_parts


@click.command("show")
@click.argument("run", metavar="RUN[/STAGE]")
@click.option("--lineage", is_flag=True, help="Show the executions that RUN was made from, and those made from it.")
@json_option
@finds_runs(recorded=True)
def show_command(run: str, lineage: bool, as_json: bool, lookup: Lookup) -> None:
    """Show RUN: its state, parameters and code, and its stages.

    For a stage, all records are shown: results, metrics, metadata, artifacts, parents, its start, and the code of its
    run. A cached stage has the records from the cache, a stage of a search the search at that time. A stage without
    a tracker base has its state, inputs, outputs and artifacts.

    \b
    torchx-kfp show latest
    torchx-kfp show latest/evaluate
    torchx-kfp show 'latest/train[2]'
    torchx-kfp show latest/evaluate --lineage

    With --lineage, executions are shown with results and artifacts: used artifacts in brackets, or all artifacts in
    parentheses if the used ones are unknown. A tree shows the first 20 parents with one alias; JSON has all, with
    their starts and code.
    """
    if not lineage and lookup.base is None:
        source, part = lookup.find_part(run)
        if not part:
            _describe_run(source.read(), lookup, as_json=as_json)
            return
        found = source.read()
        if is_untracked(found) or untracked_stages(found, part):
            _show_declared(describe(source, choose_stage(found, part)), as_json=as_json)
            return
    [located] = lookup.locate(run)
    if lineage:
        show_lineage(located, as_json=as_json)
        return
    tracker, chosen = located.tracker, located.choose()
    if not chosen.keys:
        raise NotRecordedError(located.nothing_recorded(chosen.name))
    execution_id, *others = chosen.keys
    stages = list(dict.fromkeys(parts[1] for key in chosen.keys if (parts := run_id_parts(key))))
    if len(stages) > 1:
        place = [*host_words(lookup.flags), "--tracker-base", located.base]
        one = this_command("show", f"{chosen.name}/{stages[0]}", *place)
        every = this_command("results", chosen.name, *place)
        raise UnknownRunError(
            f"{located.word!r} has records of {len(stages):,} stages under {located.base!r}: {listed(stages)}. "
            f"Name one: {one}. For the results of all: {every}"
        )
    if others:
        raise UnknownRunError(
            f"{located.word!r} has {len(others) + 1:,} executions under {located.base!r}: "
            f"{listed(map(located.shown, chosen.keys))}. Name one."
        )
    whole_id = pipeline_run(execution_id)
    records = tracker.records([whole_id, execution_id])
    record, whole = records[execution_id], records[whole_id]
    described = {
        "execution_id": execution_id,
        "results": tracker.get_many([execution_id]).get(execution_id, {}),
        "arguments": dict(record.arguments),
        "steps": {name: _curve_as_json(curve) for name, curve in record.steps.items()},
        "search": _search_as_json(record.search) if record.search else None,
        "metadata": record.metadata,
        "artifacts": {name: _artifact_as_json(it) for name, it in record.artifacts.items()},
        "sources": [named_execution(vars(source)) for source in record.sources],
        "code": [asdict(code) for code in whole.code],
        "started": vars(record.started) if record.started else None,
    }
    if as_json:
        print_json(described)
    else:
        _print_table(described, record.search, whole.code, record.artifacts, located.name)


def _show_declared(found: dict[str, Any], *, as_json: bool) -> None:
    """Show a stage without a tracker base."""
    if as_json:
        print_json(found)
        return

    def shown(value: Any) -> str:
        those = value if isinstance(value, list) else [value]
        is_file = all(isinstance(it, dict) and it.keys() == {"type", "path", "metadata"} for it in those)
        return ", ".join(f"{it['path']}  ({it['type']})" for it in those) if those and is_file else show_value(value)

    kinds = {"input": "inputs", "output": "outputs", "artifact": "artifacts"}
    own = ("state", "reason", "exit_code", "seconds", "log")
    rows = [
        *(("stage", name, str(found[name])) for name in own if found[name] not in (None, "")),
        *((kind, name, shown(value)) for kind, those in kinds.items() for name, value in found[those].items()),
    ]
    print_facts(rows, above=f"Stage {found['run']}/{found['stage']}")


def _code(codes: Iterable[Code]) -> Iterator[tuple[str, str, str]]:
    """Yield facts about the code of a run, with the path of the archive below the tracker base."""
    for code in codes:
        yield "code", "workspace", describe_code(code)
        yield "code", "archive", workspace_key(code.digest)


def _curve_as_json(curve: Curve) -> dict[str, Any]:
    ends = {"last": curve.last._asdict(), "min": curve.min._asdict(), "max": curve.max._asdict()}
    return {"count": curve.count, **ends, "points": [point._asdict() for point in curve.points]}


def _search_as_json(search: Search) -> dict[str, Any]:
    return {**asdict(search), "trials": [named_execution(asdict(trial)) for trial in search.trials]}


def _artifact_as_json(artifact: Artifact) -> dict[str, Any]:
    stored = {"stored": artifact.stored.encode()} if artifact.stored else {}
    return {"path": artifact.url, "metadata": dict(artifact.metadata), **stored}


def _print_table(
    found: dict[str, Any],
    search: Search | None,
    codes: Iterable[Code],
    artifacts: Mapping[str, Artifact],
    name: str,
) -> None:
    started = found["started"] or {}
    if started:
        started = {**started, "time": moment(started["time"])}
    rows = [
        *(("result", name, show_value(value)) for name, value in found["results"].items()),
        *(("argument", name, how) for name, how in found["arguments"].items()),
        *(("steps", name, _curve(it)) for name, it in found["steps"].items()),
        *(("search", name, value) for name, value in (_search(search) if search else ())),
        *(("metadata", name, show_value(value)) for name, value in found["metadata"].items()),
        *(("artifact", name, _artifact(it)) for name, it in artifacts.items()),
        *(
            ("reads", it["alias"] or "", it["execution_id"] + (f"  [{it['artifact']}]" if it["artifact"] else ""))
            for it in found["sources"]
        ),
        *_code(codes),
        *(("started", name, value) for name, value in started.items() if value is not None),
    ]
    print_facts(rows, above=f"Run {titled(name, found['execution_id'])}")


def _artifact(artifact: Artifact) -> str:
    metadata = json.dumps(dict(artifact.metadata), ensure_ascii=False) if artifact.metadata else ""
    return "  ".join(filter(None, [artifact.url, show_stored(artifact.stored), metadata]))


def _curve(found: dict[str, Any]) -> str:
    """Format a curve: ``0.1 at 999, min 0.09 at 950, max 2.3 at 0  (1000 values)``."""
    ends = [
        f"{label}{show_value(found[which]['value'])} at {found[which]['step']}"
        for which, label in (("last", ""), ("min", "min "), ("max", "max "))
    ]
    return f"{', '.join(ends)}  ({counted(found['count'], 'value')})"


def _search(search: Search) -> Iterator[tuple[str, str]]:
    """Describe a search at the time of the stage: its best trials, and the requested ones."""
    failed = sum(not search.is_complete(trial) for trial in search.trials)
    yield "trials", f"{len(search.trials):,}{f', of which {failed:,} failed' if failed else ''}"
    for trial in search.best_trials():
        yield "best", f"{show_results(trial.results)}  {show_results(trial.parameters)}  ({trial.run_id})"
    if search.asked:
        yield "asks for", f"{counted(len(search.asked), 'trial')}, round {search.round:,} of {search.rounds:,}"


def _describe_run(record: RunRecord, lookup: Lookup, *, as_json: bool) -> None:
    """Print a run's state, parameters and code, and the table of its stages."""
    from torchx_kfp.entrypoints.cli.display.summary import print_stages

    base, recorded = _recorded(record, lookup)
    result = record.run.result(time.time() if record.is_running else None)
    for sentence in record.corrupt:
        print_message(sentence)
    if as_json:
        stages = [
            {
                "stage": stage.name,
                "state": str(stage.state),
                "seconds": round(stage.duration, 3),
                "execution_id": stage.execution_id,
                "inputs": stage.inputs,
                "results": stage.measures,
                "reason": stage.reason,
                "code": stage.code,
            }
            for stage in result.stages
        ]
        own = {"tracker_base": base or None, "arguments": record.arguments}
        print_json({**run_as_json(record), **own, "code": [asdict(it) for it in recorded.code], "stages": stages})
        return
    facts = {
        "name": record.name,
        "pipeline": record.pipeline,
        "state": str(record.run.state),
        "started": moment(record.created),
        "took": duration(record.duration),
        "tracker base": without_passwords(base),
        "folder": "" if record.folder is None else str(record.folder),
        "page": record.link,
    }
    said = {TRACKER_BASE_PARAMETER} if base else set()
    if recorded.code:
        said.add(WORKSPACE_PARAMETER)
    of_stages = ((without_indices(stage.name), stage.code) for stage in result.stages)
    whole = [
        *(("run", name, value) for name, value in facts.items() if value),
        *(("parameter", name, show_value(value)) for name, value in record.arguments.items() if name not in said),
        *_code(recorded.code),
        *(("code", name, code) for name, code in dict.fromkeys(of_stages) if code),
    ]
    print_facts(whole, above=f"Run {record.run_id}")
    print_text("")
    print_stages(result.stages)


def _recorded(record: RunRecord, lookup: Lookup) -> tuple[str, Record]:
    """Return the run's tracker base, or "", and the record of the run as a whole."""
    base = ""
    try:
        base = lookup.base_of(record)
        return base, lookup.open(record).record(record.run_id)
    except ArgumentError:  # it has none, or several
        pass
    except TrackerError as error:
        print_message(f"The code is missing: {error}")
    return base, Record()


#: Results by execution id.
Results: TypeAlias = "Mapping[str, Mapping[str, Result]]"
#: Links by the parent in a tree, each with its child.
_Branches: TypeAlias = "dict[str, list[tuple[str, Link]]]"

#: The most executions with one alias, levels, and artifacts of an execution in a tree.
_WIDTH, _DEPTH, _ARTIFACTS = 20, 12, 3


def show_lineage(located: RunRecords, *, as_json: bool) -> None:
    """Print the executions that a run, or part of it, depends on, and those that depend on it."""
    tracker = located.tracker
    sources = {run_id: record.sources for run_id, record in tracker.records(None, "sources").items()}
    named = {source.run_id for found in sources.values() for source in found}
    known = located.recorded() | sources.keys() | named
    chosen = located.choose(known)
    earlier = earlier_attempts(tracker, known, located.stages, located.earlier) - {*chosen.keys}
    sources = {run_id: found for run_id, found in sources.items() if run_id not in earlier}
    lineage = read_lineage(tracker.store, chosen.keys, sources)
    if not lineage.links:
        print_message(
            f"No lineage is recorded for {located.word!r}. "
            "Stages record what they read if they call current_run() or torchx.tracker.AppRun.run_from_env()."
        )
    # Sources that are not executions have no results, and their names may not be keys.
    results = tracker.get_many(sorted({*tracker.keys()} & {*runs_of(lineage)}))
    if as_json:
        print_json(_as_json(lineage, results, tracker))
    else:
        _print_trees(lineage, results)


def _as_json(lineage: Lineage, results: Results, tracker: RecordTracker) -> dict[str, Any]:
    role = {**dict.fromkeys(lineage.ancestors, "ancestor"), **dict.fromkeys(lineage.run_ids, "asked")}
    runs = list(filter(is_key, runs_of(lineage)))
    records = tracker.records([*runs, *map(pipeline_run, runs)], "started", "code")

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

    links = [{**named_execution(vars(it)), "artifacts": list(map(_used_as_json, it.artifacts))} for it in lineage.links]
    nodes = list(map(node, dict.fromkeys(runs_of(lineage))))
    return {"execution_ids": list(lineage.run_ids), "nodes": nodes, "links": links}


def named_execution(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts from the tracker for our JSON, in which TorchX's ``run_id`` is ``execution_id``."""
    return {"execution_id" if name == "run_id" else name: value for name, value in facts.items()}


def _used_as_json(artifact: Artifact) -> dict[str, Any]:
    return {**vars(artifact), "stored": artifact.stored.encode() if artifact.stored else None}


def runs_of(lineage: Lineage) -> list[str]:
    """Return all executions of the lineage, the farthest ancestor first."""
    return [*reversed(lineage.ancestors), *lineage.run_ids, *lineage.descendants]


def _print_trees(lineage: Lineage, results: Results) -> None:
    """Print the ancestors and descendants of the requested executions."""
    asked = set(lineage.run_ids)
    above: _Branches = {}
    below: _Branches = {}
    for link in lineage.links:
        above.setdefault(link.run_id, []).append((link.source, link))
        # The first tree has the links among the requested executions.
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
    """Draw the tree below an execution, each execution once; ``shown`` collects those already drawn."""
    from rich.text import Text
    from rich.tree import Tree

    def grow(tree: Tree, run_id: str, level: int) -> None:
        children = branches.get(run_id, ())
        counts: Counter[str | None] = Counter()
        for other, link in children if level <= _DEPTH else ():
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
        for text in more or (["more"] if children and level > _DEPTH else []):
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
