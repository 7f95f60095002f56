"""``torchx-kfp tag``: give a run tags, or show them."""

from __future__ import annotations

import os

import click

from torchx_kfp.common.text import listed, printable
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, output_dir_option
from torchx_kfp.entrypoints.cli.resolver import is_base, locate, names_host
from torchx_kfp.entrypoints.cli.selection import choose_run, open_recorder


@click.command("tag", short_help="Give a run tags.")
@click.argument("words", nargs=-1, metavar="[TRACKER_BASE] RUN [NAME=VALUE ...]")
@output_dir_option
@host_options
def tag_command(words: tuple[str, ...], output_dir: str, flags: Flags) -> None:
    """Give RUN tags, or print those that it has.

    RUN is the id of a pipeline run, the beginning or end of one, or "latest", on this machine or on the KFP host. Tags
    are kept with the run's records under its tracker base, so everybody who reads them there sees them:
    `results --where 'tag.team == "a"'`, `runs --tag team=a`, `compare`, `show`, and the report. A tag that the run has
    gets the new value; without a value (NAME=), it is removed.

    \b
    torchx-kfp tag latest team=vision stage=final
    """
    from torchx_kfp.tracking.recorder import parse_tags
    from torchx_kfp.tracking.store import pipeline_run

    runs = [word for word in words if "=" not in word or "://" in word.partition("=")[0]]
    least = 2 if runs and (is_base(runs[0], flags) or os.path.exists(runs[0])) else 1
    for word in runs[least:]:
        raise click.UsageError(
            f"{word!r} is not a tag: write NAME=VALUE, such as {word}=yes."
            + ("" if least == 2 else f" Nor is {runs[0]!r} the tracker base of a run {runs[1]!r}.")
        )
    tags = parse_tags(word for word in words if word not in runs)
    [located] = locate(runs, output_dir, flags)
    recorder = open_recorder(located.base)
    run = pipeline_run(located.run or "")
    if stage := (located.run or "")[len(run) :].strip("/"):
        raise click.UsageError(f"Tags are for whole runs: leave out {stage!r}.")
    if len(runs) > 1 and not names_host(flags):
        run = choose_run(located, recorder)
    gone = [name for name, value in tags.items() if value is None]
    if absent := {*gone} - recorder.record(run, "tags").tags.keys() if gone else set():
        print_message(f"The run has no tag {listed(map(repr, sorted(absent)))} that could be removed.")
    if tags:
        recorder.add(run, {"tags": tags}, last=True)
        if run not in runs:
            print_message(f"The run is {printable(run)}.")
    found = recorder.record(run, "tags").tags
    for name, value in found.items():
        print_text(f"{name}={value}")
    if not found:
        print_message(f"The run {run} has no tags.")
