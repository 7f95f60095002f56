"""``torchx-kfp gc``: remove old pipeline runs from a tracker base."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import counted, duration, listed, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import print_message
from torchx_kfp.entrypoints.cli.flags import Duration
from torchx_kfp.entrypoints.cli.selection import open_recorder

if TYPE_CHECKING:
    from torchx_kfp.tracking.cleanup import Findings, OldRun

#: The number of names that a message lists.
_SHOWN = 10


@click.command("gc", short_help="Remove old pipeline runs from a tracker base.")
@click.argument("tracker_base")
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    type=Duration(),
    required=True,
    help="The age from which runs are removed, such as 30d, 2w, 12h or 1h30m.",
)
@click.option("--dry-run", is_flag=True, help="Only show the runs that would be removed.")
def gc_command(tracker_base: str, age: float, dry_run: bool) -> None:
    """Remove old pipeline runs from TRACKER_BASE: their results, and their files in .torchx_kfp.

    A pipeline run is old if its newest file is older than AGE.

    \b
    torchx-kfp gc s3://bucket/results --older-than 30d --dry-run

    Runs that a kept run depends on are kept too. Dependencies are known if stages call current_run() or record sources
    with TorchX's tracker. KFP's cache does not check whether results still exist: choose an AGE longer than the time
    for which KFP keeps executions, or a later run may get a run id whose results are gone.

    Only folders that are recognized as runs are removed: their names are as KFP or `torchx-kfp run` make them, or a
    stage has recorded its start there. A folder with other files in it is left alone. Artifact files are never touched.
    """
    from torchx_kfp.tracking.cleanup import Cleanup

    cleanup = Cleanup(open_recorder(tracker_base).store, time.time() - age)
    findings = cleanup.look()
    _say_left_alone(findings)
    if not findings.old:
        younger = f" ({counted(findings.younger, 'pipeline run')} younger)" if findings.younger else ""
        print_message(f"Nothing to remove under {tracker_base!r}: no pipeline run is that old{younger}.")
        return
    if not findings.marked:
        print_message(f"{tracker_base!r} has results but no .torchx_kfp. Is it a tracker base?")
    if dry_run:
        going = [run for run in findings.old if not run.kept]
        _print(findings, {run.run: "would be removed" for run in going}, f"Would remove {_sum(going)}.")
        return
    removed: list[OldRun] = []
    whole = False
    try:
        for run in cleanup.remove():
            removed.append(run)
        whole = True
    finally:
        # The message of an error, or of Ctrl-C, follows the table.
        fates = {run.run: "removed" for run in removed}
        rest = "kept: in use, or changed meanwhile" if whole else "not removed, or only in part: run gc again"
        fates |= {run.run: rest for run in findings.old if not run.kept and run.run not in fates}
        _print(findings, fates, f"Removed {_sum(removed)}.")


def _say_left_alone(findings: Findings) -> None:
    left = sorted(findings.left_alone.items())
    for name, reason in left[:_SHOWN]:
        print_message(f"Left alone: {printable(name)} ({printable(reason)}).")
    if len(left) > _SHOWN:
        print_message(f"Also left alone: {listed((name for name, _ in left[_SHOWN:]), _SHOWN)}.")


def _print(findings: Findings, fates: Mapping[str, str], below: str) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import print_table

    now = time.time()
    rows = [
        (
            run.run,
            " ".join(run.stages),
            f"{run.files:,}",
            size_text(run.size),
            duration(now - run.modified),
            fates.get(run.run) or f"kept: {run.kept}",
        )
        for run in findings.old
    ]
    columns = ("run", "stages", "files", "size", "age", "what")
    younger = f" {counted(findings.younger, 'younger pipeline run')} kept." if findings.younger else ""
    print_table(columns, rows, right=("files", "size", "age"), cut=("stages",), fold=("what",), below=below + younger)


def _sum(runs: Iterable[OldRun]) -> str:
    runs = list(runs)
    files = sum(run.files for run in runs)
    size = size_text(sum(run.size for run in runs))
    return f"{counted(len(runs), 'pipeline run')}, {counted(files, 'file')}, {size}"
