"""``torchx-kfp tag``: give a run tags, or show them."""

from __future__ import annotations

import click

from torchx_kfp.common.text import listed, printable
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs
from torchx_kfp.tracking.recorder import parse_tags
from torchx_kfp.tracking.store import pipeline_run


@click.command("tag")
@click.argument("run")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE ...]")
@finds_runs(recorded=True)
def tag_command(run: str, words: tuple[str, ...], lookup: Lookup) -> None:
    """Give RUN tags, or print those that it has.

    Tags are kept with the run's records under its tracker base, so everybody who reads them there sees them:
    `results --where 'tag.team == a'`, `compare`, `show`, and the report. A tag that the run has
    gets the new value; without a value (NAME=), it is removed.

    \b
    torchx-kfp tag latest team=vision stage=final
    """
    for word in words:
        if "=" not in word:
            raise click.UsageError(f"{word!r} is not a tag: write NAME=VALUE, such as {word}=yes.")
    tags = parse_tags(words)
    [located] = lookup.locate(run)
    if stage := located.word[len(pipeline_run(located.word)) :].strip("/"):
        raise click.UsageError(f"Tags are for whole runs: leave out {stage!r}.")
    recorder, name = located.recorder, located.pipeline_run()
    gone = [tag for tag, value in tags.items() if value is None]
    if absent := {*gone} - recorder.record(name, "tags").tags.keys() if gone else set():
        print_message(f"The run has no tag {listed(map(repr, sorted(absent)))} that could be removed.")
    if tags:
        recorder.add(name, {"tags": tags}, last=True)
        if run != name:
            print_message(f"The run is {printable(name)}.")
    found = recorder.record(name, "tags").tags
    for tag, value in found.items():
        print_text(f"{tag}={value}")
    if not found:
        print_message(f"The run {name} has no tags.")
