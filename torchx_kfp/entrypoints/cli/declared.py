"""Inputs, outputs and artifacts of stages without a tracker base, from the events of the run.

A run's folder may come from somebody else: only files below the folders of runs are opened.
"""

from __future__ import annotations

import contextlib
import filecmp
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.common.safe_files import UnfitFileError, copy_content, is_below, open_regular
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.entrypoints.cli.display.printing import this_command
from torchx_kfp.errors import ArgumentError, HostError, PipelineError
from torchx_kfp.execution.pipeline.artifacts import Artifact, artifacts_in, is_object_store
from torchx_kfp.execution.runs.history import run_with
from torchx_kfp.execution.runs.record import RunRecord, untracked
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.source import RunSource, stages_named

#: The most levels of folders that are copied.
_LEVELS = 100


def is_untracked(record: RunRecord) -> bool:
    """Return whether no stage of a run has a tracker base."""
    return bool(untracked(record)) and not record.arguments.get(TRACKER_BASE_PARAMETER)


def untracked_stages(record: RunRecord, part: str = "") -> list[str]:
    """Return the names of started stages without a tracker base: all, or those of a part of the run."""
    if record.spec is None:
        return []
    names = stages_named(record, part) if part else list(record.run.by_name)
    stages = ((name, record.run.by_name[name]) for name in names)
    return [
        name
        for name, stage in stages
        if not stage.result.execution_id
        and (stage.path not in record.places or record.places[stage.path].decoded.tracker_base is None)
    ]


def artifacts_of(result: StageResult) -> Iterator[tuple[str, Artifact]]:
    """Yield the names and artifacts that a stage declared to KFP."""
    for output, value in sorted(result.artifacts.items()):
        made = artifacts_in(value)
        yield from ((output if len(made) == 1 else f"{output}[{place}]", it) for place, it in enumerate(made))


def refuse_output(record: RunRecord, wanted: str, words: Sequence[str]) -> None:
    """Raise ArgumentError if the artifact ``STAGE/NAME`` is an output parameter of a stage without a tracker base."""
    stage, _, name = wanted.rpartition("/")
    for each in untracked_stages(record, stage) if stage else []:
        if name in record.run.by_name[each].result.outputs:
            show = this_command("show", f"{record.run_id}/{each}", *words)
            raise ArgumentError(f"The output {name!r} of {each!r} is a value. To see it: {show}")


def describe(source: RunSource, name: str) -> dict[str, Any]:
    """Return a stage without a tracker base for JSON."""
    record = source.read()
    result, inputs = record.run.by_name[name].result, dict[str, Any]()
    with contextlib.suppress(ArgumentError, HostError, PipelineError):  # it was not started, or they are unknown
        inputs = dict(source.invocation(name).inputs)
    inputs = {**result.inputs, **inputs}
    return {
        "run": record.run_id,
        "stage": name,
        "state": str(result.state),
        "reason": result.reason,
        "exit_code": result.exit_code,
        "seconds": round(result.duration, 3),
        "inputs": {
            name: [artifact_as_json(it) for it in made] if (made := artifacts_in(value)) else value
            for name, value in inputs.items()
        },
        "outputs": dict(result.outputs),
        "artifacts": {name: artifact_as_json(artifact) for name, artifact in artifacts_of(result)},
        "log": None if record.folder is None or result.log_file is None else str(result.log_file),
    }


def artifact_as_json(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact for JSON."""
    path = artifact.location or artifact.uri.removeprefix("file://")
    return {"type": artifact.type.title, "path": path, "metadata": artifact.numeric_metadata}


def copy_artifact(record: RunRecord, name: str, artifact: Artifact, folder: str, *, overwrite: bool) -> str:
    """Copy the file or folder of an artifact into a folder, unless the copy exists, and return its path.

    Raises:
        ArgumentError: it is neither below the folders of runs nor in an object store, is gone, or its name is taken.
        OSError: it cannot be read or written.
    """
    path, run = artifact.path, ""
    if record.folder is not None and artifact.is_local and not artifact.location:
        # Foreign paths may have any characters and loops of links.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            run = str(run_with(Path(path), record.folder.parent) or "")
    if not run and not is_object_store(path):
        where = artifact.location or path
        raise ArgumentError(
            f"{name} is not copied: it is neither in the folder of a run nor in an object store, but at {where!r}."
        )
    if run and not os.path.exists(path):
        raise ArgumentError(f"{name} was not written, or was removed: there is no file {path!r}.")
    os.makedirs(folder, exist_ok=True)
    target = os.path.join(folder, os.path.basename(os.path.normpath(path)))
    with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=folder) as temporary:
        copy = os.path.join(temporary, "copy")
        if run:
            _copy(path, copy, run)
        else:
            from torchx_kfp.execution.local.transfer import fetch, lacking_variables

            try:
                fetch(path, copy)
            except Exception as error:  # each file system has its own errors
                why = f"{type(error).__name__}: {error}{lacking_variables(path)}"
                raise ArgumentError(f"{name} cannot be copied from {path}: {why}.") from None
        if os.path.lexists(target):
            if _is_same(copy, target):
                return target
            if not overwrite:
                raise ArgumentError(
                    f"{target} exists, and differs from {name}. Name another folder, or overwrite it: --overwrite."
                )
            os.replace(target, os.path.join(temporary, "old"))
        os.replace(copy, target)
    return target


def _copy(source: str, target: str, root: str, levels: int = _LEVELS) -> None:
    """Copy a file or folder; all of it must be inside the root."""
    if not os.path.isdir(source):
        with open_regular(source, root) as old, open(target, "wb") as new:
            copy_content(old, new)
        return
    if not is_below(os.path.realpath(source), os.path.realpath(root)):
        raise UnfitFileError(f"{source} is a symbolic link out of {root}")
    if not levels:
        raise UnfitFileError(f"{source} is more than {_LEVELS} folders deep")
    os.mkdir(target)
    for name in os.listdir(source):
        inside = os.path.join(source, name)
        if os.path.islink(inside) and os.path.isdir(inside):  # it could lead to a parent folder
            raise UnfitFileError(f"{inside} is a symbolic link to a folder")
        _copy(inside, os.path.join(target, name), root, levels - 1)


def _is_same(one: str, other: str) -> bool:
    """Return whether two files or folders have the same content."""
    if os.path.islink(other) or os.path.isdir(one) != os.path.isdir(other):
        return False
    if not os.path.isdir(one):
        return os.path.isfile(other) and filecmp.cmp(one, other, shallow=False)
    names = sorted(os.listdir(one))
    return names == sorted(os.listdir(other)) and all(
        _is_same(os.path.join(one, name), os.path.join(other, name)) for name in names
    )
