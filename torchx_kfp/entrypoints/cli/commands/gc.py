"""``torchx-kfp gc``: remove old pipeline runs from a tracker base, or from a folder of runs on this machine."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import counted, duration, listed, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import ask, print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.flags import ByteCount, Duration, json_option, refuse_empty
from torchx_kfp.entrypoints.cli.lookup import usual_base
from torchx_kfp.entrypoints.cli.recorded import Recorded, open_recorder
from torchx_kfp.errors import ArgumentError

if TYPE_CHECKING:
    from torchx_kfp.tracking.cleanup import Findings

#: The seconds below which an age may be meant as months.
_SHORT = 3600.0
#: The number of names that a message lists, and of runs that a table shows.
_SHOWN, _ROWS = 10, 40
#: Why a run is there that was to go.
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
    type=Duration(),
    help="The age from which runs are removed, such as 30d, 2w, 12h or 1h30m; m is for minutes.",
)
@click.option("--run", "one", metavar="RUN", help="Remove only this run: its id, or the beginning of it.")
@click.option("--keep", metavar="N", type=click.IntRange(0), help="With --output-dir: keep the newest N runs.")
@click.option(
    "--max-size",
    metavar="SIZE",
    type=ByteCount(),
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

    A table shows the newest runs, and sums up the others; JSON has all of them.
    """
    if tracker_base is None and output_dir is None:
        tracker_base = usual_base()
    if (tracker_base is None) == (output_dir is None):
        raise click.UsageError("Give either --tracker-base, or --output-dir DIR for runs on this machine.")
    if one is not None and not age is keep is max_size is None:
        raise click.UsageError("--run names the run to remove: give no --older-than, --keep or --max-size.")
    how = _How(dry_run, yes, as_json)
    if output_dir is not None:
        _clean_folder(output_dir, {"age": age, "keep": keep, "size": max_size}, one, how)
        return
    for option, value in {"--keep": keep, "--max-size": max_size}.items():
        if value is not None:
            raise click.UsageError(f"{option} is for runs on this machine: give --output-dir, and no --tracker-base.")
    if tracker_base is None or (age is None and one is None):
        raise click.UsageError("Say which runs are to go: --older-than AGE, such as 30d, or --run RUN.")
    _clean_base(tracker_base, age, one, how)


@dataclass(frozen=True)
class _How:
    """Whether to remove anything, and to ask before; and the form of what is shown."""

    dry_run: bool
    yes: bool
    as_json: bool

    def ask(self, going: Sequence[str], noun: str, age: float | None) -> None:
        """Ask whether to remove these runs."""
        if self.dry_run or self.yes or not going:
            return
        older = "" if age is None else f", older than {duration(age)}"
        if age is not None and age < _SHORT:
            print_message(f"The age is {duration(age)}: m means minutes. For months, give days, such as 30d.")
        ask(f"Remove {counted(len(going), noun)}{older}: {listed(going)}?")


def _clean_base(tracker_base: str, age: float | None, one: str | None, how: _How) -> None:
    """Remove old pipeline runs from a tracker base, then their code, and show what has become of each.

    Args:
        tracker_base: the tracker base.
        age: the age in seconds from which runs are old.
        one: the run to remove, whatever its age.
        how: whether to ask, and the form of what is shown.
    """
    from torchx_kfp.tracking.cleanup import UnusedCode, find_old_runs, find_unused_code, remove_code, remove_runs

    dry_run, as_json = how.dry_run, how.as_json
    recorder = open_recorder(tracker_base)
    store = recorder.store
    if one is not None:
        one = Recorded(recorder, one).pipeline_run()
    before = time.time() if age is None else time.time() - age
    findings = find_old_runs(store, before, only=one)
    shown_base = repr(tracker_base)
    going = [run for run in findings.old if not run.kept]
    unused = find_unused_code(store, before, {run.run for run in going}) if one is None else []
    if one is None:
        _say_left_alone(findings)
    elif not findings.old:
        why = findings.left_alone.get(one, "nothing is recorded for it")
        raise ArgumentError(f"{one!r} cannot be removed from {tracker_base!r}: {why}.")
    if not (findings.old or unused) and not as_json:
        younger = f" ({counted(findings.younger, 'pipeline run')} younger)" if findings.younger else ""
        print_message(f"Nothing to remove under {shown_base}: no pipeline run is that old{younger}.")
        return
    for run in findings.old if one is not None else ():
        if run.open_stage:
            print_message(f"{run.run} {run.open_stage}.")
    if findings.old and not findings.marked:
        print_message(f"{shown_base} has results but no .torchx_kfp. Is it a tracker base?")
    how.ask([run.run for run in going], "pipeline run", age)
    gone, codes, rest = set[str](), list[UnusedCode](), _REST
    try:
        if dry_run:
            gone, codes = {run.run for run in going}, unused
        else:
            # While gc has asked, others may have gone on.
            now = {*find_old_runs(store, before, only=one).old}
            for run in remove_runs(store, [run for run in going if run in now]):
                gone.add(run.run)
            rest = "in use, or changed meanwhile"
            # The code of a run goes after the run, which may have been used meanwhile.
            if one is None:
                codes += remove_code(store, find_unused_code(store, before))
    finally:
        # The message of an error, or of Ctrl-C, follows the table.
        rows = [
            {
                "run": run.run,
                "stages": list(run.stages),
                "files": len(run.files),
                "size": run.size,
                "modified": run.modified,
                "reason": None if run.run in gone else run.kept or rest,
            }
            for run in findings.old
        ]
        more: dict[str, Any] = {
            "younger": findings.younger,
            "left_alone": dict(findings.left_alone),
            "code": [{"digest": code.digest, "size": code.archive.size} for code in codes],
        }
        _show(rows, "pipeline run", dry_run=dry_run, as_json=as_json, **more)
        if codes and not as_json:
            what, size = "Would remove" if dry_run else "Removed", size_text(sum(code.archive.size for code in codes))
            print_text(f"{what} {counted(len(codes), 'archive')} of code that no run uses any more, {size}.")


def _clean_folder(output_dir: str, rules: Mapping[str, Any], one: str | None, how: _How) -> None:
    """Remove old runs on this machine, and show what has become of each."""
    from torchx_kfp.execution.local.old_runs import remove, select
    from torchx_kfp.execution.runs.history import find_run

    dry_run, as_json = how.dry_run, how.as_json
    if one is None and all(value is None for value in rules.values()):
        raise click.UsageError("Say which runs are to go: --older-than AGE, --keep N, --max-size SIZE or --run RUN.")
    if one is None:
        runs = select(output_dir, **rules)
    else:
        name = find_run(output_dir, one).name
        runs = [run for run in select(output_dir, one=name) if run.folder.name == name]
    how.ask([run.folder.name for run in runs if not run.kept], "run", rules["age"])
    going = [run for run in runs if not run.kept]
    gone: set[str] = set()
    try:
        if dry_run:
            gone.update(run.folder.name for run in going)
        else:
            for run in remove(output_dir, going):
                gone.add(run.folder.name)
    finally:
        rows = [
            {
                "run": run.folder.name,
                "state": str(run.state),
                "size": run.size,
                "modified": run.modified,
                "reason": None
                if run.folder.name in gone
                else run.kept or "it could not be removed, or is used meanwhile",
            }
            for run in runs
        ]
        _show(rows, "run", dry_run=dry_run, as_json=as_json)


def _say_left_alone(findings: Findings) -> None:
    left = sorted(findings.left_alone.items())
    for name, reason in left[:_SHOWN]:
        print_message(f"Left alone: {printable(name)} ({printable(reason)}).")
    if len(left) > _SHOWN:
        print_message(f"Also left alone: {listed((name for name, _ in left[_SHOWN:]), _SHOWN)}.")


def _show(rows: Sequence[dict[str, Any]], noun: str, *, dry_run: bool, as_json: bool, **more: Any) -> None:
    """Show what has become of each run: its ``reason`` says why it is kept, and is None if it is gone."""
    from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows

    gone = [row for row in rows if row["reason"] is None]
    size = sum(row["size"] for row in gone)
    if as_json:
        kept = [row for row in rows if row["reason"] is not None]
        print_json({"dry_run": dry_run, "size": size, "removed": gone, "kept": kept, **more})
        return
    if not rows:
        return
    now = time.time()
    files = sum(row.get("files", 0) for row in gone)
    removed = [counted(len(gone), noun), *([counted(files, "file")] if "files" in rows[0] else []), size_text(size)]
    below = f"{'Would remove' if dry_run else 'Removed'} {', '.join(removed)}."
    if younger := more.get("younger"):
        below += f" {counted(younger, f'younger {noun}')} kept."
    if len(rows) > _ROWS:
        reasons = Counter(_kind(row["reason"]) for row in rows if row["reason"] is not None)
        summed = "".join(f"\n{number:,} {reason}." for reason, number in reasons.most_common())
        below = f"{counted(len(rows) - _ROWS, f'older {noun}')} not shown: --json has all.\n{below}{summed}"
    columns = (
        Column("run"),
        Column("state", lambda row: row.get("state")),
        Column("stages", lambda row: " ".join(row.get("stages", ()))),
        Column("files", lambda row: f"{row['files']:,}" if "files" in row else None, right=True),
        Column("size", lambda row: size_text(row["size"]), right=True),
        Column("age", lambda row: duration(now - row["modified"]), right=True),
        Column("what", lambda row: _what(row["reason"], dry_run=dry_run)),
    )
    print_rows(rows[:_ROWS], columns, as_json=False, below=below)


def _what(reason: str | None, *, dry_run: bool) -> str:
    if reason is None:
        return "would be removed" if dry_run else "removed"
    return reason if reason == _REST else f"kept: {reason}"


def _kind(reason: str) -> str:
    """Return a reason without what differs from run to run."""
    return "kept: used by others" if reason.startswith("used by ") else f"kept: {reason.partition(': ')[0]}"
