"""``torchx-kfp doctor``: check this machine, a KFP host and storage, with advice."""

from __future__ import annotations

from dataclasses import asdict

import click

from torchx_kfp.common.text import counted
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text, styled
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, json_option

_COLORS = {"ok": "green", "warning": "yellow", "missing": "red", "skipped": "bright_black"}


@click.command("doctor")
@click.option("--tracker-base", metavar="URL", help="A tracker base to write and read.")
@json_option
@host_options
@click.pass_context
def doctor_command(ctx: click.Context, tracker_base: str | None, as_json: bool, flags: Flags) -> None:
    """Check this machine, a KFP host and a tracker base, and print findings with advice.

    \b
    torchx-kfp doctor
    torchx-kfp doctor --host https://kfp.example.com --tracker-base s3://bucket/results

    Nothing is started on the host. To test what only pods can prove, submit a small pipeline with --watch (torchx-kfp
    init DIR creates one). The exit code is 1 if something required is missing. Values of secrets are not shown.
    """
    from torchx_kfp.entrypoints.doctor import check_up

    findings = []
    for it in check_up({**flags, **({"tracker_base": tracker_base} if tracker_base else {})}):
        findings.append(it)
        if not as_json:
            print_text(f"{styled(f'{it.level:8}', fg=_COLORS[it.level])} {it.subject}: {it.found}")
    lacking, warnings = (sum(it.level == level for it in findings) for level in ("missing", "warning"))
    if as_json:
        print_json({"ok": not lacking, "checks": [asdict(it) for it in findings]})
    else:
        print_message(f"{counted(lacking, 'thing')} missing, {counted(warnings, 'warning')}.")
    if lacking:
        ctx.exit(1)
