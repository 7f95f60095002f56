"""``torchx-kfp get``: copy an artifact of a run to this machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.entrypoints.cli.declared import (
    artifact_as_json,
    artifacts_of,
    copy_artifact,
    is_untracked,
    refuse_output,
    untracked_stages,
)
from torchx_kfp.entrypoints.cli.display.printing import Column, print_message, print_rows, print_text, show_stored
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import RunRecords, titled
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.pipeline.walk import is_execution
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
    name, title, part, found = _find(lookup, run, only_lists=only_lists)
    if only_lists:
        _list(name, title, [artifact.row for artifact in found], as_json=as_json)
        return
    matches = _matching(found, part)
    if not matches:
        there = dict.fromkeys("/".join(filter(None, [it.exact[-1], it.name])) for it in found)
        what = f"{name} has no artifact {shown(part)} (STAGE/NAME).{did_you_mean(part, there)}"
        raise ArgumentError(
            f"{what if part else f'Name an artifact of {name}: {name}/STAGE/NAME.'} It has "
            f"{listed(map(repr, there)) or 'none'}."
        )
    if len(matches) > 1:
        names = listed(f"{it.exact[0]}/{it.name}" for it in matches)
        raise ArgumentError(f"{run!r} matches {len(matches)} artifacts: {names}. Name one of them.")
    said, path = matches[0].copy(folder or os.curdir, overwrite)
    print_message(said)
    print_text(path)


@dataclass(frozen=True)
class _Artifact:
    """An artifact of a stage.

    Attributes:
        exact: the names of its stage, which take precedence: that in tables first, the shortest last.
        others: further names of its stage.
        row: the object of ``--json``, with its size for people.
        copy: copies it into a folder and returns a message and the path; True overwrites a file.
    """

    name: str
    exact: Sequence[str]
    others: Sequence[str]
    row: Mapping[str, Any]
    copy: Callable[[str, bool], tuple[str, str]]


def _matching(found: Iterable[_Artifact], wanted: str) -> list[_Artifact]:
    """Return the artifacts ``STAGE/NAME``. Names may have slashes; a key chosen by an application may lack a stage."""
    named = [(it, wanted[: -len(it.name)].removesuffix("/")) for it in found if f"/{wanted}".endswith(f"/{it.name}")]
    exact = [it for it, stage in named if stage in it.exact]
    return exact or [it for it, stage in named if any(is_execution(name, stage) for name in (*it.exact, *it.others))]


def _find(lookup: Lookup, word: str, *, only_lists: bool) -> tuple[str, str, str, list[_Artifact]]:
    """Return the full name of a run, or of a listed part of it, its name on a host, the part, and artifacts."""
    declared: list[_Artifact] = []
    if lookup.base is not None:
        [located] = lookup.locate(word)
        part = located.word.partition("/")[2]
    else:
        source, part = lookup.find_part(word, reads="execution ids")
        record = source.read()
        stages = untracked_stages(record, part if only_lists else "")
        if only_lists and part and is_untracked(record) and not stages:
            raise no_stage(record, part)
        if not only_lists:
            refuse_output(record, part, lookup.words(record))
        declared = [
            _declared(record, stage, name, artifact)
            for stage in stages
            for name, artifact in artifacts_of(record.run.by_name[stage].result)
        ]
        is_complete = bool(part and stages) if only_lists else bool(_matching(declared, part))
        if is_complete or is_untracked(record):
            return record.run_id, record.name, part, declared
        located = lookup.recorded(source, part)
    if not only_lists:
        located = replace(located, word=located.word.partition("/")[0])
    chosen = located.choose()
    records = located.tracker.records(chosen.keys, "artifacts")
    recorded = [
        _recorded(located, chosen.name, key, it) for key in chosen.keys for it in records[key].artifacts.values()
    ]
    return chosen.name, located.name, part, [*recorded, *declared]


def _declared(record: RunRecord, stage: str, name: str, artifact: DeclaredArtifact) -> _Artifact:
    """Return an artifact of a stage without a tracker base."""
    row = {"execution_id": None, "stage": stage, "name": name, "size": "", "stored": None, **artifact_as_json(artifact)}
    whole = f"{stage}/{name}"

    def copy(folder: str, overwrite: bool) -> tuple[str, str]:
        try:
            return f"{whole} of {record.run_id}", copy_artifact(record, whole, artifact, folder, overwrite=overwrite)
        except OSError as error:
            raise ArgumentError(f"{whole} cannot be copied to {folder!r}: {explain(error)}.") from None

    return _Artifact(name, [stage], [record.run.by_name[stage].task], row, copy)


def _recorded(located: RunRecords, run: str, key: str, artifact: Artifact) -> _Artifact:
    """Return a registered artifact."""
    size = show_stored(artifact.stored)
    row = {
        "execution_id": key,
        "stage": located.shown(key).removeprefix(f"{pipeline_run(run)}/"),
        "name": artifact.name,
        "size": size,
        "path": artifact.url,
        "stored": artifact.stored.encode() if artifact.stored else None,
        "metadata": dict(artifact.metadata),
    }

    def copy(folder: str, overwrite: bool) -> tuple[str, str]:
        try:
            return f"{artifact.name} of {key}: {size}", artifact.download(folder, overwrite=overwrite)
        except OSError as error:
            if isinstance(error, FileExistsError) and not error.errno:
                raise ArgumentError(f"{explain(error).removesuffix('.')}: --overwrite.") from None
            raise ArgumentError(f"The artifact cannot be written to {folder!r}: {explain(error)}.") from None

    execution, in_tables = key.partition("/")[2], located.shown(key).partition("/")[2]
    stage = execution.partition("/")[0]
    exact = [execution, stage] if in_tables == execution else [in_tables]
    return _Artifact(artifact.name, exact, [execution, stage], row, copy)


def _list(run: str, name: str, rows: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    if not rows and not as_json:
        print_message(f"{run} has no artifacts. A stage registers them with current_run().add_artifact(name, path).")
        return
    columns = [Column(name) for name in ("stage", "name", "size", "type") if any(row.get(name) for row in rows)]
    columns.append(Column("where", lambda row: row["path"]))
    shown_as = [{key: value for key, value in row.items() if key != "size"} for row in rows] if as_json else rows
    print_rows(shown_as, columns, as_json=as_json, above=f"Artifacts of {titled(name, run)}")
