"""The nodes of a run's workflow: what stands between the answers of a host and the events of stages.

A source of nodes (see ``manifest``) makes ``Nodes`` from an answer, and ``stages`` derives events from them. Another
API of KFP is another source: one more module that returns ``Nodes``.

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

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.runs.vocabulary import State


@dataclass(slots=True)
class Node:
    """A node: times are in seconds since the epoch, None if it has not started or ended.

    A pod that waits for its start is queued, and ``message`` says what it waits for. ``pod`` is the pod's name,
    ``outputs`` are in Argo's form.
    """

    name: str
    state: State
    start: float | None = None
    end: float | None = None
    message: str = ""
    exit_code: int | None = None
    pod: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """Whether it runs or has run."""
        return self.state in (State.RUNNING, State.SUCCEEDED, State.FAILED)

    def decision(self, name: str) -> str:
        """Return what a driver has decided, which is an output of it; empty if that is not there."""
        found = self.outputs.get("parameters")
        given = map(as_object, found) if isinstance(found, list) else ()
        return next((as_text(each.get("value")) for each in given if each.get("name") == name), "")


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of a workflow. ``message`` is why it failed, if that is known."""

    workflow: str
    by_name: Mapping[str, Node]
    message: str = ""

    def get(self, name: str) -> Node | None:
        """Return the node with this name, if there is one."""
        return self.by_name.get(name)

    def attempts(self, name: str) -> list[Node]:
        """Return the attempts of a node: the node itself, if it is not one that may be retried."""
        found: list[Node] = []
        while (node := self.get(f"{name}({len(found)})")) is not None:
            found.append(node)
        whole = None if found else self.get(name)
        return found if whole is None else [whole]

    def failed_attempt(self, node: Node) -> Node:
        """Return the last failed attempt of a node, which says why it failed: Argo says of the node that no retries are
        left.
        """
        return next((each for each in reversed(self.attempts(node.name)) if each.state is State.FAILED), node)
