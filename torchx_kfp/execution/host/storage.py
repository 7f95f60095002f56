"""Give tracked stages of submitted runs access to their tracker base, according to the settings of the host.

The address and credentials of a store depend on where a stage runs: local stages have the user's variables; on KFP,
each stage gets those of the settings, unless its AppDef sets them. Values of secrets are not part of the run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.pipeline.spec import Component, Pipeline
from torchx_kfp.execution.runs.prepared_run import without_cache

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE_OF_VARIABLES = "AWS_ENDPOINT_URL=http://seaweedfs.kubeflow:9000"
_EXAMPLE = "storage accesskey=AWS_ACCESS_KEY_ID secretkey=AWS_SECRET_ACCESS_KEY"


@dataclass(frozen=True)
class Storage:
    """The storage settings of tracked stages; empty if there are none.

    Attributes:
        keys: the keys of the secret, by variable.
        folder: a folder at the same path in pods and on this machine.
    """

    variables: Mapping[str, str]
    secret: str
    keys: Mapping[str, str]
    folder: str = ""

    def __bool__(self) -> bool:
        return bool(self.variables or self.keys)


def storage_of(settings: Settings) -> Storage:
    """Read the settings ``storage_variables``, ``storage_secret`` and ``storage_folder``.

    Raises:
        HostSettingsError: a setting is malformed.
    """
    variables = _pairs(settings, "storage_variables", _words(settings.storage_variables), _EXAMPLE_OF_VARIABLES)
    name, *words = _words(settings.storage_secret) or [""]
    keys = _pairs(settings, "storage_secret", words, _EXAMPLE)
    if ("=" in name or not keys) and settings.storage_secret:
        raise _wrong(settings, "storage_secret", _EXAMPLE)
    if unfit := next((named for named in keys.values() if not _NAME.fullmatch(named)), None):
        raise HostSettingsError(
            f"{settings.source('storage_secret')} has {shown(unfit)}, which is not the name of a variable."
        )
    if settings.storage_folder and not settings.storage_folder.startswith("/"):
        raise _wrong(settings, "storage_folder", "/mnt/results")
    return Storage(variables, name, {named: key for key, named in keys.items()}, settings.storage_folder)


def submitted_documents(
    pipeline: Pipeline, settings: Settings, *, cache: bool = True
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the PipelineSpec and the platform spec for a run: tracked stages get the variables of the settings.

    Raises:
        HostSettingsError: a setting is malformed.
    """
    pipeline, storage = pipeline if cache else without_cache(pipeline), storage_of(settings)
    if not storage:
        return pipeline.documents
    spec, platform = pipeline.copy_documents()
    kubernetes = platform.setdefault("platforms", {}).setdefault("kubernetes", {})
    executors = kubernetes.setdefault("deploymentSpec", {}).setdefault("executors", {})
    for component in pipeline.components.values():
        if component.container is None or component.decoded.tracker_base is None:
            continue
        own = _own_variables(component)
        label = spec["components"][component.name]["executorLabel"]
        if plain := [{"name": name, "value": text} for name, text in storage.variables.items() if name not in own]:
            container = spec["deploymentSpec"]["executors"][label]["container"]
            container["env"] = [*container.get("env", ()), *plain]
        if mapped := [{"secretKey": key, "envVar": name} for name, key in storage.keys.items() if name not in own]:
            constant = {"runtimeValue": {"constant": storage.secret}}
            named = {"secretName": storage.secret, "secretNameParameter": constant}
            there = executors.setdefault(label, {})
            there["secretAsEnv"] = [*there.get("secretAsEnv", ()), {**named, "keyToEnv": mapped, "optional": False}]
    return spec, platform


def _own_variables(component: Component) -> set[str]:
    """Return the variables that a stage sets itself."""
    container = component.container
    from_secrets = component.platform.get("secretAsEnv") or ()
    return {
        *(name for name, _ in (container.env if container is not None else ())),
        *component.decoded.variables,
        *(name for role in component.decoded.replica_roles for name in role.env),
        *(key["envVar"] for secret in from_secrets for key in secret.get("keyToEnv", ())),
    }


def _pairs(settings: Settings, setting: str, words: Sequence[str], example: str) -> dict[str, str]:
    if not all(name and equals for name, equals, _ in (word.partition("=") for word in words)):
        raise _wrong(settings, setting, example)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # an unclosed quote
        return [text]


def _wrong(settings: Settings, setting: str, example: str) -> HostSettingsError:
    return HostSettingsError(
        f"{settings.source(setting)} is {shown(getattr(settings, setting))}. Use this form: {example}"
    )
