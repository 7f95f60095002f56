"""``torchx-kfp doctor``: check this machine, a KFP host and storage, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from torchx_kfp.common.text import counted
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, styled
from torchx_kfp.entrypoints.cli.flags import Duration, Flags, KnownName, engine_names, host_options
from torchx_kfp.errors import ArgumentError, HostSettingsError
from torchx_kfp.execution.host.settings import Settings, Submission, read_settings

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.doctor.pod_options import PodOptions
    from torchx_kfp.entrypoints.doctor.verdicts import Verdict

_COLORS = {"ok": "green", "warning": "yellow", "missing": "red", "skipped": "bright_black"}


@click.command("doctor", short_help="Check this machine, a KFP host and storage.")
@click.option("--tracker-base", metavar="URL", help="A tracker base to write and read; --run uses it in pods.")
@click.option("--run", "runs", is_flag=True, help="Submit small runs that prove what only pods can, and remove them.")
@click.option("--engine", metavar="NAME", type=KnownName(engine_names), help="With --run: two replicas of this engine.")
@click.option(
    "--image",
    metavar="IMAGE",
    default="",
    help="The image of the stages: python3, fsspec and the driver of the storage.  [default: python:3.12-alpine, in "
    "which they are installed]",
)
@click.option(
    "--env", metavar="NAME=VALUE", multiple=True, help="A variable of the stages. May be given several times."
)
@click.option(
    "--secret",
    "secrets",
    metavar="VARIABLE:SECRET/KEY",
    multiple=True,
    help="A variable of the stages from a Kubernetes secret. May be given several times.",
)
@click.option("--volume", metavar="CLAIM", default="", help="The volume claim that stages mount at the tracker base.")
@click.option("--service-account", metavar="NAME", default="", help="The service account of the stages.")
@click.option(
    "--timeout", metavar="DURATION", type=Duration(), default="10m", show_default=True, help="How long a run may take."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@host_options
@click.pass_context
def doctor_command(
    ctx: click.Context,
    tracker_base: str | None,
    runs: bool,
    engine: str | None,
    image: str,
    env: tuple[str, ...],
    secrets: tuple[str, ...],
    volume: str,
    service_account: str,
    timeout: float,
    as_json: bool,
    flags: Flags,
) -> None:
    """Check this machine, a KFP host and a tracker base: what was looked at, what was found, and what to do.

    \b
    torchx-kfp doctor
    torchx-kfp doctor --host https://kfp.example.com --tracker-base s3://bucket/results
    torchx-kfp doctor --host https://kfp.example.com --tracker-base s3://bucket/results --run --engine job

    Without --run, nothing is started on the host. With it, runs prove that a result gets from stage to stage, that pods
    are labeled with their run, that the cluster retries a stage, that the cache works, and that a run can be canceled;
    with --engine, that two replicas meet. The runs and all that they record are removed, also after Ctrl-C.

    The exit code is 1 if something needed is missing. Values of secrets are not shown.
    """
    from torchx_kfp.execution.runs.watch import ending_signals, raise_for_signal

    given = {"--engine": engine, "--image": image, "--env": env, "--secret": secrets, "--volume": volume}
    if not runs and (
        useless := [name for name, value in {**given, "--service-account": service_account}.items() if value]
    ):
        raise ArgumentError(f"{useless[0]} is for the stages of --run. Add --run.")
    pod = _pod(image, env, secrets, volume)
    submission = Submission(service_account=service_account)
    found: list[Verdict] = []
    with ending_signals(raise_for_signal):  # what a check has made is removed first
        for verdict in _verdicts(flags, tracker_base, pod, engine or "", submission, timeout, runs=runs):
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


def _pod(image: str, env: tuple[str, ...], secrets: tuple[str, ...], volume: str) -> PodOptions:
    from torchx_kfp.entrypoints.doctor.pod_options import PodOptions

    variables: dict[str, str] = {}
    for word in env:
        name, equals, value = word.partition("=")
        if not (name and equals):
            raise ArgumentError(
                f"--env is {word!r}. Give NAME=VALUE, such as AWS_ENDPOINT_URL=http://seaweedfs.kubeflow:9000"
            )
        variables[name] = value
    by_secret: dict[str, dict[str, str]] = {}
    for word in secrets:
        variable, _, place = word.partition(":")
        secret, _, key = place.partition("/")
        if not (variable and secret and key):
            raise ArgumentError(
                f"--secret is {word!r}. Give VARIABLE:SECRET/KEY, such as "
                "AWS_ACCESS_KEY_ID:mlpipeline-minio-artifact/accesskey"
            )
        by_secret.setdefault(secret, {})[key] = variable
    return PodOptions(image, variables, by_secret, volume)


def _verdicts(
    flags: Flags,
    tracker_base: str | None,
    pod: PodOptions,
    engine: str,
    submission: Submission,
    timeout: float,
    *,
    runs: bool,
) -> Iterator[Verdict]:
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
        yield skipped("what only pods can prove", "Add --run, with a tracker base.")
    elif not base:
        yield missing("runs", "--run needs a tracker base.", "Give --tracker-base s3://bucket/results.")
    elif not can_run:
        yield missing("runs", "--run needs a host and a tracker base without anything missing: see above.")
    else:
        proofs = guarded("runs", lambda: _proofs(settings, base, pod, engine, submission, timeout))
        yield from base_access.without_passwords(base, proofs)


def _proofs(
    settings: Settings, base: str, pod: PodOptions, engine: str, submission: Submission, timeout: float
) -> Iterator[Verdict]:
    """Yield what runs prove. Their modules load kfp and TorchX, which may not fit together."""
    from torchx_kfp.entrypoints.doctor.proof import Wanted, prove
    from torchx_kfp.execution.host.connection import Connection
    from torchx_kfp.execution.host.host_runs import Host

    yield from prove(Host(Connection(settings)), Wanted(base, pod, engine, submission, timeout, print_message))
