"""Argo workflows that a test makes up or changes, for nodes that the recordings do not have."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from typing import Any

from tests.backend.answers_of_kfp import manifest
from tests.backend.host.argo import fnv1a32

#: The attempts of Retry nodes in a name: ``W(0).root(0)``, but not ``iterations(0:0)``.
_ATTEMPT = re.compile(r"\(\d+\)")


def workflow(nodes: Mapping[str, Mapping[str, Any]], name: str = "W") -> dict[str, Any]:
    """Return a workflow with these nodes, by their names. ``at`` is the start and end, in seconds, of a node."""
    made = {}
    for node, facts in nodes.items():
        facts = dict(facts)
        start, end = (*facts.pop("at", (0, None)), None)[:2]
        times = {"startedAt": _time(start), "finishedAt": _time(end)}
        identity = name if node == name else f"{name}-{fnv1a32(node)}"
        made[identity] = {
            "id": identity,
            "name": node,
            **{key: value for key, value in times.items() if value},
            **facts,
        }
    return {"metadata": {"name": name}, "status": {"nodes": made}}


def _time(seconds: float | None) -> str | None:
    return None if seconds is None else f"2026-11-22T03:{int(seconds) // 60:02}:{int(seconds) % 60:02}Z"


def of_2_14(name: str, poll: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded answer of v2beta1 as KFP 2.14 would give it: each node is there once, without attempts.

    This is not recorded. The names of the nodes are those that v1beta1 has at the run's end.
    """
    found = json.loads(manifest(name)["pipeline_runtime"]["workflow_manifest"])
    names = {node["id"]: node["name"] for node in found["status"]["nodes"].values()}
    workflow, old = found["metadata"]["name"], {}
    entries = copy.deepcopy(poll["run_details"]["task_details"])
    for entry in entries:
        entry["child_tasks"] = [child["pod_name"] for child in entry.get("child_tasks", ())]
    parents = {child: entry for entry in entries for child in entry["child_tasks"]}
    for identity, node in names.items():
        # A Retry node and its attempt become one, with the children of the attempt.
        old[identity] = f"{workflow}-{fnv1a32(_ATTEMPT.sub('', node))}" if node != workflow else workflow
    kept = []
    for entry in entries:
        display = entry.get("display_name", "")
        if display and _ATTEMPT.search(display):
            kept.append({**entry, "display_name": _ATTEMPT.sub("", display)})
        elif not any(
            _ATTEMPT.search(names[child]) and _is_attempt(names, child, display) for child in entry["child_tasks"]
        ):
            kept.append(entry)
    for entry in kept:
        children = [{"pod_name": old[child]} for child in entry["child_tasks"]]
        entry["child_tasks"] = children
        if not children:
            del entry["child_tasks"]
    assert parents
    return {**poll, "run_details": {"task_details": kept}}


def _is_attempt(names: Mapping[str, str], child: str, display: str) -> bool:
    """Tell whether the child is an attempt of the node with this display name."""
    return names[child].endswith(f"{display}(0)")
