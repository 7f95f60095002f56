"""``torchx-kfp schedules``: list, pause, resume and delete the schedules of a KFP host."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import listed, printable
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, this_command
from torchx_kfp.entrypoints.cli.flags import Flags, format_option, host_options
from torchx_kfp.entrypoints.cli.resolver import connect, host_words
from torchx_kfp.entrypoints.cli.scheduling import as_dict, at

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import Host, RunSummary
    from torchx_kfp.execution.host.recurring import Schedule, Schedules

#: For how many schedules the last run is asked for at once.
_AT_ONCE = 8
_DONE = {"pause": "paused", "resume": "resumed", "delete": "deleted"}


@click.command("schedules", short_help="List, pause, resume or delete schedules of a KFP host.")
@click.argument("action", metavar="[ACTION]", type=click.Choice(list(_DONE)), required=False)
@click.argument("name", metavar="[NAME]", required=False)
@format_option("table", "json")
@host_options
def schedules_command(action: str | None, name: str | None, form: str, flags: Flags) -> None:
    """List the schedules of a KFP host, or change the one with a NAME, or an id: ACTION is pause, resume or delete.

    `torchx-kfp submit` makes a schedule if it gets --cron or --every. KFP's UI calls schedules recurring runs. The list
    has the next and the last run of each. Times are local; expressions are in UTC. The time of the next run is computed
    here, because KFP does not tell it.

    A schedule that is paused starts no runs; those that have started continue. The runs of a deleted schedule stay in
    the list of runs, with their results; those in progress continue, too, except on KFP before 2.16.
    """
    from torchx_kfp.execution.host.recurring import Schedules

    host = connect(flags)
    schedules = Schedules(host)
    if action is None:
        _list(host, schedules, form)
        return
    if name is None:
        raise click.UsageError(f"Missing argument 'NAME': the schedule to {action}.")
    schedule = schedules.find(name)
    if action == "delete":
        schedules.delete(schedule, print_message)
    else:
        {"pause": schedules.pause, "resume": schedules.resume}[action](schedule)
    print_message(f"The schedule {printable(schedule.name)!r} ({schedule.schedule_id}) is {_DONE[action]}.")
    if action == "delete":
        print_message(f"Its runs: {this_command('runs', '--schedule', schedule.schedule_id, *host_words(flags))}")


def _next(due: float | None) -> str:
    # KFP looks at its schedules every some seconds, and a run may wait for others to end.
    return "due now" if due is not None and due <= time.time() else at(due)


def _list(host: Host, schedules: Schedules, form: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from torchx_kfp.entrypoints.cli.display.tables import print_table

    def last_run(schedule: Schedule) -> RunSummary | None:
        return next(host.list(schedules.runs_of(schedule), limit=1), None)

    found = list(schedules.list())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        last = list(pool.map(last_run, found))
    pairs = list(zip(found, last, strict=True))
    if form == "json":
        print_json(
            [
                {
                    **as_dict(schedule, run.scheduled if run else None),
                    "last": run and {"run": run.run_id, "state": str(run.state), "scheduled": run.scheduled},
                }
                for schedule, run in pairs
            ]
        )
        return
    if not found:
        print_message(f"There are no schedules on {host.connection.name}.")
        return
    rows = [
        (
            schedule.name,
            schedule.state(last),
            str(schedule.timing or ""),
            _next(schedule.next(last)),
            f"{at(last)} ({run.state})" if run else "",
            schedule.schedule_id,
        )
        for schedule, run in pairs
        for last in [run.scheduled if run else None]
    ]
    print_table(("name", "state", "when", "next run", "last run", "id"), rows, cut=("name",))
    late = [
        schedule.name
        for schedule, run in pairs
        if schedule.is_late(*((run.scheduled, run.finished) if run else ())) and (run is None or run.state.is_over)
    ]
    if late:
        print_message(
            f"KFP should have started a run by now: {listed(late)}. The log of its deployment "
            "ml-pipeline-scheduledworkflow says why not. The guide to schedules has more: 'A schedule that starts no "
            "runs'."
        )
