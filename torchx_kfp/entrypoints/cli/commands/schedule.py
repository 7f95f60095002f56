"""``torchx-kfp schedule``: let a KFP host run a pipeline regularly."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.common.text import printable
from torchx_kfp.entrypoints.cli.display.printing import at, print_json, print_message, print_text, this_command
from torchx_kfp.entrypoints.cli.display.tables import Column, print_rows
from torchx_kfp.entrypoints.cli.flags import (
    Flags,
    Target,
    gathered,
    host_options,
    json_option,
    read_by,
    seconds,
    submission_options,
    target_argument,
)
from torchx_kfp.entrypoints.cli.lookup import connect, host_words
from torchx_kfp.entrypoints.cli.run_inputs import RunInputs, input_options, show_dry_run

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.execution.host.schedules import Schedule, Timing
    from torchx_kfp.execution.host.settings import Submission

#: For how many schedules the last run is asked for at once.
_AT_ONCE = 8


def _moment(text: str) -> float:
    """Read a date or a time in ISO 8601, as seconds since the epoch; without a zone, it is that of this machine."""
    try:
        # Python 3.10 does not know Z.
        return datetime.datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time. Write, for example, 2026-12-31 or 2026-12-31T18:00+01:00.") from None


def _timing(cron: str | None, **values: Any) -> Timing:
    from torchx_kfp.execution.host.schedules import Timing

    return Timing(cron or "", **values)


_timing_options = gathered(
    "timing",
    _timing,
    click.option(
        "--cron",
        metavar="EXPRESSION",
        help="Start a run at these times: minute, hour, day of the month, month, day of the week, such as "
        "'0 3 * * *' for 03:00 of each day (UTC).",
    ),
    click.option("--every", metavar="TIME", type=seconds, help="Start a run in intervals, such as 6h."),
    click.option("--start", metavar="TIME", type=read_by(_moment), help="Start no run before this time."),
    click.option("--end", metavar="TIME", type=read_by(_moment), help="Start no run after this time."),
    click.option(
        "--max-runs", metavar="N", type=int, default=1, help="How many runs there are at once: up to 10.  [default: 1]"
    ),
    click.option(
        "--catchup/--no-catchup",
        default=False,
        help="Whether the schedule starts all runs that it missed, or only the last one.  [default: --no-catchup]",
    ),
)


@click.group("schedule")
def schedule_command() -> None:
    """Let a KFP host run a pipeline regularly. KFP's UI calls a schedule a recurring run.

    \b
    torchx-kfp schedule create pipeline.py --cron '0 3 * * *' --name nightly
    torchx-kfp schedule list

    NAME is the name of a schedule, or its id. `torchx-kfp runs --schedule NAME` lists its runs, and `torchx-kfp results
    --schedule NAME` their results.
    """


@schedule_command.command("create")
@target_argument("FILE[:NAME]|YAML|COMPONENT")
@input_options("URL", of_schedule=True)
@_timing_options
@submission_options
@json_option
@host_options
def create_command(
    target: Target,
    inputs: RunInputs,
    timing: Timing,
    submission: Submission,
    as_json: bool,
    flags: Flags,
) -> None:
    """Make a schedule, and print its id.

    KFP starts the runs, each with its own results under the tracker base. What is checked before is the same as for
    `torchx-kfp submit`.
    """
    from torchx_kfp.entrypoints.cli.commands.submit import prepare_submission
    from torchx_kfp.execution.host.submission import start_schedule

    host = connect(flags)
    prepared = prepare_submission(host, target, inputs)
    if inputs.dry_run:
        show_dry_run(prepared, as_json=as_json)
        return
    schedule = start_schedule(host, prepared, timing, submission, say=print_message, warn=print_message)
    if as_json:
        print_json(_as_dict(schedule))
        return
    print_text(schedule.schedule_id)
    if schedule.timing.expression != schedule.timing.cron:
        print_message(f"KFP gets the expression {schedule.timing.expression!r}: with seconds first, in UTC.")
    if submission.cache:
        print_message(
            "KFP takes a stage from its cache if its inputs are those of an earlier run; --no-cache avoids that."
        )
    print_message(f"To see it: {this_command('schedule', 'list', *host_words(flags))}")


@schedule_command.command("list")
@json_option
@host_options
def list_command(as_json: bool, flags: Flags) -> None:
    """List schedules, with the last run of each.

    Times are local; expressions are in UTC. KFP does not tell the time of the next run.
    """
    from concurrent.futures import ThreadPoolExecutor

    from torchx_kfp.execution.host.schedules import Schedules

    host = connect(flags)
    schedules = Schedules(host)
    found = list(schedules.list())
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        last = list(pool.map(lambda it: next(host.list(schedules.runs_of(it), limit=1), None), found))
    if not found and not as_json:
        print_message(f"There are no schedules on {host.connection.name}.")
        return
    rows = [_as_dict(schedule, run) for schedule, run in zip(found, last, strict=True)]
    when = {schedule.schedule_id: str(schedule.timing) for schedule in found}
    columns = (
        Column("name"),
        Column("state"),
        Column("when", lambda row: when[row["schedule"]]),
        Column("last run", lambda row: row["last"] and f"{at(row['last']['scheduled'])} ({row['last']['state']})"),
        Column("id", lambda row: row["schedule"]),
    )
    print_rows(rows, columns, as_json=as_json)


@schedule_command.command("delete")
@click.argument("name")
@host_options
def delete_command(name: str, flags: Flags) -> None:
    """Delete a schedule.

    Its runs stay in the list of runs, with their results; those in progress continue, except on KFP before 2.16.
    """
    from torchx_kfp.execution.host.schedules import Schedules

    schedules = Schedules(connect(flags))
    schedule = schedules.find(name)
    schedules.delete(schedule, print_message)
    print_message(f"The schedule {printable(schedule.name)!r} ({schedule.schedule_id}) is deleted.")
    print_message(f"Its runs: {this_command('runs', '--schedule', schedule.schedule_id, *host_words(flags))}")


def _as_dict(schedule: Schedule, last: RunSummary | None = None) -> dict[str, Any]:
    """Return a schedule, with its last run, for JSON."""
    return {
        "schedule": schedule.schedule_id,
        "name": schedule.name,
        "state": schedule.state,
        **vars(schedule.timing),
        "cron": schedule.timing.cron or None,
        "created": schedule.created or None,
        "last": last and {"run": last.run_id, "state": str(last.state), "scheduled": last.scheduled},
    }
