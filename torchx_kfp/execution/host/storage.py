"""What tracked stages of submitted runs need to reach their tracker base, as the settings of the host say it.

The address of a store and its credentials belong to the place where a stage runs: on this machine, stages have the
user's own variables; on KFP, each gets these, unless its AppDef has them itself. Values of secrets are not in the run.
"""

from __future__ import annotations

import copy
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.host.settings import Settings
from torchx_kfp.execution.pipeline.spec import Component, Pipeline

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_EXAMPLE_OF_VARIABLES = "AWS_ENDPOINT_URL=http://seaweedfs.kubeflow:9000"
_EXAMPLE_OF_A_SECRET = "mlpipeline-minio-artifact accesskey=AWS_ACCESS_KEY_ID secretkey=AWS_SECRET_ACCESS_KEY"


def with_storage(
    pipeline: Pipeline, spec: Mapping[str, Any], platform: Mapping[str, Any], settings: Settings
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the documents of a pipeline, of which tracked stages have the variables of the settings.

    Args:
        pipeline: the pipeline.
        spec: its PipelineSpec.
        platform: its platform spec, or {}.
        settings: those of the host.

    Raises:
        HostSettingsError: a setting has another form.
    """
    secret, keys = _secret(settings)
    variables = _pairs(settings, "storage_variables", _words(settings.storage_variables), _EXAMPLE_OF_VARIABLES)
    if not secret and not variables:
        return spec, platform
    spec, platform = copy.deepcopy((dict(spec), dict(platform)))
    kubernetes = platform.setdefault("platforms", {}).setdefault("kubernetes", {})
    executors = kubernetes.setdefault("deploymentSpec", {}).setdefault("executors", {})
    for component in pipeline.components.values():
        if component.container is None or component.facts.tracker_base is None:
            continue
        own = _own_variables(component)
        label = spec["components"][component.name]["executorLabel"]
        if plain := [{"name": name, "value": text} for name, text in variables.items() if name not in own]:
            container = spec["deploymentSpec"]["executors"][label]["container"]
            container["env"] = [*container.get("env", ()), *plain]
        if mapped := [{"secretKey": key, "envVar": name} for key, name in keys.items() if name not in own]:
            named = {"secretName": secret, "secretNameParameter": {"runtimeValue": {"constant": secret}}}
            there = executors.setdefault(label, {})
            there["secretAsEnv"] = [*there.get("secretAsEnv", ()), {**named, "keyToEnv": mapped, "optional": False}]
    return spec, platform


def variables_of(settings: Settings) -> set[str]:
    """Return the names of the variables that tracked stages get from the settings."""
    plain = _pairs(settings, "storage_variables", _words(settings.storage_variables), _EXAMPLE_OF_VARIABLES)
    return {*plain, *_secret(settings)[1].values()}


def _own_variables(component: Component) -> set[str]:
    """Return the variables that a stage has already."""
    container = component.container
    from_secrets = component.platform.get("secretAsEnv") or ()
    return {
        *(name for name, _ in (container.env if container is not None else ())),
        *component.facts.variables,
        *(name for role in component.facts.replica_roles for name in role.env),
        *(key["envVar"] for secret in from_secrets for key in secret.get("keyToEnv", ())),
    }


def _secret(settings: Settings) -> tuple[str, Mapping[str, str]]:
    """Return the name of the secret, and the variable of each of its keys."""
    name, *words = _words(settings.storage_secret) or [""]
    keys = _pairs(settings, "storage_secret", words, _EXAMPLE_OF_A_SECRET)
    if ("=" in name or not keys) and settings.storage_secret:
        raise _wrong(settings, "storage_secret", _EXAMPLE_OF_A_SECRET)
    if unfit := next((variable for variable in keys.values() if not _NAME.fullmatch(variable)), None):
        raise HostSettingsError(f"{settings.source('storage_secret')} has {shown(unfit)}, which is no variable's name.")
    return name, keys


def _pairs(settings: Settings, setting: str, words: Sequence[str], example: str) -> dict[str, str]:
    if not all(name and equals for name, equals, _ in (word.partition("=") for word in words)):
        raise _wrong(settings, setting, example)
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quote without an end
        return [text]


def _wrong(settings: Settings, setting: str, example: str) -> HostSettingsError:
    return HostSettingsError(
        f"{settings.source(setting)} is {shown(getattr(settings, setting))}. Give it this form: {example}"
    )
