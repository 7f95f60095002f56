"""Show the code that goes with a run, and send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx_kfp.common.text import counted, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text

if TYPE_CHECKING:
    from torchx_kfp.tracking.recorder import PackedWorkspace


def send(packed: PackedWorkspace, folder: str) -> None:
    """Store a folder's files under the tracker base.

    Raises:
        TrackerError: the tracker base cannot be written.
    """
    files, size = counted(len(packed.entries), "file"), size_text(packed.size)
    print_message(f"Workspace {folder}: {files}, {size}, {'stored' if packed.upload() else 'there already'}.")


def show_dry_run(packed: PackedWorkspace | None, *, as_json: bool) -> None:
    """Print what would go with a run that is not started."""
    sizes = {entry.name: entry.size for entry in packed.entries} if packed else {}
    if as_json:
        print_json({"workspace": packed and {"digest": packed.digest, "size": packed.size, "files": sizes}})
    elif packed:
        print_files(sizes, packed.digest)
    print_message("Dry run: nothing was stored or started.")


def print_files(sizes: Mapping[str, int], digest: str) -> None:
    """Print the names and sizes of a workspace's files, in bytes, and then their sum and the archive's digest."""
    for name, size in sizes.items():
        print_text(f"{size:>10,}  {printable(name)}")
    print_message(f"{counted(len(sizes), 'file')}, {size_text(sum(sizes.values()))}: {digest}")
