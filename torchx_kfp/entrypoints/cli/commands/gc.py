"""``torchx-kfp gc``: remove old pipeline runs from a tracker base, or from a folder of runs on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, duration, listed, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.entrypoints.cli.flags import ByteCount, Duration
from torchx_kfp.entrypoints.cli.selection import open_recorder

if TYPE_CHECKING:
    from torchx_kfp.tracking.cleanup import Findings, OldRun
    from torchx_kfp.tracking.workspace_cleanup import UnusedWorkspace

#: The number of names that a message lists.
_SHOWN = 10


@click.command("gc", short_help="Remove old pipeline runs from a tracker base, or from this machine.")
@click.argument("tracker_base", required=False)
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    type=Duration(),
    help="The age from which runs are removed, such as 30d, 2w, 12h or 1h30m.",
)
@click.option("--keep", metavar="N", type=click.IntRange(0), help="With --output-dir: keep the newest N runs.")
@click.option(
    "--max-size",
    metavar="SIZE",
    type=ByteCount(),
    help="With --output-dir: remove the oldest runs until the others take no more than this, such as 20GB.",
)
@click.option("--dry-run", is_flag=True, help="Only show the runs that would be removed.")
@click.option("--output-dir", metavar="DIR", help="Remove the folders of runs on this machine, such as local_outputs.")
def gc_command(
    tracker_base: str | None,
    age: float | None,
    keep: int | None,
    max_size: int | None,
    dry_run: bool,
    output_dir: str | None,
) -> None:
    """Remove old pipeline runs from TRACKER_BASE: their results, and their files in .torchx_kfp.

    A pipeline run is old if its newest file is older than AGE.

    \b
    torchx-kfp gc s3://bucket/results --older-than 30d --dry-run
    torchx-kfp gc --output-dir local_outputs --keep 20 --max-size 50GB

    Runs that a kept run depends on are kept too. Dependencies are known if stages call current_run() or record sources
    with TorchX's tracker. KFP's cache does not check whether results still exist: choose an AGE longer than the time
    for which KFP keeps executions, or a later run may get a run id whose results are gone.

    Only folders that are recognized as runs are removed: their names are as KFP or `torchx-kfp run` make them, or a
    stage has recorded its start there. A folder with other files in it is left alone. Stored artifacts
    go with their run; registered files elsewhere are never touched.

    The code of removed runs (--workspace) is removed if no other run has recorded it, and no run was started with it
    within AGE, or within the last day.

    With --output-dir, the folders of runs on this machine are removed instead, with their logs, their artifacts, and
    what the cache has of them. A run that is running stays, and so does one from which a kept run has taken stages.
    Results that are recorded elsewhere are not touched.
    """
    if (tracker_base is None) == (output_dir is None):
        raise click.UsageError("Give either a TRACKER_BASE, or --output-dir DIR for runs on this machine.")
    if output_dir is not None:
        _clean_folder(output_dir, {"age": age, "keep": keep, "size": max_size}, dry_run=dry_run)
        return
    for option, value in {"--keep": keep, "--max-size": max_size}.items():
        if value is not None:
            raise click.UsageError(f"{option} is for runs on this machine: give --output-dir, and no TRACKER_BASE.")
    if tracker_base is None or age is None:
        raise click.UsageError("Missing option '--older-than'.")
    _clean_base(tracker_base, time.time() - age, dry_run=dry_run)


def _clean_base(tracker_base: str, before: float, *, dry_run: bool) -> None:
    """Remove pipeline runs older than a time from a tracker base, then their code, and show what has become of each."""
    from torchx_kfp.tracking.cleanup import Cleanup
    from torchx_kfp.tracking.workspace_cleanup import WorkspaceCleanup

    store = open_recorder(tracker_base).store
    cleanup, code = Cleanup(store, before), WorkspaceCleanup(store, before)
    findings = cleanup.look()
    going = [run for run in findings.old if not run.kept]
    unused = code.look({run.run for run in going})
    _say_left_alone(findings)
    if not (findings.old or unused):
        younger = f" ({counted(findings.younger, 'pipeline run')} younger)" if findings.younger else ""
        print_message(f"Nothing to remove under {tracker_base!r}: no pipeline run is that old{younger}.")
        return
    if not findings.marked:
        print_message(f"{tracker_base!r} has results but no .torchx_kfp. Is it a tracker base?")
    if dry_run:
        _print(findings, {run.run: "would be removed" for run in going}, f"Would remove {_sum(going)}.")
        _print_code("Would remove", unused)
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
    # The code of a run goes after the run, which may have been used meanwhile.
    codes: list[UnusedWorkspace] = []
    try:
        codes.extend(code.remove())
    finally:
        _print_code("Removed", codes)


def _clean_folder(output_dir: str, rules: Mapping[str, Any], *, dry_run: bool) -> None:
    """Remove old runs on this machine, and show what has become of each."""
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.execution.local.old_runs import forget, remove, select

    if all(value is None for value in rules.values()):
        raise click.UsageError("Say which runs are to go: --older-than AGE, --keep N or --max-size SIZE.")
    runs = select(output_dir, **rules)
    going = [run for run in runs if not run.kept]
    gone: set[str] = set()
    try:
        if not dry_run:
            gone.update(run.folder.name for run in remove(going))
            forget(output_dir)
    finally:
        done = [run for run in going if dry_run or run.folder.name in gone]
        fates = {run.folder.name: "would be removed" if dry_run else "removed" for run in done}
        rows = [
            (
                run.folder.name,
                str(run.state),
                size_text(run.size),
                duration(time.time() - run.modified),
                fates.get(run.folder.name) or f"kept: {run.kept or 'it could not be removed, or runs again'}",
            )
            for run in runs
        ]
        verb = "Would remove" if dry_run else "Removed"
        below = f"{verb} {counted(len(done), 'run')}, {size_text(sum(run.size for run in done))}."
        print_table(("run", "state", "size", "age", "what"), rows, right=("size", "age"), fold=("what",), below=below)


def _say_left_alone(findings: Findings) -> None:
    left = sorted(findings.left_alone.items())
    for name, reason in left[:_SHOWN]:
        print_message(f"Left alone: {printable(name)} ({printable(reason)}).")
    if len(left) > _SHOWN:
        print_message(f"Also left alone: {listed((name for name, _ in left[_SHOWN:]), _SHOWN)}.")


def _print(findings: Findings, fates: Mapping[str, str], below: str) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import print_table

    if not findings.old:
        return
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


def _print_code(what: str, codes: Sequence[UnusedWorkspace]) -> None:
    if codes:
        size = size_text(sum(code.archive.size for code in codes))
        print_text(f"{what} {counted(len(codes), 'archive')} of code that no run uses any more, {size}.")


def _sum(runs: Iterable[OldRun]) -> str:
    runs = list(runs)
    files = sum(run.files for run in runs)
    size = size_text(sum(run.size for run in runs))
    return f"{counted(len(runs), 'pipeline run')}, {counted(files, 'file')}, {size}"
