"""``torchx-kfp get``: copy an artifact of a run to this machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import listed
from torchx_kfp.entrypoints.cli.declared import (
    artifact_as_json,
    artifacts_of,
    copy_artifact,
    find_artifacts,
    is_untracked,
    no_artifact,
    untracked_stages,
)
from torchx_kfp.entrypoints.cli.display.printing import Column, print_message, print_rows, print_text, show_stored
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import RunRecords, titled
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.pipeline.walk import is_execution, task_name
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.source import no_stage
from torchx_kfp.tracking import Artifact
from torchx_kfp.tracking.store import pipeline_run

if TYPE_CHECKING:
    from torchx_kfp.execution.pipeline.artifacts import Artifact as DeclaredArtifact


@click.command("get")
@click.argument("run", metavar="RUN[/STAGE[/NAME]]")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--list", "only_lists", is_flag=True, help="List the artifacts.")
@click.option("--overwrite", is_flag=True, help="Replace a file in DIR with the artifact's name.")
@json_option
@finds_runs(recorded=True)
def get_command(
    run: str,
    folder: str | None,
    only_lists: bool,
    overwrite: bool,
    as_json: bool,
    lookup: Lookup,
) -> None:
    """Copy the artifact NAME of a stage into the folder DIR, by default the current one, and print its path.

    Its SHA-256 is checked. An existing file with the same content is kept. --list shows the artifacts of RUN, or of
    one of its stages, with sizes and locations. Artifacts without a size are registered, but not stored.

    Stages without a tracker base have the artifacts that they declare to KFP, in the local run's folder or in
    KFP's object store. For minio://, set AWS_ENDPOINT_URL and the credentials.

    \b
    torchx-kfp get latest --list
    torchx-kfp get latest/train/model models

    The code of a run (--workspace) is an archive, which `torchx-kfp show RUN` names.
    """
    only_lists = only_lists or as_json
    others: list[dict[str, Any]] = []
    if lookup.base is not None:
        [located] = lookup.locate(run)
    else:
        source, part = lookup.find_part(run, reads="run ids")
        record = source.read()
        is_declared = is_untracked(record) or bool(part and untracked_stages(record, part))
        if only_lists and is_declared:
            _list(record.run_id, record.name, _declared(record, part), as_json=as_json)
            return
        found = {} if only_lists else find_artifacts(record, part)
        if found or is_declared:
            _copy(record, part, found, folder or os.curdir, overwrite=overwrite)
            return
        located = lookup.recorded(source, part)
        if not part:
            others = _declared(record, "")
    if only_lists:
        name, rows = _recorded(located)
        _list(name, located.name, [*rows, *others], as_json=as_json)
    else:
        _get(run, located, folder or os.curdir, overwrite=overwrite)


def _declared(record: RunRecord, part: str) -> list[dict[str, Any]]:
    """Return rows about the artifacts of stages without a tracker base: all, or those of a part of the run."""
    stages = untracked_stages(record, part)
    if part and not stages:
        raise no_stage(record, part)
    return [
        {"execution_id": None, "stage": stage, "name": name, "size": "", "stored": None, **artifact_as_json(artifact)}
        for stage in stages
        for name, artifact in artifacts_of(record.run.by_name[stage].result)
    ]


def _recorded(located: RunRecords) -> tuple[str, list[dict[str, Any]]]:
    """Return the full name of the run, and rows about the registered artifacts of its stages."""
    name, found = _read(located)
    rows = [
        {
            "execution_id": run_id,
            "stage": located.shown(run_id).removeprefix(f"{pipeline_run(name)}/"),
            "name": artifact.name,
            "size": show_stored(artifact.stored),
            "path": artifact.url,
            "stored": artifact.stored.encode() if artifact.stored else None,
            "metadata": dict(artifact.metadata),
        }
        for run_id, artifact in found
    ]
    return name, rows


def _list(run: str, name: str, rows: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if not rows and not as_json:
        print_message(f"{run} has no artifacts. A stage registers them with current_run().add_artifact(name, path).")
        return
    columns = [Column(name) for name in ("stage", "name", "size", "type") if any(row.get(name) for row in rows)]
    columns.append(Column("where", lambda row: row["path"]))
    shown_as = [{key: value for key, value in row.items() if key != "size"} for row in rows] if as_json else rows
    print_rows(shown_as, columns, as_json=as_json, above=f"Artifacts of {titled(name, run)}")


def _copy(record: RunRecord, wanted: str, found: dict[str, DeclaredArtifact], folder: str, *, overwrite: bool) -> None:
    """Copy the artifact of a stage without a tracker base."""
    if not found:
        there = [f"{row['stage']}/{row['name']}" for row in _declared(record, "")]
        raise no_artifact(record.run_id, wanted, there)
    if len(found) > 1:
        raise ArgumentError(f"{wanted!r} matches {len(found)} artifacts: {listed(found)}. Name one of them.")
    [(name, artifact)] = found.items()
    try:
        path = copy_artifact(record, name, artifact, folder, overwrite=overwrite)
    except OSError as error:
        raise ArgumentError(f"{name} cannot be copied to {folder!r}: {explain(error)}.") from None
    print_message(f"{name} of {record.run_id}")
    print_text(path)


def _get(word: str, located: RunRecords, folder: str, *, overwrite: bool) -> None:
    run, _, wanted = located.word.partition("/")
    name, found = _read(dataclasses.replace(located, word=run))
    there: dict[str, None] = {}
    matches: list[tuple[str, Artifact]] = []
    exact: list[tuple[str, Artifact]] = []
    for run_id, artifact in found:
        # A key chosen by an application may lack a stage and an execution.
        rest, shown_as = run_id.partition("/")[2], located.shown(run_id).partition("/")[2]
        recorded_as = rest.partition("/")[0]
        there["/".join(filter(None, [recorded_as if shown_as == rest else shown_as, artifact.name]))] = None
        if f"/{wanted}".endswith(f"/{artifact.name}"):
            stage = wanted[: -len(artifact.name)].removesuffix("/")
            if stage == rest or task_name(stage) == task_name(recorded_as) or is_execution(shown_as, stage):
                matches.append((run_id, artifact))
            if stage == shown_as or (shown_as == rest and stage == recorded_as):
                exact.append((run_id, artifact))
    matches = exact or matches
    if not matches:
        raise no_artifact(name, wanted, there)
    if len(matches) > 1:
        names = listed(f"{located.shown(run_id).partition('/')[2]}/{it.name}" for run_id, it in matches)
        raise ArgumentError(f"{word!r} matches {len(matches)} artifacts: {names}. Name one of them.")
    [(run_id, artifact)] = matches
    try:
        path = artifact.download(folder, overwrite=overwrite)
    except OSError as error:
        if isinstance(error, FileExistsError) and not error.errno:
            raise ArgumentError(f"{explain(error).removesuffix('.')}: --overwrite.") from None
        raise ArgumentError(f"The artifact cannot be written to {folder!r}: {explain(error)}.") from None
    print_message(f"{artifact.name} of {run_id}: {show_stored(artifact.stored)}")
    print_text(path)


def _read(located: RunRecords) -> tuple[str, list[tuple[str, Artifact]]]:
    """Return the full name of the run, and its artifacts with the executions that registered them."""
    chosen = located.choose()
    found = located.tracker.records(chosen.keys, "artifacts")
    return chosen.name, [(key, it) for key in chosen.keys for it in found[key].artifacts.values()]
