"""Finds the nodes without children among the entries of an answer: pods, and nodes that were skipped or omitted.

Nothing in such an entry says which node it is but its display name, which nodes of different stages share. Argo creates
a pod together with the node around it, so both have the same start. Where several nodes could be meant, only what is
the same for all of them is told.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchx_kfp.backend.nodes import Node
from torchx_kfp.runs.vocabulary import State

#: The display name of a stage's pod.
EXECUTOR = "executor"


@dataclass(frozen=True)
class Leaf:
    """A node that exists: the number of its attempt, of how many, and the node that Argo creates together with it."""

    name: str
    display: str
    around: str = ""
    attempt: int = 0
    attempts: int = 1


def identify(
    leaves: Iterable[Leaf], entries: Mapping[str, Sequence[Node]], found: Mapping[str, Node]
) -> Iterator[Node]:
    """Yield what is known about each node.

    Args:
        leaves: the nodes.
        entries: the entries that are no other nodes, by their display names.
        found: the other nodes, by their names.
    """
    wanted: dict[str, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        wanted[leaf.display].append(leaf)
    for display, those in wanted.items():
        candidates = entries.get(display, ())
        # If there are more or fewer entries, then some are not what they seem.
        named = (
            {node.name: node for node in _matched(those, candidates, found)} if len(those) == len(candidates) else {}
        )
        for leaf in those:
            node = named.get(leaf.name)
            yield node if node is not None and _fits(leaf, node, found) else _inferred(leaf, those, candidates, found)


def _matched(leaves: Sequence[Leaf], entries: Sequence[Node], found: Mapping[str, Node]) -> Iterator[Node]:
    if len(leaves) == 1:
        yield dataclasses.replace(entries[0], name=leaves[0].name)
        return
    by_start: dict[float | None, list[Node]] = defaultdict(list)
    for entry in entries:
        by_start[entry.start].append(entry)
    anchored: dict[float | None, list[Leaf]] = defaultdict(list)
    for leaf in leaves:
        anchored[_start(leaf, found)].append(leaf)
    rest = []
    for start, those in anchored.items():
        if start is not None and len(those) == len(by_start[start]):
            yield from _same(those, by_start.pop(start), found)
        else:
            rest += those
    yield from _same(rest, [entry for entries in by_start.values() for entry in entries], found)


def _same(leaves: Sequence[Leaf], entries: Sequence[Node], found: Mapping[str, Node]) -> Iterator[Node]:
    """Yield these nodes, which are these entries in any order, if all have the same state."""
    if len(leaves) != len(entries) or len({entry.state for entry in entries}) != 1:
        return
    starts, ends = {entry.start for entry in entries}, {entry.end for entry in entries}
    end, message = entries[0].end if len(ends) == 1 else None, entries[0].message if len(entries) == 1 else ""
    for leaf in leaves:
        start = entries[0].start if len(starts) == 1 else _start(leaf, found)
        yield Node(leaf.name, entries[0].state, start, end, message)


def _fits(leaf: Leaf, node: Node, found: Mapping[str, Node]) -> bool:
    """Tell whether a node can be the leaf: if entries are missing, the number of others may be right by chance."""
    around = found.get(leaf.around)
    return around is None or around.state is not State.FAILED or node.state is not State.SKIPPED


def _start(leaf: Leaf, found: Mapping[str, Node]) -> float | None:
    around = found.get(leaf.around) if not leaf.attempt else None
    return around.start if around is not None else None


def _inferred(leaf: Leaf, leaves: Sequence[Leaf], entries: Sequence[Node], found: Mapping[str, Node]) -> Node:
    """Return what is certain about a node without an entry: what the node around it tells."""
    around = found.get(leaf.around)
    if around is None:
        return Node(leaf.name, State.WAITING)
    if leaf.attempt + 1 < leaf.attempts:
        return Node(leaf.name, State.FAILED)
    start = _start(leaf, found)
    if around.state is not State.SUCCEEDED or leaf.display != EXECUTOR:
        return Node(leaf.name, around.state, start, around.end, around.message)
    state = _state_of_pod(around, leaves, entries, found)
    return Node(leaf.name, state, start, around.end if state.is_over else None)


def _state_of_pod(around: Node, leaves: Sequence[Leaf], entries: Sequence[Node], found: Mapping[str, Node]) -> State:
    """Return the state of the pod of a stage that has succeeded: it may have been skipped, if the stage was cached."""
    possible = {entry.state for entry in entries if entry.start == around.start} & {State.SKIPPED, State.SUCCEEDED}
    if len(possible) == 1:
        return possible.pop()
    # Argo skips a pod in the moment in which it creates it.
    same = [node for other in leaves if (node := found.get(other.around)) is not None and node.start == around.start]
    at_once = sum(node.state is State.SUCCEEDED and node.end == node.start for node in same)
    if at_once == sum(entry.state is State.SKIPPED and entry.start == around.start for entry in entries):
        return State.SKIPPED if around.end == around.start else State.SUCCEEDED
    return State.WAITING
