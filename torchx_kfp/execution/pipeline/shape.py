"""The shape of a compiled pipeline: which parts are objects, lists, text and numbers.

Pipelines come from files that people edit, and from hosts. ``verify_spec`` and ``verify_platform`` reject one in which
a part has another type than in KFP's PipelineSpec and kfp-kubernetes' configuration, so that whoever reads it later
need not ask. Only the parts that this project reads have a shape; everything else may be any JSON value.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.execution.pipeline.values import is_finite

#: A shape: ``str``, ``bool``, ``float``, ``object`` (any JSON value) or a function that verifies the value, a list with
#: the shape of the items, or a dict with the shapes of the fields that are known. The key ``str`` stands for all keys,
#: and a field whose key here ends with an exclamation mark must be there.
Shape = Any


class MalformedError(Exception):
    """A file does not have the structure of a PipelineSpec."""


def verify_json(value: Any, place: str, deepest: int = 100) -> None:
    """Verify that a value can be written as JSON in UTF-8, and read by a program in any language.

    Raises:
        MalformedError: it contains a key or a value that cannot.
    """
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        _verify_text(value, place)
    elif isinstance(value, (int, float)):
        if not is_finite(value):
            raise MalformedError(f"{place} is {shown(value)}, which is not a finite double")
    elif not isinstance(value, (dict, list)):
        raise MalformedError(f"{place} is {shown(value)}, which is not JSON")
    elif deepest == 0:
        raise MalformedError(f"{place[:200]} is nested too deeply")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise MalformedError(f"{_inside(place, shown(key))} has a key that is not text")
            _verify_text(key, place)
            if not (isinstance(item, str) and item.isascii()):  # as almost all are
                verify_json(item, _inside(place, key), deepest - 1)
    else:
        for number, item in enumerate(value):
            verify_json(item, f"{place}[{number}]", deepest - 1)


def verify_spec(spec: Mapping[str, Any]) -> None:
    """Verify the shape of a PipelineSpec.

    Raises:
        MalformedError: a part has another type than in KFP's.
    """
    verify_json(spec, "")
    _verify(spec, _SPEC, "")


def verify_platform(platform: Mapping[str, Any]) -> None:
    """Verify the shape of the Kubernetes part of a platform spec. The errors are those of ``verify_spec``."""
    verify_json(platform, "platforms.kubernetes")
    _verify(platform, _PLATFORM, "platforms.kubernetes")


def _verify_text(text: str, place: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{place} has the text {shown(text)}, which UTF-8 cannot encode") from None


def _verify(value: Any, shape: Shape, place: str) -> None:
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise MalformedError(f"{place} is {shown(value)}, but must be an object")
        for key, inner in shape.items():
            if key is str:
                for name, item in value.items():
                    _verify(item, inner, _inside(place, name))
            elif (name := key.removesuffix("!")) in value:
                _verify(value[name], inner, _inside(place, name))
            elif name != key:
                raise MalformedError(f"{_inside(place, name)} is missing")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise MalformedError(f"{place} is {shown(value)}, but must be a list")
        for number, item in enumerate(value):
            _verify(item, shape[0], f"{place}[{number}]")
    elif not isinstance(shape, type):
        shape(value, place)
    elif shape is not object and type(value) is not shape:
        raise MalformedError(f"{place} is {shown(value)}, but must be {'text' if shape is str else 'true or false'}")


def _inside(place: str, key: str) -> str:
    return f"{place}.{key}" if place else key


def _whole(value: Any, place: str) -> None:
    # Protobuf's JSON has 64-bit integers as text.
    try:
        is_whole = not isinstance(value, bool) and abs(int(value)) < 2**63 and float(value).is_integer()
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    if not is_whole:
        raise MalformedError(f"{place} is {shown(value)}, but must be a whole number")


def _number(value: Any, place: str) -> None:
    if type(value) not in (int, float):
        raise MalformedError(f"{place} is {shown(value)}, but must be a number")


def _items(value: Any, place: str) -> None:
    try:
        is_list = isinstance(json.loads(value), list)
    except (TypeError, ValueError, RecursionError):
        is_list = False
    if not is_list:
        raise MalformedError(f"{place} is {shown(value)}, but must be a JSON list as text")


# The classes below have the names of KFP's messages (kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto).
_ARTIFACT_TYPE = {"schemaTitle": str, "schemaVersion": str}
_ARTIFACT = {"artifactType": _ARTIFACT_TYPE, "isArtifactList": bool, "isOptional": bool}
_INPUTS = {
    "parameters": {str: {"parameterType!": str, "isOptional": bool, "literals": [object]}},
    "artifacts": {str: _ARTIFACT},
}
_OUTPUTS = {"parameters": {str: {"parameterType!": str}}, "artifacts": {str: _ARTIFACT}}
_PARAMETER_SOURCE = {
    "runtimeValue": {},
    "componentInputParameter": str,
    "taskOutputParameter": {"producerTask!": str, "outputParameterKey!": str},
    "taskFinalStatus": {"producerTask!": str},
    "parameterExpressionSelector": str,
}
_ARTIFACT_SOURCE = {
    "componentInputArtifact": str,
    "taskOutputArtifact": {"producerTask!": str, "outputArtifactKey!": str},
}
_TASK = {
    "taskInfo": {"name": str},
    "inputs": {"parameters": {str: _PARAMETER_SOURCE}, "artifacts": {str: _ARTIFACT_SOURCE}},
    "dependentTasks": [str],
    "cachingOptions": {"enableCache": bool, "cacheKey": str},
    "componentRef!": {"name!": str},
    "triggerPolicy": {"condition": str, "strategy": str},
    "parameterIterator": {"items!": {"raw": _items, "inputParameter": str}, "itemInput!": str},
    "artifactIterator": {"items!": {"inputArtifact": str}, "itemInput!": str},
    "retryPolicy": {
        "maxRetryCount": _whole,
        "backoffDuration": str,
        "backoffFactor": _number,
        "backoffMaxDuration": str,
    },
    "iteratorPolicy": {"parallelismLimit": _whole},
}
_PARAMETER_SELECTOR = {"producerSubtask!": str, "outputParameterKey!": str}
_DAG = {
    "tasks": {str: _TASK},
    "outputs": {
        "parameters": {
            str: {
                "valueFromParameter": _PARAMETER_SELECTOR,
                "valueFromOneof": {"parameterSelectors!": [_PARAMETER_SELECTOR]},
            }
        },
        "artifacts": {str: {"artifactSelectors!": [{"producerSubtask!": str, "outputArtifactKey!": str}]}},
    },
}
_COMPONENT = {
    "inputDefinitions": _INPUTS,
    "outputDefinitions": _OUTPUTS,
    "dag": _DAG,
    "executorLabel": str,
    "taskConfigPassthroughs": [{"field!": str, "applyToTask": bool}],
}
_RESOURCES = {
    "cpuLimit": _number,
    "memoryLimit": _number,
    "resourceCpuLimit": str,
    "resourceMemoryLimit": str,
    "accelerator": {"type": str, "count": _whole, "resourceType": str, "resourceCount": str},
}
_EXECUTOR = {
    "container": {
        "image": str,
        "command": [str],
        "args": [str],
        "env": [{"name!": str, "value": str}],
        "resources": _RESOURCES,
    },
    "importer": {
        "artifactUri": {"runtimeParameter": str},
        "typeSchema": _ARTIFACT_TYPE,
        "metadata": {},
        "downloadToWorkspace": bool,
    },
}
_SPEC = {
    "pipelineInfo": {"name!": str, "description": str},
    "deploymentSpec": {"executors": {str: _EXECUTOR}},
    "components": {str: _COMPONENT},
    "root": _COMPONENT,
    "pipelineConfig": {"activeDeadlineSeconds": _whole},
}

# And these those of kfp-kubernetes (kubernetes_platform/proto/kubernetes_executor_config.proto).
_LABELS = {"labels": {str: str}, "annotations": {str: str}}
_SECRET = {
    "secretName": str,
    "configMapName": str,
    "mountPath": str,
    "optional": bool,
    "secretNameParameter": _PARAMETER_SOURCE,
    "configMapNameParameter": _PARAMETER_SOURCE,
    "keyToEnv": [{"secretKey": str, "configMapKey": str, "envVar!": str}],
}
_VOLUME = {"volumeName": str, "mountPath": str, "medium": str, "sizeLimit": str, "size": str}
_KUBERNETES = {
    **{key: [_SECRET] for key in ("secretAsVolume", "secretAsEnv", "configMapAsVolume", "configMapAsEnv")},
    "pvcMount": [
        {**_PARAMETER_SOURCE, "constant": str, "mountPath": str, "subPath": str, "pvcNameParameter": _PARAMETER_SOURCE}
    ],
    "genericEphemeralVolume": [{**_VOLUME, "mountPath!": str}],
    "emptyDirMounts": [{**_VOLUME, "mountPath!": str}],
    "enabledSharedMemory": _VOLUME,
    "fieldPathAsEnv": [{"name!": str, "fieldPath!": str}],
    "nodeSelector": {"labels": {str: str}},
    "podMetadata": _LABELS,
    "imagePullPolicy": str,
    "activeDeadlineSeconds": _whole,
    "securityContext": {"runAsUser": _whole, "runAsGroup": _whole, "runAsNonRoot": bool},
    **{key: [{}] for key in ("imagePullSecret", "tolerations", "nodeAffinity", "podAffinity")},
}
_PLATFORM = {
    "deploymentSpec": {"executors": {str: _KUBERNETES}},
    "pipelineConfig": {"activeDeadlineSeconds": _whole},
}
