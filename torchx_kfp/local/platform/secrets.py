"""Kubernetes secrets and config maps that the user gives: a folder, a file of variables, or a manifest."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from torchx_kfp.errors import ArgumentError

_MANIFESTS = (".yaml", ".yml", ".json")
_KINDS = ("Secret", "ConfigMap")

#: Keys of secrets, or of config maps, by their names.
Given = Mapping[str, Mapping[str, str]]


def parse_given(words: Iterable[str], option: str) -> dict[str, dict[str, str]]:
    """What ``NAME=PATH`` on the command line gives.

    Args:
        words: of a ``PATH``, see ``read_keys``.
        option: the option's name, for messages.

    Raises:
        ArgumentError: a word has another form, or its file cannot be used.
    """
    given: dict[str, dict[str, str]] = {}
    for word in words:
        name, equals, path = word.partition("=")
        if not equals or not name or not path:
            raise ArgumentError(f"{option} {word!r} is not NAME=PATH. Write, for example, {option} s3=s3.env.")
        if name in given:
            raise ArgumentError(f"{option} {name}=... is given twice. Give each name once.")
        given[name] = read_keys(Path(path), option)
    return given


def read_keys(path: Path, option: str = "a secret") -> dict[str, str]:
    """The keys and values in a folder (a file for each), a file of lines ``KEY=VALUE``, or a manifest of Kubernetes.

    Raises:
        ArgumentError: it is none of these, or cannot be read.
    """
    try:
        if path.is_dir():
            # As Kubernetes mounts it, which has its own files beside the keys: ..data.
            files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
            return {file.name: file.read_text(encoding="utf-8") for file in files}
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ArgumentError(
            f"{option}: {str(path)!r} cannot be read: {reason}. Give a folder with a file for each key, a file of "
            "lines KEY=VALUE, or a manifest (*.yaml)."
        ) from None
    return _manifest(path, text, option) if path.suffix in _MANIFESTS else _lines(path, text, option)


def _lines(path: Path, text: str, option: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip().removeprefix("export ")
        if not word or word.startswith("#"):
            continue
        key, equals, value = word.partition("=")
        if not equals:
            # Not the line itself: it may be a secret.
            raise ArgumentError(f"{option}: line {number} of {str(path)!r} is not KEY=VALUE.")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        keys[key.strip()] = value[1:-1] if quoted else value
    return keys


def _manifest(path: Path, text: str, option: str) -> dict[str, str]:
    try:
        manifest: Any = yaml.safe_load(text)
        if manifest["kind"] not in _KINDS:
            raise ValueError(f"its kind is {manifest['kind']}")
        data = manifest.get("data") or {}
        if manifest["kind"] == "Secret":
            data = {key: base64.b64decode(value).decode() for key, value in data.items()}
        keys = {**data, **(manifest.get("stringData") or {})}
        return {str(key): str(value) for key, value in keys.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = "" if isinstance(error, yaml.YAMLError) else f" ({error})"
        raise ArgumentError(
            f"{option}: {str(path)!r} is no manifest of a Secret or ConfigMap{reason}. Take what `kubectl get secret "
            "NAME -o yaml` prints."
        ) from None
