"""Reading a compiled pipeline: a YAML file, or a pipeline function that is compiled first."""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Union

import yaml

from torchx_kfp.errors import PipelineFileError
from torchx_kfp.local.spec import (
    Component,
    Constant,
    Container,
    Dag,
    FromInput,
    FromTask,
    Loop,
    Other,
    Parameter,
    Pipeline,
    Retry,
    Selector,
    Source,
    Task,
)

PipelineLike = Union[Pipeline, str, "os.PathLike[str]", Callable[..., Any]]

# libyaml's loader is about ten times as fast; it is missing where PyYAML was built without it.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_pipeline(pipeline: PipelineLike) -> Pipeline:
    """The pipeline in a compiled file, or of a pipeline function.

    Args:
        pipeline: path of a compiled pipeline, a function decorated with ``dsl.pipeline``, or a loaded pipeline.

    Raises:
        PipelineFileError: there is no such file, or it holds no compiled KFP v2 pipeline.
    """
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, (str, os.PathLike)):
        return _load_file(Path(pipeline))
    return _compile(pipeline)


def _compile(function: Callable[..., Any]) -> Pipeline:
    from kfp import compiler, dsl
    from kfp.dsl.base_component import BaseComponent

    if not isinstance(function, BaseComponent):
        if not callable(function):
            raise PipelineFileError(
                f"{function!r} is no pipeline: pass the path of a compiled pipeline, or a function decorated with "
                "kfp.dsl.pipeline."
            )
        function = dsl.pipeline(function)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(function, str(path))
        return _load_file(path)


def _load_file(path: Path) -> Pipeline:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise PipelineFileError(
            f"There is no file {str(path)!r}. Give the path of a compiled pipeline, for example one that "
            "kfp.compiler.Compiler().compile(...) wrote."
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineFileError(f"The file {str(path)!r} cannot be read as a compiled pipeline: {error}.") from None
    try:
        documents = _documents(text)
    except yaml.YAMLError as error:
        raise PipelineFileError(f"The file {str(path)!r} is not valid YAML: {error}") from None
    except RecursionError:
        raise PipelineFileError(
            f"The file {str(path)!r} is no compiled pipeline: it holds lists or dicts that are nested too deep."
        ) from None
    return pipeline_from_documents(documents, str(path))


def _documents(text: str) -> list[Any]:
    # JSON is not quite YAML: PyYAML takes the number 1e-05 for text.
    if text.lstrip().startswith("{"):
        with contextlib.suppress(ValueError):
            return [json.loads(text)]
    return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]


def pipeline_from_documents(documents: list[Any], path: str) -> Pipeline:
    """The pipeline in these YAML documents: the PipelineSpec, and the platform spec if there is one.

    Args:
        documents: what the file holds.
        path: named in errors.

    Raises:
        PipelineFileError: they are not a compiled KFP v2 pipeline.
    """
    mappings = [document for document in documents if isinstance(document, dict)]
    specs = [document for document in mappings if "root" in document and "pipelineInfo" in document]
    if len(specs) != 1:
        raise PipelineFileError(f"The file {path!r} is not a compiled KFP v2 pipeline: {_what_it_is(mappings)}")
    platforms: dict[str, Any] = {}
    for document in mappings:
        platforms.update(document.get("platforms") or {})
    try:
        return _Reader(specs[0], platforms.get("kubernetes") or {}).pipeline()
    except (_Malformed, KeyError, TypeError, AttributeError, ValueError) as error:
        text = str(error) if isinstance(error, _Malformed) else f"{type(error).__name__}: {error}"
        raise PipelineFileError(
            f"The file {path!r} is a damaged KFP v2 pipeline ({text}). Compile it again instead of editing it."
        ) from None


def _what_it_is(documents: list[dict[str, Any]]) -> str:
    kinds = [str(document["kind"]) for document in documents if "kind" in document]
    if "Workflow" in kinds:
        return "it is an Argo workflow, which KFP v1 compiled to. Compile the pipeline again with kfp 2."
    if kinds:
        names = ", ".join(kinds)
        return f"it is a Kubernetes manifest ({names}). Compile the pipeline without Kubernetes manifest format."
    if any("implementation" in document for document in documents):
        return "it is a component of KFP v1. Compile a pipeline that uses it, with kfp 2."
    keys = [repr(key) for key in sorted({str(key) for document in documents for key in document})[:8]]
    return (
        f"it has {', '.join(keys) or 'no mapping'} at its top level, and no pipelineInfo and root. Compile a pipeline "
        "with kfp.compiler.Compiler().compile(...) and give that file."
    )


class _Malformed(Exception):
    """The file's structure is not that of a PipelineSpec."""


class _Reader:
    def __init__(self, spec: dict[str, Any], platform: dict[str, Any]) -> None:
        self.spec = spec
        deployment = spec.get("deploymentSpec") or {}
        self.executors: dict[str, Any] = deployment.get("executors") or {}
        self.platform = platform
        self.platform_executors: dict[str, Any] = (platform.get("deploymentSpec") or {}).get("executors") or {}

    def pipeline(self) -> Pipeline:
        components = {
            name: self.component(name, component) for name, component in (self.spec.get("components") or {}).items()
        }
        root = self.component("root", self.spec["root"])
        if root.dag is None:
            raise _Malformed("its root has no tasks")
        pipeline = Pipeline(
            name=str(self.spec["pipelineInfo"]["name"]),
            root=root,
            components=components,
            platform=self.platform.get("pipelineConfig") or self.spec.get("pipelineConfig") or {},
        )
        _verify(pipeline)
        return pipeline

    def component(self, name: str, spec: dict[str, Any]) -> Component:
        inputs = spec.get("inputDefinitions") or {}
        outputs = spec.get("outputDefinitions") or {}
        dag = container = None
        platform: dict[str, Any] = {}
        if "dag" in spec:
            kind, dag = "dag", _dag(spec["dag"])
        else:
            label = spec["executorLabel"]
            if label not in self.executors:
                raise _Malformed(f"{name} names the executor {label!r}, which is missing")
            executor = self.executors[label]
            kind = next(iter(executor), "empty")
            platform = self.platform_executors.get(label) or {}
            if kind == "container":
                container = _container(executor["container"])
        return Component(
            name=name,
            kind=kind,
            inputs={key: _parameter(key, value) for key, value in (inputs.get("parameters") or {}).items()},
            outputs={key: value["parameterType"] for key, value in (outputs.get("parameters") or {}).items()},
            artifact_inputs=tuple(inputs.get("artifacts") or ()),
            artifact_outputs=tuple(outputs.get("artifacts") or ()),
            dag=dag,
            container=container,
            platform=platform,
        )


def _parameter(name: str, spec: dict[str, Any]) -> Parameter:
    return Parameter(
        name=name,
        type=spec["parameterType"],
        optional=bool(spec.get("isOptional")),
        has_default="defaultValue" in spec,
        default=spec.get("defaultValue"),
        literals=tuple(spec.get("literals") or ()),
    )


def _container(spec: dict[str, Any]) -> Container:
    return Container(
        image=str(spec.get("image", "")),
        command=tuple(str(word) for word in spec.get("command") or ()),
        args=tuple(str(word) for word in spec.get("args") or ()),
        env=tuple((str(item["name"]), str(item.get("value", ""))) for item in spec.get("env") or ()),
        has_resources=bool(spec.get("resources")),
        has_lifecycle=bool(spec.get("lifecycle")),
    )


def _dag(spec: dict[str, Any]) -> Dag:
    tasks = {name: _task(name, task) for name, task in (spec.get("tasks") or {}).items()}
    outputs = {
        name: _selector(output) for name, output in ((spec.get("outputs") or {}).get("parameters") or {}).items()
    }
    return Dag(tasks=tasks, outputs=outputs)


def _selector(spec: dict[str, Any]) -> Selector:
    if "valueFromOneof" in spec:
        selectors = spec["valueFromOneof"]["parameterSelectors"]
    else:
        selectors = [spec["valueFromParameter"]]
    return Selector(tuple((selector["producerSubtask"], selector["outputParameterKey"]) for selector in selectors))


def _task(name: str, spec: dict[str, Any]) -> Task:
    inputs = spec.get("inputs") or {}
    sources = {key: _source(value) for key, value in (inputs.get("parameters") or {}).items()}
    artifacts = inputs.get("artifacts") or {}
    depends_on = list(spec.get("dependentTasks") or ())
    depends_on += [source.task for source in sources.values() if isinstance(source, FromTask)]
    trigger = spec.get("triggerPolicy") or {}
    return Task(
        name=name,
        display_name=str((spec.get("taskInfo") or {}).get("name") or name),
        component=spec["componentRef"]["name"],
        inputs=sources,
        depends_on=tuple(dict.fromkeys(depends_on)),
        condition=trigger.get("condition") or None,
        strategy=trigger.get("strategy") or "",
        loop=_loop(spec),
        retry=_retry(spec.get("retryPolicy")),
        artifact_inputs=tuple(artifacts),
        artifact_loop="artifactIterator" in spec,
    )


def _source(spec: dict[str, Any]) -> Source:
    selector = spec.get("parameterExpressionSelector") or ""
    if "constant" in (spec.get("runtimeValue") or {}):
        return Constant(spec["runtimeValue"]["constant"])
    if "componentInputParameter" in spec:
        return FromInput(spec["componentInputParameter"], selector)
    if "taskOutputParameter" in spec:
        output = spec["taskOutputParameter"]
        return FromTask(output["producerTask"], output["outputParameterKey"], selector)
    return Other(next(iter(spec), "empty"))


def _loop(spec: dict[str, Any]) -> Loop | None:
    iterator = spec.get("parameterIterator")
    if not iterator:
        return None
    items = iterator["items"]
    return Loop(
        item_input=iterator["itemInput"],
        raw=items.get("raw"),
        from_input=items.get("inputParameter"),
        parallelism=int((spec.get("iteratorPolicy") or {}).get("parallelismLimit") or 0),
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
    """Protobuf's JSON form of a duration: ``"1.5s"``."""
    match = re.fullmatch(r"([0-9.]+)s", text)
    if match is None:
        raise _Malformed(f"{text!r} is not a duration in seconds")
    return float(match.group(1))


def _verify(pipeline: Pipeline) -> None:
    """Every name in the file leads somewhere, and nothing waits for itself."""
    uses: dict[str, set[str]] = {}
    for component in (pipeline.root, *pipeline.components.values()):
        dag = component.dag
        if dag is None:
            continue
        for task in dag.tasks.values():
            if task.component not in pipeline.components:
                raise _Malformed(f"the task {task.name!r} names the component {task.component!r}, which is missing")
            for upstream in task.depends_on:
                if upstream not in dag.tasks:
                    raise _Malformed(f"the task {task.name!r} waits for {upstream!r}, which is missing")
        for name, selector in dag.outputs.items():
            for producer, _ in selector.sources:
                if producer not in dag.tasks:
                    raise _Malformed(f"the output {name!r} comes from the task {producer!r}, which is missing")
        uses[component.name] = {task.component for task in dag.tasks.values()}
        _refuse_circle({task.name: task.depends_on for task in dag.tasks.values()}, "tasks")
    _refuse_circle(uses, "components")


def _refuse_circle(graph: Mapping[str, Any], what: str) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise _Malformed(f"these {what} wait for each other: {' -> '.join(reversed(error.args[1]))}") from None
