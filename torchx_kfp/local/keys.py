"""Keys of stages: equal where a stage would make the same again, as far as a pipeline can tell.

KFP's backend takes into account the image, the command, and the values of the inputs; a stage's ``env`` it leaves out,
and what it calls code is in the image. Here the environment counts too, and so does the code that a process
finds on this machine: files that the command names, and modules that it runs or imports from the current directory or
PYTHONPATH. Not covered, like on KFP: other files that a stage reads, and installed packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.local.artifacts import artifacts_in, is_artifact
from torchx_kfp.local.spec import Component, Task

#: One is added where an older key must not be taken for the same.
_VERSION = 1
_IMPORT = re.compile(r"^\s*(?:from|import)\s+([A-Za-z_]\w*)", re.MULTILINE)
_MODULE = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
# Folders that hold no code of the user's, and how many files are looked at below one folder.
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")
_MOST_FILES = 2000


class CodeFiles:
    """Which files of this machine a command runs, as far as its words tell: name, size and time of change."""

    def __init__(self, directory: Path, python_path: str = "") -> None:
        self._directory = directory
        self._roots = [directory, *(directory / folder for folder in python_path.split(os.pathsep) if folder)]
        self._known: dict[Path, list[tuple[str, int, int]]] = {}

    def of(self, words: Sequence[str]) -> list[tuple[str, int, int]]:
        """The files, sorted."""
        found = set(self._paths(words))
        return sorted({stamp for path in found for stamp in self._stamps(path)})

    def _paths(self, words: Sequence[str]) -> Iterator[Path]:
        for previous, word in zip(("", *words), words, strict=False):
            names = set(_IMPORT.findall(word))
            if previous == "-m" and _MODULE.fullmatch(word):
                names.add(word.partition(".")[0])
            for name in names:
                yield from self._module(name)
            if len(word) < 1024 and "\0" not in word and "\n" not in word:
                path = self._directory / word
                if _is_file(path):
                    # A script imports what is beside it.
                    yield path.parent if path.suffix == ".py" else path

    def _module(self, name: str) -> Iterator[Path]:
        for root in self._roots:
            for path in (root / name, root / f"{name}.py"):
                if path.exists():
                    yield path
                    return

    def _stamps(self, path: Path) -> list[tuple[str, int, int]]:
        if path not in self._known:
            files = [path] if path.is_file() else _python_files(path)
            self._known[path] = [stamp for file in files for stamp in _stamp(file)]
        return self._known[path]


def stage_key(
    task: Task,
    component: Component,
    inputs: Mapping[str, Any],
    *,
    environ: Mapping[str, str],
    code: Sequence[tuple[str, int, int]],
    engine: str,
) -> str:
    """The key of a stage, as hexadecimal digits.

    Args:
        task: the task; a key that its author has chosen (``set_caching_options``) counts instead of command and inputs.
        component: what it runs.
        inputs: the values of all inputs, artifacts too.
        environ: environment variables that the pipeline sets.
        code: see ``CodeFiles``.
        engine: what runs it: ``process`` or ``docker``.
    """
    container = component.container
    outputs = {name: kind.title for name, kind in component.artifact_outputs.items()}
    content: dict[str, Any] = {"version": _VERSION, "outputs": [dict(component.outputs), outputs]}
    if task.cache_key:
        content["chosen"] = task.cache_key
    else:
        content |= {
            "engine": engine,
            "image": container.image if container is not None else "",
            "command": [*container.command, *container.args] if container is not None else [],
            "environ": dict(environ),
            "inputs": {name: _input(value) for name, value in inputs.items()},
            "code": list(code),
        }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _input(value: Any) -> Any:
    if not is_artifact(value):
        return {"value": value}
    # A file that no stage has made (an importer's) may have been changed.
    return [
        (artifact.type.title, artifact.uri, dict(artifact.metadata), _stamp(Path(artifact.path)))
        for artifact in artifacts_in(value)
    ]


def _stamp(path: Path) -> list[tuple[str, int, int]]:
    try:
        found = path.stat()
    except (OSError, ValueError):
        return []
    return [(str(path), found.st_size, found.st_mtime_ns)]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word that is no path
        return False


def _python_files(folder: Path) -> list[Path]:
    """The Python files below a folder, without those of environments."""
    files: list[Path] = []
    for place, folders, names in os.walk(folder):
        if "pyvenv.cfg" in names:
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        files += [Path(place, name) for name in sorted(names) if name.endswith(".py")]
        if len(files) > _MOST_FILES:
            break
    return files[:_MOST_FILES]
