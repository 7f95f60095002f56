"""Make KFP components and tasks from stage plans."""

from __future__ import annotations

import functools
import inspect
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import docstring_parser
import kfp
from kfp import compiler, components, dsl, kubernetes
from kfp.dsl import container_component_class, structures
from kfp.dsl.types import type_utils

from torchx_kfp.authoring.plan import StagePlan
from torchx_kfp.authoring.reads import StageOutputs, TrackerBase
from torchx_kfp.authoring.references import PYTHON_TYPES, Reference
from torchx_kfp.contract.inputs import TASK_CONFIG
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.errors import AppDefError


class StageComponent(container_component_class.ContainerComponent):  # type: ignore[misc]  # kfp is skipped by mypy
    """A stage as a KFP component, whose tasks have all settings of the AppDef.

    The file of a KFP component cannot hold resources, labels or retries, but that of a pipeline can. So this component
    compiles to a pipeline with one task, which can be loaded and used like any other component.
    """

    def __init__(self, plan: StagePlan, name: str | None = None, constants: Collection[str] = ()) -> None:
        """Make the component of a stage; ``constants`` are parameters of its function that are not inputs."""
        super().__init__(_component_spec(plan, name or plan.component), None)
        self._plan = plan
        self._constants = constants

    @functools.cached_property
    def _pipeline(self) -> Any:
        return _pipeline_of(self._plan)

    def __call__(self, *args: Any, **inputs: Any) -> dsl.PipelineTask:
        if constants := [name for name in inputs if name in self._constants]:
            raise AppDefError(
                f"{constants[0]!r} is not an input of the component {self.name!r}: it is a constant, or keeps its "
                "default None. Give it another default, or call the function: "
                f"task_from_app(FUNCTION({constants[0]}=f'{{channel}}'))."
            )
        # KFP 2.17 does not fill in placeholders for inputs that only have defaults.
        arguments = {**_defaults(self._plan), **inputs, **_fixed(self._plan)}
        base = self._plan.tracker_base
        base = arguments.get(TRACKER_BASE_PARAMETER) if isinstance(base, Reference) else base
        return _configure(super().__call__(*args, **arguments), self._plan, base)

    @property
    def pipeline_spec(self) -> Any:
        """The compiled pipeline of this stage."""
        return self._pipeline.pipeline_spec

    @property
    def platform_spec(self) -> Any:
        """The pipeline's settings for Kubernetes."""
        return self._pipeline.platform_spec


def make_task(plan: StagePlan) -> dsl.PipelineTask:
    """Make a task from the stage, in the pipeline that is being defined."""
    return StageComponent(plan)(**{name: planned.argument for name, planned in plan.parameters.items()})


def component_yaml(component: StageComponent) -> str:
    """Return the component as the text of a KFP v2 component file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "component.yaml")
        compiler.Compiler().compile(component, str(path))
        return path.read_text(encoding="utf-8")


def uri_component(artifact_class: type[dsl.Artifact], metadata: Mapping[str, Any]) -> Any:
    """Return a nested pipeline that imports the artifact with the URI in its parameter.

    On KFP, an importer accepts a parameter of its pipeline, but not an output of a task. The pipeline is text, because
    KFP does not allow defining a pipeline while another one is being defined.
    """
    kind = {"schemaTitle": artifact_class.schema_title, "schemaVersion": artifact_class.schema_version}
    uri = {"parameters": {"uri": {"parameterType": "STRING"}}}
    importer = {"artifactUri": {"runtimeParameter": "uri"}, "typeSchema": kind, "metadata": dict(metadata)}
    task = {
        "taskInfo": {"name": "importer"},
        "componentRef": {"name": "comp-importer"},
        "cachingOptions": {"enableCache": True},
        "inputs": {"parameters": {"uri": {"componentInputParameter": "uri"}}},
    }
    selected = {"artifactSelectors": [{"outputArtifactKey": "artifact", "producerSubtask": "importer"}]}
    spec = {
        "pipelineInfo": {"name": "artifact-from-uri"},
        "schemaVersion": "2.1.0",
        "sdkVersion": f"kfp-{kfp.__version__}",
        "components": {
            "comp-importer": {
                "executorLabel": "exec-importer",
                "inputDefinitions": uri,
                "outputDefinitions": {"artifacts": {"artifact": {"artifactType": kind}}},
            }
        },
        "deploymentSpec": {"executors": {"exec-importer": {"importer": importer}}},
        "root": {
            "dag": {"tasks": {"importer": task}, "outputs": {"artifacts": {"Output": selected}}},
            "inputDefinitions": uri,
            "outputDefinitions": {"artifacts": {"Output": {"artifactType": kind}}},
        },
    }
    return components.load_component_from_text(json.dumps(spec))


def _component_spec(plan: StagePlan, name: str) -> Any:
    """Return the component. Making it directly is faster than KFP's decorator, which reads a function's signature."""
    description, described = plan.description, {}
    if "\n" in description:  # a component function's docstring
        docs = docstring_parser.parse(description)
        description = "\n".join(filter(None, (docs.short_description, docs.long_description))).strip()
        described = {parameter.arg_name: parameter.description for parameter in docs.params}
    defaults = _defaults(plan)
    inputs = {
        key: structures.InputSpec(
            _spec_type(PYTHON_TYPES[planned.type]),
            default=defaults.get(key),
            optional=key in defaults,
            description=described.get(key),
        )
        for key, planned in plan.parameters.items()
    }
    passed_on: dict[str, Any] = {}
    if plan.pod.task_config and hasattr(dsl, "TaskConfig"):  # not in kfp 2.14
        inputs[TASK_CONFIG] = structures.InputSpec("TaskConfig", optional=True)
        passed_on["task_config_passthroughs"] = [
            dsl.TaskConfigPassthrough(field=field, apply_to_task=field.name in plan.pod.task_config)
            for field in dsl.TaskConfigField
        ]
    return structures.ComponentSpec(
        name=name,
        description=description,
        inputs=inputs,
        outputs={output: structures.OutputSpec(_spec_type(kind)) for output, kind in plan.outputs.items()},
        implementation=structures.Implementation(
            structures.ContainerSpecImplementation(image=plan.image, command=list(plan.command))
        ),
        **passed_on,
    )


def _spec_type(kind: type[Any]) -> str:
    """Return KFP's name for the type of a parameter, or for a class of artifacts."""
    if issubclass(kind, dsl.Artifact):
        return str(type_utils.create_bundled_artifact_type(kind.schema_title, kind.schema_version))
    return str(type_utils.get_canonical_type_name_for_type(kind))


def _pipeline_of(plan: StagePlan) -> Any:
    outputs = NamedTuple("outputs", list(plan.outputs.items()))  # type: ignore[misc]  # its fields are data

    def body(*inputs: Any) -> Any:
        # With the pipeline's name, KFP would load the file as the bare container.
        component = StageComponent(plan, f"{plan.component}-stage")
        task = component(**dict(zip((parameter.name for parameter in parameters), inputs, strict=True)))
        return outputs(**{name: task.outputs[name] for name in plan.outputs}) if plan.outputs else None

    fixed = _fixed(plan)
    parameters = [
        inspect.Parameter(
            key,
            # Positional parameters without a default would have to come first.
            inspect.Parameter.KEYWORD_ONLY,
            annotation=PYTHON_TYPES[planned.type],
            default=planned.default,
        )
        for key, planned in plan.parameters.items()
        if key not in fixed
    ]
    body.__name__, body.__doc__ = plan.component, plan.description
    returns = outputs if plan.outputs else inspect.Signature.empty
    vars(body)["__signature__"] = inspect.Signature(parameters, return_annotation=returns)
    return dsl.pipeline(name=plan.component)(body)


def _fixed(plan: StagePlan) -> dict[str, str]:
    """Return the inputs that the component passes itself: the stage's name and values, or an image."""
    return {key: planned.argument for key, planned in plan.parameters.items() if isinstance(planned.argument, str)}


def _defaults(plan: StagePlan) -> dict[str, Any]:
    return {
        key: planned.default
        for key, planned in plan.parameters.items()
        if planned.default is not inspect.Parameter.empty
    }


def _configure(task: dsl.PipelineTask, plan: StagePlan, tracker_base: TrackerBase | None) -> dsl.PipelineTask:
    """Set the task's resources, retries and settings for Kubernetes, and return the task."""
    task._outputs = StageOutputs(task._outputs, plan.name, tracker_base)
    if task.state.name == "FINAL":
        # Outside of a pipeline, kfp.local has already run the task.
        return task
    pod = plan.pod
    if amounts := dict(pod.resources):
        # Limits only, which Kubernetes also uses as requests, so that the author of the pipeline can change them. KFP's
        # setters are slow, because they look up the stack in source files, and refuse most counts in 2.14.
        cpu, memory = amounts.pop("cpu", None), amounts.pop("memory", None)
        device, count = next(iter(amounts.items()), (None, None))
        task.container_spec.resources = structures.ResourceSpec(None, cpu, None, memory, device, count)
    if not plan.cache:
        task.set_caching_options(False)
    # The settings that every stage has are written directly: the functions of kfp.kubernetes convert the whole
    # configuration in each call, which took a fifth of the time to compile 300 stages.
    if paths := pod.field_paths:
        named = [{"name": name, "fieldPath": path} for name, path in paths.items()]
        task.platform_config["kubernetes"] = {"fieldPathAsEnv": named}
    for label, value in pod.node_selector.items():
        kubernetes.add_node_selector(task, label, value)
    for claim, path in pod.volumes:
        kubernetes.mount_pvc(task, pvc_name=claim, mount_path=path)
    for secret, variables in plan.secrets.items():
        kubernetes.use_secret_as_env(task, secret_name=secret, secret_key_to_env=dict(variables))
    return task
