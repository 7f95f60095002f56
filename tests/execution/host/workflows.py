"""Argo workflows that a test makes up or changes, for nodes that the recordings do not have."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from tests.execution.host.answers_of_kfp import manifest
from tests.fake_kfp.argo import fnv1a32
from torchx_kfp.execution.host.manifest import manifest_of

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


def without_attempts(name: str) -> dict[str, Any]:
    """Return the workflow of a recorded run as KFP 2.14 would have it: each node is there once, without attempts."""
    found: dict[str, Any] = json.loads(manifest_of(manifest(name)))
    workflow, nodes = found["metadata"]["name"], found["status"]["nodes"]
    made = {}
    for node in nodes.values():
        # A Retry node and its attempt become one, which is as the attempt.
        if node["type"] != "Retry":
            path = _ATTEMPT.sub("", node["name"])
            identity = f"{workflow}-{fnv1a32(path)}" if path != workflow else workflow
            made[identity] = {**node, "id": identity, "name": path}
    found["status"]["nodes"] = made
    return found
