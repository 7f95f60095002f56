"""The names of stages' pods. Argo makes one from the template and the hash of the node's name.

v2beta1 does not tell templates. The workflow in v1beta1 lists them, also those of stages that have not begun: where
they are the ones that KFP's compiler makes of the pipeline, one look at it is enough for all pods of the run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.backend.values import hash_of, mapping, text
from torchx_kfp.pipeline.spec import Component, Pipeline, Task
from torchx_kfp.pipeline.walk import walk

_EXECUTOR = "system-container-impl"
#: The longest name of a pod, without the hash at its end.
_LONGEST_PREFIX = 253 - 10 - 1


def executor_template(task: Task, component: Component) -> str:
    """Return the template that KFP 2.14 to 2.17 make for the pod of a stage."""
    name = f"retry-{_EXECUTOR}" if task.retry is not None else _EXECUTOR
    metadata = component.platform.get("podMetadata")
    if metadata is None:
        return name
    annotations, labels = (len(mapping(metadata).get(kind) or ()) for kind in ("annotations", "labels"))
    return f"metadata-{annotations}-{labels}-{name}"


def pod_name(workflow: str, node: str, template: str) -> str:
    """Return the name that Argo gives to the pod of a node."""
    return f"{f'{workflow}-{template}'[:_LONGEST_PREFIX]}-{hash_of(node)}"


def has_ids_as_names(metadata: Mapping[str, Any]) -> bool:
    """Tell whether the pods of a workflow, given its metadata, have the ids of their nodes as names, as in old Argo."""
    return mapping(metadata.get("annotations")).get("workflows.argoproj.io/pod-name-format") == "v1"


@dataclass(frozen=True)
class PodNames:
    """The names of pods in one workflow; all are unknown without a workflow."""

    workflow: str = ""
    #: The templates of stages' pods that the workflow has.
    _templates: frozenset[str] = frozenset()
    _has_ids: bool = False

    @classmethod
    def of(cls, workflow: Mapping[str, Any], pipeline: Pipeline) -> PodNames:
        """Return the names in an Argo workflow; none if it has other templates than expected."""
        listed, nodes = mapping(workflow.get("spec")).get("templates"), mapping(workflow.get("status")).get("nodes")
        templates = [mapping(item).get("name") for item in (listed if isinstance(listed, list) else ())]
        templates += [mapping(node).get("templateName") for node in mapping(nodes).values()]
        found = frozenset(name for name in map(text, templates) if name.endswith(_EXECUTOR))
        expected = {
            executor_template(place.task, place.component)
            for place in walk(pipeline)
            if place.component.container is not None
        }
        if found - expected:
            return cls()
        metadata = mapping(workflow.get("metadata"))
        return cls(text(metadata.get("name")), found, has_ids_as_names(metadata))

    def name(self, node: str, task: Task, component: Component) -> str:
        """Return the name of a stage's pod; empty if it is not known."""
        template = executor_template(task, component)
        if template not in self._templates:
            return ""
        return f"{self.workflow}-{hash_of(node)}" if self._has_ids else pod_name(self.workflow, node, template)
