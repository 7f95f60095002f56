"""Artifacts on other storage: copied to this machine, or to the workspace, for a stage that takes their file."""

from __future__ import annotations

import dataclasses
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.local.artifacts import Artifact, ArtifactList, artifacts_in, is_artifact


class UnavailableError(Exception):
    """A file on other storage that cannot be had."""


_PATH = re.compile(r"\{\{\$\.inputs\.artifacts\[(['\"])(.+?)\1\]\.path\}\}")


def with_copies(
    inputs: Mapping[str, Any], words: Sequence[str], folder: Path, *, takes_all: bool
) -> tuple[dict[str, Any], dict[str, str]]:
    """The inputs, with places below the folder for files that are elsewhere; and those places by their URLs.

    Args:
        inputs: parameters and artifacts.
        words: the command, whose placeholders say which files it takes.
        folder: for the copies.
        takes_all: whether the stage may take each file without a placeholder, as Python components do.
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
    return dataclasses.replace(
        artifact, custom_path=str(folder / (os.path.basename(artifact.uri.rstrip("/")) or "file"))
    )


def copy_here(url: str, path: str) -> None:
    """Copies a file, or a folder with what is in it; what is there already stays. Several may do so at once.

    Raises:
        UnavailableError: it cannot be copied.
    """
    import fsspec

    if os.path.exists(path):
        return
    temporary = f"{path}.{secrets.token_hex(8)}"
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        store, source = fsspec.core.url_to_fs(url)
        if store.isdir(source):
            store.get(source.rstrip("/") + "/", temporary, recursive=True)
        else:
            store.get_file(source, temporary)
        if not os.path.isdir(path):  # another one's copy of a folder
            os.replace(temporary, path)
    except Exception as error:  # each file system has errors of its own
        text = f"{type(error).__name__}: {error}"
        raise UnavailableError(f"takes the file of an artifact that cannot be copied here from {url}: {text}") from None
