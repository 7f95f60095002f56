"""The state of a run at its end: a node for each driver, stage and DAG, compressed as Argo stores it.

Argo keeps the nodes in the workflow itself, as JSON, and compresses them (gzip, base64) when the workflow gets too
large. KFP's manifests give each template a retry, so a stage has six nodes: its driver, its executor and the
executor's pod, and each of them again for the attempt. A stage's whole command is in all of them, with one more level
of quotes in the driver's output, and once more in the driver's input. So text that all stages share is not free:
gzip finds it again only within 32 KiB, which is two to five nodes, and in pieces of 258 bytes.

Recorded runs of KFP 2.17 have the nodes that this module makes; ids, dates and values of other tasks are invented. The
compressed size of the recordings is 0 to 5 % above that of the model, which ``_MORE`` covers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

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
class Stage:
    """A stage as it runs: its name, its task and component, its container, its settings for Kubernetes."""

    name: str
    task: Mapping[str, Any]
    component: Mapping[str, Any]
    container: Mapping[str, Any]
    settings: Mapping[str, Any] | None


@dataclass(frozen=True)
class Dag:
    """A DAG as it runs: its name, its task (None for the pipeline itself), its component."""

    name: str
    task: Mapping[str, Any] | None
    component: Mapping[str, Any]


Part = TypeVar("Part")
Counted = Sequence[tuple[Part, int]]


def go_json(value: object) -> str:
    """Return JSON as Go writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def state(root: Dag, stages: Counted[Stage], dags: Counted[Dag], arguments: Mapping[str, Any]) -> int:
    """Return the compressed bytes of the nodes at the end of a run.

    Args:
        root: the pipeline itself.
        stages: the stages, each with the number of times that it runs.
        dags: likewise, the loops, iterations, branches and nested pipelines.
        arguments: the values of the pipeline's parameters.
    """
    kinds = (([(root, 1)], _dag_nodes), (stages, lambda stage: _stage_nodes(stage, arguments)), (dags, _dag_nodes))
    return sum(_compressed(parts, nodes) for parts, nodes in kinds)


def _compressed(parts: Counted[Any], nodes_of: Callable[[Any], Iterator[dict[str, Any]]]) -> int:
    count = sum(times for _, times in parts)
    if not count:
        return 0
    if count > _SAMPLE:
        sample = random.Random(0).choices([part for part, _ in parts], [times for _, times in parts], k=_SAMPLE)
    else:
        sample = [part for part, times in parts for _ in range(times)]
    named = (replace(part, name=f"{part.name}-{number}") for number, part in enumerate(sample))
    nodes = {node["id"]: node for part in named for node in nodes_of(part)}
    # Argo sorts nodes by their ids, which are hashes.
    packed = zlib.compress(go_json(dict(sorted(nodes.items()))).encode(), _LEVEL)
    return round(len(base64.b64encode(packed)) * _MORE * count / len(sample))


def _stage_nodes(stage: Stage, arguments: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    name, path = stage.name, f"{_WORKFLOW}(0).root(0).{stage.name}"
    patch = go_json(_pod_spec_patch(stage, arguments))
    driver, executor, pod = f"{path}-driver", path, f"{path}(0).executor"
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
    yield from _attempts(driver, f"{name}-driver", "Pod", "system-container-driver", {"parameters": given}, made)
    yield from _attempts(executor, name, "DAG", "system-container-executor", passed)
    alone = {"parameters": _parameters(pod_spec_patch=patch)}
    yield from _attempts(pod, "executor", "Pod", "system-container-impl", alone, {})


def _dag_nodes(dag: Dag) -> Iterator[dict[str, Any]]:
    path = f"{_WORKFLOW}(0).{dag.name}"
    given = _parameters(
        component=go_json(dag.component), task=go_json(dag.task or {}), task_name=dag.name, driver_type="DAG"
    )
    made = {"parameters": _parameters(execution_id="1054", iteration_count="0", condition="nil")}
    yield from _attempts(
        f"{path}-driver", f"{dag.name}-driver", "Pod", "system-dag-driver", {"parameters": given}, made
    )
    yield from _attempts(path, dag.name, "DAG", dag.name, {"parameters": _parameters(parent_dag_id="1054")})


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


def _pod_spec_patch(stage: Stage, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a driver says of the pod: the launcher's command, and all inputs and outputs."""
    values = {
        name: _value(source, arguments) for name, source in stage.task.get("inputs", {}).get("parameters", {}).items()
    }
    declared = stage.component.get("outputDefinitions", {})
    kinds = {"executor-logs": {"schemaTitle": "system.Artifact"}} | {
        name: artifact.get("artifactType", {}) for name, artifact in declared.get("artifacts", {}).items()
    }
    digest = hashlib.md5(stage.name.encode(), usedforsecurity=False).hexdigest()
    unique = f"{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:]}"
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
    words = [*stage.container.get("command", ()), *stage.container.get("args", ())]
    for name, value in values.items():
        text = value if isinstance(value, str) else go_json(value)
        words = [word.replace(f"{{{{$.inputs.parameters['{name}']}}}}", text) for word in words]
    fields = (stage.settings or {}).get("fieldPathAsEnv", ())
    main: dict[str, Any] = {
        "name": "main",
        "image": stage.container.get("image"),
        "command": command,
        "args": words,
        "env": [
            *stage.container.get("env", ()),
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
