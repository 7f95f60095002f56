"""The pods of a distributed stage's roles: TorchX's own pod of a role, with the overlay in the role's metadata."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchx import specs
from torchx.schedulers.kubernetes_scheduler import role_to_pod, sanitize_for_serialization

from torchx_kfp.authoring.appdef import check_mounts, resource_amounts, role_node_selector, whole_number
from torchx_kfp.authoring.engines import ROLE_LABEL, STAGE_LABEL, Engine, Manifest, marker
from torchx_kfp.errors import AppDefError

#: The fields of a pod that an overlay can change.
_POD = {"apiVersion", "kind", "metadata", "spec"}
#: A key of an overlay with an operator of TorchX's nightly, and the field that it names.
_OPERATOR = re.compile(r"^__(?:put|del|join)__:([^:]*).*", re.DOTALL)


def pod_template(
    engine: Engine,
    role: specs.Role,
    name: str,
    position: int,
    values: specs.macros.Values,
    *,
    image: str | Manifest,
    env: Sequence[Mapping[str, Any]],
) -> Manifest:
    """Return the template of a role's pods, with markers for values that only the launcher knows.

    It is the pod of TorchX's Kubernetes scheduler, which maps mounts, devices, ports and capabilities, gives the pod a
    ``/dev/shm`` of the size of its memory and keeps Istio's sidecar away. That scheduler requests slightly less than
    the limits, to leave room on its nodes; this package requests all of it.

    ``name`` is the role's name in Kubernetes, ``position`` its place in the AppDef, by which markers refer to it.
    ``values`` are those of TorchX's macros, for the overlay, and ``env`` the variables from secrets and pod fields.
    """
    check_mounts(role)
    selector = role_node_selector(role)
    amounts = resource_amounts(role.resource, f"role {role.name!r}")
    plain = specs.Role(role.name, image, mounts=role.mounts, port_map=role_ports(role))
    pod: Manifest = sanitize_for_serialization(role_to_pod(name, plain, None))
    (container,) = pod["spec"]["containers"]
    container |= {
        "command": [marker(f"{position}.command")],
        "env": [marker(f"{position}.env"), *map(dict, env)],
        "resources": {"requests": dict(amounts), "limits": amounts} if amounts else {},
    }
    spec = {
        **pod["spec"],
        "containers": [{field: value for field, value in container.items() if value}],
        "nodeSelector": selector,
        "priorityClassName": engine.priority_class,
    }
    pod["spec"] = {field: value for field, value in spec.items() if value}
    labels = pod["metadata"]["labels"] = {STAGE_LABEL: marker("name"), ROLE_LABEL: name}
    overlay = _overlay(role, values)
    try:
        pod = _overlaid(pod, overlay)
    except (TypeError, ValueError) as error:  # TorchX's nightly merges values of one type only
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} cannot be merged into the pod: {error}. "
            f"Got: {role.metadata['kubernetes']!r}."
        ) from None
    kept = (pod.get("metadata") or {}).get("labels") or {}
    if not (kept.items() >= labels.items() and (pod.get("spec") or {}).get("containers")):
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} removes the container, or the labels by which the stage "
            f"finds its pods. Keep them. Got: {role.metadata['kubernetes']!r}."
        )
    # Not before: TorchX's nightly merges no text into a marker.
    pod["spec"].setdefault("serviceAccountName", engine.service_account or marker("service_account"))
    pod["spec"] |= engine.POD
    return pod


def role_ports(role: specs.Role) -> dict[str, int]:
    """Return the ports by names that Kubernetes accepts: 15 characters, with a letter, each in one place."""
    ports: dict[str, int] = {}
    for name, port in role.port_map.items():
        value = whole_number(port, f"port_map[{name!r}] of role {role.name!r}", 1)
        if value > 65535:
            raise AppDefError(f"port_map[{name!r}] of role {role.name!r} is {port!r}; give a port from 1 to 65535.")
        label = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")[:15].strip("-")
        others = (f"port-{value}{suffix}" for suffix in ("", *map("-{}".format, range(len(ports)))))
        taken = label in ports or not re.search("[a-z]", label)
        ports[next(other for other in others if other not in ports) if taken else label] = value
    return ports


def _overlay(role: specs.Role, values: specs.macros.Values) -> Mapping[str, Any]:
    """Return the changes of the pod that ``metadata["kubernetes"]`` asks for.

    TorchX's nightly stores them as ``{"V1Pod": changes}``, and still accepts the changes themselves.
    """
    given = role.metadata.get("kubernetes")
    overlay: Any = {} if given is None else given
    if isinstance(given, Mapping):
        overlay = {key: value for key, value in given.items() if key != "__torchx_overlays__"}
        overlay = overlay["V1Pod"] if [*overlay] == ["V1Pod"] else overlay
    if not isinstance(overlay, Mapping) or not _POD.issuperset(_OPERATOR.sub(r"\1", str(key)) for key in overlay):
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} is {given!r}. Give a dict that changes the pod, such as "
            "{'spec': {'tolerations': [...]}}."
        )
    changes: Mapping[str, Any] = _with_macros(overlay, values)
    try:
        text = json.dumps(changes, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} cannot be written as JSON: {error}. Got: {given!r}."
        ) from None
    if values.replica_id in text and role.num_replicas > 1:
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} has ${{replica_id}}, but its {role.num_replicas} replicas "
            "have one template for all pods. Use ${replica_id} in args and env, or a field of the pod."
        )
    return changes


def _with_macros(value: Any, values: specs.macros.Values) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_macros(item, values) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_with_macros(item, values) for item in value)
    return values.substitute(value) if isinstance(value, str) else value


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
