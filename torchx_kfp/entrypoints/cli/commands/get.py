"""``torchx-kfp get``: copy an artifact, or the code, of a run to this machine."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text, show_stored
from torchx_kfp.entrypoints.cli.flags import json_option
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.entrypoints.cli.recorded import titled
from torchx_kfp.errors import ArgumentError, explain

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.recorded import Recorded
    from torchx_kfp.tracking import Artifact


@click.command("get")
@click.argument("run", metavar="RUN[/STAGE[/NAME]]")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--code", is_flag=True, help="Get the code that travelled with RUN, or with one of its stages.")
@click.option("--list", "only_lists", is_flag=True, help="List the artifacts, or the files of the code.")
@click.option("--overwrite", is_flag=True, help="Replace what is in DIR under the artifact's name.")
@json_option
@finds_runs(recorded=True)
def get_command(
    run: str,
    folder: str | None,
    code: bool,
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
    torchx-kfp get latest --code before

    With --code, write the code that travelled with RUN (`--workspace`) into the folder DIR, which is new or empty; the
    default is code-DIGEST in the current directory. An archive that contains a git repository is refused, because git
    would run the programs that its configuration names; --list still shows the files.
    """
    from torchx_kfp.entrypoints.cli.code import get_code

    if code:
        for name, value in {"--overwrite": overwrite, "--json": as_json, "--tracker-base": lookup.base}.items():
            if value:
                raise click.UsageError(f"{name} is for artifacts, not for --code.")
        get_code(run, folder, lookup, only_lists=only_lists)
    elif only_lists or as_json:
        [located] = lookup.locate(run)
        _list(located, as_json=as_json)
    else:
        [located] = lookup.locate(run)
        _get(run, located, folder or os.curdir, overwrite=overwrite)


def _list(located: Recorded, *, as_json: bool) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows

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
        Column("run id", lambda row: row["run_id"]),
        Column("name"),
        Column("size", lambda row: sizes[row["run_id"], row["name"]]),
        Column("where", lambda row: row["path"]),
    )
    print_rows(rows, columns, as_json=as_json, above=f"Artifacts of {titled(located.name, name)}")


def _get(word: str, located: Recorded, folder: str, *, overwrite: bool) -> None:
    run, _, wanted = located.word.partition("/")
    name, found = _read(dataclasses.replace(located, word=run))
    by_name: dict[str, list[tuple[str, Artifact]]] = {}
    short = []
    for run_id, artifact in found:
        # A key that an application has chosen itself need not have a stage and an execution.
        stage, _, execution = run_id.partition("/")[2].partition("/")
        for path in ((stage, artifact.name), *([(stage, execution, artifact.name)] if execution else ())):
            by_name.setdefault("/".join(filter(None, path)), []).append((run_id, artifact))
        short.append("/".join(filter(None, (stage, artifact.name))))
    matches = by_name.get(wanted, [])
    if not matches:
        there = f"It has {listed(map(repr, dict.fromkeys(short)))}." if short else "It has none."
        if not wanted:
            raise ArgumentError(f"Name an artifact of {name}: {name}/STAGE/NAME. {there}")
        raise ArgumentError(
            f"{name} has no artifact {shown(wanted)} (STAGE/NAME).{did_you_mean(wanted, by_name)} {there}"
        )
    if len(matches) > 1:
        run_ids = listed(f"{run_id.partition('/')[2]}/{artifact.name}" for run_id, artifact in matches)
        raise ArgumentError(f"{word!r} means {len(matches)} artifacts: {run_ids}. Name one of them.")
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
