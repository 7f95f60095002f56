"""Show the code that goes with a run, and send it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx_kfp.common.text import counted, listed, printable, size_text
from torchx_kfp.entrypoints.cli.display.printing import print_json, print_message, print_text
from torchx_kfp.entrypoints.cli.resuming import plan_as_json
from torchx_kfp.errors import ArgumentError

if TYPE_CHECKING:
    from torchx_kfp.execution.pipeline.spec import Pipeline
    from torchx_kfp.execution.runs.packing import PackedRun
    from torchx_kfp.execution.runs.resume import ResumePlan


def send(run: PackedRun) -> None:
    """Store the files that go with a run under its tracker base.

    Raises:
        TrackerError: the tracker base cannot be written.
    """
    for folders, packed in run.workspaces.items():
        files, size = counted(len(packed.entries), "file"), size_text(packed.size)
        print_message(f"Workspace {folders}: {files}, {size}, {'stored' if packed.upload() else 'there already'}.")


def show_dry_run(run: PackedRun, plan: ResumePlan | None = None, *, as_json: bool) -> None:
    """Print what would go with a run that is not started, and what it would keep of the one that it resumes."""
    found = {
        folders: {
            "digest": packed.digest,
            "size": packed.size,
            "files": {entry.name: entry.size for entry in packed.entries},
        }
        for folders, packed in run.workspaces.items()
    }
    if as_json:
        print_json({"workspaces": found, **({"plan": plan_as_json(plan)} if plan else {})})
    else:
        if plan:
            print_text(str(plan))
        for folders, packed in run.workspaces.items():
            print_message(f"Workspace {folders}:")
            print_files({entry.name: entry.size for entry in packed.entries}, packed.digest)
    print_message("Dry run: nothing was stored or started.")


def refuse_folders(pipeline: Pipeline) -> None:
    """Raise ArgumentError for a pipeline with a role's own workspace: whoever runs its file lacks the folder."""
    from torchx_kfp.contract.folders import find_folders

    if folders := find_folders(pipeline.text):
        raise ArgumentError(
            f"The pipeline {pipeline.name!r} has the workspace {listed(next(iter(folders.values())))}, a folder of a "
            "machine, which only `torchx-kfp submit` stores. Use the parameter workspace (--workspace) in its place."
        )


def print_files(sizes: Mapping[str, int], digest: str) -> None:
    """Print the names and sizes of a workspace's files, in bytes, and then their sum and the archive's digest."""
    for name, size in sizes.items():
        print_text(f"{size:>10,}  {printable(name)}")
    print_message(f"{counted(len(sizes), 'file')}, {size_text(sum(sizes.values()))}: {digest}")
