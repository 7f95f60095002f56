"""Read KFP's intermediate representation (PipelineSpec) into plain data: see ``spec``.

Pipelines come from files that people edit, and from hosts. Each key of KFP's format has one type everywhere
(``_TYPES``), which is verified first, so that later code can rely on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

import yaml

from torchx_kfp.common.text import shown
from torchx_kfp.execution.pipeline.spec import (
    ArtifactType,
    Component,
    Constant,
    Container,
    Dag,
    FinalStatus,
    FromInput,
    FromTask,
    Importer,
    Loop,
    Origin,
    Other,
    Parameter,
    Pipeline,
    Retry,
    Task,
)
from torchx_kfp.execution.pipeline.values import is_finite

# The levels of nested pipelines that a pipeline may have, and the tasks in all of them.
_DEEPEST = 50
_MOST_TASKS = 100_000
#: The trigger strategy of tasks that run even after failures.
ALWAYS = "ALL_UPSTREAM_TASKS_COMPLETED"
#: Text that KFP's reader of YAML, unlike Python's, takes for a number or a boolean.
_AMBIGUOUS = re.compile(r"[-+]?\.?[0-9].*|[yYnN]", re.DOTALL)

# The levels of objects and lists in a file, and the values in it, once aliases of YAML are followed.
_MOST_LEVELS = 100
_MOST_VALUES = 1_000_000


class _Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]  # a class that may be missing
    """Writes values whole, without aliases, and quotes text that looks like a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style='"' if _AMBIGUOUS.fullmatch(text) else None
    ),
)


class MalformedError(Exception):
    """The file does not have the structure of a PipelineSpec."""


class TaskCycleError(MalformedError):
    """Tasks wait for each other, which KFP's SDK allows."""


def read_pipeline(spec: dict[str, Any], platform: dict[str, Any], text: str = "") -> Pipeline:
    """Read the pipeline in a PipelineSpec and its platform spec, or {}.

    Args:
        spec: the PipelineSpec.
        platform: the platform spec.
        text: the text with both; if empty, it is generated.

    Raises:
        MalformedError: its structure is different.
        KeyError, ValueError: a part is missing, or has the wrong text.
    """
    platforms = platform.get("platforms", {})
    for value, place in ((spec, ""), (platforms, "platforms")):  # next to it, there may be anything
        _verify_types(value, place, dict, "", _MOST_LEVELS, iter(range(_MOST_VALUES)))
    kubernetes = platforms.get("kubernetes", {})
    executors = spec.get("deploymentSpec", {}).get("executors", {})
    settings = kubernetes.get("deploymentSpec", {}).get("executors", {})
    components = {
        name: _component(name, component, executors, settings) for name, component in spec.get("components", {}).items()
    }
    if "root" in components:
        raise MalformedError("a component has the name 'root', which is that of the pipeline itself")
    root = _component("root", spec["root"], executors, settings)
    if root.dag is None:
        raise MalformedError("its root has no tasks")
    pipeline = Pipeline(
        name=str(spec["pipelineInfo"]["name"]),
        root=root,
        components=components,
        platform=kubernetes.get("pipelineConfig") or spec.get("pipelineConfig", {}),
        description=spec["pipelineInfo"].get("description", ""),
        text=text or _dump(spec, platform),
        documents=(spec, platform),
    )
    _verify(pipeline)
    return pipeline


def _dump(spec: dict[str, Any], platform: dict[str, Any]) -> str:
    documents = [spec, platform] if platform else [spec]
    return str(yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=False, width=10_000))


def _component(name: str, spec: dict[str, Any], executors: dict[str, Any], settings: dict[str, Any]) -> Component:
    inputs = spec.get("inputDefinitions", {})
    outputs = spec.get("outputDefinitions", {})
    dag = container = importer = None
    platform: dict[str, Any] = {}
    if "dag" in spec:
        kind, dag = "dag", _dag(spec["dag"])
    else:
        label = spec["executorLabel"]
        if label not in executors:
            raise MalformedError(f"{name} names the executor {label!r}, which is missing")
        executor = executors[label]
        kind = next(iter(executor), "empty")
        platform = settings.get(label) or {}
        for key, fields in _NEEDED.items():
            for item in platform.get(key) or ():
                _ = [item[field] for field in fields]
        for item in (*(platform.get("secretAsEnv") or ()), *(platform.get("configMapAsEnv") or ())):
            _ = [pair["envVar"] for pair in item.get("keyToEnv") or ()]
        if kind == "container":
            container = _container(executor["container"])
        elif kind == "importer":
            importer = _importer(executor["importer"])
    return Component(
        name=name,
        kind=kind,
        parameter_inputs={key: _parameter(key, value) for key, value in inputs.get("parameters", {}).items()},
        parameter_outputs={key: value["parameterType"] for key, value in outputs.get("parameters", {}).items()},
        artifact_inputs=_artifact_types(inputs),
        optional_artifacts=frozenset(
            key for key, value in inputs.get("artifacts", {}).items() if value.get("isOptional")
        ),
        artifact_outputs=_artifact_types(outputs),
        dag=dag,
        container=container,
        importer=importer,
        handed_on=frozenset(
            item["field"] for item in spec.get("taskConfigPassthroughs", ()) if not item.get("applyToTask")
        ),
        platform=platform,
    )


def _artifact_types(definitions: dict[str, Any]) -> dict[str, ArtifactType]:
    return {key: _schema(value.get("artifactType", {})) for key, value in definitions.get("artifacts", {}).items()}


def _schema(spec: dict[str, Any]) -> ArtifactType:
    return ArtifactType(spec.get("schemaTitle", "system.Artifact"), spec.get("schemaVersion", ""))


def _importer(spec: dict[str, Any]) -> Importer:
    uri = spec["artifactUri"]
    return Importer(
        uri=FromInput(uri["runtimeParameter"]) if "runtimeParameter" in uri else Constant(uri["constant"]),
        type=_schema(spec.get("typeSchema", {})),
        metadata=spec.get("metadata", {}),
        to_workspace=bool(spec.get("downloadToWorkspace")),
    )


def _parameter(name: str, spec: dict[str, Any]) -> Parameter:
    return Parameter(
        name=name,
        type=spec["parameterType"],
        optional=bool(spec.get("isOptional")),
        has_default="defaultValue" in spec,
        default=spec.get("defaultValue"),
        literals=tuple(spec.get("literals", ())),
    )


def _container(spec: dict[str, Any]) -> Container:
    return Container(
        image=str(spec.get("image", "")),
        command=tuple(str(word) for word in spec.get("command", ())),
        args=tuple(str(word) for word in spec.get("args", ())),
        env=tuple((str(item["name"]), str(item.get("value", ""))) for item in spec.get("env", ())),
        resources=spec.get("resources", {}),
    )


def _dag(spec: dict[str, Any]) -> Dag:
    tasks = {name: _task(name, task) for name, task in spec.get("tasks", {}).items()}
    outputs: dict[str, tuple[tuple[str, str], ...]] = {}
    for name, output in spec.get("outputs", {}).get("parameters", {}).items():
        is_one = "valueFromOneof" in output
        sources = output["valueFromOneof"]["parameterSelectors"] if is_one else [output["valueFromParameter"]]
        outputs[name] = tuple((one["producerSubtask"], one["outputParameterKey"]) for one in sources)
    for name, output in spec.get("outputs", {}).get("artifacts", {}).items():
        sources = output["artifactSelectors"]
        outputs[name] = tuple((one["producerSubtask"], one["outputArtifactKey"]) for one in sources)
    return Dag(tasks, outputs)


def _task(name: str, spec: dict[str, Any]) -> Task:
    inputs = spec.get("inputs", {})
    sources = {key: _source(value) for key, value in inputs.get("parameters", {}).items()}
    artifacts = {key: _source(value, "Artifact") for key, value in inputs.get("artifacts", {}).items()}
    depends_on = list(spec.get("dependentTasks", ()))
    depends_on += [
        source.task
        for source in (*sources.values(), *artifacts.values())
        if isinstance(source, (FromTask, FinalStatus))
    ]
    caching = spec.get("cachingOptions", {})
    trigger = spec.get("triggerPolicy", {})
    return Task(
        name=name,
        display_name=str(spec.get("taskInfo", {}).get("name") or name),
        component=spec["componentRef"]["name"],
        parameters=sources,
        depends_on=tuple(dict.fromkeys(depends_on)),
        condition=trigger.get("condition", "") or None,
        ignores_failures=trigger.get("strategy") == ALWAYS,
        loop=_loop(spec),
        retry=_retry(spec.get("retryPolicy")),
        artifacts=artifacts,
        caches=bool(caching.get("enableCache")),
        cache_key=caching.get("cacheKey", ""),
    )


def _source(spec: dict[str, Any], kind: str = "Parameter") -> Origin:
    """Return the source of a parameter or an artifact, which have the same fields with different names."""
    selector = spec.get("parameterExpressionSelector") or ""
    if "constant" in spec.get("runtimeValue", {}):
        return Constant(spec["runtimeValue"]["constant"])
    if f"componentInput{kind}" in spec:
        return FromInput(spec[f"componentInput{kind}"], selector)
    if f"taskOutput{kind}" in spec:
        output = spec[f"taskOutput{kind}"]
        return FromTask(output["producerTask"], output[f"output{kind}Key"], selector)
    if "taskFinalStatus" in spec:
        return FinalStatus(spec["taskFinalStatus"]["producerTask"])
    return Other(next(iter(spec), "empty"))


def _loop(spec: dict[str, Any]) -> Loop | None:
    iterator = spec.get("parameterIterator") or spec.get("artifactIterator")
    if not iterator:
        return None
    items = iterator["items"]
    return Loop(
        item_input=iterator["itemInput"],
        raw=items.get("raw"),
        from_input=items.get("inputParameter") or items.get("inputArtifact"),
        parallelism=int(spec.get("iteratorPolicy", {}).get("parallelismLimit") or 0),
    )


def _retry(spec: dict[str, Any] | None) -> Retry | None:
    if not spec or not int(spec.get("maxRetryCount") or 0):
        return None
    return Retry(
        count=int(spec["maxRetryCount"]),
        backoff=_seconds(spec.get("backoffDuration", "0s")),
        factor=float(spec.get("backoffFactor", 2.0)),
        backoff_max=_seconds(spec.get("backoffMaxDuration", "3600s")),
    )


def _seconds(text: str) -> float:
    """Return the seconds in protobuf's JSON form of a duration: ``"1.5s"``."""
    match = re.fullmatch(r"([0-9.]+)s", text)
    if match is None:
        raise MalformedError(f"{text!r} is not a duration in seconds")
    return float(match.group(1))


def _verify(pipeline: Pipeline) -> None:
    """Verify that all names in the file exist, and that no task waits for itself."""
    uses: dict[str, set[str]] = {}
    for component in (pipeline.root, *pipeline.components.values()):
        dag = component.dag
        if dag is None:
            continue
        for task in dag.tasks.values():
            if task.component not in pipeline.components:
                raise MalformedError(f"the task {task.name!r} names the component {task.component!r}, which is missing")
            for upstream in task.depends_on:
                if upstream not in dag.tasks:
                    raise MalformedError(f"the task {task.name!r} waits for {upstream!r}, which is missing")
        for name, sources in dag.outputs.items():
            for producer, _ in sources:
                if producer not in dag.tasks:
                    raise MalformedError(f"the output {name!r} comes from the task {producer!r}, which is missing")
        uses[component.name] = {task.component for task in dag.tasks.values()}
        _refuse_circle({task.name: task.depends_on for task in dag.tasks.values()}, "tasks")
    _refuse_circle(uses, "components")
    # A few nested pipelines can have billions of tasks if each contains the next one twice.
    components = {**pipeline.components, pipeline.root.name: pipeline.root}
    depths: dict[str, int] = {}
    tasks: dict[str, int] = {}
    for name in TopologicalSorter(uses).static_order():
        dag = components[name].dag
        inner = [task.component for task in dag.tasks.values()] if dag is not None else []
        depths[name] = 1 + max((depths[used] for used in inner), default=0)
        tasks[name] = 1 + sum(tasks[used] for used in inner)
        if depths[name] > _DEEPEST:
            raise MalformedError(f"its pipelines are nested more than {_DEEPEST} levels deep")
        if tasks[name] > _MOST_TASKS:
            raise MalformedError(f"it has more than {_MOST_TASKS:,} tasks, including those of nested pipelines")


def _refuse_circle(graph: Mapping[str, Any], what: str) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        kind = TaskCycleError if what == "tasks" else MalformedError
        raise kind(f"these {what} wait for each other: {' -> '.join(reversed(error.args[1]))}") from None


def _whole(value: Any) -> str | None:
    # Protobuf's JSON has 64-bit integers as text.
    try:
        is_whole = not isinstance(value, bool) and abs(int(value)) < 2**63 and float(value).is_integer()
    except (TypeError, ValueError, OverflowError):
        is_whole = False
    return None if is_whole else "an integer"


def _number(value: Any) -> str | None:
    return None if type(value) in (int, float) else "a number"


def _items(value: Any) -> str | None:
    try:
        is_list = isinstance(json.loads(value), list)
    except (TypeError, ValueError, RecursionError):
        is_list = False
    return None if is_list else "a JSON list as text"


#: The names of types in messages.
_NAMES: Mapping[Any, str] = {str: "text", bool: "true or false", dict: "an object", list: "a list"}
#: Required fields in entries of settings for Kubernetes.
_NEEDED = {
    "fieldPathAsEnv": ("name", "fieldPath"),
    **dict.fromkeys(("pvcMount", "emptyDirMounts", "genericEphemeralVolume"), ("mountPath",)),
}
#: The types of the fields of KFP's messages (kubeflow/pipelines, api/v2alpha1/pipeline_spec.proto) and of
#: kfp-kubernetes' (kubernetes_executor_config.proto) that this project reads; a function says what a value must be, but
#: is not. What is in other fields may be any JSON.
_TYPES: Mapping[str, Any] = {
    name: kind
    for kind, names in (
        (
            str,
            "backoffDuration backoffMaxDuration cacheKey componentInputArtifact componentInputParameter condition "
            "configMapKey configMapName description envVar executorLabel field fieldPath image imagePullPolicy "
            "inputArtifact inputParameter itemInput medium mountPath name outputArtifactKey outputParameterKey "
            "parameterExpressionSelector parameterType producerSubtask producerTask resourceCount resourceCpuLimit "
            "resourceMemoryLimit runtimeParameter schemaTitle schemaVersion secretKey secretName size "
            "sizeLimit strategy subPath value volumeName",
        ),
        (bool, "applyToTask downloadToWorkspace enableCache isOptional optional runAsNonRoot"),
        (
            dict,
            "accelerator annotations artifactIterator artifactType artifactUri artifacts cachingOptions componentRef "
            "components configMapNameParameter container dag deploymentSpec enabledSharedMemory executors importer "
            "inputDefinitions inputs items iteratorPolicy kubernetes labels metadata nodeSelector outputDefinitions "
            "outputs parameterIterator parameters pipelineConfig pipelineInfo podMetadata pvcNameParameter "
            "resources retryPolicy root runtimeValue secretNameParameter securityContext taskFinalStatus taskInfo "
            "taskOutputArtifact taskOutputParameter tasks triggerPolicy typeSchema valueFromOneof valueFromParameter",
        ),
        (
            list,
            "args artifactSelectors command configMapAsEnv configMapAsVolume dependentTasks emptyDirMounts env "
            "fieldPathAsEnv genericEphemeralVolume imagePullSecret keyToEnv nodeAffinity parameterSelectors "
            "podAffinity pvcMount secretAsEnv secretAsVolume taskConfigPassthroughs tolerations",
        ),
        (_whole, "activeDeadlineSeconds count maxRetryCount parallelismLimit runAsGroup runAsUser"),
        (_number, "backoffFactor cpuLimit memoryLimit"),
        (_items, "raw"),
    )
    for name in names.split()
}
#: The types of what is in fields whose keys are names that users choose, and in lists; elsewhere, of objects.
_INSIDE: Mapping[str, Any] = {
    **dict.fromkeys(("parameters", "artifacts", "tasks", "components", "executors"), dict),
    **dict.fromkeys(("labels", "annotations", "args", "command", "dependentTasks"), str),
    "metadata": None,
}


def _verify_types(value: Any, place: str, kind: Any, field: str, levels: int, left: Iterator[int]) -> None:
    """Verify that a value has its type, and is JSON that programs in any language can read.

    Args:
        value: the value.
        place: its position, for messages.
        kind: its type; None for any JSON.
        field: its field; empty for the file, an item of a list, or a field with a name as its key.
        levels: the allowed levels of objects and lists.
        left: has a number for each further value that is allowed.

    Raises:
        MalformedError: it is not.
    """
    if next(left, None) is None:
        raise MalformedError(f"with its aliases followed, it has more than {_MOST_VALUES:,} values")
    wanted = (None if type(value) is kind else _NAMES[kind]) if isinstance(kind, type) else kind and kind(value)
    if wanted:
        raise MalformedError(f"{place} is {shown(value)}, but must be {wanted}")
    if isinstance(value, str):
        _verify_text(value, place)
    elif isinstance(value, (int, float)):
        if not is_finite(value):
            raise MalformedError(f"{place} is {shown(value)}, which is not a finite double")
    elif value is not None and not isinstance(value, (dict, list)):
        raise MalformedError(f"{place} is {shown(value)}, which is not JSON")
    elif levels == 0:
        raise MalformedError(f"{place[:200]} is nested too deeply")
    elif isinstance(value, list):
        inside = kind and _INSIDE.get(field, dict)
        for number, item in enumerate(value):
            _verify_types(item, f"{place}[{number}]", inside, "", levels - 1, left)
    elif value is not None:
        has_names = field in _INSIDE
        for key, item in value.items():
            if not isinstance(key, str):
                raise MalformedError(f"{place}.{shown(key)} has a key that is not text")
            _verify_text(key, place)
            inside = kind and (_INSIDE[field] if has_names else _TYPES.get(key))
            own = "" if has_names else key
            _verify_types(item, f"{place}.{key}" if place else key, inside, own, levels - 1, left)


def _verify_text(text: str, place: str) -> None:
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"{place} has the text {shown(text)}, which UTF-8 cannot encode") from None
