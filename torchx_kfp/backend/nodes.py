"""The nodes of the Argo workflow that KFP makes of a pipeline, with their states: what the API tells about a run.

A node's name is the path to it: ``W(0).root(0).inner(0).sleeper(0).executor(0)`` in the workflow ``W``. The number in
parentheses counts attempts: a node that may be retried has one node below it for each attempt, with the same name and a
number, and everything else is below the attempts. KFP 2.17 lets Argo retry all nodes, earlier versions only some.

- A stage ``train`` is a pod ``train-driver`` and then a node ``train`` with the pod ``executor``, which is skipped if
  the driver found the outputs in the cache.
- A nested pipeline or a branch ``inner`` is a pod ``inner-driver`` and then a node ``inner`` around its tasks. It is
  skipped if the driver found that the condition is false.
- A loop ``loop`` is a node around the pod ``iteration-driver`` and a group ``iteration-iterations``; in this,
  ``iteration-iterations(2:2)`` has ``iteration-item-driver`` and ``iteration-item`` around the tasks.
- An exit task ``bye`` is inside of ``task.onExit``, where ``task`` is a task before it.
- Importers, and tasks that make or delete volume claims, are one pod.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.backend import states
from torchx_kfp.backend.pods import has_ids_as_names, pod_name
from torchx_kfp.backend.values import mapping, text
from torchx_kfp.runs.vocabulary import State

#: Node states in v2beta1 and phases in Argo. Argo omits a node if those before it did not end as it needs.
_STATES = {
    "PENDING": State.QUEUED,
    "RUNNING": State.RUNNING,
    "CANCELING": State.RUNNING,
    "SUCCEEDED": State.SUCCEEDED,
    "SKIPPED": State.SKIPPED,
    "OMITTED": State.NOT_RUN,
    "FAILED": State.FAILED,
    "ERROR": State.FAILED,
    "CANCELED": State.FAILED,
}
#: The outputs of drivers that tell what they have decided.
_DECISIONS = ("cached-decision", "condition", "iteration-count")


#: What v2beta1 does not tell, or not of all nodes.
_DETAILS = ("start", "end", "message", "exit_code", "pod", "decisions")


@dataclass(frozen=True)
class Node:
    """A node: times are in seconds since the epoch, None if it has not started or ended.

    Its state is waiting if it exists and no more is known. ``pod`` is the pod's name, ``decisions`` are outputs of
    drivers. Both, and ``exit_code``, are only in manifests.
    """

    name: str
    state: State
    start: float | None = None
    end: float | None = None
    message: str = ""
    exit_code: int | None = None
    pod: str = ""
    decisions: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """Whether it runs or has run."""
        return self.state in (State.RUNNING, State.SUCCEEDED, State.FAILED)


@dataclass(frozen=True)
class Nodes:
    """The nodes of a workflow, by their names. ``message`` tells why the workflow failed, if it is known."""

    workflow: str = ""
    by_name: Mapping[str, Node] = field(default_factory=dict)
    message: str = ""

    def get(self, name: str) -> Node | None:
        """Return the node with this name, if there is one."""
        return self.by_name.get(name)

    def attempts(self, name: str) -> list[Node]:
        """Return the attempts of a node: the node itself, if it is not one that may be retried."""
        found = list(self._attempts(name))
        node = self.by_name.get(name)
        return found or ([node] if node is not None else [])

    def _attempts(self, name: str) -> Iterator[Node]:
        index = 0
        while (node := self.by_name.get(f"{name}({index})")) is not None:
            yield node
            index += 1

    def updated(self, newer: Nodes) -> Nodes:
        """Return these nodes with what others add; a node that has ended stays so."""
        if not self.by_name:
            return newer
        known = self.by_name
        changed = {name: node for name, node in newer.by_name.items() if known.get(name) is not node}
        merged = {**known, **{name: _merged(known.get(name), node) for name, node in changed.items()}}
        return Nodes(newer.workflow or self.workflow, merged, newer.message or self.message)


def _merged(old: Node | None, new: Node) -> Node:
    """Return what is known about a node after another answer, which may know less."""
    if old is None:
        return new
    if not _goes_on(old, new):
        return old
    kept = {name: value for name in _DETAILS if (value := getattr(old, name)) and not getattr(new, name)}
    return dataclasses.replace(new, **kept) if kept else new


def _goes_on(old: Node, new: Node) -> bool:
    """Tell whether a node that was the old one can be the new one now."""
    if new.state is State.WAITING or (old.state.is_over and not new.state.is_over):
        return False
    return not (old.has_begun and new.state in (State.SKIPPED, State.NOT_RUN))


def workflow_of(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the Argo workflow in v1beta1's answer about a run; the argument itself may be one."""
    runtime = manifest.get("pipeline_runtime")
    if runtime is None:
        return manifest
    try:
        return mapping(json.loads(mapping(runtime).get("workflow_manifest") or "{}"))
    except (ValueError, TypeError, RecursionError):
        return {}


def from_manifest(manifest: Mapping[str, Any]) -> Nodes:
    """Return the nodes in an Argo workflow, or in v1beta1's answer about a run, which contains one.

    Argo writes the nodes of a large workflow compressed. Without a workflow, there are no nodes.
    """
    workflow = workflow_of(manifest)
    metadata, status = mapping(workflow.get("metadata")), mapping(workflow.get("status"))
    name = text(metadata.get("name"))
    has_ids = has_ids_as_names(metadata)
    nodes = {}
    for item in (mapping(status.get("nodes")) or _decompressed(status)).values():
        node = _node(name, mapping(item), has_ids)
        if node.name:
            nodes[node.name] = node
    return Nodes(name, nodes, text(status.get("message")))


def _decompressed(status: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(gzip.decompress(base64.b64decode(status.get("compressedNodes") or ""))))
    except (ValueError, TypeError, OSError, EOFError, RecursionError):
        return {}


def _node(workflow: str, item: Mapping[str, Any], has_ids: bool) -> Node:
    name, outputs = text(item.get("name")), mapping(item.get("outputs"))
    exit_code = text(outputs.get("exitCode"))
    parameters = outputs.get("parameters")
    decisions = {
        parameter["name"]: text(parameter.get("value"))
        for parameter in (map(mapping, parameters) if isinstance(parameters, list) else ())
        if parameter.get("name") in _DECISIONS
    }
    return Node(
        name=name,
        state=state_of(item.get("phase")),
        start=seconds(item.get("startedAt")),
        end=seconds(item.get("finishedAt")),
        message=text(item.get("message")),
        exit_code=int(exit_code) if re.fullmatch(r"-?\d{1,9}", exit_code) else None,
        pod=_pod_name(workflow, item, has_ids) if item.get("type") == "Pod" else "",
        decisions=decisions,
    )


def _pod_name(workflow: str, item: Mapping[str, Any], has_ids: bool) -> str:
    name, template = text(item.get("name")), text(item.get("templateName"))
    if name == workflow:
        return workflow
    return text(item.get("id")) if has_ids or not template else pod_name(workflow, name, template)


def state_of(word: Any) -> State:
    """Return the state for KFP's or Argo's word; one that this version does not know counts as queued."""
    if not isinstance(word, str):
        return State.QUEUED
    return _STATES.get(word) or _STATES.get(word.upper(), State.QUEUED)


@functools.lru_cache(maxsize=1 << 16)
def _seconds(moment: str) -> float | None:
    return states.seconds(moment)


def seconds(moment: Any) -> float | None:
    """Return a time of the API in seconds since the epoch; None if it is not set. Nodes share many times."""
    return _seconds(moment) if isinstance(moment, str) else None
