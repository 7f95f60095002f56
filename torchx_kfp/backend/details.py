"""Reads nodes from ``run_details.task_details`` of v2beta1, whose entries only have the ids of their children.

An id is ``<workflow>-<hash of the node's name>``. So the names that the pipeline can have are tried: a node exists if
an entry names its id as that of a child, and an entry is the node's if its children are those that the node would have.
Entries without children have no such sign: see ``leaves``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torchx_kfp.backend.leaves import EXECUTOR, Leaf, identify
from torchx_kfp.backend.nodes import Node, Nodes, seconds, state_of
from torchx_kfp.backend.values import hash_of, mapping, text
from torchx_kfp.pipeline.spec import Component, Pipeline, Task
from torchx_kfp.runs.vocabulary import State

#: The first node in a workflow: its first attempt, or the driver.
_FIRST = ("(0)", ".root-driver")
#: A function that returns the names that the children of a node (given its name) can have.
_Children = Callable[[str], Iterable[str]]


def from_details(run: Mapping[str, Any], pipeline: Pipeline) -> Nodes:
    """Return the nodes in v2beta1's answer about a run of the pipeline."""
    return Details(pipeline).read(run)


def entries_of(run: Mapping[str, Any]) -> list[Any]:
    """Return the entries of the answer."""
    found = mapping(run.get("run_details")).get("task_details")
    return found if isinstance(found, list) else []


@dataclass
class _Answer:
    """One answer: its entries by their children's ids, and what has been found."""

    by_child: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    entries: list[Mapping[str, Any]] = field(default_factory=list)
    found: dict[str, Node] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    #: The ids of all nodes that exist.
    ids: set[str] = field(default_factory=set)
    leaves: list[Leaf] = field(default_factory=list)


class Details:
    """Reads answers about one run; it keeps the hashes of names."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._hashes: dict[str, int] = {}
        #: The nodes that were found by their children, with the state and end in their entries.
        self._known: dict[str, tuple[tuple[Any, Any], Node]] = {}
        self._workflow = ""
        self._answer = _Answer()

    def read(self, run: Mapping[str, Any]) -> Nodes:
        """Return the nodes in an answer."""
        self._answer = answer = _Answer()
        seen = set()
        for entry in map(mapping, entries_of(run)):
            identity = text(entry.get("task_id"))
            # The launcher's own entries have no name.
            if not text(entry.get("display_name")) or identity in seen:
                continue
            if identity:
                seen.add(identity)
            children = entry.get("child_tasks")
            for child in children if isinstance(children, list) else ():
                if pod := text(mapping(child).get("pod_name")):
                    answer.by_child[pod].append(len(answer.entries))
            answer.entries.append(entry)
        self._workflow = self._find_workflow(run)
        if not self._workflow:
            return Nodes()
        self._visit_workflow()
        self._find_leaves()
        return Nodes(self._workflow, answer.found)

    def _find_workflow(self, run: Mapping[str, Any]) -> str:
        prefixes = Counter(child.rpartition("-")[0] for child in self._answer.by_child)
        for name, _ in prefixes.most_common():
            if name and any(
                f"{name}-{hash_of(name + first)}" in self._answer.by_child for first in ("(0)", ".root-driver")
            ):
                return name
        return ""

    def _visit_workflow(self) -> None:
        root = self._pipeline.root
        for whole in self._visit(self._workflow, self._workflow, lambda body: [f"{body}.root-driver"], is_root=True):
            self._visit_one(f"{whole}.root-driver", "root-driver", f"{whole}.root")
            for body in self._visit(f"{whole}.root", "root", partial(_first, root)):
                self._visit_scope(root, body)

    def _visit_scope(self, component: Component, base: str) -> None:
        for task in component.as_dag().tasks.values():
            inner = self._pipeline.component_of(task)
            if not task.runs_always:
                self._visit_task(task, inner, base)
                continue
            for upstream in task.depends_on:
                hook = f"{upstream}.onExit"
                for body in self._visit(f"{base}.{hook}", hook, partial(_below, f"{task.name}-driver", task.name)):
                    self._visit_task(task, inner, body)

    def _visit_task(self, task: Task, component: Component, base: str) -> None:
        name = f"{base}.{task.name}"
        self._visit_one(f"{name}-driver", f"{task.name}-driver", name)
        if task.loop is not None:
            for body in self._visit(name, task.name, partial(_below, "iteration-driver")):
                self._visit_loop(component, body)
        elif component.dag is not None:
            for body in self._visit(name, task.name, partial(_first, component)):
                self._visit_scope(component, body)
        else:
            for body in self._visit(name, task.name, partial(_below, EXECUTOR)):
                self._visit(f"{body}.{EXECUTOR}", EXECUTOR, lambda body: [], around=body)

    def _visit_loop(self, component: Component, base: str) -> None:
        group = f"{base}.iteration-iterations"
        self._visit_one(f"{base}.iteration-driver", "iteration-driver", group)
        items = list(self._items(group))
        self._visit(group, "iteration-iterations", lambda body: items)
        for item in items:
            for body in self._visit(item, item[len(base) + 1 :], partial(_below, "iteration-item-driver")):
                inner = f"{body}.iteration-item"
                self._visit_one(f"{inner}-driver", "iteration-item-driver", inner)
                for scope in self._visit(inner, "iteration-item", partial(_first, component)):
                    self._visit_scope(component, scope)

    def _visit_one(self, name: str, display: str, child: str) -> None:
        self._visit(name, display, lambda body: [child])

    def _items(self, group: str) -> Iterator[str]:
        index = 0
        while self._exists(item := f"{group}({index}:{index})"):
            yield item
            index += 1

    def _visit(
        self, name: str, display: str, children: _Children, *, around: str = "", is_root: bool = False
    ) -> list[str]:
        """Find a node and its attempts, and return the names below which its children are; none if it is not there."""
        if not is_root and not self._exists(name):
            return []
        attempts: list[str] = []
        while self._exists(attempt := f"{name}({len(attempts)})"):
            attempts.append(attempt)
        if attempts:
            self._find(Leaf(name, display, around), attempts)
        for index, body in enumerate(attempts):
            one = Leaf(body, f"{display}({index})", name, index, len(attempts))
            self._find(one, children(body))
        if not attempts:
            self._find(Leaf(name, display, around), children(name))
        return attempts or [name]

    def _find(self, wanted: Leaf, children: Iterable[str]) -> None:
        answer = self._answer
        for child in children:
            for index in answer.by_child.get(self._id(child), ()):
                if answer.entries[index].get("display_name") == wanted.display:
                    answer.used.add(index)
                    answer.found[wanted.name] = self._node(wanted.name, answer.entries[index])
                    return
        answer.leaves.append(wanted)

    def _find_leaves(self) -> None:
        answer = self._answer
        entries: dict[str, list[Node]] = defaultdict(list)
        # An entry whose children are not known may be any node.
        unknown = {index for child in answer.by_child.keys() - answer.ids for index in answer.by_child[child]}
        for index, entry in enumerate(answer.entries):
            if index not in answer.used and index not in unknown:
                entries[entry["display_name"]].append(_node("", entry))
        answer.found.update((node.name, node) for node in list(identify(answer.leaves, entries, answer.found)))

    def _node(self, name: str, entry: Mapping[str, Any]) -> Node:
        """Return a node; the same object as in the last answer, if nothing has changed."""
        parts = entry.get("state"), entry.get("end_time")
        known = self._known.get(name)
        if known is None or known[0] != parts:
            known = self._known[name] = parts, _node(name, entry)
        return known[1]

    def _exists(self, name: str) -> bool:
        identity = self._id(name)
        if identity not in self._answer.by_child:
            return False
        self._answer.ids.add(identity)
        return True

    def _id(self, name: str) -> str:
        return f"{self._workflow}-{self._hash(name)}"

    def _hash(self, name: str) -> int:
        known = self._hashes.get(name)
        if known is None:
            # The hash of a name is that of its beginning, continued.
            cut = max(name.rfind("."), name.rfind("("))
            known = hash_of(name[cut:], self._hash(name[:cut])) if cut > 0 else hash_of(name)
            self._hashes[name] = known
        return known


def _below(*names_and_base: str) -> list[str]:
    """Return the names of nodes below one, whose name is the last argument."""
    *names, base = names_and_base
    return [f"{base}.{name}" for name in names]


def _first(component: Component, base: str) -> list[str]:
    """Return the names of the nodes with which a scope begins."""
    names = [task.name for task in component.as_dag().tasks.values() if not task.depends_on]
    return [f"{base}.{name}{suffix}" for name in names for suffix in ("-driver", "")]


def _node(name: str, entry: Mapping[str, Any]) -> Node:
    start, end = seconds(entry.get("start_time")), seconds(entry.get("end_time"))
    # KFP has no word for nodes that Argo omits.
    state = state_of(entry.get("state")) if entry.get("state") or end is None else State.NOT_RUN
    message = text(mapping(entry.get("error")).get("message"))
    return Node(name, state, start, end if state.is_over else None, message)
