"""The folders that a container's volumes are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.kubernetes.api import Object
from tests.kubernetes.expansion import field, text_data


def mounts(
    container: Object,
    pod: Object,
    folder: Path,
    read: Callable[[str, str], Object],
    token: Callable[[str, Object], str],
) -> list[tuple[str, str]]:
    """Return the folder on this machine, and where the container has it, of each of a container's volumes.

    Volumes are made in ``folder``; ``read`` returns an object by its collection and name, ``token`` the token of a
    service account. Where it is mounted must exist on this machine, unless it is below ``/run``.
    """
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", ())}
    found = []
    for each in container.get("volumeMounts", ()):
        path = folder / each["name"]
        source = _make(volumes[each["name"]], pod, path, read, token)
        found.append((str(source / each["subPath"] if "subPath" in each else source), each["mountPath"]))
    return found


def _make(
    volume: Object,
    pod: Object,
    folder: Path,
    read: Callable[[str, str], Object],
    token: Callable[[str, Object], str],
) -> Path:
    kind = next(key for key in volume if key != "name")
    source = volume[kind]
    if kind == "hostPath":
        return Path(source["path"])
    if kind not in ("emptyDir", "secret", "configMap", "projected"):
        raise NotImplementedError(f"volume {volume['name']!r}: {kind}")
    folder.mkdir(parents=True, exist_ok=True)
    sources = source["sources"] if kind == "projected" else [{kind: source}]
    for part in sources:
        ((kind, source),) = part.items()
        if kind in ("secret", "configMap"):
            name = source.get("secretName") or source["name"]
            data = text_data(read(f"{kind.lower()}s", name))
            paths = {item["key"]: item["path"] for item in source.get("items", ())} or {key: key for key in data}
            for key, path in paths.items():
                (folder / path).write_text(data[key])
        elif kind == "serviceAccountToken":
            (folder / source["path"]).write_text(token(pod["spec"]["serviceAccountName"], source))
        elif kind == "downwardAPI":
            for item in source["items"]:
                (folder / item["path"]).write_text(field(item["fieldRef"]["fieldPath"], pod))
    return folder
