"""Fill in the manifest of an engine's object, and apply what users have set on the task to its pods."""

from __future__ import annotations

import copy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


def fill(node: Any, values: Mapping[str, Any], config: Any, /) -> Any:
    """Return a manifest in which the markers are replaced, and ``config`` is applied to each pod.

    ``{"@": name}`` is a value; if the value is a list, its items take the marker's place in a list.
    """
    if isinstance(node, list):
        items: list[Any] = []
        for item in node:
            value = fill(item, values, config)
            items += value if isinstance(value, list) and isinstance(item, dict) else [value]
        return items
    if not isinstance(node, dict):
        return node
    if "@" in node:
        return copy.deepcopy(values[node["@"]])
    filled = {key: fill(value, values, config) for key, value in node.items()}
    # Not an annotation of that name.
    return configure(filled, config) if isinstance(filled.get("containers"), list) else filled


def configure(pod: dict[str, Any], config: Mapping[str, Any], /) -> dict[str, Any]:
    """Return the pod's spec with what users have set on the task, which replaces what the AppDef says of it.

    Only variables of the AppDef win over those of the task, as they do where a command sets them.
    """
    config = {key: value for key, value in config.items() if value}
    container = pod["containers"][0]
    for part, field in ((container, "env"), (container, "volumeMounts"), (pod, "volumes")):
        part.setdefault(field, [])
    asked = config.get("resources", {})
    have = container.get("resources", {})
    limits = asked.get("limits") or {}
    # The AppDef's request could be above the task's limit. Without a request, Kubernetes takes the limit.
    requests = {name: amount for name, amount in have.get("requests", {}).items() if name not in limits}
    container["resources"] = {
        **have,
        "requests": {**requests, **(asked.get("requests") or {})},
        "limits": {**have.get("limits", {}), **limits},
    }
    pod["tolerations"] = [*pod.get("tolerations", ()), *config.get("tolerations", ())]
    pod["nodeSelector"] = {**pod.get("nodeSelector", {}), **config.get("nodeSelector", {})}
    if "affinity" in config:
        pod["affinity"] = config["affinity"]
    known = {one["name"] for one in container["env"]}
    container["env"] += [one for one in config.get("env", ()) if one["name"] not in known and not own(one["name"])]
    for where, field, key in ((container, "volumeMounts", "mountPath"), (pod, "volumes", "name")):
        added = config.get(field, ())
        taken = {one[key] for one in added}
        where[field] = [*(one for one in where[field] if one[key] not in taken), *added]
    return pod


def own(name: str, /) -> bool:
    """Tell whether a variable is the launcher's: it names the stage's pod."""
    return name.startswith("KFP_")
