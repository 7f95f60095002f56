"""``torchx-kfp gc``: remove old pipeline runs from a tracker base, or from a folder of runs on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from torchx_kfp.common.text import counted, duration, listed, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import ask, print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows
from torchx_kfp.entrypoints.cli.flags import byte_count, json_option, refuse_empty, seconds
from torchx_kfp.entrypoints.cli.lookup import usual_base
from torchx_kfp.entrypoints.cli.recorded import Recorded, open_recorder
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.runs.history import find_run
from torchx_kfp.tracking.cleanup import find_old_runs, find_unused_code, remove_code, remove_runs
from torchx_kfp.tracking.store import File

#: The number of names that a message lists.
_SHOWN = 10
#: Why a run is there that was to go: gc was interrupted, or the run was used meanwhile.
_REST = "not removed, or only in part: run gc again"


@click.command("gc")
@click.option(
    "--tracker-base",
    metavar="DIR|URL",
    callback=refuse_empty,
    help="The tracker base from which runs are removed.  [default: that of the settings]",
)
@click.option(
    "--older-than",
    "age",
    metavar="AGE",
    type=seconds,
    help="The age from which runs are removed, such as 30d, 2w, 12h or 1h30m; m is for minutes.",
)
@click.option("--run", "one", metavar="RUN", help="Remove only this run: its id, or the beginning of it.")
@click.option("--keep", metavar="N", type=click.IntRange(0), help="With --output-dir: keep the newest N runs.")
@click.option(
    "--max-size",
    metavar="SIZE",
    type=byte_count,
    help="With --output-dir: remove the oldest runs until the others take no more than this, such as 20GB.",
)
@click.option("--dry-run", is_flag=True, help="Only show the runs that would be removed.")
@click.option("--yes", is_flag=True, help="Do not ask before runs are removed.")
@click.option("--output-dir", metavar="DIR", help="Remove the folders of runs on this machine, such as local_outputs.")
@json_option
def gc_command(
    tracker_base: str | None,
    age: float | None,
    one: str | None,
    keep: int | None,
    max_size: int | None,
    dry_run: bool,
    yes: bool,
    output_dir: str | None,
    as_json: bool,
) -> None:
    """Remove old pipeline runs from a tracker base: their results, and their files in .torchx_kfp.

    A pipeline run is old if its newest file is older than AGE. gc asks before it removes runs; in scripts, give --yes.

    \b
    torchx-kfp gc --tracker-base s3://bucket/results --older-than 30d --dry-run
    torchx-kfp gc --tracker-base s3://bucket/results --run digits-20260101-120000
    torchx-kfp gc --output-dir local_outputs --keep 20 --max-size 50GB

    Runs that a kept run depends on are kept too. Dependencies are known if stages call current_run() or record sources
    with TorchX's tracker. A run with a stage that began within the last 7 days and has no results is kept as well: it
    may be going on. That is known of stages that record their start (current_run()); choose an AGE longer than your
    runs take. KFP's cache does not check whether results still exist: choose an AGE longer than the time
    for which KFP keeps executions, or a later run may get a run id whose results are gone.

    Only folders that are recognized as runs are removed: their names are as KFP or `torchx-kfp run` make them, or a
    stage has recorded its start there. A folder with other files in it is left alone. Stored artifacts
    go with their run; registered files elsewhere are never touched.

    --run removes one run, whatever its age, unless another run depends on it. Its code stays until an --older-than.

    The code of removed runs (--workspace) is removed if no other run has recorded it, and no run was started with it
    within AGE, or within the last day.

    With --output-dir, the folders of runs on this machine are removed instead, with their logs, their artifacts, and
    what the cache has of them. A run that is running stays, and so does one from which a kept run has taken stages.
    Results that are recorded elsewhere are not touched. On a file system without locks, a run whose end is not recorded
    stays.
    """
    if tracker_base is None and output_dir is None:
        tracker_base = usual_base()
    if (tracker_base is None) == (output_dir is None):
        raise click.UsageError("Give either --tracker-base, or --output-dir DIR for runs on this machine.")
    if one is not None and not age is keep is max_size is None:
        raise click.UsageError("--run names the run to remove: give no --older-than, --keep or --max-size.")
    if output_dir is not None:
        if all(value is None for value in (one, age, keep, max_size)):
            raise click.UsageError(
                "Say which runs are to go: --older-than AGE, --keep N, --max-size SIZE or --run RUN."
            )
        sweep = _in_folder(output_dir, {"age": age, "keep": keep, "size": max_size}, one)
    else:
        for option, value in {"--keep": keep, "--max-size": max_size}.items():
            if value is not None:
                raise click.UsageError(
                    f"{option} is for runs on this machine: give --output-dir, and no --tracker-base."
                )
        if tracker_base is None or (age is None and one is None):
            raise click.UsageError("Say which runs are to go: --older-than AGE, such as 30d, or --run RUN.")
        sweep = _in_base(tracker_base, age, one)
    going = [row for row in sweep.rows if row["reason"] is None]
    if going and not dry_run and not yes:
        older = "" if age is None else f", older than {duration(age)}"
        ask(f"Remove {counted(len(going), sweep.noun)}{older}: {listed(row['run'] for row in going)}?")
    gone: set[str] = set()
    try:
        gone.update((row["run"] for row in going) if dry_run else sweep.remove())
    finally:
        # The message of an error, or of Ctrl-C, follows the table.
        for row in going:
            row["reason"] = None if row["run"] in gone else _REST
        _show(sweep, dry_run=dry_run, as_json=as_json)


@dataclass(frozen=True)
class _Sweep:
    """What gc has found.

    Attributes:
        noun: what the runs are called.
        rows: the runs, as JSON has them; ``reason`` says why one stays, and is None if it is to go.
        remove: removes those that are to go, and yields each that is gone.
        more: what else JSON has.
    """

    noun: str
    rows: list[dict[str, Any]]
    remove: Callable[[], Iterator[str]]
    more: dict[str, Any] = field(default_factory=dict)


def _in_base(tracker_base: str, age: float | None, one: str | None) -> _Sweep:
    """Find the old pipeline runs under a tracker base, and the code that only they use; or one run of any age."""
    recorder = open_recorder(tracker_base)
    store = recorder.store
    if one is not None:
        one = Recorded(recorder, one).pipeline_run()
    before = time.time() if age is None else time.time() - age
    findings = find_old_runs(store, before, only=one)
    going = [run for run in findings.old if not run.kept]
    unused = find_unused_code(store, before, {run.run for run in going}) if one is None else {}
    if one is None:
        if left := [f"{name} ({why})" for name, why in sorted(findings.left_alone.items())]:
            print_message(f"Left alone: {printable(listed(left, _SHOWN))}.")
    elif not findings.old:
        why = findings.left_alone.get(one, "nothing is recorded for it")
        raise ArgumentError(f"{one!r} cannot be removed from {tracker_base!r}: {why}.")
    if not (findings.old or unused):
        younger = f" ({counted(findings.younger, 'pipeline run')} younger)" if findings.younger else ""
        print_message(f"Nothing to remove under {tracker_base!r}: no pipeline run is that old{younger}.")
    for run in findings.old if one is not None else ():
        if run.open_stage:
            print_message(f"{run.run} {run.open_stage}.")
    if findings.old and not findings.marked:
        print_message(f"{tracker_base!r} has results but no .torchx_kfp. Is it a tracker base?")
    codes = _codes_as_json(unused)

    def remove() -> Iterator[str]:
        codes.clear()
        # While gc has asked, others may have gone on.
        now = {*find_old_runs(store, before, only=one).old} if going else set()
        for run in remove_runs(store, [run for run in going if run in now]):
            yield run.run
        # The code of a run goes after the run, which may have been used meanwhile.
        if one is None and (going or unused):
            codes.extend(_codes_as_json(remove_code(store, find_unused_code(store, before))))

    rows = [
        {
            "run": run.run,
            "stages": list(run.stages),
            "files": len(run.files),
            "size": run.size,
            "modified": run.modified,
            "reason": run.kept or None,
        }
        for run in findings.old
    ]
    more = {"younger": findings.younger, "left_alone": dict(findings.left_alone), "code": codes}
    return _Sweep("pipeline run", rows, remove, more)


def _codes_as_json(archives: Mapping[str, File]) -> list[dict[str, Any]]:
    return [{"digest": digest, "size": file.size} for digest, file in archives.items()]


def _in_folder(output_dir: str, rules: Mapping[str, Any], one: str | None) -> _Sweep:
    """Find the old runs on this machine."""
    from torchx_kfp.execution.local.old_runs import remove, select

    name = None if one is None else find_run(output_dir, one).name
    runs = select(output_dir, **rules, one=name)
    if name is not None:
        runs = [run for run in runs if run.folder.name == name]
    rows = [
        {
            "run": run.folder.name,
            "state": str(run.state),
            "size": run.size,
            "modified": run.modified,
            "reason": run.kept or None,
        }
        for run in runs
    ]
    return _Sweep("run", rows, lambda: (run.folder.name for run in remove(output_dir, runs)))


def _show(sweep: _Sweep, *, dry_run: bool, as_json: bool) -> None:
    """Show what has become of each run."""
    rows, noun = sweep.rows, sweep.noun
    gone, kept = ([row for row in rows if (row["reason"] is None) == is_gone] for is_gone in (True, False))
    size = sum(row["size"] for row in gone)
    if as_json:
        print_json({"dry_run": dry_run, "size": size, "removed": gone, "kept": kept, **sweep.more})
        return
    now = time.time()
    files = sum(row.get("files", 0) for row in gone)
    counts = [counted(len(gone), noun), *([counted(files, "file")] if sweep.more else []), size_text(size)]
    removed = "Would remove" if dry_run else "Removed"
    below = f"{removed} {', '.join(counts)}."
    if younger := sweep.more.get("younger"):
        below += f" {counted(younger, f'younger {noun}')} kept."
    columns = (
        Column("run"),
        Column("state", lambda row: row.get("state")),
        Column("stages", lambda row: len(row["stages"]) if "stages" in row else None, right=True),
        Column("files", lambda row: f"{row['files']:,}" if "files" in row else None, right=True),
        Column("size", lambda row: size_text(row["size"]), right=True),
        Column("age", lambda row: duration(now - row["modified"]), right=True),
        Column("what", lambda row: _what(row["reason"], dry_run=dry_run)),
    )
    print_rows(rows, columns, below=below)
    if codes := sweep.more.get("code"):
        size = sum(code["size"] for code in codes)
        print_text(f"{removed} {counted(len(codes), 'archive')} of code that no run uses any more, {size_text(size)}.")


def _what(reason: str | None, *, dry_run: bool) -> str:
    if reason is None:
        return "would be removed" if dry_run else "removed"
    return reason if reason == _REST else f"kept: {reason}"
