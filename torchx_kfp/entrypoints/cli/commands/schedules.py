"""``torchx-kfp schedules``: list, pause, resume and delete the schedules of a KFP host."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, this_command
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, json_option
from torchx_kfp.entrypoints.cli.resolver import connect, host_words
from torchx_kfp.entrypoints.cli.scheduling import as_dict, at

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import Host, RunSummary
    from torchx_kfp.execution.host.recurring import Schedule, Schedules

#: For how many schedules the last run is asked for at once.
_AT_ONCE = 8
_DONE = {"pause": "paused", "resume": "resumed", "delete": "deleted"}


@click.command("schedules")
@click.argument("action", metavar="[ACTION]", type=click.Choice(list(_DONE)), required=False)
@click.argument("name", metavar="[NAME]", required=False)
@json_option
@host_options
def schedules_command(action: str | None, name: str | None, as_json: bool, flags: Flags) -> None:
    """List the schedules of a KFP host, or change the one with a NAME, or an id: ACTION is pause, resume or delete.

    `torchx-kfp submit` makes a schedule if it gets --cron or --every. KFP's UI calls schedules recurring runs. The list
    has the last run of each. Times are local; expressions are in UTC. KFP does not tell the time of the next run.

    A schedule that is paused starts no runs; those that have started continue. The runs of a deleted schedule stay in
    the list of runs, with their results; those in progress continue, too, except on KFP before 2.16.
    """
    from torchx_kfp.execution.host.recurring import Schedules

    host = connect(flags)
    schedules = Schedules(host)
    if action is None:
        _list(host, schedules, as_json)
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


def _list(host: Host, schedules: Schedules, as_json: bool) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from torchx_kfp.entrypoints.cli.display.tables import print_table

    def last_run(schedule: Schedule) -> RunSummary | None:
        return next(host.list(schedules.runs_of(schedule), limit=1), None)

    found = list(schedules.list())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        last = list(pool.map(last_run, found))
    pairs = list(zip(found, last, strict=True))
    if as_json:
        print_json(
            [
                {
                    **as_dict(schedule),
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
            schedule.state,
            str(schedule.timing or ""),
            f"{at(run.scheduled)} ({run.state})" if run else "",
            schedule.schedule_id,
        )
        for schedule, run in pairs
    ]
    print_table(("name", "state", "when", "last run", "id"), rows, cut=("name",))
