"""The pod of a replica, which is the same on every engine."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torchx_kfp.engines.engine import Engine, Manifest, Role, marker

#: The labels by which the launcher finds the pods of its object, and their roles.
STAGE_LABEL = "torchx-kfp/stage"
ROLE_LABEL = "torchx-kfp/role"


def metadata(engine: Engine) -> Manifest:
    """Return the metadata of the engine's object."""
    return {
        "name": marker("name"),
        "labels": {**engine.labels, "app.kubernetes.io/managed-by": "torchx-kfp", STAGE_LABEL: marker("name")},
        "annotations": dict(engine.annotations),
    }


def pod_template(engine: Engine, role: Role, position: int) -> Manifest:
    """Return the template of a role's pods.

    Like TorchX's Kubernetes scheduler, it gives the pod a ``/dev/shm`` of the size of its memory, which the workers of
    PyTorch's data loaders need, and keeps Istio's sidecar away, which would not end with the application.

    Args:
        engine: the engine, for its options.
        role: the role.
        position: the role's position in the AppDef, by which the launcher's markers name it.
    """
    shared_memory = {"medium": "Memory"}
    if engine.shared_memory:
        shared_memory["sizeLimit"] = engine.shared_memory
    container: Manifest = {
        "name": role.name,
        "image": role.image,
        "command": [marker(f"{position}.command")],
        "env": [marker(f"{position}.env"), *map(dict, role.env)],
        "volumeMounts": [{"name": "dshm", "mountPath": "/dev/shm"}],
    }
    if role.limits:
        container["resources"] = {"requests": dict(role.limits), "limits": dict(role.limits)}
    if role.ports:
        container["ports"] = [{"name": name, "containerPort": port} for name, port in role.ports.items()]
    if role.privileged:
        container["securityContext"] = {"privileged": True}
    spec: Manifest = {
        "restartPolicy": "Never",
        "serviceAccountName": engine.service_account or marker("service_account"),
        "containers": [container],
        "volumes": [{"name": "dshm", "emptyDir": shared_memory}],
    }
    for number, mount in enumerate(role.mounts):
        name = f"mount-{number}"
        spec["volumes"].append({"name": name, **mount.source})
        place = {"name": name, "mountPath": mount.path}
        container["volumeMounts"].append({**place, "readOnly": True} if mount.read_only else place)
    if role.node_selector:
        spec["nodeSelector"] = dict(role.node_selector)
    if engine.priority_class:
        spec["priorityClassName"] = engine.priority_class
    pod: Manifest = {
        "metadata": {
            "labels": {**role.labels, **engine.labels, STAGE_LABEL: marker("name"), ROLE_LABEL: role.name},
            "annotations": {"sidecar.istio.io/inject": "false", **engine.annotations},
        },
        "spec": spec,
    }
    return _overlaid(pod, role.overlay)


def _overlaid(base: Manifest, overlay: Mapping[str, Any]) -> Manifest:
    """Return the pod with TorchX's overlay.

    TorchX's nightly has operators for overlays; without them, dicts are merged, lists appended, tuples and other values
    replaced, as its documentation says.
    """
    if not overlay:
        return base
    try:
        from torchx.specs.overlays import apply_overlay
    except ImportError:
        return _merged(base, overlay)
    changed = copy.deepcopy(base)
    apply_overlay(changed, copy.deepcopy(dict(overlay)))
    return changed


def _merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> Manifest:
    merged = dict(base)
    for key, value in overlay.items():
        old = merged.get(key)
        if isinstance(value, Mapping):
            merged[key] = _merged(old if isinstance(old, Mapping) else {}, value)
        elif isinstance(value, list) and isinstance(old, list):
            merged[key] = [*old, *value]
        else:
            merged[key] = list(value) if isinstance(value, tuple) else value
    return merged
