"""A container's command, arguments and environment as the kubelet expands them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence

from tests.cluster.api import ApiError, Object

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_FIELD_WITH_KEY = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")


class MissingKeyError(Exception):
    """A Secret or a ConfigMap, or a key of it, that a container refers to and that is not there."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace ``$(NAME)`` by the variable's value, if there is one, and ``$$`` by ``$``."""

    def replacement(found: re.Match[str]) -> str:
        name = found[1]
        return "$" if name is None else variables.get(name, found[0])

    return _REFERENCE.sub(replacement, text)


def command_line(container: Object, variables: Mapping[str, str]) -> list[str]:
    """Return the words of a container's command and arguments."""
    words: Sequence[str] = [*container.get("command", ()), *container.get("args", ())]
    return [expand(word, variables) for word in words]


def environment(container: Object, pod: Object, read: Callable[[str, str], Object]) -> dict[str, str]:
    """Return the variables of a container in their order; ``read`` returns an object by its collection and name."""
    found: dict[str, str] = {}
    for source in container.get("envFrom", ()):
        kind, reference = next((key, value) for key, value in source.items() if key != "prefix")
        collection = {"secretRef": "secrets", "configMapRef": "configmaps"}[kind]
        for key, value in _data(collection, reference, read).items():
            found[source.get("prefix", "") + key] = value
    for variable in container.get("env", ()):
        source = variable.get("valueFrom")
        value = expand(variable.get("value", ""), found) if not source else _value(source, container, pod, read)
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
    collections = {"secretKeyRef": "secrets", "configMapKeyRef": "configmaps"}
    if kind not in collections:
        raise NotImplementedError(f"env of container {container['name']!r}: {kind}")
    values = _data(collections[kind], reference, read)
    if reference["key"] not in values and not reference.get("optional"):
        raise MissingKeyError(f"couldn't find key {reference['key']} in {collections[kind]} {reference['name']}")
    return values.get(reference["key"])


def _data(collection: str, reference: Object, read: Callable[[str, str], Object]) -> dict[str, str]:
    try:
        return text_data(read(collection, reference["name"]))
    except ApiError as error:
        if error.status != 404:
            raise
        if reference.get("optional"):
            return {}
        raise MissingKeyError(error.message) from None


def text_data(source: Object) -> dict[str, str]:
    """Return what a Secret or a ConfigMap contains, as text."""
    data = source.get("data", {})
    if source["kind"] == "Secret":
        return {key: base64.b64decode(value).decode() for key, value in data.items()}
    return dict(data)
