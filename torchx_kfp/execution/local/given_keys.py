"""Kubernetes secrets and config maps: those that the user provides, and the stages that use them.

A stage gets their keys as variables or as files. The user provides a folder, a file of variables, or a manifest.
Variables may also be set in the environment of the run: processes have all of them, containers only those that the user
named.
"""

from __future__ import annotations

import base64
import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from torchx_kfp.common.text import did_you_mean, joined
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.pod_settings import FILES, POD_SETTINGS, VARIABLES, entries, name_of
from torchx_kfp.execution.pipeline.spec import Component

_MANIFESTS = (".yaml", ".yml", ".json")
_MANIFEST_KINDS = ("Secret", "ConfigMap")

#: The keys and values of secrets, or of config maps, by the names of these.
Given = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True)
class GivenKeys:
    """The user's secrets and config maps, and the variables that replace keys."""

    secrets: Given = field(default_factory=dict)
    config_maps: Given = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Whether stages run in containers, which have no other variables of this machine.
    in_containers: bool = False

    @functools.cached_property
    def environ(self) -> Mapping[str, str]:
        """Variables that may replace keys."""
        return self.variables if self.in_containers else {**os.environ, **self.variables}

    def of(self, setting: str) -> Given:
        """Return the secrets or config maps that a setting of the platform spec reads."""
        return self.secrets if POD_SETTINGS[setting].keys_of == "secret" else self.config_maps


def parse_given(words: Iterable[str], option: str) -> dict[str, dict[str, str]]:
    """Read secrets or config maps from words ``NAME=PATH`` of a command line.

    Args:
        words: the words; ``read_keys`` describes a ``PATH``.
        option: the option's name, for messages.

    Raises:
        ArgumentError: a word is malformed, or its file cannot be used.
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
    """Read keys from a folder (a file for each), a file of lines ``KEY=VALUE``, or a Kubernetes manifest.

    Raises:
        ArgumentError: it is none of these, or cannot be read.
    """
    try:
        if path.is_dir():
            # A folder that Kubernetes has mounted also contains files that are not keys, such as ..data.
            files = sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith("."))
            return {file.name: _decoded(file.read_bytes()) for file in files}
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise ArgumentError(
            f"{option}: {str(path)!r} cannot be read: {reason}. Give a folder with a file for each key, a file of "
            "lines KEY=VALUE, or a manifest (*.yaml)."
        ) from None
    return _manifest(path, text, option) if path.suffix in _MANIFESTS else _lines(path, text, option)


def _decoded(content: bytes) -> str:
    """Return the text of a key; bytes that are not UTF-8, such as a keystore's, survive a round trip."""
    return content.decode("utf-8", "surrogateescape")


def _lines(path: Path, text: str, option: str) -> dict[str, str]:
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        word = line.strip().removeprefix("export ")
        if not word or word.startswith("#"):
            continue
        key, equals, value = word.partition("=")
        if not equals:
            # The message does not show the line, which may be a secret.
            raise ArgumentError(f"{option}: line {number} of {str(path)!r} is not KEY=VALUE.")
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        keys[key.strip()] = value[1:-1] if quoted else value
    return keys


def _manifest(path: Path, text: str, option: str) -> dict[str, str]:
    try:
        manifest: Any = yaml.safe_load(text)
        if manifest["kind"] not in _MANIFEST_KINDS:
            raise ValueError(f"its kind is {manifest['kind']}")
        data = manifest.get("data") or {}
        if manifest["kind"] == "Secret":
            data = {key: _decoded(base64.b64decode(value)) for key, value in data.items()}
        keys = {**data, **(manifest.get("stringData") or {})}
        return {str(key): str(value) for key, value in keys.items()}
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as error:
        reason = "" if isinstance(error, yaml.YAMLError) else f" ({error})"
        raise ArgumentError(
            f"{option}: {str(path)!r} is not a manifest of a Secret or ConfigMap{reason}. Take the output of "
            "`kubectl get secret NAME -o yaml`."
        ) from None


def verify_given(stages: Iterable[tuple[Component, Mapping[str, Any]]], given: GivenKeys) -> None:
    """Check the given secrets and config maps.

    Args:
        stages: the components, each with the known inputs of its scope.
        given: the given ones.

    Raises:
        ArgumentError: no stage uses one of them, one lacks a key that is used, or a container would get a variable of
            this machine that the user has not named.
    """
    taken: dict[str, set[str]] = {"secret": set(), "config map": set()}
    for component, inputs in stages:
        for key, item in entries(component.platform, (*VARIABLES, *FILES)):
            kind, name = POD_SETTINGS[key].keys_of, name_of(item, inputs)
            taken[kind].add(name)
            keys = given.of(key).get(name)
            wanted = [key for variable, key in variables_of(item) if variable not in given.environ]
            missing = [key for key in wanted if keys is not None and key not in keys]
            if missing and not item.get("optional"):
                raise ArgumentError(
                    f"The given {kind} {name!r} lacks {joined(missing)}; it has: "
                    f"{', '.join(sorted(keys or ())) or 'nothing'}."
                )
            hidden = [one for one, _ in variables_of(item) if one in os.environ and one not in given.environ]
            if hidden and name and keys is None and not item.get("optional"):
                raise ArgumentError(
                    f"A stage in a container takes {joined(hidden)} from the {kind} {name!r}. This machine "
                    f"has {'such variables' if len(hidden) > 1 else 'such a variable'}, but containers get only "
                    f"those that you name: {' '.join(f'--env {one}' for one in hidden)}. Or give the values: "
                    f"{POD_SETTINGS[key].option} {name}=FILE."
                )
    for kind, names in (("secret", given.secrets), ("config map", given.config_maps)):
        there = taken[kind]
        for name in names:
            # A name may be an input that is known only when the pipeline runs.
            if name not in there and "" not in there:
                used = ", ".join(sorted(there)) or "none"
                raise ArgumentError(
                    f"No stage uses the {kind} {name!r}.{did_you_mean(name, there)} The stages use: {used}."
                )


def secret_variables(component: Component, given: GivenKeys, inputs: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the stage gets from secrets and config maps: as given, or else from the local
    environment.

    ``inputs`` are those of the scope: the name of a secret may be one of them.
    """
    values = {}
    fixed = dict(component.container.env) if component.container is not None else {}
    for setting, item in entries(component.platform, VARIABLES):
        keys = given.of(setting).get(name_of(item, inputs), {})
        for variable, key in variables_of(item):
            if key in keys:
                values[variable] = keys[key]
            elif variable in given.environ and variable not in fixed:
                values.setdefault(variable, given.environ[variable])
    return values


def given_files(component: Component, given: GivenKeys, inputs: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Return the given secrets and config maps that the stage gets as files, by their paths."""
    return {
        os.path.normpath(mount.get("mountPath", "")): given.of(key)[name]
        for key, mount in entries(component.platform, FILES)
        if (name := name_of(mount, inputs)) in given.of(key)
    }


def missing_variables(component: Component, given: GivenKeys, inputs: Mapping[str, Any]) -> Iterator[str]:
    """Describe the variables that the component needs from secrets and config maps that were not given."""
    items = entries(component.platform, VARIABLES)
    if not items:  # as of most of many stages
        return
    there = {*given.environ, *secret_variables(component, given, inputs)}
    for setting, item in items:
        missing = [(variable, key) for variable, key in variables_of(item) if variable not in there]
        if missing and not item.get("optional"):
            name, of = name_of(item, inputs), POD_SETTINGS[setting]
            variables, keys = (" and ".join(map(str, words)) for words in zip(*missing, strict=True))
            named = [f"--env {variable}" for variable, _ in missing] if given.in_containers else []
            naming = f" and give {' '.join(named)}" if named else ""
            yield (
                f"the {of.keys_of} {name!r} (set {variables}{naming}, or give {of.option} {name or 'NAME'}=FILE with "
                f"the key{'s' if len(missing) > 1 else ''} {keys})"
            )


def variables_of(item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the variables that a stage gets from a secret or config map, each with its key."""
    return [(pair["envVar"], pair.get("secretKey") or pair.get("configMapKey")) for pair in item.get("keyToEnv") or ()]
