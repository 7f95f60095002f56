"""``torchx-kfp code``: bring back the code that travelled with a run."""

from __future__ import annotations

import os
import shutil
import tarfile

import click

from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.entrypoints.cli.display.printing import print_text
from torchx_kfp.entrypoints.cli.flags import Flags, host_options, output_dir_option
from torchx_kfp.entrypoints.cli.resolver import locate
from torchx_kfp.entrypoints.cli.travel import print_files
from torchx_kfp.errors import ArgumentError, WorkspaceError, explain


@click.command("code", short_help="Bring back the code of a run.")
@click.argument("run")
@click.argument("folder", metavar="[DIR]", required=False)
@click.option("--list", "only_lists", is_flag=True, help="Print the names and sizes of the files, and write nothing.")
@output_dir_option
@host_options
def code_command(run: str, folder: str | None, only_lists: bool, output_dir: str, flags: Flags) -> None:
    """Write the code that travelled with RUN (`--workspace`) into the folder DIR, and print its name.

    RUN is a run id, the beginning or end of one, or "latest"; a run that is not on this machine is looked for on the
    KFP host. DIR is new or empty; the default is code-DIGEST in the current directory.
    """
    from torchx_kfp.contract.carried.workspace import members, unpack
    from torchx_kfp.tracking.recorder import Recorder

    [found] = locate([run], output_dir, flags)
    url = str(found.arguments.get(WORKSPACE) or "")
    if not url:
        raise ArgumentError(
            f"No code travelled with the run {found.run}: it was started without --workspace, and its images have the "
            "code."
        )
    digest = workspace_digest(url)
    if digest is None:
        raise ArgumentError(f"{WORKSPACE}={url!r} of the run {found.run} does not name a stored workspace.")
    archive = Recorder.open(found.base).read_workspace(digest)
    try:
        sizes = {member.name: member.size for member in members(archive)}
    except tarfile.TarError as error:
        raise WorkspaceError(f"The workspace {url} is not an archive of code: {error}.") from None
    if only_lists:
        print_files(sizes, digest)
        return
    folder = folder or f"code-{digest[:12]}"
    is_new = not os.path.lexists(folder)
    try:
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise ArgumentError(f"{folder!r} is not empty. Name a new folder, so that nothing is overwritten.")
    except OSError as error:
        raise ArgumentError(f"The code cannot be written to {folder!r}: {explain(error)}.") from None
    is_whole = False
    try:
        unpack(archive, os.path.realpath(folder))
        is_whole = True
    except ValueError as error:
        raise WorkspaceError(f"The workspace {url} cannot be unpacked: {error}.") from None
    except OSError as error:
        raise ArgumentError(f"The code cannot be written to {folder!r}: {explain(error)}.") from None
    finally:
        if not is_whole:  # half of the code would be taken for all of it
            _clear(folder, with_itself=is_new)
    print_text(folder)


def _clear(folder: str, *, with_itself: bool) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    if with_itself:
        os.rmdir(folder)
