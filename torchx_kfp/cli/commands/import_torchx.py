"""``torchx-kfp import``: import what TorchX's own tracker has stored."""

from __future__ import annotations

import click

from torchx_kfp.cli.display.printing import print_message
from torchx_kfp.cli.selection import verify_exists
from torchx_kfp.errors import CorruptResultError
from torchx_kfp.text import counted


@click.command("import", short_help="Import what TorchX's own tracker has stored.")
@click.argument("torchx_root")
@click.argument("tracker_base")
def import_command(torchx_root: str, tracker_base: str) -> None:
    """Import what TorchX's own tracker has stored under TORCHX_ROOT: artifacts, metadata and sources.

    TORCHX_ROOT is the root_path in the configuration of torchx.tracker.backend.fsspec, an fsspec URL or a directory.
    Nothing there is changed. Importing again has no effect.

    \b
    torchx-kfp import s3://bucket/torchx s3://bucket/results
    """
    from torchx_kfp.tracking import FsspecResultTracker
    from torchx_kfp.tracking.import_torchx import import_torchx
    from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
    from torchx_kfp.tracking.stores.store import open_store

    verify_exists(open_store(torchx_root), "Name the folder that is root_path in TorchX's configuration.")
    wrong: list[CorruptResultError] = []
    store = FsspecResultTracker(tracker_base, patience=SHORT_PATIENCE).store
    found = import_torchx(torchx_root, store, corrupt=wrong.append, patience=SHORT_PATIENCE)
    for error in wrong:
        print_message(f"Left out: {error}")
    print_message(f"Imported {counted(sum(found.values()), 'file')} from {counted(len(found), 'run')}.")
    if wrong:
        click.get_current_context().exit(1)
