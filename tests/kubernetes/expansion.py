"""A container's command, arguments and environment as the kubelet expands them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence

from tests.authoring.kfp_engines import kubelet
from tests.kubernetes.api import Object

_FIELD_WITH_KEY = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


def command_line(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a container's command and arguments."""
    words: Sequence[str] = [*container.get("command", ()), *container.get("args", ())]
    return [kubelet(word, variables) for word in words]


def environment(container: Object, pod: Object, read: Callable[[str, str], Object]) -> dict[str, str]:
    """Return the variables of a container in their order; ``read`` returns an object by its collection and name."""
    found: dict[str, str] = {}
    for variable in container.get("env", ()):
        source = variable.get("valueFrom")
        value = kubelet(variable.get("value", ""), found) if not source else _value(source, container, pod, read)
        if value is not None:
            found[variable["name"]] = value
    return found


def field(path: str, pod: Object) -> str:
    """Return a field of a pod, as the downward API does."""
    if found := _FIELD_WITH_KEY.fullmatch(path):
        return str(pod["metadata"].get(found[1], {}).get(found[2], ""))
    values = {
        "metadata.name": pod["metadata"]["name"],
        "metadata.namespace": pod["metadata"]["namespace"],
        "metadata.uid": pod["metadata"]["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.hostIP": pod.get("status", {}).get("hostIP", ""),
        "status.podIP": pod.get("status", {}).get("podIP", ""),
    }
    return str(values[path])


def _value(source: Object, container: Object, pod: Object, read: Callable[[str, str], Object]) -> str | None:
    ((kind, reference),) = source.items()
    if kind == "fieldRef":
        return field(reference["fieldPath"], pod)
    assert kind == "secretKeyRef", f"env of container {container['name']!r}: {kind}"
    return text_data(read("secrets", reference["name"])).get(reference["key"])


def text_data(source: Object) -> dict[str, str]:
    """Return what a Secret or a ConfigMap contains, as text."""
    data = source.get("data", {})
    if source["kind"] == "Secret":
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    return dict(data)
