"""The size of the Argo workflow that KFP's backend creates from a compiled pipeline, and the limits that it meets.

Argo accepts 1 MiB for a whole run: the pipeline, which KFP compiles into one workflow, and the state of its nodes
(``nodes``), which grows while it runs. A larger pipeline is rejected when it starts, or fails half way. And a level
(the tasks of one pipeline, loop or branch) has to fit into a variable of its driver. This module builds the same parts
as the backend (kubeflow/pipelines, ``backend/src/v2/compiler/argocompiler``) and counts their bytes:

- each distinct container, and the component of the first task that has it, as JSON in the JSON of a parameter;
- the Kubernetes configuration of each component, and each DAG with all of its tasks, likewise;
- two Argo tasks for each task: a driver and the task that it drives. One of them contains KFP's task once more.

The sizes of parameters and DAGs equal those of recorded workflows of KFP 2.17 to the byte.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torchx_kfp.pipeline.findings import Finding, Kind
from torchx_kfp.pipeline.load import specs_in
from torchx_kfp.semantics.nodes import Dag, Stage, go_json, state

#: The bytes that Argo accepts for a workflow, with its state compressed.
LIMIT = 1024 * 1024
#: The bytes of the variable in which Argo gives a level's driver its template, with the level's component as JSON in
#: JSON. A longer template goes into a ConfigMap, for which the role of Argo in KFP's manifests has no right. Recorded:
#: 200 stages with 118,353 bytes in a level ran, 225 with 133,428 did not.
LEVEL_LIMIT = 128 * 1024
#: What commands with a carried program contain.
_CARRIED = "zlib.decompress(base64.b85decode("
#: The bytes of that template without the component.
_DRIVER = 2_500
#: The bytes of the parts that every workflow has: metadata, templates of drivers and of the executor, the entry point.
_FIXED = 9_470
#: The bytes of one pod label in these templates, for each number of labels that tasks have.
_LABEL = 428


@dataclass(frozen=True)
class Size:
    """The size of a pipeline: the number of its stages, and sizes in bytes.

    ``workflow`` is the size at the start, and ``state`` is added until the end. ``level`` is the template of the driver
    of the largest DAG, which has ``tasks`` tasks. A loop whose items are known only at run time counts as one
    iteration.
    """

    stages: int
    workflow: int
    state: int
    level: int
    tasks: int
    #: Whether a command carries a program, which an image with torchx-kfp would have.
    carries: bool = False

    @property
    def share(self) -> float:
        """The share of Argo's limit that the run needs by its end."""
        return (self.workflow + self.state) / LIMIT


def check_size(size: Size) -> Iterator[Finding]:
    """Yield the limits of Argo that the pipeline exceeds."""
    if size.share > 1:
        end = "is rejected" if size.workflow > LIMIT else "fails before its end"
        yield Finding(
            Kind.MAY_FAIL,
            "the pipeline",
            f"needs about {size.share:.2f} times the 1 MiB that Argo accepts for a run and its state, so it {end}; "
            f"about {int(size.stages / size.share)} of its {size.stages} stages fit. Split it into several pipelines "
            "(a stage reads the results of another run by its run id, reads={'train': run_id})"
            f"{', or use an image with torchx-kfp and inline=False' if size.carries else ''}. "
            "An administrator can set nodeStatusOffLoad in Argo's configuration, which "
            "keeps the state elsewhere. Nested pipelines do not help",
        )
    if size.level > LEVEL_LIMIT:
        yield Finding(
            Kind.MAY_FAIL,
            "the pipeline",
            f"has a level with {size.tasks} tasks, which takes {size.level:,} bytes. Above {LEVEL_LIMIT:,}, Argo needs "
            "a right that KFP's manifests do not grant, and the run ends with 'No more retries left'. Put some of the "
            "tasks into a nested pipeline, or let an administrator allow Argo's service account to create ConfigMaps",
        )


def describe(size: Size) -> list[str]:
    """Describe a pipeline's size if it takes half of the limit or more and fits; otherwise return nothing."""
    if not 0.5 <= size.share <= 1:
        return []
    stages = f"{size.stages} stage{'s' if size.stages > 1 else ''}"
    return [f"{stages}, about {size.share:.1f} of the 1 MiB that Argo accepts for a run."]


def measure(compiled: str) -> Size:
    """Measure the workflow that KFP creates from a compiled pipeline, given as the text of a YAML file."""
    spec, platform = specs_in(compiled, is_compiled=True)
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    size = _Workflow(spec, kubernetes.get("deploymentSpec", {}).get("executors", {})).size()
    return replace(size, carries=_CARRIED in compiled)


class _Workflow:
    """The parts of the workflow that grow with the pipeline."""

    def __init__(self, spec: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self._components: Mapping[str, Any] = {**spec.get("components", {}), "root": spec["root"]}
        for component in self._components.values():
            for task in component.get("dag", {}).get("tasks", {}).values():
                # The backend writes no values that are false.
                if not task.get("cachingOptions", {}).get("enableCache", True):
                    task["cachingOptions"] = {}
        self._executors = spec.get("deploymentSpec", {}).get("executors", {})
        self._settings = settings
        self._parameters: dict[str, str] = {}
        self._templates: list[dict[str, Any]] = []
        self._labels: set[int] = set()
        self._levels: list[tuple[int, int]] = []
        self._visit("root")
        self._defaults = {
            name: parameter["defaultValue"]
            for name, parameter in spec["root"].get("inputDefinitions", {}).get("parameters", {}).items()
            if "defaultValue" in parameter
        }

    def size(self) -> Size:
        parameters = [{"name": name, "value": value} for name, value in self._parameters.items()]
        arguments = go_json({"parameterValues": self._defaults})
        made = [go_json(parameters), *map(go_json, self._templates), go_json(arguments)]
        labels = sum(self._labels) * _LABEL
        level, tasks = max(self._levels)
        workflow = _FIXED + labels + sum(len(text.encode()) + 1 for text in made)
        stages, dags = self._runs("root", 1)
        root = Dag("root", None, self._components["root"])
        nodes = state(root, stages, dags, self._defaults)
        return Size(sum(times for _, times in stages), workflow, nodes, level, tasks)

    def _runs(self, name: str, often: int) -> tuple[list[tuple[Stage, int]], list[tuple[Dag, int]]]:
        """Return the stages and DAGs below a DAG that runs so often, each with the number of times that it runs."""
        stages, dags = [], []
        for key, task in self._components[name]["dag"].get("tasks", {}).items():
            of = task["componentRef"]["name"]
            component = self._components[of]
            raw = task.get("parameterIterator", {}).get("items", {}).get("raw")
            times = often * (len(json.loads(raw)) if raw else 1)
            if "dag" in component:
                below = self._runs(of, times)
                stages += below[0]
                # A loop has a driver that counts, besides that of each iteration.
                dags += [(Dag(key, task, component), times + (often if "parameterIterator" in task else 0)), *below[1]]
            else:
                label = component["executorLabel"]
                executor = self._executors[label]
                settings = self._settings.get(label)
                stages.append((Stage(key, task, component, executor.get("container", executor), settings), times))
        return stages, dags

    def _visit(self, name: str) -> None:
        """Add the DAG with this name, and everything that it uses."""
        if f"components-{name}" in self._parameters:
            return
        component = self._components[name]
        text = go_json(component)
        self._parameters[f"components-{name}"] = text
        tasks = component["dag"].get("tasks", {})
        self._levels.append((_DRIVER + len(go_json(text).encode()), len(tasks)))
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
        text = go_json(container)
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._parameters.setdefault(f"components-{digest}", go_json(component))
        self._parameters.setdefault(f"implementations-{digest}", text)
        arguments = {
            "component": f"{{{{workflow.parameters.components-{digest}}}}}",
            "task": go_json(task),
            "container": f"{{{{workflow.parameters.implementations-{digest}}}}}",
            "task-name": name,
            "parent-dag-id": "{{inputs.parameters.parent-dag-id}}",
        }
        settings = self._settings.get(label)
        if settings:
            self._parameters[f"kubernetes-{of}"] = go_json(settings)
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
        "task": go_json(task),
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
