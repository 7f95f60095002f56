"""The size of the Argo workflow that KFP's backend creates from a compiled pipeline, and its limits.

Argo accepts 1 MiB for a whole run: the pipeline, which KFP compiles into one workflow, and the state of its nodes,
which grows while it runs. A larger pipeline is rejected when it starts, or fails halfway. A level (the tasks of one
pipeline, loop or branch) must also fit into a variable of its driver.

The workflow (kubeflow/pipelines, ``backend/src/v2/compiler/argocompiler``) has parameters with JSON in JSON: each
distinct container, a component with it, the Kubernetes configuration of each component, and each DAG with all its
tasks. Each KFP task becomes two Argo tasks, a driver and its executor or DAG, which both contain the KFP task.

The state has six nodes per stage, with its command, component and task quoted several times. Argo stores the state
compressed (gzip, base64): text that stages share costs little, and text of a single stage counts each time it occurs.
The factors were fitted to six recorded runs of KFP 2.17 (30 to 250 stages): the model's state is within 10 % of theirs,
the workflow within 4 %.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.pipeline.spec import Pipeline

#: The bytes that Argo accepts for a workflow, with its state compressed.
LIMIT = 1024 * 1024
#: The bytes of the variable in which Argo gives a level's driver its template, with the level's component as JSON in
#: JSON. A longer template goes into a ConfigMap, for which the role of Argo in KFP's manifests has no permission.
#: Recorded: 200 stages with 118,353 bytes in a level ran, 225 with 133,428 did not.
LEVEL_LIMIT = 128 * 1024
#: The mark of commands with a carried program.
_CARRIED = "zlib.decompress(base64.b85decode("
#: The bytes of that template without the component.
_DRIVER_BYTES = 2_500
#: The bytes of the parts that every workflow has, of a parameter besides its value, of the Argo tasks of a task besides
#: its JSON, and of a pod label in them.
_FIXED_BYTES, _PARAMETER_BYTES, _TASK_BYTES, _LABEL_BYTES = 9_900, 110, 880, 130
#: The compressed bytes of the nodes of a stage and of a DAG: ids, dates, ports.
_STAGE_STATE, _DAG_STATE = 720, 450
#: The compressed bytes for each byte of text that was compressed before.
_KNOWN_BYTE = 0.2
#: zlib's level that comes closest to Argo's compressor.
_LEVEL = 5
#: How often the nodes of a stage and of a DAG have a text, and the factor of base64.
_STAGE_COPIES, _DAG_COPIES, _BASE64 = 8, 2, 4 / 3


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
class _Task:
    """A task that runs ``times`` times. A nested pipeline, loop or branch has no container."""

    level: str
    name: str
    spec: Mapping[str, Any]
    component: Mapping[str, Any]
    times: int
    container: Mapping[str, Any] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def of(self) -> str:
        """The name of its component."""
        return str(self.spec["componentRef"]["name"])

    @property
    def labels(self) -> Mapping[str, str]:
        """The labels of its pods."""
        return dict(self.settings.get("podMetadata", {}).get("labels", {}))

    @property
    def text(self) -> str:
        """The text that is in the nodes of each of its executions."""
        return go_json([*map(go_json, (self.component, self.container, self.spec, self.settings))])


def check_size(size: Size) -> Iterator[Finding]:
    """Yield the limits of Argo that the pipeline exceeds."""
    if size.share > 1:
        end = "is rejected" if size.workflow > LIMIT else "fails before its end"
        yield Finding(
            Kind.MAY_FAIL,
            "the pipeline",
            f"needs about {size.share:.2f} times the 1 MiB that Argo accepts for a run and its state, so it {end}; "
            f"about {int(size.stages / size.share)} of its {size.stages} stages fit. Split it into several pipelines "
            "(a stage reads an execution of another run by its id, reads={'train': execution_id})"
            f"{', or use an image with torchx-kfp and inline=False' if size.carries else ''}. "
            "An administrator can set nodeStatusOffLoad in Argo's configuration, which "
            "keeps the state elsewhere. Nested pipelines do not help",
        )
    if size.level > LEVEL_LIMIT:
        yield Finding(
            Kind.MAY_FAIL,
            "the pipeline",
            f"has a level with {size.tasks} tasks, which takes {size.level:,} bytes. Above {LEVEL_LIMIT:,}, Argo needs "
            "a permission that KFP's manifests do not grant, and the run ends with 'No more retries left'. Put some of "
            "the tasks into a nested pipeline, or let an administrator allow Argo's service account to create "
            "ConfigMaps",
        )


def describe(size: Size) -> list[str]:
    """Describe a pipeline's size if it fits but takes at least half of the limit; otherwise return nothing."""
    if not 0.5 <= size.share <= 1:
        return []
    stages = f"{size.stages} stage{'s' if size.stages > 1 else ''}"
    return [f"{stages}, about {size.share:.1f} of the 1 MiB that Argo accepts for a run."]


def measure(pipeline: Pipeline) -> Size:
    """Measure the workflow that KFP creates from a compiled pipeline."""
    spec, platform = pipeline.copy_documents()
    components = {**spec.get("components", {}), "root": spec["root"]}
    for component in components.values():
        for task in component.get("dag", {}).get("tasks", {}).values():
            # The backend writes no values that are false.
            if not task.get("cachingOptions", {}).get("enableCache", True):
                task["cachingOptions"] = {}
    settings = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {}).get("executors", {})
    root = _Task("", "root", {"componentRef": {"name": "root"}}, spec["root"], 1)
    tasks = [*_tasks(root, components, spec.get("deploymentSpec", {}).get("executors", {}), settings)]
    stages = [task for task in tasks if task.container is not None]
    dags = [root, *(task for task in tasks if task.container is None)]
    levels = {dag.of: (_json_bytes(go_json(dag.component)), len(dag.component["dag"].get("tasks", {}))) for dag in dags}
    largest, inside = max(levels.values())
    parameters = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    defaults = {name: its["defaultValue"] for name, its in parameters.items() if "defaultValue" in its}
    return Size(
        sum(stage.times for stage in stages),
        _workflow_bytes(stages, dags) + _json_bytes({"parameterValues": defaults}),
        _state_bytes(stages, _STAGE_STATE, _STAGE_COPIES) + _state_bytes(dags, _DAG_STATE, _DAG_COPIES),
        _DRIVER_BYTES + largest,
        inside,
        carries=_CARRIED in pipeline.text,
    )


def _tasks(
    dag: _Task, components: Mapping[str, Any], executors: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[_Task]:
    """Yield the tasks of a DAG, and those of the DAGs below."""
    for name, spec in dag.component["dag"].get("tasks", {}).items():
        component = components[spec["componentRef"]["name"]]
        items = spec.get("parameterIterator", {}).get("items", {}).get("raw")
        times = dag.times * (len(json.loads(items)) if items else 1)
        if "dag" in component:
            task = _Task(dag.of, name, spec, component, times)
            yield task
            yield from _tasks(task, components, executors, settings)
        else:
            label = component["executorLabel"]
            container = executors[label].get("container", executors[label])
            yield _Task(dag.of, name, spec, component, times, container, settings.get(label, {}))


def _workflow_bytes(stages: Sequence[_Task], dags: Sequence[_Task]) -> int:
    """Return the bytes of the workflow without the pipeline's arguments."""
    parameters: dict[object, object] = {dag.of: dag.component for dag in dags}
    for stage in stages:
        container = go_json(stage.container)
        parameters |= {container: stage.container, (container, ""): stage.component}
        parameters |= {("settings", stage.of): stage.settings} if stage.settings else {}
    # A loop also has a driver that counts.
    tasks = {
        (task.level, task.name): (_TASK_BYTES + _LABEL_BYTES * len(task.labels) + _json_bytes(go_json(task.spec)))
        * (2 if task.spec.keys() & {"parameterIterator", "artifactIterator"} else 1)
        for task in (*stages, *dags[1:])
    }
    values = sum(_PARAMETER_BYTES + _json_bytes(go_json(value)) for value in parameters.values())
    return _FIXED_BYTES + values + sum(tasks.values())


def _state_bytes(tasks: Sequence[_Task], each: int, copies: int) -> int:
    """Return the compressed bytes of the nodes of stages, or of DAGs."""
    if not tasks:
        return 0
    # Argo sorts nodes by their ids, which are hashes.
    texts = sorted((task.text.encode() for task in tasks), key=lambda text: hashlib.sha256(text).digest())
    first, new = (len(zlib.compress(text, _LEVEL)) for text in (texts[0], b"".join(texts)))
    fixed = sum(task.times * (each + _KNOWN_BYTE * len(task.text)) for task in tasks)
    return round(fixed + _BASE64 * (first + copies * (new - first)))


def _json_bytes(value: object) -> int:
    return len(go_json(value).encode())


def go_json(value: object) -> str:
    """Return JSON as Go writes it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")
