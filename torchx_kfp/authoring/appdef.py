"""Every field of AppDef, Role and Resource: mapped, rejected or ignored, and why.

``FIELDS`` is complete for torchx 0.7.0 and the nightly: a test compares it with the dataclasses of the installed
torchx. With a newer TorchX, an unknown field that is set is rejected. Anything that KFP cannot do is rejected with an
error that names the field and the remedy.
"""

from __future__ import annotations

import math
import os
import posixpath
from collections.abc import Mapping
from dataclasses import MISSING, fields

from torchx import specs

from torchx_kfp.authoring.channels import contains_channel
from torchx_kfp.authoring.references import check_word
from torchx_kfp.common.text import shown
from torchx_kfp.contract.inputs import find_rewritten
from torchx_kfp.errors import AppDefError

FIELDS: Mapping[str, Mapping[str, str]] = {
    "AppDef": {
        "name": "mapped: the stage's name, and ${app_id}",
        "roles": "rejected unless it is one: a KFP task is one pod",
        "metadata": "ignored: meant for the app's scheduler; TorchX's Kubernetes scheduler does not use it, either",
    },
    "Role": {
        "name": "mapped: the component's description",
        "image": "mapped",
        "min_replicas": "rejected unless it is 1: there is one replica",
        "base_image": "rejected: deprecated in TorchX 0.7.0, which does not read it, and removed later",
        "entrypoint": "mapped",
        "args": "mapped, with macros",
        "env": "mapped, with macros",
        "num_replicas": "rejected unless it is 1: a KFP task is one pod",
        "max_retries": "mapped: the stage starts the application again",
        "retry_policy": "ignored: with one role and one replica, all policies restart the same thing",
        "resource": "mapped",
        "port_map": "ignored: in Kubernetes, a container's ports are informational; they can be reached without it",
        "metadata": "ignored: its keys are schedulers, and KFP is not one of them; the key `kubernetes` is rejected, "
        "because it changes pods",
        "mounts": "mapped: VolumeMount; the others are rejected",
        "workspace": "mapped: `run` and `submit` pack its folders, and the application starts in them",
        "overrides": "mapped: reading a field of the role resolves its override",
    },
    "Resource": {
        "cpu": "mapped: request and limit",
        "memMB": "mapped: request and limit, decimal megabytes; from 1 to 63 is rejected: KFP's launcher needs 64",
        "gpu": "mapped: nvidia.com/gpu",
        "capabilities": "mapped: the instance type, as node selector; others are rejected",
        "devices": "mapped: one type, if the resource has no gpu",
        "tags": "ignored: notes in TorchX that schedulers do not interpret",
    },
}

#: The megabytes of a stage's memory limit that KFP's launcher needs. A stage with 32 is killed before it starts.
LAUNCHER_MB = 64
#: The only capability that TorchX's Kubernetes scheduler maps.
INSTANCE_TYPE = "node.kubernetes.io/instance-type"
GPU = "nvidia.com/gpu"

#: The types of fields of a role and its resource, and their names in messages.
_CONTAINERS: Mapping[str, tuple[type | tuple[type, ...], str]] = {
    "args": ((list, tuple), "a list of strings"),
    "env": (Mapping, "a dict, {'NAME': 'value'}"),
    "mounts": ((list, tuple), "a list of mounts"),
    "metadata": (Mapping, "a dict"),
    "port_map": (Mapping, "a dict, {'name': 8080}"),
    "resource": (specs.Resource, "a Resource of torchx.specs: Resource(cpu=2, gpu=0, memMB=4096)"),
    "capabilities": (Mapping, "a dict"),
    "devices": (Mapping, "a dict, {'vpc.amazonaws.com/efa': 1}"),
}
_ENGINES_OF_ROLES = "engine='jobset' needs the JobSet controller"
_ENGINES_OF_REPLICAS = f"engine='job' needs nothing installed, {_ENGINES_OF_ROLES}"
_WHERE = "Pass it to the stage, or to torchx run with -cfg engine="


def single_role(app: specs.AppDef) -> specs.Role:
    """Return the AppDef's only role. Reject several roles or replicas, which KFP does not support."""
    if len(app.roles) > 1:
        raise AppDefError(
            f"AppDef {app.name!r} has {len(app.roles)} roles ({', '.join(repr(role.name) for role in app.roles)}). "
            f"Several roles need an engine: {_ENGINES_OF_ROLES}. {_WHERE}jobset. Without one, a stage is one pod: make "
            "an AppDef for each role and chain their stages."
        )
    (role,) = app.roles
    where = check_role(app, role)
    for name in ("num_replicas", "min_replicas"):
        value = getattr(role, name)
        if value != 1 and not (name == "min_replicas" and value is None):
            raise AppDefError(
                f"{where} has {name}={value!r}. Several replicas need an engine: {_ENGINES_OF_REPLICAS}. "
                f"{_WHERE}job. Without one, a stage is one pod of KFP (dist.ddp: j='1xN' runs N processes in one pod)."
            )
    if "kubernetes" in role.metadata:
        raise AppDefError(
            f"metadata of {where} has the key 'kubernetes' ({role.metadata['kubernetes']!r}), which makes "
            "TorchX's scheduler change pods. Without an engine, KFP creates the pod: use kfp.kubernetes on the task "
            "that task_from_app returns, or give an engine, such as engine='job', which applies it."
        )
    return role


def check_app(app: specs.AppDef) -> None:
    """Reject values that are not AppDefs, and AppDefs without a name or roles."""
    if not isinstance(app, specs.AppDef):
        name = getattr(app, "__name__", "component")
        raise AppDefError(
            f"An AppDef is needed, got {app!r} ({type(app).__name__}). A component function returns one: call it, "
            f"{name}(...), or make a component of it: component_from_function({name})."
        )
    check_name(app.name, "AppDef.name")
    where = f"AppDef {app.name!r}"
    _refuse_unknown(app, where)
    example = "AppDef(name=..., roles=[Role(...)])"
    if not app.roles:
        raise AppDefError(f"{where} has no roles. Give it one: {example}.")
    if not isinstance(app.roles, list | tuple) or not all(isinstance(role, specs.Role) for role in app.roles):
        raise AppDefError(f"roles of {where} is {shown(app.roles)}. Give Roles of torchx.specs: {example}.")


def check_role(app: specs.AppDef, role: specs.Role) -> str:
    """Reject fields of a role that no stage supports, and return the role's description for further errors."""
    where = f"role {role.name!r} of AppDef {app.name!r}"
    check_name(role.name, f"The name of {where}")
    _refuse_unknown(role, where)
    _refuse_channels(role, where)
    for owner in (role, role.resource):
        for field in fields(owner):
            kinds, what = _CONTAINERS.get(field.name, (object, ""))
            if not isinstance(value := getattr(owner, field.name), kinds):  # text would be a list of characters
                raise AppDefError(f"{field.name} of {where} is {shown(value)}. Give {what}.")
    _refuse_unknown(role.resource, f"The resource of {where}")
    # A channel compared with == is a condition for dsl.If, which is always true.
    for name, what in (("entrypoint", "the program to run"), ("image", "a container image")):
        value = getattr(role, name)
        if isinstance(value, str) and value.strip() in ("", specs.MISSING):
            raise AppDefError(f"{where} has no {name}. Set Role.{name} to {what}.")
    if isinstance(role.entrypoint, str) and role.entrypoint.startswith("-"):
        raise AppDefError(
            f"The entrypoint of {where} is {role.entrypoint!r}, which looks like an option. Set it to a program, and "
            "put options into Role.args."
        )
    program, *more = role.entrypoint.split() if isinstance(role.entrypoint, str) else [""]
    if more and "/" not in program and not contains_channel(role.entrypoint):
        raise AppDefError(
            f"The entrypoint of {where} is {role.entrypoint!r}, which would be run as one program. Set it to "
            f"{program!r}, and put the rest into Role.args: {more!r}."
        )
    if getattr(role, "base_image", None):
        raise AppDefError(
            f"{where} has base_image={role.base_image!r}, which TorchX has deprecated and does not read. Set image "
            "instead."
        )
    if isinstance(role.image, str) and find_rewritten(role.image) and not contains_channel(role.image):
        raise AppDefError(f"The image of {where} is {role.image!r}, which is not the name of an image.")
    return where


def _refuse_unknown(value: specs.AppDef | specs.Role | specs.Resource, where: str) -> None:
    """Reject fields of a later TorchX: their meaning is unknown."""
    known = next(FIELDS[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in FIELDS)
    for field in fields(value):
        if field.name in known:
            continue
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if shown_value(given := getattr(value, field.name)) != shown_value(default):
            raise AppDefError(
                f"{where} has {field.name}={shown_value(given)}, a field that this torchx-kfp "
                "does not know. Leave it out, or use a newer torchx-kfp."
            )


#: How to set the value of a field by a channel.
_WAYS = {"mounts": "For a claim, call kfp.kubernetes.mount_pvc(task, pvc_name=channel, mount_path=...) on the task."}
_OTHER_WAYS = (
    "The option replicas=channel sets a number of replicas, and the task's set_cpu_limit(channel), set_memory_limit "
    "and set_accelerator_limit its resources."
)


def _refuse_channels(role: specs.Role, where: str) -> None:
    """Reject channels in fields whose values must be known when the pipeline is compiled."""
    for each in fields(role):
        value = list(role.env or ()) if each.name == "env" else getattr(role, each.name)
        if each.name not in ("entrypoint", "args", "image") and contains_channel(value):
            raise AppDefError(
                f"{each.name} of {where} contains a pipeline channel, or a component's input. Its value must be known "
                "when the pipeline is compiled: channels work in entrypoint, args, the values of env, and image. "
                f"{_WAYS.get(each.name, _OTHER_WAYS)}"
            )


def check_name(name: object, where: str) -> None:
    """Reject values that are not names: pipeline channels, empty values, and text that processes cannot receive."""
    if contains_channel(name):
        raise AppDefError(f"{where} is a pipeline channel. Names must be known when the pipeline is compiled.")
    if not isinstance(name, str) or not name:
        raise AppDefError(f"{where} is {name!r}; give it a name.")
    check_word(name, where)


def single_resources(role: specs.Role) -> dict[str, str]:
    """Return the resources of a stage without an engine: see ``resource_amounts``."""
    resource, where = role.resource, f"role {role.name!r}"
    amounts = resource_amounts(resource, where)
    if 0 < resource.memMB < LAUNCHER_MB:
        raise AppDefError(
            f"resource.memMB of {where} is {resource.memMB}, but KFP's launcher runs within the stage's limit. It "
            f"needs about {LAUNCHER_MB} MB, or Kubernetes kills the stage before it starts (OOMKilled). Add "
            f"{LAUNCHER_MB} to what the application needs, or leave memMB at -1, which sets no limit."
        )
    devices = [name for name in amounts if name not in ("cpu", "memory")]
    if len(devices) > 1:
        raise AppDefError(
            f"resource of {where} requests {len(devices)} types of accelerators ({', '.join(devices)}), but a KFP task "
            "can have only one. Ask for one of them, or give an engine, such as engine='job', whose pods can have more."
        )
    return amounts


def resource_amounts(resource: specs.Resource, where: str) -> dict[str, str]:
    """Return cpu, memory and devices in the notation of Kubernetes; 0 and -1 request nothing, as in TorchX."""
    cpu = _amount(resource.cpu, f"resource.cpu of {where}")
    memory = _amount(resource.memMB, f"resource.memMB of {where}")
    amounts = {}
    # TorchX declares cpu as an int, but half a core is common. Millicores express both, as in its Kubernetes scheduler.
    if cpu * 1000 >= 1:
        amounts["cpu"] = f"{int(cpu * 1000)}m"
    if memory >= 1:
        amounts["memory"] = f"{int(memory)}M"
    return amounts | _device_amounts(resource, where)


def role_node_selector(role: specs.Role) -> dict[str, str]:
    """Return the node labels of the role's capabilities."""
    selector = {}
    for name, value in role.resource.capabilities.items():
        if name != INSTANCE_TYPE:
            raise AppDefError(
                f"resource.capabilities of role {role.name!r} has {name!r} ({value!r}), which has no counterpart in "
                f"Kubernetes; TorchX's scheduler maps only {INSTANCE_TYPE!r}. Remove it, and choose nodes with "
                "kfp.kubernetes.add_node_selector(task, ...)."
            )
        selector[name] = str(value)
    return selector


def role_volumes(role: specs.Role) -> tuple[tuple[str, str], ...]:
    """Return the role's persistent volume claims and their mount paths."""
    volumes: list[tuple[str, str]] = []
    check_mounts(role)
    for mount in role.mounts:
        if not isinstance(mount, specs.VolumeMount):
            raise AppDefError(
                f"mounts of role {role.name!r} has {mount!r}, but KFP cannot mount paths or devices of a host. Use a "
                "VolumeMount, whose src is a PersistentVolumeClaim, put the files into the image, or give an engine, "
                "such as engine='job', which can."
            )
        if mount.read_only:
            raise AppDefError(
                f"mounts of role {role.name!r} has {mount!r}, but KFP always mounts claims for writing. Set "
                "read_only=False, use a claim whose access mode is ReadOnlyMany, or give an engine, such as "
                "engine='job', which can."
            )
        volumes.append((mount.src, mount.dst_path))
    return tuple(volumes)


def check_mounts(role: specs.Role) -> None:
    """Reject values that are not mounts, mounts without a source, and two mounts at one path."""
    paths: set[str] = set()
    for mount in role.mounts:
        if not isinstance(mount, specs.VolumeMount | specs.BindMount | specs.DeviceMount):
            raise AppDefError(
                f"mounts of role {role.name!r} has {mount!r}, which is not a mount. Give one of torchx.specs, such as "
                "VolumeMount(src='claim', dst_path='/data')."
            )
        path, source = mount.dst_path, mount.src if isinstance(mount, specs.VolumeMount) else mount.src_path
        if not source or not str(path).startswith("/"):
            raise AppDefError(f"mounts of role {role.name!r} has {mount!r}. Give it a source and an absolute path.")
        if path in paths:
            raise AppDefError(f"mounts of role {role.name!r} has two mounts at {path!r}. Remove one of them.")
        paths.add(path)


def role_retries(role: specs.Role) -> int:
    """Return the number of retries of a failed stage."""
    return whole_number(role.max_retries, f"max_retries of role {role.name!r}", 0)


def shown_value(value: object) -> str:
    """Return the value for an error."""
    return "a pipeline channel" if contains_channel(value) else repr(value)


def role_workspace_folders(role: specs.Role, where: str) -> dict[str, str]:
    """Return the folders of a role's workspace, with the path of each in the workspace; {} without a workspace.

    TorchX 0.7.0 does not have this field; its runner passes schedulers a string.
    """
    workspace = getattr(role, "workspace", None)
    projects = {workspace: ""} if isinstance(workspace, str) and workspace else getattr(workspace, "projects", {})
    found: dict[str, str] = {}
    for folder, target in projects.items():
        path = str(folder).removeprefix("file://")
        if not path or "://" in path:
            raise AppDefError(
                f"The workspace of {where} has the project {folder!r}. Give a local folder, which is packed "
                "when the pipeline is submitted."
            )
        place = posixpath.normpath(target or ".")
        if posixpath.isabs(place) or place.split("/")[0] == "..":
            raise AppDefError(
                f"The workspace of {where} puts {folder!r} at {target!r}. Give a relative path inside the workspace."
            )
        found[os.path.abspath(os.path.expanduser(path))] = "" if place == "." else place
    if workspace and not found:
        raise AppDefError(f"The workspace of {where} is {workspace!r}. Give a torchx.specs.Workspace, or a folder.")
    return found


def whole_number(value: object, where: str, least: int) -> int:
    """Return the value if it is an integer >= ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 != 0 or value < least:
        raise AppDefError(f"{where} is {value!r} ({type(value).__name__}); give an integer, {least} or more.")
    return int(value)


def _amount(value: object, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise AppDefError(f"{where} is {value!r} ({type(value).__name__}); give a number, or -1 for no request.")
    return value


def _device_amounts(resource: specs.Resource, where: str) -> dict[str, str]:
    """Return the number of devices of each type."""
    if GPU in resource.devices and resource.gpu not in (-1, 0, resource.devices[GPU]):
        raise AppDefError(
            f"{where} requests gpu={resource.gpu!r} and devices={{{GPU!r}: {resource.devices[GPU]!r}}}. Set one of "
            "them."
        )
    counts = {GPU: resource.gpu, **resource.devices}
    whole = {name: whole_number(count, f"the count of {name} of {where}", -1) for name, count in counts.items()}
    return {name: str(count) for name, count in whole.items() if count > 0}
