"""``torchx-kfp doctor``: check this machine, a KFP host and storage, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import counted
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, styled
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, json_option, parameter_option
from torchx_kfp.errors import ArgumentError, HostSettingsError
from torchx_kfp.execution.host.settings import Settings, Submission, read_settings

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.doctor.verdicts import Verdict

_COLORS = {"ok": "green", "warning": "yellow", "missing": "red", "skipped": "bright_black"}


@click.command("doctor")
@click.option(
    "--tracker-base", metavar="URL", help="A tracker base to write and read, here and in the stages of --run."
)
@click.option("--run", "runs", is_flag=True, help="Run a small pipeline on the host, and read its results.")
@parameter_option
@json_option
@host_options
@click.pass_context
def doctor_command(
    ctx: click.Context,
    tracker_base: str | None,
    runs: bool,
    words: tuple[str, ...],
    as_json: bool,
    flags: Flags,
) -> None:
    """Check this machine, a KFP host and a tracker base: what was looked at, what was found, and what to do.

    \b
    torchx-kfp doctor
    torchx-kfp doctor --host https://kfp.example.com --tracker-base s3://bucket/results
    torchx-kfp doctor --host https://kfp.example.com --tracker-base s3://bucket/results --run -p image=example.com/app:1

    With --run, a pipeline of two stages is submitted like any other: the first stage records a result, and the second
    one and this command read it. Its parameters: the image of the stages, which has torchx-kfp and the driver of the
    storage; the endpoint of an S3 store in the cluster; the secret with its accesskey and secretkey
    (mlpipeline-minio-artifact by default, if there is one); the engine that starts two replicas, such as job.

    The exit code is 1 if something needed is missing. Values of secrets are not shown.
    """
    from torchx_kfp.execution.runs.watch import ending_signals, raise_for_signal

    if words and not runs:
        raise ArgumentError("-p is for the pipeline of --run. Add --run.")
    found: list[Verdict] = []
    with ending_signals(raise_for_signal):  # what a check has made is removed first
        for verdict in _verdicts(flags, tracker_base, words, runs=runs):
            found.append(verdict)
            if not as_json:
                level = verdict.level.value
                print_text(styled(f"{level:8}", fg=_COLORS[level]) + str(verdict)[8:])
    lacking = sum(verdict.level.value == "missing" for verdict in found)
    if as_json:
        checks = [
            {"level": each.level.value, "subject": each.subject, "found": each.found, "way_out": each.way_out}
            for each in found
        ]
        print_json({"ok": not lacking, "checks": checks})
    else:
        warnings = sum(verdict.level.value == "warning" for verdict in found)
        print_message(f"{counted(lacking, 'thing')} missing, {counted(warnings, 'warning')}.")
    if lacking:
        ctx.exit(1)


def _verdicts(flags: Flags, tracker_base: str | None, words: tuple[str, ...], *, runs: bool) -> Iterator[Verdict]:
    from torchx_kfp.entrypoints.doctor import base_access, host_state, machine
    from torchx_kfp.entrypoints.doctor.verdicts import Level, guarded, missing, said, skipped

    yield from guarded("Python", machine.check_python)
    yield from guarded("packages", machine.check_packages)
    yield from guarded("container engine", machine.check_engine)
    settings = Settings(tracker_base=tracker_base or "")
    is_set_up = True
    try:
        settings = read_settings({**flags, **({"tracker_base": tracker_base} if tracker_base else {})})
        yield from guarded("settings", lambda: machine.check_settings(settings))
    except HostSettingsError as error:
        is_set_up = False
        yield missing("settings", said(error))
        yield skipped("host", "The settings cannot be read.")
    base, can_run = settings.tracker_base, is_set_up
    if is_set_up:
        from torchx_kfp.execution.host.connection import Connection, Patience

        connection = Connection(settings, Patience(connect=5.0, read=20.0, whole=30.0, retries=1, longest_wait=5.0))
        for verdict in guarded("host", lambda: host_state.check_host(connection)):
            has_host = verdict.level is not Level.MISSING and (verdict.subject, verdict.level) != (
                "host",
                Level.SKIPPED,
            )
            can_run = can_run and has_host
            yield verdict
    if base:
        found = guarded("tracker base", lambda: base_access.check_base(base))
        for verdict in base_access.without_passwords(base, found):
            # Pods may have a volume that this machine lacks, but then nothing can be read here.
            can_run = can_run and verdict.level is not Level.MISSING
            yield verdict
    else:
        yield skipped("tracker base", "None is given: --tracker-base s3://bucket/results.")
    if not runs:
        yield skipped("run", "Add --run, with a tracker base, for what only pods can prove.")
    elif not base:
        yield missing("run", "--run needs a tracker base.", "Give --tracker-base s3://bucket/results.")
    elif not can_run:
        yield missing("run", "--run needs a host and a tracker base without anything missing: see above.")
    else:
        yield from base_access.without_passwords(base, guarded("run", lambda: _run(settings, base, words)))


def _run(settings: Settings, base: str, words: tuple[str, ...]) -> Iterator[Verdict]:
    """Yield a verdict about a run. What it needs loads kfp and TorchX, which may not fit together."""
    from torchx_kfp.common.sdk import import_kfp
    from torchx_kfp.entrypoints.cli.pipeline_files import split_words
    from torchx_kfp.entrypoints.doctor.verdicts import missing, ok
    from torchx_kfp.execution.host.connection import Connection
    from torchx_kfp.execution.host.host_runs import Host
    from torchx_kfp.execution.host.submission import check_submission, refuse_submission, start_run
    from torchx_kfp.execution.pipeline.load import load_pipeline
    from torchx_kfp.execution.pipeline.values import parse_arguments
    from torchx_kfp.execution.runs.prepared_run import prepare
    from torchx_kfp.execution.runs.result import describe_failure
    from torchx_kfp.execution.runs.vocabulary import State
    from torchx_kfp.execution.runs.watch import Lines

    import_kfp()
    from torchx_kfp.entrypoints.doctor.probe import pipeline as probe

    pipeline = load_pipeline(probe)
    prepared = prepare(pipeline, {TRACKER_BASE: base, **parse_arguments(pipeline, split_words(words))})
    refuse_submission(pipeline, check_submission(pipeline, prepared.values))
    run = start_run(Host(Connection(settings)), prepared, Submission(cache=False), warn=print_message)
    result = run.wait(Lines())
    if result.state is not State.SUCCEEDED:
        yield missing("run", describe_failure(result))
        return
    if {stage.name: stage.results for stage in result.stages}.get("second") == {"number": 2}:
        yield ok("run", "One stage has read what another one recorded, and so has this machine.")
        return
    yield missing(
        "run",
        f"The run {run.run_id} has succeeded, but this machine cannot read its results.",
        "Pods and this machine have to use the same storage: compare the addresses (AWS_ENDPOINT_URL).",
    )
