"""The size of the Argo workflow that KFP's backend creates from a compiled pipeline.

Argo accepts 1 MiB for a whole run: the pipeline, which KFP compiles into one workflow, and the state of its nodes,
which grows while it runs. A larger pipeline is rejected when it starts, or fails half way. This module builds the same
parts as the backend (kubeflow/pipelines, ``backend/src/v2/compiler/argocompiler``) and counts their bytes:

- each distinct container, and the component of the first task that has it, as JSON in the JSON of a parameter;
- the Kubernetes configuration of each component, and each DAG with all of its tasks, likewise;
- two Argo tasks for each task: a driver and the task that it drives. One of them contains KFP's task once more.

The sizes of parameters and DAGs equal those of recorded workflows of KFP 2.17 to the byte. The size of the state is an
estimate.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.pipeline.load import specs_in

#: The bytes that Argo accepts for a workflow, with its state compressed.
LIMIT = 1024 * 1024
#: The bytes that one argument of a process may have. A DAG with all of its tasks is an argument of its driver, and
#: Argo accepts longer ones only since 2026 (argoproj/argo-workflows 15265, with kubeflow/pipelines 12737).
LEVEL_LIMIT = 128 * 1024
#: The compressed bytes of a stage's state: six nodes. In a recorded run, repeated two hundred times, each stage has
#: 1,550 to 1,700 bytes; in small runs, up to 2,000.
STATE = 1_650
#: The same for a DAG: an iteration of a loop, a branch, or a nested pipeline.
_DAG_STATE = 1_000
#: The bytes of the parts that every workflow has: metadata, templates of drivers and of the executor, the entry point.
_FIXED = 9_470
#: The bytes of one pod label in these templates, for each number of labels that tasks have.
_LABEL = 428


@dataclass(frozen=True)
class Size:
    """The size of a pipeline: the number of its stages, and sizes in bytes.

    ``workflow`` is the size at the start, and ``state`` is added until the end. ``level`` is the description of the
    largest DAG, which has ``tasks`` tasks. A loop whose items are known only at run time counts as one iteration.
    """

    stages: int
    workflow: int
    state: int
    level: int
    tasks: int

    @property
    def share(self) -> float:
        """The share of Argo's limit that the run needs by its end."""
        return (self.workflow + self.state) / LIMIT


def describe(size: Size) -> list[str]:
    """Describe a pipeline's size if it takes half of the limit or more; otherwise return nothing."""
    said = []
    stages = f"{size.stages} stage{'s' if size.stages > 1 else ''}"
    if size.share > 1:
        end = "KFP rejects it" if size.workflow > LIMIT else "the run fails before its end"
        said.append(
            f"Warning: {stages} need about {size.share:.2g} times the 1 MiB that Argo accepts for a run: {end}. "
            "Split it into several pipelines; a stage reads the results of another run by its run id, "
            "reads={'train': run_id}."
        )
    elif size.share >= 0.5:
        said.append(f"{stages}, about {size.share:.1f} of the 1 MiB that Argo accepts for a run.")
    if size.level >= LEVEL_LIMIT:
        said.append(
            f"Warning: one level has {size.tasks} tasks, which take {size.level} bytes. Argo before 2026 passes them "
            f"in one argument, which may have {LEVEL_LIMIT} bytes: put some of them into a nested pipeline."
        )
    return said


def measure(compiled: str) -> Size:
    """Measure the workflow that KFP creates from a compiled pipeline, given as the text of a YAML file."""
    spec, platform = specs_in(compiled, is_compiled=True)
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    return _Workflow(spec, kubernetes.get("deploymentSpec", {}).get("executors", {})).size()


class _Workflow:
    """The parts of the workflow that grow with the pipeline."""

    def __init__(self, spec: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._components: Mapping[str, Any] = {**spec.get("components", {}), "root": spec["root"]}
        self._executors = spec.get("deploymentSpec", {}).get("executors", {})
        self._settings = settings
        self._parameters: dict[str, str] = {}
        self._templates: list[dict[str, Any]] = []
        self._labels: set[int] = set()
        self._levels: list[tuple[int, int]] = []
        self._visit("root")
        self._stages, self._state = self._runs("root")
        defaults = {
            name: parameter["defaultValue"]
            for name, parameter in spec["root"].get("inputDefinitions", {}).get("parameters", {}).items()
            if "defaultValue" in parameter
        }
        self._arguments = _json({"parameterValues": defaults})

    def size(self) -> Size:
        parameters = [{"name": name, "value": value} for name, value in self._parameters.items()]
        made = [_json(parameters), *map(_json, self._templates), _json(self._arguments)]
        labels = sum(self._labels) * _LABEL
        level, tasks = max(self._levels)
        workflow = _FIXED + labels + sum(len(text.encode()) + 1 for text in made)
        return Size(self._stages, workflow, self._state, level, tasks)

    def _runs(self, name: str) -> tuple[int, int]:
        """Return how many stages of the component run, and the bytes of their state."""
        dag = self._components[name].get("dag")
        if dag is None:
            return 1, STATE
        stages, state = 0, _DAG_STATE
        for task in dag.get("tasks", {}).values():
            raw = task.get("parameterIterator", {}).get("items", {}).get("raw")
            times = len(json.loads(raw)) if raw else 1
            inner = self._runs(task["componentRef"]["name"])
            stages, state = stages + times * inner[0], state + times * inner[1]
        return stages, state

    def _visit(self, name: str) -> None:
        """Add the DAG with this name, and everything that it uses."""
        if f"components-{name}" in self._parameters:
            return
        component = self._components[name]
        text = _json(component)
        self._parameters[f"components-{name}"] = text
        tasks = component["dag"].get("tasks", {})
        self._levels.append((len(text.encode()), len(tasks)))
        made = [argo for key, task in tasks.items() for argo in self._tasks(key, task)]
        inputs = {"parameters": [{"name": "parent-dag-id"}]}
        self._templates.append(_template(name, inputs, made))

    def _tasks(self, name: str, task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the Argo tasks of a KFP task."""
        component = self._components[task["componentRef"]["name"]]
        if "parameterIterator" in task or "artifactIterator" in task:
            yield from self._loop(name, task)
        elif "dag" in component:
            self._visit(task["componentRef"]["name"])
            yield from _dag_tasks(name, task, name)
        else:
            yield from self._container_tasks(name, task, component)

    def _container_tasks(
        self, name: str, task: Mapping[str, Any], component: Mapping[str, Any]
    ) -> Iterator[dict[str, Any]]:
        label, of = component["executorLabel"], task["componentRef"]["name"]
        container = self._executors[label].get("container", self._executors[label])
        text = _json(container)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._parameters.setdefault(f"components-{digest}", _json(component))
        self._parameters.setdefault(f"implementations-{digest}", text)
        arguments = {
            "component": f"{{{{workflow.parameters.components-{digest}}}}}",
            "task": _json(task),
            "container": f"{{{{workflow.parameters.implementations-{digest}}}}}",
            "task-name": name,
            "parent-dag-id": "{{inputs.parameters.parent-dag-id}}",
        }
        settings = self._settings.get(label)
        if settings:
            self._parameters[f"kubernetes-{of}"] = _json(settings)
            arguments["kubernetes-config"] = f"{{{{workflow.parameters.kubernetes-{of}}}}}"
        yield _argo_task(f"{name}-driver", "system-container-driver", arguments, _depends(task))
        driver = f"{{{{tasks.{name}-driver.outputs.parameters"
        outputs = {"pod-spec-patch": f"{driver}.pod-spec-patch}}}}", "cached-decision": f"{driver}.cached-decision}}}}"}
        labels = (settings or {}).get("podMetadata", {}).get("labels", {})
        self._labels.add(len(labels))
        for number, (key, value) in enumerate(labels.items(), 1):
            outputs |= {f"pod-metadata-label-key-{number}": key, f"pod-metadata-label-val-{number}": value}
        template = "metadata-0-0-system-container-executor" if labels else "system-container-executor"
        executor = _argo_task(name, template, outputs, f"{name}-driver.Succeeded")
        executor["arguments"]["parameters"][1]["default"] = "false"
        yield executor

    def _loop(self, name: str, task: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        of = task["componentRef"]["name"]
        self._visit(of)
        parent = {"parent-dag-id": "{{inputs.parameters.parent-dag-id}}"}
        iterator = f"{of}-{name}-iterator"
        yield _argo_task(name, iterator, parent, _depends(task))
        inputs = {"parameters": [{"name": "parent-dag-id"}, {"name": "iteration-index"}]}
        self._templates.append(_template(f"{of}-{name}", inputs, list(_dag_tasks("iteration-item", task, name))))
        # The control of the loop: a driver that counts, and a task with a sequence.
        self._templates.append(_template(iterator, inputs, list(_dag_tasks("iteration", task, name))))


def _dag_tasks(name: str, task: Mapping[str, Any], task_name: str) -> Iterator[dict[str, Any]]:
    of = task["componentRef"]["name"]
    arguments = {
        "component": f"{{{{workflow.parameters.components-{of}}}}}",
        "parent-dag-id": "{{inputs.parameters.parent-dag-id}}",
        "task": _json(task),
        "task-name": task_name,
    }
    yield _argo_task(f"{name}-driver", "system-dag-driver", arguments, _depends(task))
    driver = f"{{{{tasks.{name}-driver.outputs.parameters"
    outputs = {"parent-dag-id": f"{driver}.execution-id}}}}", "condition": f"{driver}.condition}}}}"}
    made = _argo_task(name, of, outputs, f"{name}-driver.Succeeded")
    if "condition" in task.get("triggerPolicy", {}):
        made["when"] = f"{driver}.condition}}}} != false"
    yield made


def _argo_task(name: str, template: str, arguments: Mapping[str, str], depends: str) -> dict[str, Any]:
    parameters = [{"name": key, "value": value} for key, value in arguments.items()]
    made: dict[str, Any] = {"name": name, "template": template, "arguments": {"parameters": parameters}}
    return made | {"depends": depends} if depends else made


def _template(name: str, inputs: Mapping[str, Any], tasks: list[dict[str, Any]]) -> dict[str, Any]:
    annotations = {"pipelines.kubeflow.org/v2_component": "true", "sidecar.istio.io/inject": "false"}
    return {
        "name": name,
        "inputs": inputs,
        "outputs": {},
        "metadata": {"annotations": annotations},
        "dag": {"tasks": tasks},
    }


def _depends(task: Mapping[str, Any]) -> str:
    return " && ".join(f"{name}.Succeeded" for name in task.get("dependentTasks", ()))


def _json(value: object) -> str:
    """Return JSON as Go writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
