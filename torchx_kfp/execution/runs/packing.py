"""Pack the code that travels with a run: of the pipeline's parameter ``workspace``, and of AppDefs with a workspace.

Which code a run had, and its tags, are recorded under its tracker base.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import listed
from torchx_kfp.contract.folders import fill_in_folders, find_folders
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER, WORKSPACE_PARAMETER, named_workspaces
from torchx_kfp.errors import ArgumentError, TorchxKfpError
from torchx_kfp.execution.pipeline.load import pipeline_from_text
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import known_bases
from torchx_kfp.execution.runs.resume_record import continuation_of
from torchx_kfp.tracking.recorder import Code, PackedWorkspace, Recorder, parse_tags


@dataclass(frozen=True)
class PackedRun:
    """A run whose code is packed: its pipeline and arguments name the archives that must be stored before it starts.

    ``workspaces`` are these archives, by the folders in them.
    """

    pipeline: Pipeline
    arguments: Mapping[str, Any]
    workspaces: Mapping[str, PackedWorkspace] = field(default_factory=dict)

    def upload(self) -> None:
        """Store the archives that are not there yet. Raises TrackerError if they cannot be stored."""
        for workspace in self.workspaces.values():
            workspace.upload()


def pack(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    folder: str | os.PathLike[str] | None = None,
    *,
    directory: str | os.PathLike[str] = "",
    without: Iterable[str] = (),
    for_pods: bool = False,
) -> PackedRun:
    """Pack the folders whose files go with a run. Nothing is stored until ``upload`` is called.

    Args:
        pipeline: the pipeline.
        arguments: the run's arguments, without defaults.
        folder: the folder for the pipeline's parameter ``workspace``, if any.
        directory: what a relative tracker base is relative to, by default the current directory.
        without: folders to leave out, in which runs write. The tracker base is always left out.
        for_pods: whether the run is on a host. A folder as tracker base must then exist: pods have mounted it.

    Raises:
        ArgumentError: the pipeline does not take a workspace, is given two, has no tracker base that can be used, or is
            a compiled file that names folders.
        WorkspaceError: a folder cannot travel; the message says why.
        TrackerBaseError: the tracker base cannot be used.
    """
    wanted = find_folders(pipeline.text)
    if folder is not None:
        _check_parameter(pipeline, arguments, os.fspath(folder))
    elif not wanted:
        return PackedRun(pipeline, arguments)
    if wanted and not pipeline.is_compiled_here:
        raise ArgumentError(
            f"The compiled pipeline {pipeline.name!r} has the workspace {listed(next(iter(wanted.values())))}, a "
            "folder of the machine on which it was compiled. Give the Python file of the pipeline instead, or use the "
            f"parameter {WORKSPACE_PARAMETER} (--workspace) in place of Role.workspace."
        )
    place = _recorder(pipeline, arguments, directory, for_pods=for_pods)
    packed = {placeholder: place.pack_workspace(folders, without) for placeholder, folders in wanted.items()}
    workspaces = {listed(wanted[placeholder]): workspace for placeholder, workspace in packed.items()}
    if wanted:
        urls = {placeholder: workspace.url for placeholder, workspace in packed.items()}
        pipeline = pipeline_from_text(fill_in_folders(pipeline.text, urls), pipeline.name)
    if folder is not None:
        own = workspaces[os.fspath(folder)] = place.pack_workspace(folder, without)
        arguments = {**arguments, WORKSPACE_PARAMETER: own.url}
    return PackedRun(pipeline, arguments, workspaces)


def _check_parameter(pipeline: Pipeline, arguments: Mapping[str, Any], folder: str) -> None:
    if WORKSPACE_PARAMETER not in pipeline.root.inputs:
        raise ArgumentError(
            f"The workspace {folder!r} needs a pipeline with the parameter {WORKSPACE_PARAMETER!r}, which "
            f"{pipeline.name!r} lacks. Give its function {WORKSPACE_PARAMETER}: str = '', and its stages the option: "
            f"Stages(..., {WORKSPACE_PARAMETER}={WORKSPACE_PARAMETER})."
        )
    if given := arguments.get(WORKSPACE_PARAMETER):
        raise ArgumentError(
            f"The workspace is given twice: the folder {folder!r}, and the argument {WORKSPACE_PARAMETER}={given!r}."
        )


def _recorder(
    pipeline: Pipeline, arguments: Mapping[str, Any], directory: str | os.PathLike[str], *, for_pods: bool
) -> Recorder:
    """Open the tracker base of a run: that of its parameter, or the only one that its stages name."""
    values = {name: one.default for name, one in pipeline.root.inputs.items() if one.has_default} | dict(arguments)
    known = [values.get(TRACKER_BASE_PARAMETER), *known_bases(pipeline, values)]
    bases = list(dict.fromkeys(str(base) for base in known if base))
    if not bases:
        raise ArgumentError(
            f"A workspace is stored under the tracker base, and the pipeline {pipeline.name!r} has none: give "
            f"{TRACKER_BASE_PARAMETER} (on the command line, --tracker-base)."
        )
    base = bases[0] if "://" in bases[0] else os.path.abspath(os.path.join(directory, bases[0]))
    recorder = Recorder.open(base)
    if for_pods and recorder.folder is not None and not os.path.isdir(recorder.folder):
        raise ArgumentError(
            f"The code cannot be stored under {base!r}: this machine does not have that folder of the pods. Use a "
            "tracker base that both reach, such as s3://bucket/results, or mount the folder here as well."
        )
    return recorder


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
    packed: PackedRun,
    arguments: Mapping[str, Any],
    tags: Mapping[str, str],
    warn: Callable[[str], object],
    *,
    is_schedule: bool = False,
) -> None:
    """Record under the tracker base which code and tags a run has that has just started, and which runs it resumes.

    Its code are the workspaces that it names.

    Args:
        run: its name on this machine, or its id on the host.
        packed: its pipeline and code.
        arguments: the values of its parameters.
        tags: its tags.
        warn: gets a sentence if that is not possible. The run goes on.
        is_schedule: whether it is a schedule of runs, not a run.
    """
    texts = [packed.arguments.get(WORKSPACE_PARAMETER), *arguments.values(), packed.pipeline.text]
    named = named_workspaces(*(text for text in texts if isinstance(text, str)))
    known = {workspace.digest: workspace.code for workspace in packed.workspaces.values()}
    code = [known.get(digest) or Code(digest) for digest in named]
    base = arguments.get(TRACKER_BASE_PARAMETER)
    base = next((workspace.store.base for workspace in packed.workspaces.values()), base)
    before = continuation_of(packed.pipeline.description)
    resumes = [] if before is None else [before.resumes, *(end.cached_from for end in before.ends)]
    if not (code or tags or resumes) or not base or not isinstance(base, str):
        return
    try:
        recorder = Recorder.open(base)
        # A folder that only pods have is not made here.
        if recorder.folder is None or os.path.isdir(recorder.folder):
            if is_schedule:
                recorder.add_schedule(run, code)
            else:
                recorder.add_start(run, code, tags, list(dict.fromkeys(filter(None, resumes))))
    except TorchxKfpError as error:
        lost = f"The code of the run {run} is not recorded, and gc may remove it with older runs"
        warn(f"{lost if code else f'The tags of the run {run} are not recorded'}: {error}")
