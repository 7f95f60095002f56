"""Keys of stages: equal for two stages that would produce the same outputs, as far as this can be determined.

``input_key`` covers a stage's inputs: when a run is resumed, a stage that has succeeded with the same inputs is kept.
``cache_key`` is for KFP's cache between runs. KFP's backend considers the image, the command and the values of the
inputs, but not the environment; the code is in the image. Here, the environment counts as well, and so does the code
that a process finds on this machine (see ``code``).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from torchx_kfp.pipeline.artifacts import artifacts_in, is_artifact
from torchx_kfp.pipeline.spec import Component, Task

#: A path, its size in bytes (for a folder, the number of its files), and the time of its last change in ns (for a
#: folder, a digest of its files).
Stamp: TypeAlias = tuple[str, int, int]
#: The version of the keys, raised when older ones must not match any more.
_VERSION = 2


def input_key(inputs: Mapping[str, Any]) -> str:
    """Return a key of the values of all inputs, including artifacts, as hexadecimal digits."""
    return _digest({name: _input(value) for name, value in inputs.items()})


def cache_key(
    task: Task,
    component: Component,
    inputs: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    surroundings: Sequence[Any],
) -> str:
    """Return the key of a stage in the cache, as hexadecimal digits.

    Args:
        task: the task. If its author has chosen a key (``set_caching_options``), it replaces the command and inputs.
        component: the component that the task runs.
        inputs: the values of all inputs, including artifacts.
        environ: environment variables that the pipeline sets, or the user sets for it.
        surroundings: everything else that determines what the stage does.
    """
    container = component.container
    outputs = {name: kind.title for name, kind in component.artifact_outputs.items()}
    content: dict[str, Any] = {"version": _VERSION, "outputs": [dict(component.outputs), outputs]}
    if task.cache_key:
        content["chosen"] = task.cache_key
    else:
        content |= {
            "image": container.image if container is not None else "",
            "command": [*container.command, *container.args] if container is not None else [],
            "environ": dict(environ),
            "inputs": {name: [_input(value), _files(value)] for name, value in inputs.items()},
            "surroundings": list(surroundings),
        }
    return _digest(content)


def _digest(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _input(value: Any) -> Any:
    if not is_artifact(value):
        return {"value": value}
    return [(artifact.type.title, artifact.uri, dict(artifact.metadata)) for artifact in artifacts_in(value)]


def _files(value: Any) -> list[Any]:
    """Return stamps of artifacts that are files here: one that no stage wrote (an importer's) may have changed."""
    stamps: list[Any] = []
    for artifact in artifacts_in(value):
        try:
            stamps.append(stamp_of(artifact.path) if artifact.is_here else None)
        except (OSError, ValueError):
            stamps.append(None)
    return stamps


def stamp_of(path: str | os.PathLike[str]) -> Stamp:
    """Return the stamp of a file, or of all files in a folder.

    Raises:
        OSError: the file does not exist.
        ValueError: the text is not a path.
    """
    path = Path(path)
    found = path.stat()
    if not path.is_dir():
        return str(path), found.st_size, found.st_mtime_ns
    digest, count = hashlib.sha256(), 0
    for place, folders, names in os.walk(path):
        folders.sort()
        for name in sorted(names):
            file = os.lstat(os.path.join(place, name))
            digest.update(f"{place}/{name} {file.st_size} {file.st_mtime_ns}\n".encode("utf-8", "surrogateescape"))
            count += 1
    return str(path), count, int.from_bytes(digest.digest()[:7], "big")
