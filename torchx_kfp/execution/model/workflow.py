"""The size of the Argo workflow that KFP's backend creates from a compiled pipeline, and the limits that it meets.

Argo accepts 1 MiB for a whole run: the pipeline, which KFP compiles into one workflow, and the state of its nodes,
which grows while it runs. A larger pipeline is rejected when it starts, or fails half way. And a level (the tasks of
one pipeline, loop or branch) has to fit into a variable of its driver. This module builds the same parts as the backend
(kubeflow/pipelines, ``backend/src/v2/compiler/argocompiler``) and counts their bytes:

- each distinct container, and the component of the first task that has it, as JSON in the JSON of a parameter;
- the Kubernetes configuration of each component, and each DAG with all of its tasks, likewise;
- two Argo tasks for each task: a driver and the task that it drives. One of them contains KFP's task once more.

The sizes of parameters and DAGs equal those of recorded workflows of KFP 2.17 to the byte.
The state has a node for each driver, stage and DAG, as JSON in the workflow, compressed (gzip, base64) when the
workflow gets too large. KFP's manifests give each template a retry, so a stage has six nodes: its driver, its executor
and the executor's pod, and each of them again for the attempt. A stage's whole command is in all of them, with one more
level of quotes in the driver's output, and once more in the driver's input. So text that all stages share is not free:
gzip finds it again only within 32 KiB, which is two to five nodes, and in pieces of 258 bytes. Recorded runs of KFP
2.17 have the nodes that this module makes; ids, dates and values of other tasks are invented. The compressed size of
the recordings is 0 to 5 % above that of the model, which ``_MORE`` covers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.pipeline.load import read_specs

#: The bytes that Argo accepts for a workflow, with its state compressed.
LIMIT = 1024 * 1024
#: The bytes of the variable in which Argo gives a level's driver its template, with the level's component as JSON in
#: JSON. A longer template goes into a ConfigMap, for which the role of Argo in KFP's manifests has no right. Recorded:
#: 200 stages with 118,353 bytes in a level ran, 225 with 133,428 did not.
LEVEL_LIMIT = 128 * 1024
#: The mark of commands with a carried program.
_CARRIED = "zlib.decompress(base64.b85decode("
#: The bytes of that template without the component.
_DRIVER = 2_500
#: The bytes of the parts that every workflow has: metadata, templates of drivers and of the executor, the entry point.
_FIXED = 9_470
#: The bytes of one pod label in these templates, for each number of labels that tasks have.
_LABEL = 428
_PARENT = {"parent-dag-id": "{{inputs.parameters.parent-dag-id}}"}
#: Further stages are not compressed, but take as much as these.
_SAMPLE = 60
#: zlib's level that comes closest to Argo's compressor, and the factor to the size of recorded runs.
_LEVEL, _MORE = 5, 1.04
_RUN, _WORKFLOW = "3f8a4c7e-52b1-4d09-9e6f-c1d27ab0845e", "pipeline-x7k2p"
_LAUNCHER = (
    *("--pod_name", "$(KFP_POD_NAME)", "--pod_uid", "$(KFP_POD_UID)"),
    *("--ml_pipeline_server_address", "ml-pipeline.kubeflow.svc.cluster.local", "--ml_pipeline_server_port", "8887"),
    *("--mlmd_server_address", "metadata-grpc-service.kubeflow.svc.cluster.local", "--mlmd_server_port", "8080"),
    *("--publish_logs", "true", "--publish_logs", "true", "--"),
)


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


@dataclass(frozen=True)
class _Part:
    """A stage as it runs ``times`` times, or a DAG, which has no container. The pipeline itself has no task."""

    name: str
    task: Mapping[str, Any]
    component: Mapping[str, Any]
    times: int = 1
    container: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] | None = None


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
    spec, platform = read_specs(compiled, is_compiled=True)
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
        workflow = _FIXED + sum(self._labels) * _LABEL + sum(len(text.encode()) + 1 for text in made)
        parts = list(self._runs("root", 1))
        stages, dags = ([part for part in parts if (part.container is None) is dag] for dag in (False, True))
        state = _compressed([_Part("root", {}, self._components["root"])], _dag_nodes)
        state += _compressed(stages, lambda stage: _stage_nodes(stage, self._defaults))
        state += _compressed(dags, _dag_nodes)
        return Size(sum(stage.times for stage in stages), workflow, state, *max(self._levels))

    def _runs(self, name: str, times: int) -> Iterator[_Part]:
        """Yield the stages and DAGs below a DAG that runs this many times."""
        for key, task in self._components[name]["dag"].get("tasks", {}).items():
            of = task["componentRef"]["name"]
            component = self._components[of]
            raw = task.get("parameterIterator", {}).get("items", {}).get("raw")
            often = times * (len(json.loads(raw)) if raw else 1)
            if "dag" in component:
                # A loop has a driver that counts, besides that of each iteration.
                yield _Part(key, task, component, often + (times if "parameterIterator" in task else 0))
                yield from self._runs(of, often)
            else:
                label = component["executorLabel"]
                executor = self._executors[label]
                container = executor.get("container", executor)
                yield _Part(key, task, component, often, container, self._settings.get(label))

    def _visit(self, name: str) -> None:
        """Add the DAG with this name, and everything that it uses."""
        if f"components-{name}" in self._parameters:
            return
        component = self._components[name]
        text = go_json(component)
        self._parameters[f"components-{name}"] = text
        tasks = component["dag"].get("tasks", {})
        self._levels.append((_DRIVER + len(go_json(text).encode()), len(tasks)))
        self._templates.append(
            _template(name, (argo for key, task in tasks.items() for argo in self._tasks(key, task)))
        )

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
            **_PARENT,
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
        iterator = f"{of}-{name}-iterator"
        yield _argo_task(name, iterator, _PARENT, _depends(task))
        # The second is the control of the loop: a driver that counts, and a task with a sequence.
        for template, item in ((f"{of}-{name}", "iteration-item"), (iterator, "iteration")):
            self._templates.append(_template(template, _dag_tasks(item, task, name), "iteration-index"))


def _dag_tasks(name: str, task: Mapping[str, Any], task_name: str) -> Iterator[dict[str, Any]]:
    of = task["componentRef"]["name"]
    arguments = {
        "component": f"{{{{workflow.parameters.components-{of}}}}}",
        **_PARENT,
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


def _template(name: str, tasks: Iterable[dict[str, Any]], *inputs: str) -> dict[str, Any]:
    annotations = {"pipelines.kubeflow.org/v2_component": "true", "sidecar.istio.io/inject": "false"}
    return {
        "name": name,
        "inputs": {"parameters": [{"name": key} for key in ("parent-dag-id", *inputs)]},
        "outputs": {},
        "metadata": {"annotations": annotations},
        "dag": {"tasks": list(tasks)},
    }


def _depends(task: Mapping[str, Any]) -> str:
    return " && ".join(f"{name}.Succeeded" for name in task.get("dependentTasks", ()))


def go_json(value: object) -> str:
    """Return JSON as Go writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _compressed(parts: Sequence[_Part], nodes_of: Callable[[_Part], Iterator[dict[str, Any]]]) -> int:
    """Return the compressed bytes of the nodes of these parts."""
    count = sum(part.times for part in parts)
    if not count:
        return 0
    if count > _SAMPLE:
        sample = random.Random(0).choices(parts, [part.times for part in parts], k=_SAMPLE)
    else:
        sample = [part for part in parts for _ in range(part.times)]
    named = (replace(part, name=f"{part.name}-{number}") for number, part in enumerate(sample))
    nodes = {node["id"]: node for part in named for node in nodes_of(part)}
    # Argo sorts nodes by their ids, which are hashes.
    packed = zlib.compress(go_json(dict(sorted(nodes.items()))).encode(), _LEVEL)
    return round(len(base64.b64encode(packed)) * _MORE * count / len(sample))


def _stage_nodes(stage: _Part, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, path = stage.name, f"{_WORKFLOW}(0).root(0).{stage.name}"
    patch = go_json(_pod_spec_patch(stage, arguments))
    given = _parameters(
        component=go_json(stage.component),
        task=go_json(stage.task),
        container=go_json(stage.container),
        task_name=name,
        parent_dag_id="1054",
        iteration_index="-1",
        kubernetes_config=go_json(stage.settings or {}),
    )
    made = {"parameters": _parameters(pod_spec_patch=patch, cached_decision="false", condition="nil")}
    passed = {"parameters": _parameters(pod_spec_patch=patch, cached_decision="false")}
    inputs = {"parameters": given}
    yield from _attempts(f"{path}-driver", f"{name}-driver", "Pod", "system-container-driver", inputs, made)
    yield from _attempts(path, name, "DAG", "system-container-executor", passed)
    alone = {"parameters": _parameters(pod_spec_patch=patch)}
    yield from _attempts(f"{path}(0).executor", "executor", "Pod", "system-container-impl", alone, {})


def _dag_nodes(dag: _Part) -> Iterator[dict[str, Any]]:
    path, name = f"{_WORKFLOW}(0).{dag.name}", dag.name
    given = _parameters(component=go_json(dag.component), task=go_json(dag.task), task_name=name, driver_type="DAG")
    inputs = {"parameters": given}
    made = {"parameters": _parameters(execution_id="1054", iteration_count="0", condition="nil")}
    yield from _attempts(f"{path}-driver", f"{name}-driver", "Pod", "system-dag-driver", inputs, made)
    yield from _attempts(path, name, "DAG", name, {"parameters": _parameters(parent_dag_id="1054")})


def _attempts(
    path: str, name: str, kind: str, template: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the node of a template's retry, and that of its only attempt. ``outputs`` are those of a pod."""
    date = f"2026-11-23T05:{_number(path) % 60:02}:{_number(name) % 60:02}Z"
    logs = f"private-artifacts/kubeflow/{_WORKFLOW}/2026/11/23/{_pod_name(path, template)}/main.log"
    for suffix, of in (("", "Retry"), ("(0)", kind)):
        node: dict[str, Any] = {
            "id": f"{_WORKFLOW}-{_number(path + suffix)}",
            "name": path + suffix,
            "displayName": name + suffix,
            "type": of,
            "templateName": template,
            "templateScope": f"local/{_WORKFLOW}",
            "phase": "Succeeded",
            "boundaryID": f"{_WORKFLOW}-{_number(path.rpartition('.')[0])}",
            "startedAt": date,
            "finishedAt": date,
            "progress": "1/1",
            "resourcesDuration": {"cpu": 0, "memory": _number(path) % 40},
            "inputs": inputs,
        }
        if suffix:
            node["nodeFlag"] = {"retried": True}
        if outputs is not None:
            node["outputs"] = {**outputs, "artifacts": [{"name": "main-logs", "s3": {"key": logs}}], "exitCode": "0"}
        node["children"] = [f"{_WORKFLOW}-{_number(path + suffix + '(0)')}"]
        if of == "Pod":
            node |= {"hostNodeName": "node-1", "taskResultSynced": True}
        yield node


def _pod_spec_patch(stage: _Part, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a driver says of the pod: the launcher's command, and all inputs and outputs."""
    values = {
        name: _value(source, arguments) for name, source in stage.task.get("inputs", {}).get("parameters", {}).items()
    }
    declared = stage.component.get("outputDefinitions", {})
    kinds = {"executor-logs": {"schemaTitle": "system.Artifact"}} | {
        name: artifact.get("artifactType", {}) for name, artifact in declared.get("artifacts", {}).items()
    }
    unique = uuid.UUID(bytes=hashlib.md5(stage.name.encode(), usedforsecurity=False).digest())
    folder = f"mlpipeline/v2/artifacts/{_WORKFLOW[:-6]}/{_RUN}/{stage.name}/{unique}"
    outputs = {
        "parameters": {name: {"outputFile": f"/tmp/kfp/outputs/{name}"} for name in declared.get("parameters", {})},
        "artifacts": {
            name: {"artifacts": [{"name": name, "type": kind, "uri": f"minio://{folder}/{name}"}]}
            for name, kind in kinds.items()
        },
        "outputFile": f"/minio/{folder}/output_metadata.json",
    }
    component = {
        **stage.component,
        "outputDefinitions": {**declared, "artifacts": {name: {"artifactType": kind} for name, kind in kinds.items()}},
    }
    command = [
        *("/kfp-launcher/launch", "--pipeline_name", _WORKFLOW[:-6], "--run_id", _RUN),
        *("--execution_id", str(_number(stage.name) % 10_000)),
        *("--executor_input", go_json({"inputs": {"parameterValues": values}, "outputs": outputs})),
        *("--component_spec", go_json(component), *_LAUNCHER),
    ]
    container = stage.container or {}
    words = [*container.get("command", ()), *container.get("args", ())]
    for name, value in values.items():
        text = value if isinstance(value, str) else go_json(value)
        words = [word.replace(f"{{{{$.inputs.parameters['{name}']}}}}", text) for word in words]
    fields = (stage.settings or {}).get("fieldPathAsEnv", ())
    main: dict[str, Any] = {
        "name": "main",
        "image": container.get("image"),
        "command": command,
        "args": words,
        "env": [
            *container.get("env", ()),
            *({"name": of["name"], "valueFrom": {"fieldRef": {"fieldPath": of["fieldPath"]}}} for of in fields),
        ],
        "resources": {},
    }
    return {"containers": [main]}


def _value(source: Mapping[str, Any], arguments: Mapping[str, Any]) -> Any:
    """Return an input's value. Those of other tasks are not known: a run id, or a number."""
    if "runtimeValue" in source:
        return source["runtimeValue"].get("constant")
    output = source.get("taskOutputParameter", {})
    if output.get("outputParameterKey") == "run_id":
        producer = output["producerTask"]
        return f"{_RUN}/{producer}/{_pod_name(producer, 'system-container-impl')}"
    return arguments.get(source.get("componentInputParameter", ""), 0.8725)


def _parameters(**values: str) -> list[dict[str, str]]:
    return [{"name": name.replace("_", "-"), "default": "", "value": value} for name, value in values.items()]


def _pod_name(path: str, template: str) -> str:
    return f"{_WORKFLOW}-{template}-{_number(path)}"


def _number(text: str) -> int:
    """Return a number as in ids, which end in a hash of the node's path."""
    return zlib.crc32(text.encode())
