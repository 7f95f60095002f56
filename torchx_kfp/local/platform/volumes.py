"""Volumes of a pipeline's stages, and their counterparts on this machine.

A process finds a volume if a folder with its mount path exists. A container gets new folders for empty directories and
temporary volumes; for any other volume, it needs a mount from the user. Volume claims are neither created nor deleted.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from torchx_kfp.local.platform.secrets import FILES, GivenKeys, given_files, name_of
from torchx_kfp.pipeline.names import safe_name
from torchx_kfp.pipeline.resources import parse_quantity
from torchx_kfp.pipeline.spec import Component

#: Settings of the platform spec that mount a volume, and the volume's name in messages.
VOLUMES = {
    "pvcMount": "the volume claim",
    "secretAsVolume": "the secret",
    "configMapAsVolume": "the config map",
    "emptyDirMounts": "an empty directory",
    "genericEphemeralVolume": "a temporary volume",
}
#: Volumes for which containers get a new folder.
_TEMPORARY = ("emptyDirMounts", "genericEphemeralVolume")
_SHM = "/dev/shm"


def volume_outputs(component: Component, inputs: Mapping[str, Any], run_id: str) -> dict[str, Any]:
    """Return the only output of a task that would create a volume claim: the claim's name."""
    suffix = inputs.get("pvc_name_suffix") or ""
    name = inputs.get("pvc_name") or f"{run_id}{suffix}"
    return dict.fromkeys(component.outputs, name)


def temporary_folders(platform: Mapping[str, Any]) -> dict[str, str]:
    """Return the mount paths of volumes that are empty at first, by the volumes' names."""
    volumes = [volume for key in _TEMPORARY for volume in platform.get(key) or () if not _is_memory(volume)]
    return {
        safe_name(volume.get("volumeName") or str(index)): os.path.normpath(volume["mountPath"])
        for index, volume in enumerate(volumes)
    }


def memory_folders(platform: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the sizes in bytes of empty directories in memory, by their mount paths; None for no limit."""
    return {
        path: math.ceil(parse_quantity(volume["sizeLimit"])) if volume.get("sizeLimit") else None
        for volume in platform.get("emptyDirMounts") or ()
        if _is_memory(volume) and (path := os.path.normpath(volume["mountPath"])) != _SHM
    }


def shared_memory(platform: Mapping[str, Any]) -> int | None:
    """Return the size of ``/dev/shm`` in bytes; None if the pipeline does not set it."""
    volumes = platform.get("emptyDirMounts") or ()
    sizes = [volume.get("sizeLimit") for volume in volumes if os.path.normpath(volume["mountPath"]) == _SHM]
    if shared := platform.get("enabledSharedMemory"):
        sizes.append(shared.get("size"))
    if not sizes:
        return None
    # Kubernetes rejects a pod with two volumes at one path, so there is only one size here. Without a size, it uses
    # half of the node's memory.
    size = sizes[-1]
    return math.ceil(parse_quantity(size)) if size else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def missing_folders(component: Component, inputs: Mapping[str, Any]) -> Iterator[str]:
    """Describe the volumes that a process does not find, because there is no directory at their mount paths."""
    for key, mount in _mounts(component):
        path = mount.get("mountPath", "")
        if not os.path.isdir(path):
            yield f"{_volume(key, mount, inputs)} (make the directory {path}, or use --docker)"


def missing_mounts(
    component: Component, given: GivenKeys, inputs: Mapping[str, Any], mounted: Collection[str]
) -> Iterator[str]:
    """Describe the volumes that a container does not find because the user mounts nothing at their paths.

    ``mounted`` are the paths at which the user mounts something.
    """
    files = given_files(component, given, inputs)
    for key, mount in _mounts(component):
        path = os.path.normpath(mount.get("mountPath", ""))
        if key not in _TEMPORARY and path not in mounted and path not in files:
            option = "--config-map" if key == "configMapAsVolume" else "--secret"
            give = f", or give {option} {name_of(mount, inputs) or 'NAME'}=FILE" if key in FILES else ""
            yield f"{_volume(key, mount, inputs)} (give --mount FOLDER:{path}{give})"


def _mounts(component: Component) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for key in VOLUMES:
        for mount in component.platform.get(key) or ():
            if not mount.get("optional"):
                yield key, mount


def _volume(key: str, mount: Mapping[str, Any], inputs: Mapping[str, Any]) -> str:
    name = name_of(mount, inputs)
    return f"{VOLUMES[key]} {name!r}" if name else VOLUMES[key]


def _is_memory(volume: Mapping[str, Any]) -> bool:
    return volume.get("medium") == "Memory"
