"""``torchx-kfp show``: show a run, or all records of one of its stages."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click

from torchx_kfp.common.text import counted, duration, listed, moment, without_passwords
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER, workspace_key
from torchx_kfp.entrypoints.cli.commands.runs import run_as_json
from torchx_kfp.entrypoints.cli.declared import describe, is_untracked, untracked_stages
from torchx_kfp.entrypoints.cli.display.printing import (
    print_json,
    print_message,
    print_text,
    show_results,
    show_stored,
    show_value,
    this_command,
)
from torchx_kfp.entrypoints.cli.display.tables import print_facts
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lineage import named_execution, show_lineage
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.entrypoints.cli.recorded import titled
from torchx_kfp.errors import ArgumentError, NotRecordedError, TrackerError, UnknownRunError
from torchx_kfp.execution.pipeline.walk import without_indices
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.source import choose_stage
from torchx_kfp.tracking.curves import Curve
from torchx_kfp.tracking.recorder import Artifact, Code, Search, describe_code
from torchx_kfp.tracking.records import Record
from torchx_kfp.tracking.store import pipeline_run, run_id_parts


@click.command("show")
@click.argument("run", metavar="RUN[/STAGE]")
@click.option(
    "--lineage", is_flag=True, help="Show the runs that RUN was made from, and those made from it, in all pipelines."
)
@json_option
@finds_runs(recorded=True)
def show_command(run: str, lineage: bool, as_json: bool, lookup: Lookup) -> None:
    """Show RUN: its state, parameters and code, and its stages.

    Of a stage, all records are shown: results, metrics, metadata, artifacts, the runs that it reads, its start, and the
    code of its pipeline run. A cached stage is shown with the records that it took from the cache, and a stage
    of a search with the search at that time. A stage without a tracker base is shown with its state, inputs, outputs
    and artifacts.

    \b
    torchx-kfp show latest
    torchx-kfp show latest/evaluate
    torchx-kfp show 'latest/train[2]'
    torchx-kfp show latest/evaluate --lineage

    With --lineage, runs are shown with their results and artifacts: in brackets the artifacts that were used, or in
    parentheses all artifacts of the run if the used ones are unknown. A tree shows the first 20 runs that are read
    under one alias; JSON has all, and their starts and code.
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
    recorder, chosen = located.recorder, located.choose()
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
            f"{located.word!r} has {len(others) + 1:,} runs of stages under {located.base!r}: "
            f"{listed(map(located.shown, chosen.keys))}. Name one."
        )
    whole_id = pipeline_run(execution_id)
    records = recorder.records([whole_id, execution_id])
    record, whole = records[execution_id], records[whole_id]
    described = {
        "execution_id": execution_id,
        "results": recorder.get_many([execution_id]).get(execution_id, {}),
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
    """Show what is known of a stage without a tracker base."""
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
    """Yield what is shown of the code of a run, with the place of the archive below the tracker base."""
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
    """Describe a search as far as the stage knew it: its best trials, and what it asked for."""
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
    """Return the run's tracker base, if it has one, and what is recorded there about the run as a whole."""
    base = ""
    try:
        base = lookup.base_of(record)
        return base, lookup.open(record).record(record.run_id)
    except ArgumentError:  # it has none, or several
        pass
    except TrackerError as error:
        print_message(f"The code is missing: {error}")
    return base, Record()
