"""Pack the code that travels with a run: the files of a folder, for the pipeline's parameter ``workspace``."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.tracking.recorder import PackedWorkspace, Recorder


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
