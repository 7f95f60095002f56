"""``torchx-kfp artifacts``: list the artifacts of a run, and copy stored ones to this machine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, show_stored
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, json_option, output_dir_option
from torchx_kfp.entrypoints.cli.resolver import is_base, locate
from torchx_kfp.entrypoints.cli.selection import choose, open_recorder, recorded, say_cached, titled
from torchx_kfp.errors import ArgumentError, explain

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.resolver import Located
    from torchx_kfp.tracking import Artifact


@click.command("artifacts", short_help="List the artifacts of a run, or copy a stored one.")
@click.argument("words", nargs=-1, metavar="[TRACKER_BASE] RUN[/STAGE] | get [TRACKER_BASE] RUN/STAGE/NAME [DIR]")
@click.option("--overwrite", is_flag=True, help="With get: replace what is in DIR under the artifact's name.")
@output_dir_option
@json_option
@host_options
def artifacts_command(words: tuple[str, ...], overwrite: bool, output_dir: str, as_json: bool, flags: Flags) -> None:
    """List the artifacts of RUN, or of one of its stages: their sizes, and where they are.

    Those without a size are registered, but not stored. RUN is the id of a run, the beginning or end of one, or
    "latest": on this machine, or on the KFP host. The run knows its tracker base; with TRACKER_BASE, RUN is any run
    that has records there.

    With `get`, copy the stored file or folder NAME of a stage into the folder DIR (by default the current one), check
    its SHA-256, and print its path. What is there already with the same content stays.

    \b
    torchx-kfp artifacts latest
    torchx-kfp artifacts get latest/train/model models
    torchx-kfp artifacts get s3://bucket/results digits-20260101-120000/train/model
    """
    if words[:1] == ("get",):
        _get(words[1:], overwrite, output_dir, flags)
        return
    if overwrite:
        raise click.UsageError("--overwrite is for `torchx-kfp artifacts get`.")
    [located] = locate(words, output_dir, flags)
    name, found = _read(located)
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
    if as_json:
        print_json(rows)
    elif rows:
        from torchx_kfp.entrypoints.cli.display.tables import print_table

        print_table(
            ("run id", "name", "size", "where"),
            [(run_id, it.name, show_stored(it.stored), it.url) for run_id, it in found],
            above=f"Artifacts of {titled(located.name, name)}",
        )
    else:
        print_message(f"{name} has no artifacts. A stage registers them with current_run().add_artifact(name, path).")


def _get(words: tuple[str, ...], overwrite: bool, output_dir: str, flags: Flags) -> None:
    base, words = (words[:1], words[1:]) if len(words) > 1 and is_base(words[0], flags) else ((), words)
    run, _, wanted = words[0].partition("/") if words else ("", "", "")
    if not run or len(words) > 2:
        raise click.UsageError("Give RUN/STAGE/NAME, and perhaps the folder to copy the artifact into.")
    folder = words[1] if len(words) > 1 else os.curdir
    [located] = locate([*base, run], output_dir, flags)
    name, found = _read(located)
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
        raise ArgumentError(f"{words[0]!r} means {len(matches)} artifacts: {run_ids}. Name one of them.")
    [(run_id, artifact)] = matches
    try:
        path = artifact.download(folder, overwrite=overwrite)
    except OSError as error:
        if isinstance(error, FileExistsError) and not error.errno:
            raise ArgumentError(f"{explain(error).removesuffix('.')}: --overwrite.") from None
        raise ArgumentError(f"The artifact cannot be written to {folder!r}: {explain(error)}.") from None
    print_message(f"{artifact.name} of {run_id}: {show_stored(artifact.stored)}")
    print_text(path)


def _read(located: Located) -> tuple[str, list[tuple[str, Artifact]]]:
    """Return the full name of the run, and its artifacts with the run ids that have registered them."""
    recorder = open_recorder(located.base)
    chosen = choose(located, recorded(recorder, located), recorder)
    say_cached(chosen)
    found = recorder.records(chosen.keys, "artifacts")
    return chosen.name, [(key, it) for key in chosen.keys for it in found[key].artifacts.values()]
