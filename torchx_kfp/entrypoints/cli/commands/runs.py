"""``torchx-kfp runs``: list the runs on this machine and on a KFP host.

``results`` lists the runs of a tracker.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from torchx_kfp.common.text import counted, duration, printable, size_text
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import (
    print_json,
    print_message,
    say_left_out,
    terminal_width,
    this_command,
)
from torchx_kfp.entrypoints.cli.flags import (
    Duration,
    Flags,
    host_options,
    json_option,
    output_dir_option,
    refuse_empty,
)
from torchx_kfp.entrypoints.cli.resolver import connect, is_host_set_up, named_bases, names_host
from torchx_kfp.entrypoints.cli.run_description import done_and_failed, run_as_json
from torchx_kfp.entrypoints.cli.tags import read_tags, with_tags
from torchx_kfp.errors import ArgumentError, HostError, UnknownTagError
from torchx_kfp.execution.runs.vocabulary import RUN_STATES, State

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import Host, RunSummary
    from torchx_kfp.execution.host.run_filter import RunFilter
    from torchx_kfp.execution.runs.source import RunRecord

#: For no more running runs than this, the host is asked which stages cannot start.
_MOST_LOOKED_INTO = 8
#: The seconds in which the files of runs on this machine are counted.
_COUNTING = 0.5


@click.command("runs")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(1),
    default=20,
    help="The number of runs that are listed: on this machine, and of the host.  [default: 20]",
)
@click.option("--all", "is_unlimited", is_flag=True, help="List all runs.")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(state) for state in RUN_STATES]),
    multiple=True,
    help="Only runs in this state. May be given several times.",
)
@click.option("--name", metavar="TEXT", callback=refuse_empty, help="Only runs with this text in their names.")
@click.option("--experiment", metavar="NAME", callback=refuse_empty, help="Only runs of this experiment of the host.")
@click.option(
    "--schedule", metavar="NAME", callback=refuse_empty, help="Only runs that this schedule of the host has started."
)
@click.option(
    "--newer-than", metavar="AGE", type=Duration(), help="Only runs that began after this, such as 12h or 7d."
)
@click.option("--older-than", metavar="AGE", type=Duration(), help="Only runs that began before this.")
@click.option(
    "--archived", is_flag=True, help="Only runs of the host that are archived, which are not listed otherwise."
)
@click.option(
    "--tag",
    "tag_words",
    metavar="NAME=VALUE",
    multiple=True,
    help="Only runs with this tag under their tracker bases. May be given several times.",
)
@output_dir_option
@json_option
@host_options
def runs_command(
    limit: int,
    is_unlimited: bool,
    tag_words: tuple[str, ...],
    output_dir: str,
    as_json: bool,
    flags: Flags,
    **words: Any,
) -> None:
    """List the runs on this machine and on the configured KFP host, the newest first.

    With --host, only the runs on that host are listed, and with --output-dir, only those in that directory. The state
    of a run is running, succeeded, failed, canceled, or interrupted (its process on this machine was killed). A run
    that KFP has not begun is queued. A host that does not answer within some seconds is left out, with a message;
    without runs on this machine, that is an error.

    To archive or delete runs of a host, use KFP's UI, or `kfp run archive` and `kfp run delete`.
    """
    where = _filter(flags, **words)
    most = None if is_unlimited else limit
    tags = read_tags(tag_words)
    given = click.get_current_context().get_parameter_source("output_dir") is ParameterSource.COMMANDLINE
    here: list[RunRecord] = []
    there: list[RunSummary] = []
    name, none_here, stuck = "", "", dict[str, dict[str, str]]()
    is_filtered = bool(tags) or where != type(where)()
    none = "No run {} matches.".format if is_filtered else "There are no runs {}.".format
    if names_host(flags):
        host = connect(flags)
        name, there = host.connection.name, _runs_of(host, where, most, tags, flags)
        stuck = _stuck(host, there)
    else:
        name, there, failure = ("", [], None) if given else _runs_there(where, most, tags, flags)
        none_here = none(f"in {output_dir!r}")
        try:
            known = [(it, _base(it)) for it in _runs_here(output_dir, where, None if tags else most)]
            here = with_tags(known, tags, f"in {output_dir!r}")[:most]
            if known and isinstance(failure, UnknownTagError):
                failure = None  # It is a tag of runs on this machine only.
        except ArgumentError as error:
            if not name and not failure:
                raise
            none_here = str(error)
        if failure and not here:
            print_message(none_here)
            raise failure
        if failure:
            print_message(f"The runs on the KFP host are missing: {failure}")
    if as_json:
        listed = [{**_summary_as_json(run), "cannot_start": stuck.get(run.run_id, {})} for run in there]
        print_json([*map(run_as_json, here), *listed])
        return
    _print(here, there, stuck, name, output_dir, [none(f"on {name}")] * bool(name) + [none_here] * bool(none_here))


def _print(
    here: Sequence[RunRecord],
    there: Sequence[RunSummary],
    stuck: Mapping[str, Mapping[str, str]],
    name: str,
    output_dir: str,
    none: Sequence[str],
) -> None:
    """Print the runs on this machine, and those on the host with this name, or that there are none.

    Stages that cannot start are named.
    """
    if not here and not there:
        print_message("\n".join(none))
    if here:
        _print_here(here, output_dir, above=f"On this machine, in {output_dir}" if there else "")
    if there:
        _print_there(there, above=f"\nOn {name}" if here else "")
    for run_id, stages in stuck.items():
        print_message("\n".join(f"{run_id}: {stage} cannot start: {why}." for stage, why in stages.items()))


def _runs_of(
    host: Host, where: RunFilter, limit: int | None, tags: Mapping[str, str], flags: Flags
) -> list[RunSummary]:
    """Return the runs of a host that the filter selects, and that have all these tags."""
    from torchx_kfp.execution.runs.source import why_not_read

    if not tags:
        return list(host.list(where, limit=limit))
    runs = list(host.list(where))
    named = named_bases({run.tracker_base for run in runs}, flags, ran_here=False)
    bases = ("" if why_not_read(run.tracker_base, named) else run.tracker_base for run in runs)
    return with_tags(zip(runs, bases, strict=True), tags, f"on {host.connection.name}")[:limit]


def _runs_there(
    where: RunFilter, limit: int | None, tags: Mapping[str, str], flags: Flags
) -> tuple[str, list[RunSummary], HostError | UnknownTagError | None]:
    """Return the name and runs of the host that is set up, if one is, and why they cannot be read or chosen."""
    try:
        if not is_host_set_up() or where.states == (State.INTERRUPTED,):
            return "", [], None
        host = connect(flags, is_patient=False)
        return host.connection.name, _runs_of(host, where, limit, tags, flags), None
    except (HostError, UnknownTagError) as error:
        return "", [], error


def _filter(
    flags: Flags,
    states: tuple[str, ...],
    name: str | None,
    experiment: str | None,
    schedule: str | None,
    **of_filter: Any,
) -> RunFilter:
    """Return the filter that the options describe."""
    from torchx_kfp.execution.host.recurring import Schedules
    from torchx_kfp.execution.host.run_filter import RunFilter

    schedule_id = Schedules(connect(flags)).find_id(schedule) if schedule else ""
    return RunFilter(
        tuple(State(state) for state in states), name or "", experiment or "", schedule_id=schedule_id, **of_filter
    )


def _stuck(host: Host, runs: Sequence[RunSummary]) -> dict[str, dict[str, str]]:
    """Return the stages of the newest running runs whose pods cannot start, and why, by the ids of the runs."""
    from concurrent.futures import ThreadPoolExecutor

    from torchx_kfp.execution.host.run import HostRun

    def read(run_id: str) -> dict[str, str]:
        try:
            record = HostRun(host.connection, run_id, reads="none", say=lambda sentence: None).read()
        except HostError:
            return {}
        return {stage.name: stage.reason for stage in record.run.stages if stage.is_stuck}

    running = [run.run_id for run in runs if run.state is State.RUNNING][:_MOST_LOOKED_INTO]
    with ThreadPoolExecutor(_MOST_LOOKED_INTO) as pool:
        found = dict(zip(running, pool.map(read, running), strict=True))
    return {run_id: stages for run_id, stages in found.items() if stages}


def _print_there(runs: Sequence[RunSummary], above: str) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import fits, print_table

    columns: tuple[str, ...] = ("run", "name", "state", "started", "took")
    rows: list[tuple[str, ...]] = []
    shows_chains = any(run.resumes for run in runs)
    if shows_chains:
        columns = (*columns, "resumes")
    for run in runs:
        end = run.finished if run.state.is_over and run.finished else time.time()
        times = (_started(run.created), duration(end - run.created)) if run.created else ("", "")
        chain = (printable(run.resumes),) if shows_chains else ()
        rows.append((run.run_id, printable(run.name), str(run.state), *times, *chain))
    if not fits(columns, rows):
        # The beginning of an id is enough for commands, and a name says more than the rest.
        ids = {run.run_id for run in runs}
        most = max(map(len, ids))
        length = next(
            (length for length in range(8, most) if len({run_id[:length] for run_id in ids}) == len(ids)), most
        )
        rows = [(run_id[:length].rstrip("-"), *row) for run_id, *row in rows]
    print_table(columns, rows, right=("took",), cut=("name",), above=above)


def _summary_as_json(run: RunSummary) -> dict[str, Any]:
    return {
        "run": run.run_id,
        "name": run.name,
        "pipeline": run.pipeline,
        "state": str(run.state),
        "started": run.created or None,
        "schedule": run.schedule_id or None,
        "scheduled": run.scheduled or None,
        "finished": run.finished,
        "resumes": run.resumes or None,
        "link": run.link,
    }


def _runs_here(output_dir: str, where: RunFilter, most: int | None) -> list[RunRecord]:
    """Return the runs on this machine that a filter selects; say what cannot be read, and that there are older ones.

    Raises:
        ArgumentError: there is no such directory.
    """
    from torchx_kfp.execution.runs.history import find_runs, read_run

    folders = find_runs(output_dir)
    if where.experiment or where.archived or where.schedule_id:
        return []  # only runs on a host have these
    found: list[RunRecord] = []
    now = time.time()
    for read, folder in enumerate(folders):
        if most is not None and len(found) == most:
            print_message(f"{counted(len(folders) - read, 'older run')} in {output_dir}: --all lists all runs.")
            break
        try:
            record = read_run(folder)
        except (ArgumentError, OSError) as error:
            say_left_out(error)
            continue
        for sentence in record.corrupt:
            print_message(sentence)
        if where.selects(record.state, record.run_id, record.created, now):
            found.append(record)
    return found


def _base(record: RunRecord) -> str:
    """Return the tracker base of a run on this machine; empty if it has none."""
    base = record.arguments.get(TRACKER_BASE)
    return record.absolute_base(base) if isinstance(base, str) and base else ""


def _print_here(records: Sequence[RunRecord], output_dir: str, above: str) -> None:
    from torchx_kfp.entrypoints.cli.display.tables import print_table
    from torchx_kfp.execution.local.old_runs import total_size

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = []
    for record in records:
        done, failed = done_and_failed(record)
        ended = f"{done:,}" + (f", {failed:,} failed" if failed else "")
        rows.append((record.run_id, str(record.state), _started(record.created), duration(record.duration), ended))
    columns = ("run", "state", "started", "took", "done")
    if any(record.resumes for record in records):
        columns = (*columns, "resumes")
        rows = [(*row, printable(record.resumes)) for row, record in zip(rows, records, strict=True)]
    print_table(columns, rows, right=("took",), above=above)
    size, is_whole = total_size(output_dir, _COUNTING)
    takes = f"{'' if is_whole else 'more than '}{size_text(size)}"
    print_message(f"{output_dir} takes {takes}. To remove old runs: {this_command('gc', '--output-dir', output_dir)}")


def _started(seconds: float) -> str:
    """Return the local time at which a run began; a terminal has no room for seconds, or for the current year."""
    then = time.localtime(seconds)
    if terminal_width() is None:
        return time.strftime("%Y-%m-%d %H:%M:%S", then)
    return time.strftime("%m-%d %H:%M" if then.tm_year == time.localtime().tm_year else "%Y-%m-%d %H:%M", then)
