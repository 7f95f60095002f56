"""Take tasks out of a compiled pipeline whose outputs are known already, so that a run need not repeat them.

What other tasks read of such a task becomes a constant. Its artifacts are imported by their URIs, and the items of a
loop over its output are written into the loop. The result is an ordinary compiled pipeline.

Tasks are named by paths: ``train``, or ``exit-handler-1/train`` inside an exit handler. Tasks inside loops, conditions
and nested pipelines can only be taken out with the whole group.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.conditions import select_field
from torchx_kfp.execution.pipeline.reader import ALWAYS, read_pipeline
from torchx_kfp.execution.pipeline.spec import Pipeline

#: KFP's names for the input and the output of an importer.
URI, _ARTIFACT = "uri", "artifact"
#: The outputs of tasks that are taken out, by the tasks' names or paths, as far as they are known.
Kept = Mapping[str, Mapping[str, Any]]


def can_be_constant(value: Any) -> bool:
    """Tell whether a value can stand in a pipeline: KFP would take text with ``{{`` for placeholders."""
    return "{{" not in json.dumps(value, default=str)


def without_tasks(
    pipeline: Pipeline,
    kept: Kept,
    run_id: str,
    describe: Callable[[str], str],
    *,
    uncached: Iterable[str] = (),
) -> Pipeline:
    """Return the pipeline without some of its tasks.

    Outputs of the pipeline itself that are parameters of these tasks are left out: KFP has no constant outputs.

    Args:
        pipeline: a compiled pipeline; it is not changed.
        kept: the outputs of the tasks to take out, by their paths.
        run_id: the run in which they have succeeded.
        describe: returns the description of the new pipeline, given the whole one as text.
        uncached: the tasks that no cache may answer, by their paths, with all tasks inside.

    Raises:
        ValueError: a remaining task reads an output that is not known; the message names both.
    """
    spec, platform = pipeline.copy_documents()
    components = spec.get("components", {})
    for path in uncached:
        task, inside = {}, spec["root"]
        for name in path.split("/"):
            task = inside["dag"]["tasks"][name]
            inside = components[task["componentRef"]["name"]]
        _turn_cache_off(task, components)
    description = describe(json.dumps([spec, platform] if platform else [spec]))
    _Surgery(spec, kept, run_id).operate()
    spec["pipelineInfo"]["description"] = description
    kubernetes = platform.get("platforms", {}).get("kubernetes", {})
    if executors := kubernetes.get("deploymentSpec", {}).get("executors"):
        left = spec.get("deploymentSpec", {}).get("executors", {})
        kubernetes["deploymentSpec"]["executors"] = {name: one for name, one in executors.items() if name in left}
    return read_pipeline(spec, platform)


def _turn_cache_off(task: dict[str, Any], components: Mapping[str, Any]) -> None:
    task["cachingOptions"] = {}
    for inner in components[task["componentRef"]["name"]].get("dag", {}).get("tasks", {}).values():
        _turn_cache_off(inner, components)


class _Surgery:
    """Changes a PipelineSpec, which it owns."""

    def __init__(self, spec: dict[str, Any], kept: Kept, run_id: str) -> None:
        self._spec = spec
        self._kept = kept
        self._run_id = run_id
        self._components = spec.setdefault("components", {})
        self._executors = spec.setdefault("deploymentSpec", {}).setdefault("executors", {})

    def operate(self) -> None:
        self._cut(self._spec["root"], "")
        self._remove_unused()

    def _cut(self, component: dict[str, Any], around: str) -> dict[str, Any]:
        """Take tasks out of a component's DAG; return those of the DAG's outputs that are constants now."""
        dag = component["dag"]
        rest = _Rest(self, dag["tasks"], self._run_id)
        for name, task in [*dag["tasks"].items()]:
            path = f"{around}{name}"
            if path in self._kept:
                rest.take(name, self._kept[path])
            elif any(other.startswith(f"{path}/") for other in self._kept):
                inner = self._components[task["componentRef"]["name"]]  # no other task has that of an exit handler
                rest.known[name] = self._cut(inner, f"{path}/")
                if not inner["dag"]["tasks"]:  # an exit handler around nothing
                    rest.take(name, rest.known[name])
        is_whole = not dag["tasks"]
        for name, task in [*dag["tasks"].items()]:
            rest.rewire(name, task)
        return rest.reduce_outputs(component, is_whole=is_whole)

    def free(self, name: str) -> str:
        """Return a name for a component or an executor that is not taken."""
        taken = self._components.keys() | self._executors.keys()
        return next(one for one in _numbered(name) if one not in taken)

    def add_importer(self, artifact: Artifact) -> str:
        """Add a component that imports an artifact, and return its name."""
        kind = {"schemaTitle": artifact.type.title}
        if artifact.type.version:
            kind["schemaVersion"] = artifact.type.version
        name, label = self.free("comp-kept"), self.free("exec-kept")
        importer: dict[str, Any] = {"artifactUri": {"constant": uri_of(artifact)}, "typeSchema": kind}
        if artifact.metadata:
            importer["metadata"] = dict(artifact.metadata)
        self._executors[label] = {"importer": importer}
        self._components[name] = {
            "executorLabel": label,
            "inputDefinitions": {"parameters": {URI: {"parameterType": "STRING"}}},
            "outputDefinitions": {"artifacts": {_ARTIFACT: {"artifactType": kind}}},
        }
        return name

    def _remove_unused(self) -> None:
        used: set[str] = set()
        left = [self._spec["root"]]
        while left:
            for task in left.pop().get("dag", {}).get("tasks", {}).values():
                name = task["componentRef"]["name"]
                if name not in used:
                    used.add(name)
                    left.append(self._components[name])
        self._spec["components"] = {name: one for name, one in self._components.items() if name in used}
        labels = {one.get("executorLabel") for one in self._spec["components"].values()}
        self._spec["deploymentSpec"]["executors"] = {
            label: one for label, one in self._executors.items() if label in labels
        }


def uri_of(artifact: Artifact) -> str:
    """Return the place from which an artifact is imported: its file, if a component has chosen another one here."""
    return artifact.path if artifact.is_here and artifact.custom_path else artifact.uri


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 2
    while True:
        yield f"{name}-{number}"
        number += 1


class _Rest:
    """The tasks that are left of a DAG, and what is known of the others."""

    def __init__(self, surgery: _Surgery, tasks: dict[str, Any], run_id: str) -> None:
        self._surgery, self._tasks, self._run_id = surgery, tasks, run_id
        #: The outputs that are constants now, by task, also of an exit handler of which some tasks are left.
        self.known: dict[str, Mapping[str, Any]] = {}
        self._gone: set[str] = set()
        #: The tasks that import artifacts, by the task and the output from which these were.
        self._importers: dict[tuple[str, str], str] = {}

    def take(self, name: str, outputs: Mapping[str, Any]) -> None:
        """Take a task out."""
        del self._tasks[name]
        self._gone.add(name)
        self.known[name] = outputs

    def rewire(self, name: str, task: dict[str, Any]) -> None:
        """Replace what a task reads of tasks that are gone, or of outputs that are constants now."""
        before = [other for other in task.get("dependentTasks", ()) if other not in self._gone]
        inputs = task.get("inputs", {})
        for key, source in inputs.get("parameters", {}).items():
            output = source.get("taskOutputParameter", {})
            producer, wanted = output.get("producerTask"), output.get("outputParameterKey")
            if self._is_known(name, producer, wanted):
                value = self.known[producer][wanted]
                if selector := source.get("parameterExpressionSelector"):
                    value = select_field(value, selector)
                inputs["parameters"][key] = {"runtimeValue": {"constant": value}}
                _write_items(task, key, value)
            elif (ended := source.get("taskFinalStatus", {}).get("producerTask")) in self._gone:
                ran = {"pipelineJobResourceName": self._run_id, "pipelineTaskName": ended}
                inputs["parameters"][key] = {"runtimeValue": {"constant": {"state": "COMPLETE", **ran, "error": {}}}}
        for source in inputs.get("artifacts", {}).values():
            output = source.get("taskOutputArtifact", {})
            producer, wanted = output.get("producerTask"), output.get("outputArtifactKey")
            if self._is_known(name, producer, wanted):
                importer = self._importer_of(producer, wanted)
                source["taskOutputArtifact"] = {"producerTask": importer, "outputArtifactKey": _ARTIFACT}
                before.append(importer)
        task["dependentTasks"] = sorted(dict.fromkeys(before))
        if not before:
            del task["dependentTasks"]
            # Without tasks before it, an exit task is a task like any other.
            if task.get("triggerPolicy", {}).get("strategy") == ALWAYS:
                del task["triggerPolicy"]["strategy"]
                _drop_empty(task, "triggerPolicy")

    def reduce_outputs(self, component: dict[str, Any], *, is_whole: bool) -> dict[str, Any]:
        """Remove the outputs of the DAG that are constants now, and return them.

        Artifacts come from importers, unless the whole DAG is gone, which its outputs follow.
        """
        outputs, defined = component["dag"].get("outputs", {}), component.get("outputDefinitions", {})
        constants: dict[str, Any] = {}
        for kind, key in (("parameters", "outputParameterKey"), ("artifacts", "outputArtifactKey")):
            for name, output in [*outputs.get(kind, {}).items()]:
                # Only the outputs of branches have several sources, and they are taken out as a whole.
                source: dict[str, str] = output.get("valueFromParameter") or next(
                    iter(output.get("artifactSelectors", ())), {}
                )
                producer, wanted = source.get("producerSubtask", ""), source.get(key, "")
                if wanted in self.known.get(producer, {}):
                    if kind == "artifacts" and not is_whole:
                        importer = self._importer_of(producer, wanted)
                        output["artifactSelectors"] = [{"producerSubtask": importer, "outputArtifactKey": _ARTIFACT}]
                        continue
                    constants[name] = self.known[producer][wanted]
                elif producer not in self._gone:
                    continue
                del outputs[kind][name]
                defined.get(kind, {}).pop(name, None)
        _drop_empty(component["dag"], "outputs")
        _drop_empty(component, "outputDefinitions")
        return constants

    def _is_known(self, reader: str, producer: str, output: str) -> bool:
        if output not in self.known.get(producer, {}) and producer in self._gone:
            raise ValueError(f"{reader} reads the output {output!r} of {producer}, which is not known")
        return output in self.known.get(producer, {})

    def _importer_of(self, task: str, output: str) -> str:
        """Return the name of the task that imports an artifact."""
        if (task, output) not in self._importers:
            wanted = re.sub(r"[^a-z0-9]+", "-", f"kept-{task}-{output}".lower()).strip("-")
            name = next(one for one in _numbered(wanted) if one not in self._tasks)
            artifact = self.known[task][output]
            self._importers[(task, output)] = name
            self._tasks[name] = {
                "cachingOptions": {},
                "componentRef": {"name": self._surgery.add_importer(artifact)},
                "inputs": {"parameters": {URI: {"runtimeValue": {"constant": uri_of(artifact)}}}},
                "taskInfo": {"name": name},
            }
        return self._importers[(task, output)]


def _write_items(task: dict[str, Any], name: str, value: Any) -> None:
    """Write the items of a loop over this input into the loop, as KFP's compiler does with items that it knows."""
    iterator = task.get("parameterIterator")
    if iterator and iterator["items"].get("inputParameter") == name:
        iterator["items"] = {"raw": json.dumps(value)}


def _drop_empty(owner: dict[str, Any], key: str) -> None:
    kept = {kind: values for kind, values in owner.get(key, {}).items() if values}
    owner.pop(key, None)
    if kept:
        owner[key] = kept
