"""Make KFP components and tasks from stage plans."""

from __future__ import annotations

import functools
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from kfp import compiler, dsl, kubernetes
from kfp.dsl import container_component_class, structures

from torchx_kfp.authoring.component_inputs import NO_DEFAULT
from torchx_kfp.authoring.plan import StagePlan
from torchx_kfp.authoring.reads import StageOutputs, TrackerBase
from torchx_kfp.authoring.references import PYTHON_TYPES, Reference
from torchx_kfp.common.sdk import refuse_operations
from torchx_kfp.contract.inputs import TASK_CONFIG
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER

refuse_operations()


class StageComponent(container_component_class.ContainerComponent):  # type: ignore[misc]
    """A stage as a KFP component. Its tasks have everything that the AppDef asks for.

    A KFP component's file has no place for resources, labels or retries, but a pipeline's file does. Compiled by
    itself, this component is a pipeline with one task; loaded from that file, it is used like any other component.
    """

    def __init__(self, plan: StagePlan, name: str | None = None) -> None:
        made = _container_component(plan, name or plan.component)
        super().__init__(made.component_spec, made.pipeline_func)
        self._plan = plan

    @functools.cached_property
    def _pipeline(self) -> Any:
        return _pipeline_of(self._plan)

    def __call__(self, *args: Any, **inputs: Any) -> dsl.PipelineTask:
        # The backend of KFP 2.17 does not fill in placeholders for inputs that have only their defaults.
        given = {**_defaults(self._plan), **inputs, **_fixed(self._plan)}
        base = self._plan.tracker_base
        base = given.get(TRACKER_BASE_PARAMETER) if isinstance(base, Reference) else base
        return _configure(super().__call__(*args, **given), self._plan, base)

    @property
    def pipeline_spec(self) -> Any:
        """The compiled pipeline, which has only this stage."""
        return self._pipeline.pipeline_spec

    @property
    def platform_spec(self) -> Any:
        """The pipeline's settings for Kubernetes."""
        return self._pipeline.platform_spec


def make_task(plan: StagePlan) -> dsl.PipelineTask:
    """Make a task from the stage, in the pipeline that is being defined."""
    return StageComponent(plan)(**{name: planned.argument for name, planned in plan.inputs.items()})


def component_yaml(component: StageComponent) -> str:
    """Return the component as the text of a KFP v2 component file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "component.yaml")
        compiler.Compiler().compile(component, str(path))
        return path.read_text(encoding="utf-8")


def _container_component(plan: StagePlan, name: str) -> Any:
    """Make the container component. KFP reads name, description, inputs and outputs from a function's signature."""
    outputs = [
        _parameter(output, dsl.Output[kind] if issubclass(kind, dsl.Artifact) else dsl.OutputPath(kind))
        for output, kind in plan.outputs.items()
    ]
    kept = plan.pod.task_config if hasattr(dsl, "TaskConfig") else None  # kfp 2.14 has none
    config = [] if kept is None else [_parameter(TASK_CONFIG, dsl.TaskConfig)]
    # KFP parses a docstring in four styles, which takes longer than all else here: one without sections is set below.
    has_sections = "\n" in plan.description
    component = dsl.container_component(
        _function(
            name,
            plan.description if has_sections else None,
            [*_inputs(plan), *config, *outputs],
            lambda *_: dsl.ContainerSpec(image=plan.image, command=list(plan.command)),
        )
    )
    if not has_sections:
        component.component_spec.description = plan.description
    if kept is not None:
        component.component_spec.task_config_passthroughs = [
            dsl.TaskConfigPassthrough(field=field, apply_to_task=field.name in kept) for field in dsl.TaskConfigField
        ]
    return component


def _pipeline_of(plan: StagePlan) -> Any:
    outputs = NamedTuple("outputs", list(plan.outputs.items()))  # type: ignore[misc]

    def body(*inputs: Any) -> Any:
        # If it had the pipeline's name, KFP would load the file as the bare container.
        component = StageComponent(plan, f"{plan.component}-stage")
        task = component(**dict(zip((parameter.name for parameter in parameters), inputs, strict=True)))
        return outputs(**{name: task.outputs[name] for name in plan.outputs}) if plan.outputs else None

    parameters = [parameter for parameter in _inputs(plan) if parameter.name not in _fixed(plan)]
    returns = outputs if plan.outputs else inspect.Signature.empty
    function = _function(plan.component, plan.description, parameters, body, returns)
    return dsl.pipeline(name=plan.component)(function)


def _fixed(plan: StagePlan) -> dict[str, str]:
    """Return the inputs that every task of the component passes itself: the stage's name and values, or an image."""
    return {key: planned.argument for key, planned in plan.inputs.items() if isinstance(planned.argument, str)}


def _defaults(plan: StagePlan) -> dict[str, Any]:
    return {key: planned.default for key, planned in plan.inputs.items() if planned.default is not NO_DEFAULT}


def _inputs(plan: StagePlan) -> list[inspect.Parameter]:
    defaults = _defaults(plan)
    return [
        _parameter(key, PYTHON_TYPES[planned.type], defaults.get(key, inspect.Parameter.empty))
        for key, planned in plan.inputs.items()
    ]


def _parameter(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    # Keyword-only, since positional parameters without a default would have to come first.
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _function(
    name: str,
    description: str | None,
    parameters: list[inspect.Parameter],
    body: Callable[..., Any],
    returns: Any = inspect.Signature.empty,
) -> Callable[..., Any]:
    """Make a function with this name, docstring and signature. KFP calls it with positional arguments."""

    def function(*args: Any) -> Any:
        return body(*args)

    function.__name__ = name
    function.__doc__ = description
    function.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    return function


def _configure(task: dsl.PipelineTask, plan: StagePlan, tracker_base: TrackerBase | None) -> dsl.PipelineTask:
    """Set the task's resources, retries and settings for Kubernetes, and return the task."""
    task._outputs = StageOutputs(task._outputs, plan.name, tracker_base)
    if task.state.name == "FINAL":
        # This was called outside a pipeline, with kfp.local: the task has already run, and nothing below applies.
        return task
    pod = plan.pod
    if pod.cpu or pod.memory or pod.accelerator:
        # KFP's setters do the same, but look up the whole stack in source files, and in 2.14 refuse most counts.
        kind, count = pod.accelerator or (None, None)
        amount = None if count is None else str(count)
        task.container_spec.resources = structures.ResourceSpec(pod.cpu, pod.cpu, pod.memory, pod.memory, kind, amount)
    if not plan.cache:
        task.set_caching_options(False)
    _configure_pod(task, plan)
    return task


def _configure_pod(task: dsl.PipelineTask, plan: StagePlan) -> None:
    # Settings that every stage has are written directly, in the form that kfp.kubernetes' functions use. The functions
    # convert the whole configuration at each call, which took a fifth of the time to compile 300 stages.
    config: dict[str, Any] = {"podMetadata": {"labels": dict(plan.pod.labels)}} if plan.pod.labels else {}
    if paths := plan.field_paths:
        config["fieldPathAsEnv"] = [{"name": name, "fieldPath": path} for name, path in paths.items()]
    if config:
        task.platform_config["kubernetes"] = config
    for label, value in plan.pod.node_selector.items():
        kubernetes.add_node_selector(task, label, value)
    for claim, path in plan.pod.volumes:
        kubernetes.mount_pvc(task, pvc_name=claim, mount_path=path)
    for secret, variables in plan.secrets.items():
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env=dict(variables))
