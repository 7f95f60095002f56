"""``torchx-kfp import``: import what TorchX's own tracker has stored."""

from __future__ import annotations

import click

from torchx_kfp.common.text import counted
from torchx_kfp.entrypoints.cli.display.printing import print_message, say_left_out
from torchx_kfp.entrypoints.cli.selection import verify_exists
from torchx_kfp.errors import CorruptResultError


@click.command("import", short_help="Import the records of TorchX's own tracker.")
@click.argument("torchx_root")
@click.argument("tracker_base")
def import_command(torchx_root: str, tracker_base: str) -> None:
    """Import the artifacts, metadata and sources that TorchX's own tracker stored under TORCHX_ROOT.

    TORCHX_ROOT is the root_path in the configuration of torchx.tracker.backend.fsspec, an fsspec URL or a directory.
    It is not changed. Importing again has no effect.

    \b
    torchx-kfp import s3://bucket/torchx s3://bucket/results
    """
    from torchx_kfp.tracking.backends.torchx_files import import_torchx
    from torchx_kfp.tracking.recorder import Recorder

    root = Recorder.open(torchx_root)
    verify_exists(root, "Name the folder that is root_path in TorchX's configuration.")
    wrong: list[CorruptResultError] = []
    found = import_torchx(root.store, Recorder.open(tracker_base).store, corrupt=wrong.append)
    for error in wrong:
        say_left_out(error)
    print_message(f"Imported {counted(sum(found.values()), 'file')} from {counted(len(found), 'run')}.")
    if wrong:
        click.get_current_context().exit(1)
