"""The files of an attempt at a stage: copies of artifacts that it takes, and the outputs that it leaves.

A stage in a container may have left any kind of file. Its outputs are only read beneath the one folder that its
container could write to (see ``safe_files``), and its artifacts must be there or on other storage.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.common import safe_files
from torchx_kfp.common.text import joined
from torchx_kfp.contract.inputs import RUN_ID
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
from torchx_kfp.execution.pipeline.values import convert, from_output
from torchx_kfp.tracking.recorder import Artifact as Registered

_WEB = re.compile("https?://")
_PATH = re.compile(r"\{\{\$\.inputs\.artifacts\[(['\"])(.+?)\1\]\.path\}\}")


def with_copies(
    inputs: Mapping[str, Any], words: Sequence[str], folder: Path, *, takes_all: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the inputs, with local paths for files on other storage, and these paths by the files' URLs.

    Args:
        inputs: parameters and artifacts.
        words: the command, whose placeholders show which files it takes.
        folder: the folder for the copies.
        takes_all: whether the stage may take files without placeholders, as Python components do.
    """
    taken = {match.group(2) for word in words for match in _PATH.finditer(word)}
    files = {name: value for name, value in inputs.items() if is_artifact(value) and (takes_all or name in taken)}
    # Inputs with the same file have one copy: that of the workspace, if one of them goes there.
    every = [artifact for value in files.values() for artifact in artifacts_in(value)]
    copies = {artifact.uri: artifact.custom_path for artifact in every if artifact.custom_path}
    changed: dict[str, Any] = {}
    for name, value in files.items():
        made = []
        for index, artifact in enumerate(artifacts_in(value)):
            if not artifact.custom_path and not artifact.is_here:
                file = os.path.basename(artifact.uri.rstrip("/"))
                place = str(folder / name / str(index) / (file if file.strip(".") else "file"))
                artifact = dataclasses.replace(artifact, custom_path=copies.setdefault(artifact.uri, place))
            made.append(artifact)
        changed[name] = ArtifactList(made) if isinstance(value, ArtifactList) else made[0]
    return {**inputs, **changed}, copies


def copy_here(url: str, path: str, root: str, folder: str, named: Collection[str]) -> None:
    """Copy a file, or a folder and its contents, unless the copy exists. Several processes may do so at once.

    Args:
        url: the URL of the file, or its path on this machine.
        path: the path of the copy.
        root: the folder that must contain the copy; stages may write there as well.
        folder: a folder of this stage only, for incomplete copies.
        named: see ``verify_source``.

    Raises:
        AttemptError: it cannot be copied, or must not be.
    """
    place = verify_source(url, named)
    try:
        if safe_files.exists(path, root):
            return
        temporary = os.path.join(folder, f".{secrets.token_hex(8)}")
        try:
            _fetch(url, temporary, place)
            safe_files.copy(temporary, path, target_root=root, whole=True)
        finally:
            if os.path.isdir(temporary):
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                Path(temporary).unlink(missing_ok=True)
    except Exception as error:  # each file system has its own errors
        text = f"{type(error).__name__}: {error}"
        raise AttemptError(
            f"takes the file of an artifact that cannot be copied here from {url}: {text}{_not_set(url)}"
        ) from None


def verify_source(url: str, named: Collection[str]) -> str | None:
    """Check that a file may be copied for a stage, and return the named place it is in, if it is on this machine.

    A pipeline, a stage, a host or a run's folder has chosen the URL. It could be any file of this machine, or a server
    that only this machine reaches; and to open chained URLs, fsspec may even run code that a file names. So a file
    comes from an object store or from a place that the user has named.

    Args:
        url: the URL of the file, or its path on this machine.
        named: the paths and URLs that the user has named; what is below them may be copied as well.

    Raises:
        AttemptError: it must not be copied; the message says how to name it.
    """
    is_chained, path = "::" in url, url.removeprefix("file://")
    is_path = "://" not in path
    path = os.path.abspath(path) if is_path else path
    places = [place for place in named if path == place or path.startswith(os.path.join(place, ""))]
    if not is_chained and (places or is_object_store(url)):
        return max(places, key=len) if is_path else None
    if is_chained:
        why = "it is a chained URL. Give the URL, or the path, of the file itself"
    elif is_path:
        why = f"it is on this machine, and you have not named it. If you trust it: --mount {path}:ro"
    else:
        why = f"it is not in an object store, and you have not named it. If you trust it: --copy-from {url}"
    raise AttemptError(f"takes the file of an artifact that is not copied here from {url}: {why}")


def _not_set(url: str) -> str:
    """Name the variables for an object store that are not set."""
    if url.partition("://")[0] not in ("s3", "minio"):
        return ""
    names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"]
    if url.startswith("minio://") and not os.environ.get("AWS_ENDPOINT_URL_S3"):
        names.append("AWS_ENDPOINT_URL")
    lacking = [name for name in names if not os.environ.get(name)]
    return f" (not set here: {joined(lacking)})" if lacking else ""


def _fetch(url: str, path: str, place: str | None) -> None:
    """Copy a file or folder; ``place`` is the folder or file of this machine, if it is there."""
    import fsspec

    os.makedirs(os.path.dirname(path), exist_ok=True)
    if place is not None:
        # The user may have named a link. Those below it may be a stage's.
        real, source = os.path.realpath(place), os.path.abspath(url.removeprefix("file://"))
        root = None if place == "/" else os.path.dirname(real)
        safe_files.copy(source if root is None else real + source[len(place) :], path, source_root=root)
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
        if not target.startswith(os.path.join(path, "")):
            raise ValueError(f"the name of {file} leads out of its folder")
        os.makedirs(os.path.dirname(target), exist_ok=True)
        store.get_file(file, target)


#: The largest output parameter, and the largest report, in bytes. KFP's database accepts less.
_LONGEST_OUTPUT = 16 << 20
_LONGEST_REPORT = 64 << 20


def read_run_id(plan: AttemptPlan) -> str | None:
    """Return the run id of a tracked stage, which exists even if the stage failed afterwards."""
    path = plan.facts.output_files.get(RUN_ID)
    if plan.recorded_as or path is None or plan.tracker_base is None:
        return plan.recorded_as or None
    with contextlib.suppress(OSError, ValueError):
        return safe_files.read_bytes(path, plan.root, limit=_LONGEST_OUTPUT).decode() or None
    return None


def read_outputs(plan: AttemptPlan) -> tuple[dict[str, Any], dict[str, Artifact]]:
    """Return the stage's output parameters, and its artifacts in their final places.

    Raises:
        ValueError: something is missing, has the wrong type, or is not a file; the message continues a sentence that
            begins with the stage's name.
    """
    report, declared = plan.facts.executor_output, plan.facts.output_artifacts
    try:
        text = safe_files.read_bytes(report, plan.root, limit=_LONGEST_REPORT).decode()
    except FileNotFoundError:
        text = ""
    except (OSError, ValueError) as error:
        raise ValueError(f"left its report {report} unreadable: {error}") from None
    try:
        reported, artifacts = read_report(text, declared)
    except ValueError as error:
        raise ValueError(f"wrote a report that {error}: {report}") from None
    outputs = {name: _read_output(plan, name, type_, reported) for name, type_ in plan.component.outputs.items()}
    return outputs, {name: _store(plan, artifact) for name, artifact in artifacts.items()}


def _read_output(plan: AttemptPlan, name: str, type_: str, reported: Mapping[str, Any]) -> Any:
    if name in reported:
        return convert(reported[name], type_)
    path = plan.facts.output_files[name]
    try:
        text = safe_files.read_bytes(path, plan.root, limit=_LONGEST_OUTPUT).decode()
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
        raise ValueError(f"wrote something into its output {name!r} that {error}") from None


def _store(plan: AttemptPlan, artifact: Artifact) -> Artifact:
    """Copy a file from the artifact's custom path to its final place, as KFP's launcher uploads it."""
    stored = dataclasses.replace(artifact, custom_path="")
    if not stored.is_here:
        if plan.container is not None and not (is_object_store(stored.uri) or _WEB.match(stored.uri)):
            raise ValueError(f"reported the artifact {artifact.name!r} at {stored.uri}, which is not object storage")
        return stored
    root = plan.root
    try:
        if artifact.custom_path:
            _copy_custom(plan, artifact.custom_path, stored.path)
        safe_files.verify_tree(stored.path, root)
        if root is None and stored.path.startswith(os.path.join(plan.made, "")):
            safe_files.verify_content(stored.path)
    except OSError as error:
        raise ValueError(f"left the artifact {artifact.name!r} unusable: {explain(error)}") from None
    return stored


def _copy_custom(plan: AttemptPlan, path: str, target: str) -> None:
    if plan.container is None:
        with contextlib.suppress(FileNotFoundError):
            safe_files.copy(path, target)
        return
    found = plan.container.mount_of(path)
    if found is None:
        raise safe_files.UnfitFileError(
            f"{path} is gone with the container. Write to the artifact's own path, or to a folder that is mounted"
        )
    mount, source = found
    with contextlib.suppress(FileNotFoundError):
        safe_files.copy(source, target, source_root=mount.source, target_root=plan.root)


def registered_files(plan: AttemptPlan, registered: Mapping[str, Registered]) -> tuple[str, ...]:
    """Return the paths on this machine of the files and folders that the stage has registered, if they exist.

    Those that it has stored elsewhere have URLs.
    """
    stored = [artifact.path for artifact in registered.values() if artifact.stored and "://" in artifact.path]
    paths = [artifact.path.removeprefix("file://") for artifact in registered.values()]
    if plan.container is not None:
        mounted = map(plan.container.mount_of, paths)
        paths = [found[1] for found in mounted if found is not None]
    return (*(path for path in paths if os.path.isabs(path) and os.path.exists(path)), *stored)
