"""Pack the code that travels with a run: the files of a folder, for the pipeline's parameter ``workspace``.

Which code a run had, and its tags, are recorded under its tracker base.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER, named_workspaces
from torchx_kfp.errors import ArgumentError, TorchxKfpError
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.tracking.recorder import Code, PackedWorkspace, Recorder, parse_tags


def pack(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    folder: str | os.PathLike[str],
    *,
    directory: str | os.PathLike[str] = "",
    without: Iterable[str] = (),
    for_pods: bool = False,
) -> PackedWorkspace:
    """Pack the folder whose files go with a run. Nothing is stored until its ``upload`` is called.

    Args:
        pipeline: the pipeline.
        arguments: the run's arguments, without defaults.
        folder: the folder.
        directory: what a relative tracker base is relative to, by default the current directory.
        without: folders to leave out, in which runs write. The tracker base is always left out.
        for_pods: whether the run is on a host. A folder as tracker base must then exist: pods have mounted it.

    Raises:
        ArgumentError: the pipeline does not take a workspace, is given two, or has no tracker base that can be used.
        WorkspaceError: the folder cannot travel; the message says why.
        TrackerBaseError: the tracker base cannot be used.
    """
    name = os.fspath(folder)
    if WORKSPACE_PARAMETER not in pipeline.root.inputs:
        raise ArgumentError(
            f"The workspace {name!r} needs a pipeline with the parameter {WORKSPACE_PARAMETER!r}, which "
            f"{pipeline.name!r} lacks. Give its function {WORKSPACE_PARAMETER}: str = '', and its stages the option: "
            f"Stages(..., {WORKSPACE_PARAMETER}={WORKSPACE_PARAMETER})."
        )
    if given := arguments.get(WORKSPACE_PARAMETER):
        raise ArgumentError(
            f"The workspace is given twice: the folder {name!r}, and the argument {WORKSPACE_PARAMETER}={given!r}."
        )
    parameter = pipeline.root.inputs.get(TRACKER_BASE_PARAMETER)
    base = str(arguments.get(TRACKER_BASE_PARAMETER) or (parameter.default if parameter else None) or "")
    if not base:
        raise ArgumentError(
            f"The workspace {name!r} is stored under the tracker base, and there is none: give "
            f"{TRACKER_BASE_PARAMETER} (on the command line, --tracker-base)."
        )
    recorder = Recorder.open(base if "://" in base else os.path.abspath(os.path.join(directory, base)))
    if for_pods and recorder.folder is not None and not os.path.isdir(recorder.folder):
        raise ArgumentError(
            f"The code cannot be stored under {base!r}: this machine does not have that folder of the pods. Use "
            "a tracker base that both reach, such as s3://bucket/results, or mount the folder here as well."
        )
    return recorder.pack_workspace(folder, without)


def verify_tags(tags: Mapping[str, str], arguments: Mapping[str, Any]) -> None:
    """Raise ArgumentError if a run with these arguments has no place for tags, or a name cannot be that of a tag."""
    parse_tags(f"{name}={value}" for name, value in tags.items())
    if tags and not arguments.get(TRACKER_BASE_PARAMETER):
        raise ArgumentError(
            f"Tags ({', '.join(tags)}) are kept under the tracker base, and this run has none: give "
            f"{TRACKER_BASE_PARAMETER} (on the command line, --tracker-base)."
        )


def record_start(
    run: str,
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    packed: PackedWorkspace | None,
    tags: Mapping[str, str],
    warn: Callable[[str], object],
) -> None:
    """Record under the tracker base which code and tags a run has that has just started.

    Its code are the workspaces that it names.

    Args:
        run: its name on this machine, or its id on the host.
        pipeline: the pipeline.
        arguments: the values of its parameters.
        packed: the workspace that was packed for it.
        tags: its tags.
        warn: gets a sentence if that is not possible. The run goes on.
    """
    texts = [arguments.get(WORKSPACE_PARAMETER), *arguments.values(), pipeline.text]
    named = named_workspaces(*(text for text in texts if isinstance(text, str)))
    code = [packed.code if packed and packed.digest == digest else Code(digest) for digest in named]
    base = arguments.get(TRACKER_BASE_PARAMETER)
    if not (code or tags) or not base or not isinstance(base, str):
        return
    try:
        recorder = Recorder.open(base)
        # A folder that only pods have is not made here.
        if recorder.folder is None or os.path.isdir(recorder.folder):
            recorder.add_start(run, code, tags)
    except TorchxKfpError as error:
        lost = f"The code of the run {run} is not recorded, and gc may remove it with older runs"
        warn(f"{lost if code else f'The tags of the run {run} are not recorded'}: {error}")
