"""Prepare a run, local or on a host: check its arguments, and pack its code.

The code is that of the pipeline's parameter ``workspace``, and of AppDefs with a workspace. The code of a run is
recorded under its tracker base.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import counted, did_you_mean, listed, shown, size_text
from torchx_kfp.contract.protocol import (
    TRACKER_BASE_PARAMETER,
    WORKSPACE_PARAMETER,
    named_workspaces,
)
from torchx_kfp.contract.scripts import fill_in_folders, find_folders
from torchx_kfp.errors import ArgumentError, TorchxKfpError
from torchx_kfp.execution.pipeline.load import pipeline_errors, pipeline_from_text
from torchx_kfp.execution.pipeline.reader import read_pipeline
from torchx_kfp.execution.pipeline.spec import FromTask, Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import ScopedTask, is_meant, known_bases, known_stages, outline, walk_tasks
from torchx_kfp.execution.runs.stage_code import keys_of, name_code
from torchx_kfp.execution.runs.stage_key import StageKey
from torchx_kfp.tracking.record_tracker import (
    SHORT_PATIENCE,
    Code,
    PackedWorkspace,
    RecordTracker,
    absolute_base,
    pack_folders,
)


@dataclass(frozen=True)
class PreparedRun:
    """A prepared run: ``upload`` stores its code before the start, and ``record`` records its code afterwards.

    Attributes:
        pipeline: the pipeline; it names the code.
        arguments: the arguments, without defaults.
        values: the values of all parameters.
        bases: the tracker bases that are known.
        workspaces: the archives of the code, by the folders in them.
        fresh: the names, without indices, of the stages to run even if they are cached.
        keys: the keys of the stages of a run on a host, by their names.
    """

    pipeline: Pipeline
    arguments: Mapping[str, Any]
    values: Mapping[str, Any]
    bases: Collection[str] = ()
    workspaces: Mapping[str, PackedWorkspace] = field(default_factory=dict)
    fresh: Collection[str] = ()
    keys: Mapping[str, StageKey] = field(default_factory=dict)

    def upload(self, say: Callable[[str], object] | None = None) -> None:
        """Store missing archives, and report this. Raises TrackerError if they cannot be stored."""
        for folders, packed in self.workspaces.items():
            what = "stored" if packed.upload() else "already stored"
            if say is not None:
                say(f"Workspace {folders}: {counted(len(packed.entries), 'file')}, {size_text(packed.size)}, {what}.")
            if say is not None and packed.lacks:
                named = listed(f"{name} (named by {by})" for name, by in packed.lacks.items())
                say(f"Warning: the workspace lacks {named}, excluded by .torchxignore or .gitignore.")

    def record(self, run: str, warn: Callable[[str], object]) -> None:
        """Record the code of a started run under the tracker base.

        Its code consists of the workspaces that it names.

        Args:
            run: its local name, or its id on the host.
            warn: receives a message if this is not possible. The run goes on.
        """
        texts = [*self.values.values(), self.pipeline.text]
        named = named_workspaces(*(text for text in texts if isinstance(text, str)))
        known = {workspace.digest: workspace.code for workspace in self.workspaces.values()}
        code = [known.get(digest) or Code(digest) for digest in named]
        base = self.values.get(TRACKER_BASE_PARAMETER)
        base = next((workspace.store.base for workspace in self.workspaces.values()), base)
        if not (code or self.keys) or not base or not isinstance(base, str):
            return
        try:
            tracker = RecordTracker(base, patience=SHORT_PATIENCE)
            # A folder of the pods is not created locally.
            if tracker.folder is None or os.path.isdir(tracker.folder):
                stages = {name: (key.parts, key.code.files if key.code else {}) for name, key in self.keys.items()}
                tracker.add_start(run, code, self.pipeline.name, stages)
        except TorchxKfpError as error:
            # Without code, only a later dry run needs the record.
            if code:
                warn(f"The code of the run {run} is not recorded: {error}")


def prepare(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    *,
    workspace: str | os.PathLike[str] | None = None,
    fresh: Collection[str] = (),
    directory: str | None = None,
    without: Iterable[str] = (),
    may_lack: bool = False,
) -> PreparedRun:
    """Prepare a run. Nothing is stored or started.

    Args:
        pipeline: the pipeline.
        arguments: the arguments, without defaults.
        workspace: the folder for the parameter ``workspace``, if any.
        fresh: the stages, and nested pipelines, to run even if they are cached. In the pipeline of a run on a
            host, their tasks are not cached.
        directory: the directory in which stages of a local run start; None for a run on a host. A folder as
            tracker base must then exist: pods have mounted it.
        without: folders that runs write to, which do not travel. The tracker base never does.
        may_lack: whether arguments may be missing, because the run is started elsewhere.

    Raises:
        ArgumentError: arguments are unknown, missing or wrong; the pipeline does not take a workspace, is given two,
            has no tracker base for it, is a compiled file that names folders, or lacks a stage that ``fresh`` names; or
            a folder cannot be packed.
        TrackerBaseError: the tracker base cannot be used.
    """
    _verify_types(arguments, workspace, fresh)
    folder = None if workspace is None else os.fspath(workspace)
    if folder is not None:
        _check_parameter(pipeline, arguments, folder)
        arguments = {**arguments, WORKSPACE_PARAMETER: ""}  # until it is packed
    with pipeline_errors(f"The pipeline {pipeline.name!r}"):
        values = complete_arguments(pipeline, arguments, may_lack=may_lack)
        stages = _named(pipeline, fresh)
        bases = list(known_bases(known_stages(pipeline, values)))
        pipeline, workspaces = _pack(pipeline, [values.get(TRACKER_BASE_PARAMETER), *bases], folder, directory, without)
        if folder is not None:
            url = {WORKSPACE_PARAMETER: workspaces[folder].url}
            arguments, values = {**arguments, **url}, {**values, **url}
        # The local cache reads the files themselves.
        archive = workspaces[folder].archive if folder is not None and directory is None else None
        pipeline, codes = name_code(pipeline, values, archive)
        base = values.get(TRACKER_BASE_PARAMETER)
        needs_base = workspaces or values.get(WORKSPACE_PARAMETER)
        if directory is not None and needs_base and isinstance(base, str) and base:
            # A stage starts in its workspace: a relative tracker base would be elsewhere.
            values[TRACKER_BASE_PARAMETER] = absolute_base(base, directory)
        if stages and directory is None:
            pipeline = without_cache(pipeline, stages)
        keys = keys_of(pipeline, values, codes) if directory is None else {}
    return PreparedRun(pipeline, arguments, values, bases, workspaces, stages, keys)


def _named(pipeline: Pipeline, words: Collection[str]) -> frozenset[str]:
    """Return the names, without indices, of the stages named by words, or raise ArgumentError."""
    names = [*outline(pipeline)]
    for word in words:
        if not any(is_meant(name, word) for name in names):
            raise ArgumentError(
                f"The pipeline {pipeline.name!r} has no stage {word!r} to run afresh."
                f"{did_you_mean(word, names)} Its stages: {listed(names)}."
            )
    return frozenset(name for name in names for word in words if is_meant(name, word))


def without_cache(pipeline: Pipeline, stages: Collection[str] | None = None) -> Pipeline:
    """Return the pipeline with KFP's cache turned off for these stages, and for others of the same tasks; or for all.

    ``kfp.Client`` changes only tasks that are not nested.
    """
    spec, platform = pipeline.copy_documents()
    components = {**spec["components"], "root": spec["root"]}
    for place in walk_tasks(pipeline):
        if stages is None or place.name in stages:
            components[place.scope.name]["dag"]["tasks"][place.task.name]["cachingOptions"] = {"enableCache": False}
    return read_pipeline(spec, platform)


def _verify_types(arguments: Any, workspace: Any, fresh: Any) -> None:
    if not isinstance(arguments, Mapping):
        raise ArgumentError(
            f"arguments must be a dict of names and values, such as {{'lr': 0.1}}, but is {shown(arguments)}."
        )
    if workspace is not None and not isinstance(workspace, (str, os.PathLike)):
        raise ArgumentError(f"workspace must be the path of a folder, but is {shown(workspace)}.")
    if isinstance(fresh, str) or not isinstance(fresh, Collection) or not all(isinstance(it, str) for it in fresh):
        raise ArgumentError(f"fresh must be a list of stages, such as ['train'], but is {shown(fresh)}.")


def _pack(
    pipeline: Pipeline, bases: Iterable[Any], folder: str | None, directory: str | None, without: Iterable[str]
) -> tuple[Pipeline, dict[str, PackedWorkspace]]:
    """Return the pipeline with the URLs of its AppDefs' workspaces, and all archives, by the folders in them."""
    wanted = find_folders(pipeline.text)
    if folder is None and not wanted:
        return pipeline, {}
    if wanted and not pipeline.is_compiled_here:
        raise ArgumentError(
            f"The compiled pipeline {pipeline.name!r} has the workspace {listed(next(iter(wanted.values())))}, a "
            "folder of the machine on which it was compiled. Give the Python file of the pipeline instead, or use the "
            f"parameter {WORKSPACE_PARAMETER} (--workspace) instead of Role.workspace."
        )
    place = _record_tracker(pipeline, next((str(base) for base in bases if base), ""), directory)
    packed = {placeholder: pack_folders(place.store, folders, without) for placeholder, folders in wanted.items()}
    workspaces = {listed(wanted[placeholder]): workspace for placeholder, workspace in packed.items()}
    if wanted:
        urls = {placeholder: workspace.url for placeholder, workspace in packed.items()}
        pipeline = pipeline_from_text(fill_in_folders(pipeline.text, urls), pipeline.name)
    if folder is not None:
        workspaces[folder] = pack_folders(place.store, {os.fspath(folder): ""}, without)
    return pipeline, workspaces


def _record_tracker(pipeline: Pipeline, base: str, directory: str | None) -> RecordTracker:
    """Open the tracker base under which the code of a run is stored: see ``prepare``."""
    if not base:
        raise ArgumentError(
            f"A workspace is stored under the tracker base, and the pipeline {pipeline.name!r} has none: give "
            f"{TRACKER_BASE_PARAMETER} (on the command line, --tracker-base)."
        )
    base = absolute_base(base, directory or "")
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    if directory is None and tracker.folder is not None and not os.path.isdir(tracker.folder):
        raise ArgumentError(
            f"The code cannot be stored under {base!r}: this machine does not have that folder of the pods. Use a "
            "tracker base that both reach, such as s3://bucket/results, or mount the folder locally as well."
        )
    return tracker


def _check_parameter(pipeline: Pipeline, arguments: Mapping[str, Any], folder: str) -> None:
    if WORKSPACE_PARAMETER not in pipeline.root.parameter_inputs:
        raise ArgumentError(
            f"The workspace {folder!r} needs a pipeline with the parameter {WORKSPACE_PARAMETER!r}, which "
            f"{pipeline.name!r} lacks. Give its function {WORKSPACE_PARAMETER}: str = '', and its stages the option: "
            f"Stages(..., {WORKSPACE_PARAMETER}={WORKSPACE_PARAMETER})."
        )
    if given := arguments.get(WORKSPACE_PARAMETER):
        raise ArgumentError(
            f"The workspace is given twice: the folder {folder!r}, and the argument {WORKSPACE_PARAMETER}={given!r}."
        )


def forecast_submission(prepared: PreparedRun, *, cache: bool) -> list[tuple[str, str]]:
    """Return the plan for each stage on a host, by name, in an order in which they could run.

    KFP does not report the contents of its cache. A submission records the parts of KFP's key of each stage
    (``GenerateCacheKey`` in ``cacheutils/cache.go``) that are known before the run, and the files of its code.

    Args:
        prepared: the run.
        cache: whether it may use KFP's cache.

    Raises:
        TrackerError: the records of earlier submissions cannot be read.
    """
    base = prepared.values.get(TRACKER_BASE_PARAMETER)
    tracker = RecordTracker(base, patience=SHORT_PATIENCE) if isinstance(base, str) and base else None
    earlier = {} if tracker is None else tracker.submitted(prepared.pipeline.name)
    recorded: dict[str, set[str]] = {}
    found: list[tuple[str, str]] = []
    runs: dict[str, str] = {}
    for stage in known_stages(prepared.pipeline, prepared.values):
        reads = next((name for path, name in runs.items() if _reads(stage, path)), "")
        last, known = next(((run, its[stage.name]) for run, its in earlier.items() if stage.name in its), ("", None))
        what = ""
        if not cache:
            what = "--no-cache"
        elif stage.name in prepared.fresh:
            what = "--fresh"
        elif stage.task.ignores_failures or not stage.task.caches:
            what = "it is an exit task" if stage.task.ignores_failures else "its cache is turned off"
        elif reads:
            what = f"it reads {reads}"
        elif known is None:
            what = "it has not been submitted yet"
        else:
            what = ", ".join(prepared.keys[stage.name].differences(*known))
        if not what and known is not None and tracker is not None:
            if last not in recorded:
                recorded[last] = {key.split("/")[1] for key in tracker.keys(last) if "/" in key}
            is_known = stage.decoded.stage in recorded[last]
            found.append((stage.name, f"cached (from {last}{'' if is_known else ', if it succeeded there'})"))
        else:
            runs[stage.path] = stage.name
            found.append((stage.name, f"runs: {what}"))
    return found


def _reads(stage: ScopedTask, path: str) -> bool:
    """Return whether a stage, or a group around it, uses an output of the stage with this path, or of its groups."""
    return any(path == it or path.startswith(f"{it}/") for it in _sources(stage))


def _sources(stage: ScopedTask) -> Iterator[str]:
    for around in stage.around:
        for source in (*around.task.parameters.values(), *around.task.artifacts.values()):
            if isinstance(source, FromTask):
                yield source.task if around.inside is None else f"{around.inside.path}/{source.task}"
