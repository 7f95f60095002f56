"""Continue an earlier run with a new one: ``run PIPELINE --resume RUN`` and ``submit PIPELINE --resume RUN``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.entrypoints.cli.display.printing import print_message
from torchx_kfp.entrypoints.cli.flags import Flags
from torchx_kfp.entrypoints.cli.resolver import find_source, named_bases

if TYPE_CHECKING:
    from torchx_kfp.execution.runs.resume import EarlierRun, ResumePlan
    from torchx_kfp.local import Pipeline

from_option: Callable[[Any], Any] = click.option(
    "--from",
    "from_stages",
    metavar="STAGE",
    multiple=True,
    help="With --resume: run this stage again, and everything that depends on it. May be given several times.",
)


def read_resumed(run: str, output_dir: str, flags: Flags, tracker_base: str | None = None) -> EarlierRun:
    """Return what is known of the run that a user wants to continue.

    Args:
        run: the run, on this machine or on the host.
        output_dir: the directory with the folders of runs on this machine.
        flags: the options of the host.
        tracker_base: the tracker base that the user has named.

    Raises:
        UnknownRunError: there is no such run.
        HostError: the host does not answer.
    """
    from torchx_kfp.execution.runs.earlier_run import earlier_run
    from torchx_kfp.execution.runs.history import RunReader

    source = find_source(run, output_dir, flags, base=tracker_base)
    if not isinstance(source, RunReader):
        return source.earlier()
    record = source.read()
    bases = {end.tracker_base for end in record.run.ends.values() if end.tracker_base}
    return earlier_run(record, named=[tracker_base or "", *named_bases(bases, flags, ran_here=True)])


def resumed_arguments(
    earlier: EarlierRun,
    pipeline: Pipeline,
    given: Mapping[str, Any],
    *,
    tracker_base: str | None,
    workspace: str | None,
) -> dict[str, Any]:
    """Return the arguments of the new run: those given, and otherwise those of the earlier run."""
    options = {TRACKER_BASE: tracker_base, WORKSPACE: workspace}
    return earlier.arguments_for(pipeline, given, [name for name, value in options.items() if value is not None])


def print_plan(plan: ResumePlan, *, quiet: bool = False) -> None:
    """Print what is kept and what runs, before it does."""
    if not quiet:
        print_message(str(plan))


def plan_as_json(plan: ResumePlan) -> dict[str, Any]:
    """Return the plan as ``--dry-run --json`` prints it."""
    return {
        "resumes": plan.run_id,
        "stages": [
            {
                "name": step.name,
                "stages": list(step.stages),
                "kept_from": step.kept_from or None,
                "reason": step.reason,
                "changes": list(step.changes),
            }
            for step in plan.steps
        ],
        "dropped": list(plan.dropped),
        "notes": list(plan.notes),
    }
