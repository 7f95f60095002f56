"""Copies of artifacts from other storage, for stages that take them as files."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp import safe_files
from torchx_kfp.pipeline.artifacts import Artifact, ArtifactList, artifacts_in, is_artifact


class UnavailableError(Exception):
    """A file on other storage cannot be copied."""


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
    copies: dict[str, str] = {}
    changed: dict[str, Any] = {}
    for name, value in inputs.items():
        if not is_artifact(value) or not (takes_all or name in taken):
            continue
        made = [_with_place(artifact, folder / name / str(index)) for index, artifact in enumerate(artifacts_in(value))]
        copies |= {artifact.uri: artifact.custom_path for artifact in made if artifact.custom_path}
        changed[name] = ArtifactList(made) if isinstance(value, ArtifactList) else made[0]
    return {**inputs, **changed}, copies


def _with_place(artifact: Artifact, folder: Path) -> Artifact:
    if artifact.custom_path or artifact.is_here:
        return artifact
    name = os.path.basename(artifact.uri.rstrip("/"))
    return dataclasses.replace(artifact, custom_path=str(folder / (name if name.strip(".") else "file")))


def copy_here(url: str, path: str, root: str, folder: str) -> None:
    """Copy a file, or a folder and its contents, unless the copy exists. Several processes may do so at once.

    Args:
        url: the URL of the file.
        path: the path of the copy.
        root: the folder that must contain the copy; stages may write there as well.
        folder: a folder of this stage only, for incomplete copies.

    Raises:
        UnavailableError: it cannot be copied.
    """
    import fsspec

    name = f".{secrets.token_hex(8)}"
    try:
        if safe_files.exists(path, root):
            return
        store, source = fsspec.core.url_to_fs(url)
        temporary = os.path.join(folder, name)
        _download(store, source, temporary)
        try:
            beside = os.path.join(os.path.dirname(path), name)
            safe_files.copy(temporary, beside, target_root=root)
            safe_files.rename(beside, path, root)
        finally:
            _remove(temporary)
    except Exception as error:  # each file system has its own errors
        text = f"{type(error).__name__}: {error}"
        raise UnavailableError(f"takes the file of an artifact that cannot be copied here from {url}: {text}") from None


def _download(store: Any, source: str, path: str) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
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


def _remove(path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
