"""The options of a schedule, and how schedules are shown."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, this_command
from torchx_kfp.entrypoints.cli.flags import Duration
from torchx_kfp.entrypoints.cli.selection import last_attempts

if TYPE_CHECKING:
    from torchx_kfp.execution.host.host_runs import RunSummary
    from torchx_kfp.execution.host.recurring import Schedule
    from torchx_kfp.execution.host.settings import Submission
    from torchx_kfp.tracking.recorder import Recorder


class Moment(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic in newer click
    """A date or a time in ISO 8601, as seconds since the epoch; without a zone, it is that of this machine."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            # Python 3.10 does not know Z.
            return datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time. Write, for example, 2026-12-31 or 2026-12-31T18:00+01:00.", param, ctx)


_OPTIONS = (
    click.option(
        "--cron",
        metavar="EXPRESSION",
        help="Make a schedule instead of a run: minute, hour, day of the month, month, day of the week, such as "
        "'0 3 * * *' for 03:00 of each day (UTC).",
    ),
    click.option(
        "--every", metavar="TIME", type=Duration(), help="Make a schedule that starts a run in intervals, such as 6h."
    ),
    click.option("--start", metavar="TIME", type=Moment(), help="Start no run of the schedule before this time."),
    click.option("--end", metavar="TIME", type=Moment(), help="Start no run of the schedule after this time."),
    click.option(
        "--max-runs",
        metavar="N",
        type=int,
        help="How many runs of the schedule there are at once; KFP takes up to 10.  [default: 1]",
    ),
    click.option(
        "--catchup/--no-catchup",
        default=None,
        help="Whether the schedule starts all runs that it missed, or only the last one.  [default: --no-catchup]",
    ),
)


def schedule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a schedule, which the command takes as the argument ``timing``; None without a schedule."""

    @wraps(command)
    def with_argument(
        *, cron: str | None, every: float | None, max_runs: int | None, catchup: bool | None, **words: Any
    ) -> Any:
        times = {"start": words.pop("start"), "end": words.pop("end")}
        if cron is None and every is None:
            given = {"--start": times["start"], "--end": times["end"], "--max-runs": max_runs, "--catchup": catchup}
            for name in [name for name, value in given.items() if value is not None]:
                raise click.UsageError(f"{name} is for a schedule: give --cron or --every, too.")
            return command(timing=None, **words)
        from torchx_kfp.execution.host.timing import Timing

        most = 1 if max_runs is None else max_runs
        return command(timing=Timing(cron or "", every, **times, max_runs=most, catchup=bool(catchup)), **words)

    decorated: Callable[..., Any] = with_argument
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def say_created(schedule: Schedule, submission: Submission, words: list[str], *, quiet: bool, as_json: bool) -> None:
    """Print a new schedule: its id on stdout, and how KFP understands it on stderr.

    Args:
        schedule: the schedule.
        submission: the options of its runs.
        words: the options with which commands find its host.
        quiet: whether to print the id only.
        as_json: whether to print JSON instead.
    """
    from torchx_kfp.execution.host.recurring import account_problem

    if problem := account_problem(schedule, submission.service_account):
        print_message(f"Warning: {problem}")
    if as_json:
        print_json(as_dict(schedule))
        return
    print_text(schedule.schedule_id)
    if quiet:
        return
    if schedule.timing is not None and schedule.timing.expression != schedule.timing.cron:
        print_message(f"KFP gets the expression {schedule.timing.expression!r}: with seconds first, in UTC.")
    if submission.cache:
        print_message(
            "KFP takes a stage from its cache if its inputs are those of an earlier run; --no-cache avoids that."
        )
    print_message(f"To see it: {this_command('schedules', *words)}")


def keys_of_runs(recorder: Recorder, runs: Iterable[RunSummary]) -> dict[str, RunSummary]:
    """Return the run ids of stages with results, with the runs that they belong to, without earlier attempts."""
    found: dict[str, RunSummary] = {}
    for run in runs:
        keys = recorder.keys(run.run_id)
        found |= dict.fromkeys(last_attempts(recorder, keys, run.run_id) if keys else (), run)
    return found


def at(seconds: float) -> str:
    """Return the local time."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def as_dict(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule for JSON."""
    timing = schedule.timing
    return {
        "schedule": schedule.schedule_id,
        "name": schedule.name,
        "state": schedule.state,
        "cron": (timing.cron or None) if timing else None,
        "every": timing.every if timing else None,
        "start": timing.start if timing else None,
        "end": timing.end if timing else None,
        "max_runs": timing.max_runs if timing else None,
        "catchup": timing.catchup if timing else None,
        "created": schedule.created or None,
    }
