"""Get the code that travelled with a run: ``torchx-kfp get --code``."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Collection
from typing import TYPE_CHECKING

from torchx_kfp.common.text import did_you_mean, listed
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER as WORKSPACE
from torchx_kfp.contract.protocol import workspace_digest, workspace_key
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.entrypoints.cli.display.printing import print_text
from torchx_kfp.entrypoints.cli.lookup import Lookup, say_latest
from torchx_kfp.entrypoints.cli.run_inputs import print_files
from torchx_kfp.errors import ArgumentError, WorkspaceError, explain

if TYPE_CHECKING:
    from torchx_kfp.execution.host.run import HostRun
    from torchx_kfp.execution.runs.history import RunReader
    from torchx_kfp.execution.runs.record import RunRecord

#: What names programs in a bare repository of git, or where it is. Its file ``HEAD`` is in the same folder.
_NEXT_TO_HEAD = ("config", "commondir", "hooks")


def get_code(run: str, folder: str | None, lookup: Lookup, *, only_lists: bool) -> None:
    """Write the code of a run, or of one of its stages, into a new folder, and print its name; or list the files.

    Args:
        run: a word ``RUN[/STAGE]``.
        folder: the folder. Default: one that is named after the code's digest.
        lookup: where runs are.
        only_lists: whether to write nothing.

    Raises:
        ArgumentError: no code travelled with the run, or the folder is not empty.
        WorkspaceError: the archive cannot be unpacked.
    """
    from torchx_kfp.contract.carried.workspace import members, unpack
    from torchx_kfp.tracking.recorder import Recorder

    source, part = lookup.find_part(run)
    stage = part or None
    record = source.read()
    say_latest(run, record.run_id)
    url = _url(source, record, stage)
    digest = workspace_digest(url)
    if digest is None:
        raise ArgumentError(f"{url!r} of the run {record.run_id} does not name a stored workspace.")
    base = url.removesuffix(f"/{workspace_key(digest)}")
    lookup.verify_trusted(base, ran_here=record.folder is not None)
    archive = Recorder.open(record.absolute_base(base)).read_workspace(digest)
    try:
        sizes = {member.name: member.size for member in members(archive)}
    except tarfile.TarError as error:
        raise WorkspaceError(f"The workspace {url} is not an archive of code: {error}.") from None
    if (found := _file_of_git(sizes)) and not only_lists:
        raise WorkspaceError(
            f"The workspace {url} has {found!r}, of a git repository: git would run the programs that its "
            "configuration names. See its files with --list."
        )
    if only_lists:
        print_files(sizes, digest, len(archive))
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
    except (ValueError, RecursionError) as error:
        raise WorkspaceError(f"The workspace {url} cannot be unpacked: {error}.") from None
    except OSError as error:
        raise ArgumentError(f"The code cannot be written to {folder!r}: {explain(error)}.") from None
    finally:
        if not is_whole:  # half of the code would be taken for all of it
            _clear(folder, with_itself=is_new)
    print_text(folder)


def _url(source: RunReader | HostRun, record: RunRecord, stage: str | None) -> str:
    """Return the URL of the code of a run, or of one of its stages.

    Raises:
        ArgumentError: it has none, or its stages have different code, or there is no such stage.
        HostError: the host does not say what the stage was given.
    """
    from torchx_kfp.execution.pipeline.placeholders import Facts, resolve_command
    from torchx_kfp.execution.pipeline.values import complete_arguments
    from torchx_kfp.execution.pipeline.walk import known_stages

    if stage is None and (url := record.arguments.get(WORKSPACE)):
        return str(url)
    pipeline = record.load()
    stages = {each.place.name: each for each in known_stages(pipeline, complete_arguments(pipeline, record.arguments))}
    if stage is None:
        urls = {name: each.workspace for name, each in stages.items() if workspace_digest(each.workspace)}
        if len(set(urls.values())) == 1:
            return next(iter(urls.values()))
        if urls:
            names = listed(f"{record.run_id}/{name}" for name in urls)
            raise ArgumentError(f"The stages of the run {record.run_id} have different code. Name one: {names}.")
        raise ArgumentError(
            f"No code travelled with the run {record.run_id}: it was started without --workspace, and its images have "
            "the code."
        )
    wanted = stage.partition("[")[0]
    found = [name for name in stages if name == wanted or name.rpartition("/")[2] == wanted]
    if len(found) != 1:
        what = "is several stages" if found else "is not a stage"
        raise ArgumentError(
            f"{stage!r} {what} of the run {record.run_id}.{did_you_mean(wanted, stages)} Stages: "
            f"{listed(found or stages, 20)}."
        )
    url = stages[found[0]].workspace
    if "{{$" in url:  # of another stage
        invocation = source.invocation(found[0] + stage[len(wanted) :])
        container = invocation.component.container
        words = resolve_command(container.words if container else (), Facts(parameters=dict(invocation.inputs)))
        url = next(filter(None, workspaces_in(words)), "")
    if not url:
        raise ArgumentError(
            f"No code travelled with the stage {record.run_id}/{found[0]}: it has the code of its image."
        )
    return url


def _file_of_git(names: Collection[str]) -> str | None:
    """Return a file of a git repository, which may be a bare one; None if there is none.

    Case does not count, as in the file systems that ignore it.
    """
    known = {name.casefold() for name in names}
    known |= {os.path.dirname(name) for name in known}
    for name in names:
        *folders, last = name.casefold().split("/")
        if ".git" in (*folders, last):
            return name
        if last == "head" and any("/".join((*folders, other)) in known for other in _NEXT_TO_HEAD):
            return name
    return None


def _clear(folder: str, *, with_itself: bool) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                os.unlink(entry.path)
    if with_itself:
        os.rmdir(folder)
