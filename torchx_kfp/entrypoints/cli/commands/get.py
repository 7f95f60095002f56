"""``torchx-kfp get``: copy an artifact of a run to this machine."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, show_stored
from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import Recorded, titled
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp.execution.pipeline.walk import is_execution, task_name
from torchx_kfp.tracking import Artifact
from torchx_kfp.tracking.store import pipeline_run

if TYPE_CHECKING:
    pass


@click.command("get")
@click.argument("run", metavar="RUN[/STAGE[/NAME]]")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--list", "only_lists", is_flag=True, help="List the artifacts.")
@click.option("--overwrite", is_flag=True, help="Replace what is in DIR under the artifact's name.")
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

    Its SHA-256 is checked. What is there already with the same content stays. --list shows the artifacts of RUN, or of
    one of its stages: their sizes, and where they are. Those without a size are registered, but not stored.

    \b
    torchx-kfp get latest --list
    torchx-kfp get latest/train/model models

    The code that travelled with a run is an archive in the storage, which `torchx-kfp show RUN` names.
    """
    [located] = lookup.locate(run)
    if only_lists or as_json:
        _list(located, as_json=as_json)
    else:
        _get(run, located, folder or os.curdir, overwrite=overwrite)


def _list(located: Recorded, *, as_json: bool) -> None:
    name, found = _read(located)
    if not found and not as_json:
        print_message(f"{name} has no artifacts. A stage registers them with current_run().add_artifact(name, path).")
        return
    rows = [
        {
            "run_id": run_id,
            "name": artifact.name,
            "path": artifact.url,
            "stored": artifact.stored.encode() if artifact.stored else None,
            "metadata": dict(artifact.metadata),
        }
        for run_id, artifact in found
    ]
    sizes = {(run_id, artifact.name): show_stored(artifact.stored) for run_id, artifact in found}
    columns = (
        Column("stage", lambda row: located.shown(row["run_id"]).removeprefix(f"{pipeline_run(name)}/")),
        Column("name"),
        Column("size", lambda row: sizes[row["run_id"], row["name"]]),
        Column("where", lambda row: row["path"]),
    )
    print_rows(rows, columns, as_json=as_json, above=f"Artifacts of {titled(located.name, name)}")


def _get(word: str, located: Recorded, folder: str, *, overwrite: bool) -> None:
    run, _, wanted = located.word.partition("/")
    name, found = _read(dataclasses.replace(located, word=run))
    there: dict[str, None] = {}
    matches: list[tuple[str, Artifact]] = []
    exact: list[tuple[str, Artifact]] = []
    for run_id, artifact in found:
        # A key that an application has chosen itself need not have a stage and an execution.
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
        wrong = f"{name} has no artifact {shown(wanted)} (STAGE/NAME).{did_you_mean(wanted, there)}"
        raise ArgumentError(
            f"{wrong if wanted else f'Name an artifact of {name}: {name}/STAGE/NAME.'} It has "
            f"{listed(map(repr, there)) or 'none'}."
        )
    if len(matches) > 1:
        names = listed(f"{located.shown(run_id).partition('/')[2]}/{it.name}" for run_id, it in matches)
        raise ArgumentError(f"{word!r} means {len(matches)} artifacts: {names}. Name one of them.")
    [(run_id, artifact)] = matches
    try:
        path = artifact.download(folder, overwrite=overwrite)
    except OSError as error:
        if isinstance(error, FileExistsError) and not error.errno:
            raise ArgumentError(f"{explain(error).removesuffix('.')}: --overwrite.") from None
        raise ArgumentError(f"The artifact cannot be written to {folder!r}: {explain(error)}.") from None
    print_message(f"{artifact.name} of {run_id}: {show_stored(artifact.stored)}")
    print_text(path)


def _read(located: Recorded) -> tuple[str, list[tuple[str, Artifact]]]:
    """Return the full name of the run, and its artifacts with the run ids that have registered them."""
    chosen = located.choose()
    found = located.recorder.records(chosen.keys, "artifacts")
    return chosen.name, [(key, it) for key in chosen.keys for it in found[key].artifacts.values()]
