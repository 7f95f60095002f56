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
import functools
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.backend import states
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
#: The longest name of a pod, without the hash at its end.
_LONGEST_PREFIX = 253 - 10 - 1
_OFFSET, _PRIME = 2166136261, 16777619


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
        changed = {
            name: node
            for name, node in newer.by_name.items()
            if (old := known.get(name)) is None or (old != node and _goes_on(old, node))
        }
        nodes = {**known, **changed} if changed else known
        return Nodes(newer.workflow or self.workflow, nodes, newer.message or self.message)


def _goes_on(old: Node, new: Node) -> bool:
    """Tell whether a node that was the old one can be the new one now."""
    if new.state is State.WAITING or (old.state.is_over and not new.state.is_over):
        return False
    return not (old.has_begun and new.state in (State.SKIPPED, State.NOT_RUN))


def from_manifest(manifest: Mapping[str, Any]) -> Nodes:
    """Return the nodes in an Argo workflow, or in v1beta1's answer about a run, which contains one.

    Argo writes the nodes of a large workflow compressed. Without a workflow, there are no nodes.
    """
    workflow = _workflow(manifest)
    metadata, status = mapping(workflow.get("metadata")), mapping(workflow.get("status"))
    name = text(metadata.get("name"))
    of_version_1 = mapping(metadata.get("annotations")).get("workflows.argoproj.io/pod-name-format") == "v1"
    nodes = {}
    for item in (mapping(status.get("nodes")) or _decompressed(status)).values():
        node = _node(name, mapping(item), of_version_1)
        if node.name:
            nodes[node.name] = node
    return Nodes(name, nodes, text(status.get("message")))


def _workflow(manifest: Mapping[str, Any]) -> Mapping[str, Any]:
    runtime = manifest.get("pipeline_runtime")
    if runtime is None:
        return manifest
    try:
        return mapping(json.loads(mapping(runtime).get("workflow_manifest") or "{}"))
    except (ValueError, TypeError, RecursionError):
        return {}


def _decompressed(status: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return mapping(json.loads(gzip.decompress(base64.b64decode(status.get("compressedNodes") or ""))))
    except (ValueError, TypeError, OSError, EOFError, RecursionError):
        return {}


def _node(workflow: str, item: Mapping[str, Any], of_version_1: bool) -> Node:
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
        pod=_pod_name(workflow, item, of_version_1) if item.get("type") == "Pod" else "",
        decisions=decisions,
    )


def _pod_name(workflow: str, item: Mapping[str, Any], of_version_1: bool) -> str:
    """Return the name that Argo gives to the pod of a node."""
    name, template = text(item.get("name")), text(item.get("templateName"))
    if name == workflow:
        return workflow
    if of_version_1 or not template:
        return text(item.get("id"))
    return f"{f'{workflow}-{template}'[:_LONGEST_PREFIX]}-{hash_of(name)}"


def state_of(word: Any) -> State:
    """Return the state for KFP's or Argo's word; one that this version does not know counts as queued."""
    return _STATES.get(word.upper(), State.QUEUED) if isinstance(word, str) else State.QUEUED


@functools.lru_cache(maxsize=1 << 16)
def _seconds(moment: str) -> float | None:
    return states.seconds(moment)


def seconds(moment: Any) -> float | None:
    """Return a time of the API in seconds since the epoch; None if it is not set. Nodes share many times."""
    return _seconds(moment) if isinstance(moment, str) else None


def hash_of(text: str, base: int = _OFFSET) -> int:
    """Return the hash of a name (FNV-1a, 32 bits) of which Argo makes ids; ``base`` is that of the text before it."""
    for byte in text.encode(errors="replace"):
        base = ((base ^ byte) * _PRIME) & 0xFFFFFFFF
    return base


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a JSON object; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def text(value: Any) -> str:
    """Return text or a number as text; empty for anything else."""
    return str(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else ""
