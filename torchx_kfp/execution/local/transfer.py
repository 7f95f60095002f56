"""The files of an attempt: copies of its input artifacts, and its outputs.

As on KFP, each stage has its own copy of an artifact: no other stage sees its changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import json
import os
import shutil
import stat
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from torchx_kfp.common.safe_files import UnfitFileError, is_below, read_bytes, special_kind, temporary_name
from torchx_kfp.common.text import joined, shown
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.protocol import REGISTERED
from torchx_kfp.errors import explain
from torchx_kfp.execution.local.executors.executor import AttemptError, AttemptPlan
from torchx_kfp.execution.pipeline.artifacts import (
    Artifact,
    ArtifactList,
    artifacts_in,
    is_artifact,
    is_object_store,
    read_report,
)
from torchx_kfp.execution.pipeline.placeholders import placeholders_in
from torchx_kfp.execution.pipeline.values import convert, from_output, large_integers
from torchx_kfp.tracking.record_tracker import Artifact as RegisteredArtifact

#: By how many seconds the time of a file may lag behind the clock.
_COARSE = 0.02
#: Schemes that fsspec lacks, or has for something else.
_OF_KFP = ("oci", "huggingface")
#: How many bytes the kernel copies at once.
_CHUNK = 1 << 30


def with_copies(
    inputs: Mapping[str, Any], words: Sequence[str], folder: Path, *, runs: str, takes_all: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the inputs with paths of copies of their files, and these paths by URI.

    Files on other storage, and those made by stages of runs, are copied. Other local files are the
    user's: a stage reads them where they are.

    Args:
        inputs: parameters and artifacts.
        words: the command, whose placeholders show which files it takes.
        folder: the folder for the copies.
        runs: the folder with the folders of runs.
        takes_all: whether the stage may take files without placeholders, as Python components do.
    """
    named = {placeholder.file for word in words for placeholder in placeholders_in(word)}
    files = {name: value for name, value in inputs.items() if is_artifact(value)}
    taken = {name for name in files if takes_all or name in named}
    # Inputs with the same file have one copy: that of the workspace, if one of them goes there.
    every = [artifact for name in taken for artifact in artifacts_in(files[name])]
    copies = {artifact.uri: artifact.custom_path for artifact in every if artifact.custom_path}
    changed: dict[str, Any] = {}
    for name, value in files.items():
        made = []
        for index, artifact in enumerate(artifacts_in(value)):
            is_copied = is_below(artifact.path, runs) if artifact.is_local else name in taken
            if is_copied and not artifact.custom_path:
                file = os.path.basename(artifact.uri.rstrip("/"))
                place = str(folder / name / str(index) / (file if file.strip(".") else "file"))
                artifact = dataclasses.replace(artifact, custom_path=copies.setdefault(artifact.uri, place))
            made.append(artifact)
        changed[name] = ArtifactList(made) if isinstance(value, ArtifactList) else made[0]
    return {**inputs, **changed}, copies


def copy_here(url: str, path: str, sources: Collection[str]) -> None:
    """Copy a file, or a folder and its contents, unless the copy exists. Several processes may do this concurrently.

    Args:
        url: the URL of the file, or its local path.
        path: the path of the copy.
        sources: see ``verify_source``.

    Raises:
        AttemptError: it cannot or must not be copied.
    """
    verify_source(url, sources)
    if os.path.exists(path):
        return
    temporary = os.path.join(os.path.dirname(path), temporary_name())
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fetch(url, temporary)
        try:
            os.rename(temporary, path)
        except OSError as error:
            # Another stage was faster, if this is the workspace; or the stage that should have did not make it.
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOENT):
                raise
    except Exception as error:  # each file system has its own errors
        text = f"{type(error).__name__}: {error}"
        raise AttemptError(
            f"takes an artifact that cannot be copied from {url}: {text}{lacking_variables(url)}"
        ) from None
    finally:
        if os.path.isdir(temporary):
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            Path(temporary).unlink(missing_ok=True)


def verify_source(url: str, sources: Collection[str]) -> None:
    """Raise AttemptError if a file may not be copied for a stage.

    Files come from object stores and from ``sources``: local paths and URLs, with what is below them. For a chained
    URL, fsspec could run code named in another file.
    """
    path = url.removeprefix("file://")
    path = path if "://" in path else os.path.abspath(path)
    if "::" in url:
        why = "it is a chained URL. Give the URL, or the path, of the file itself"
    elif is_object_store(url):
        return
    elif ".." in unquote(path).split("/"):
        why = "it has .. in its path. Give the URL without it"
    elif any(is_below(path, source) for source in sources):
        return
    elif path.partition("://")[0] in _OF_KFP:
        why = "only KFP's importer reads such a URI. Download the model, and import that folder or an s3:// URI"
    elif "://" in path:
        why = f"it is not in an object store. If you trust that server: --copy-from {url}"
    else:
        why = f"it is a local file that the container does not see: --mount {path}:ro"
    raise AttemptError(f"takes an artifact that must not be copied from {url}: {why}")


def lacking_variables(url: str) -> str:
    """Return the unset variables for an object store, in parentheses after a space."""
    if url.partition("://")[0] not in ("s3", "minio"):
        return ""
    names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    if url.startswith("minio://") and not os.environ.get("AWS_ENDPOINT_URL_S3"):
        names.append("AWS_ENDPOINT_URL")
    lacking = [name for name in names if not os.environ.get(name)]
    return f" (not set locally: {joined(lacking)})" if lacking else ""


def fetch(url: str, path: str) -> None:
    """Copy a file or folder, if it exists."""
    import fsspec

    if "://" not in (source := url.removeprefix("file://")):
        with contextlib.suppress(FileNotFoundError):
            copy_tree(source, path)
        return
    # KFP calls the S3 server of its own installation minio.
    known = f"s3://{url.removeprefix('minio://')}" if url.startswith("minio://") else url
    store, source = fsspec.core.url_to_fs(known)
    if not store.isdir(source):
        store.get_file(source, path)
        return
    os.makedirs(path, exist_ok=True)
    for file in store.find(source):
        # An object's name may contain anything.
        target = os.path.normpath(os.path.join(path, file[len(source.rstrip("/")) :].lstrip("/")))
        if not is_below(target, path):
            raise ValueError(f"the name of {file} leads out of its folder")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        store.get_file(file, target)


def copy_tree(source: str, target: str) -> None:
    """Copy a file, or a folder with its contents and the links in it, with permissions."""
    if os.path.isdir(source):
        shutil.copytree(source, target, symlinks=True, copy_function=_copy_file, dirs_exist_ok=True)
    else:
        _copy_file(source, target)


def _copy_file(source: str, target: str) -> None:
    # On Btrfs and XFS, the kernel copies nothing until one of the two files changes.
    with open(source, "rb", buffering=0) as old, open(target, "wb", buffering=0) as new:
        try:
            while os.copy_file_range(old.fileno(), new.fileno(), _CHUNK):
                pass
        except OSError:  # such as another file system
            shutil.copyfileobj(old, new)
    shutil.copymode(source, target)


#: The largest output parameter, and the largest report, in bytes. KFP's database accepts less.
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REPORT = 64 << 20


def read_execution_id(plan: AttemptPlan) -> str | None:
    """Return the execution id of a tracked stage, which exists even if the stage failed afterwards."""
    path = plan.placeholders.output_files.get(RUN_ID)
    if plan.recorded_as or path is None or plan.tracker_base is None:
        return plan.recorded_as or None
    with contextlib.suppress(OSError, ValueError):
        return read_bytes(path, limit=_LONGEST_OUTPUT).decode() or None
    return None


def read_outputs(plan: AttemptPlan) -> tuple[dict[str, Any], dict[str, Artifact], list[str]]:
    """Return the stage's output parameters, its artifacts in their final places, and the names of files next to them.

    Other stages do not get the files next to an artifact, locally or on KFP.

    Raises:
        ValueError: something is missing, has the wrong type, or is not a file; the message continues a sentence that
            begins with the stage's name.
    """
    report, declared = plan.placeholders.executor_output, plan.placeholders.output_artifacts
    try:
        text = read_bytes(report, limit=_LONGEST_REPORT).decode()
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ValueError(f"left its report {report} unreadable: {error}") from None
    try:
        reported, artifacts = read_report(text, declared)
    except ValueError as error:
        raise ValueError(f"wrote a report that {error}: {report}") from None
    outputs = {
        name: _read_output(plan, name, type_, reported) for name, type_ in plan.component.parameter_outputs.items()
    }
    folder, kept = f"{plan.made}/artifacts", set()
    for artifact in artifacts.values():
        kept |= {os.path.relpath(place, folder).split("/")[0] for place in (artifact.uri, artifact.path) if place}
    there = os.listdir(folder) if os.path.isdir(folder) else []
    return outputs, {name: _store(plan, artifact) for name, artifact in artifacts.items()}, sorted({*there} - kept)


def _read_output(plan: AttemptPlan, name: str, type_: str, reported: Mapping[str, Any]) -> Any:
    if name in reported:
        if number := next((each for each in large_integers(reported[name]) if each != float(each)), None):
            raise ValueError(
                f"returned the integer {shown(number)} as its output {name!r}, and KFP passes numbers as doubles, "
                "which are exact up to 2**53. Return it as text"
            )
        return convert(reported[name], type_)
    path = plan.placeholders.output_files[name]
    try:
        text = read_bytes(path, limit=_LONGEST_OUTPUT).decode()
    except FileNotFoundError:
        if plan.python is not None:
            raise ValueError(
                f"did not give its output {name!r} a value: the function {plan.python.function!r} returned None, "
                f"and the file {path} is missing"
            ) from None
        raise ValueError(
            f"did not write its output {name!r}: the file {path} is missing, though the process ended with exit code 0"
        ) from None
    except UnicodeDecodeError:
        raise ValueError(f"wrote its output {name!r} in an encoding other than UTF-8: {path}") from None
    except OSError as error:
        raise ValueError(f"left its output {name!r} unreadable: {error}") from None
    try:
        return from_output(text, type_)
    except ValueError as error:
        raise ValueError(f"wrote a value into its output {name!r} that {error}") from None


def _store(plan: AttemptPlan, artifact: Artifact) -> Artifact:
    """Copy a file from the artifact's custom path to its final place, as KFP's launcher uploads it."""
    stored = dataclasses.replace(artifact, custom_path="")
    if not stored.is_local:
        return stored
    try:
        if artifact.custom_path:
            with contextlib.suppress(FileNotFoundError):
                copy_tree(_here(plan, artifact.custom_path), stored.path)
        if is_below(stored.path, plan.made):
            _verify_content(stored.path)
    except OSError as error:
        raise ValueError(f"left the artifact {artifact.name!r} unusable: {explain(error)}") from None
    return stored


def _here(plan: AttemptPlan, path: str) -> str:
    """Return the local path for a path that a stage named."""
    if plan.container is None:
        return path
    path_here = plan.container.path_here(path)
    if path_here is None:
        raise UnfitFileError(
            f"{path} is lost with the container. Write to the artifact's own path, or to a folder that is mounted"
        )
    return path_here


def _verify_content(path: str) -> None:
    """Raise UnfitFileError unless the path is a file or a folder of files, folders and links, or missing."""
    if os.path.islink(path) and not os.path.exists(path):
        raise UnfitFileError(f"{path} is a link to {os.readlink(path)}, which does not exist locally")
    if not os.path.lexists(path):
        return
    if kind := special_kind(os.stat(path).st_mode):
        raise UnfitFileError(f"{path} is a {kind}")
    for folder, _, names in os.walk(path):
        for name in names:
            mode = os.lstat(file := os.path.join(folder, name)).st_mode
            if not stat.S_ISLNK(mode) and (kind := special_kind(mode)):
                raise UnfitFileError(f"{file} is a {kind}")


def written_files(plan: AttemptPlan, since: float) -> dict[str, list[str]]:
    """Return the files changed since this time, by the local paths that a process registered."""
    paths: list[str] = []
    with contextlib.suppress(OSError, ValueError):
        text = read_bytes(str(plan.folder / REGISTERED), limit=_LONGEST_REPORT).decode()
        paths = [os.path.realpath(json.loads(line)) for line in text.splitlines()]
    found: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        for place in (path, *(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)):
            with contextlib.suppress(OSError):
                if os.lstat(place).st_mtime >= since - _COARSE:
                    found.setdefault(path, []).append(place)
    return found


def registered_files(plan: AttemptPlan, registered: Mapping[str, RegisteredArtifact]) -> tuple[str, ...]:
    """Return the local paths of the files and folders that the stage registered, if they exist.

    Those stored elsewhere have URLs.
    """
    stored = [artifact.path for artifact in registered.values() if artifact.stored and "://" in artifact.path]
    paths = [artifact.path.removeprefix("file://") for artifact in registered.values()]
    if plan.container is not None:
        paths = [found for found in map(plan.container.path_here, paths) if found is not None]
    return (*(path for path in paths if os.path.isabs(path) and os.path.exists(path)), *stored)
