"""The roles of a distributed stage: fields of AppDef, Role and Resource with an engine.

Where an engine makes a difference, ``WITH_ENGINE`` says which; everything else is as in ``fields.FIELDS``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from torchx import specs

from torchx_kfp.adapter.stage.fields import (
    FIELDS,
    check_app,
    check_role,
    number,
    read_amounts,
    read_devices,
    read_node_selector,
    read_retries,
)
from torchx_kfp.adapter.values.channels import contains_channel, may_be_a_whole_number, parse
from torchx_kfp.adapter.values.names import component_name
from torchx_kfp.adapter.values.references import Channel, Parts, Reference
from torchx_kfp.engines import ENGINES
from torchx_kfp.engines.engine import Manifest, Mount, Role
from torchx_kfp.errors import AppDefError, ChannelError
from torchx_kfp.text import did_you_mean

#: How many replicas a role has: a channel for a number, or a number; by role if there are several.
Replicas = int | Channel | Mapping[str, "int | Channel"]

#: A role's name is part of names of pods, which may have 63 characters. The longest is that of a JobSet,
#: ``<31 characters>-<role>-0-<index>-<5 characters>``, which leaves six digits for the index.
_LONGEST_ROLE = 16

#: The fields of a pod that an overlay can change.
_POD = {"apiVersion", "kind", "metadata", "spec"}

_ALL: Mapping[str, Mapping[str, str]] = {
    "AppDef": {"roles": "mapped: one or several"},
    "Role": {
        "num_replicas": "mapped: pods; `replicas=` can reduce it at run time",
        "port_map": "mapped: ports of the container. On one machine, stages with the same port take turns",
        "retry_policy": "mapped: REPLICA starts the failed replica again, every other policy all replicas",
        "metadata": "mapped: `kubernetes` is applied to the pods, as TorchX's overlay; others are other schedulers'",
        "mounts": "mapped: volumes, paths and devices of the host, also read-only",
    },
    "Resource": {
        "devices": "mapped: all types",
    },
}
_EACH: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "job": {
        "AppDef": {"roles": "rejected unless it is one: the pods of a Job are of one kind"},
        "Role": {
            "min_replicas": "ignored: replicas start one by one, so that fewer run at first; Kueue admits all at once",
            "max_retries": "mapped: the stage makes the Job again; with REPLICA, the Job's backoffLimit",
        },
    },
    "jobset": {
        "Role": {
            "min_replicas": "ignored: replicas start one by one, so that fewer run at first; Kueue admits all at once",
            "max_retries": "mapped: failurePolicy.maxRestarts; with REPLICA, the Jobs' backoffLimit",
        },
    },
    "volcano": {
        "Role": {
            "min_replicas": "mapped: minAvailable",
            "max_retries": "mapped: maxRetry",
            "retry_policy": "rejected if it is REPLICA and there are retries: Volcano does not count those of single "
            "replicas. Every other policy starts all replicas again",
        },
    },
}
#: How each engine treats each field.
WITH_ENGINE: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    engine: {kind: {**fields, **_ALL.get(kind, {}), **_EACH[engine].get(kind, {})} for kind, fields in FIELDS.items()}
    for engine in ENGINES
}


def read_roles(app: specs.AppDef) -> tuple[specs.Role, ...]:
    """Check the fields of all roles that do not differ from engine to engine, and return the roles.

    Raises:
        AppDefError: a field that cannot be mapped is set.
        ChannelError: a pipeline channel is in a field whose value must be known when the pipeline is compiled.
    """
    check_app(app)
    for role in app.roles:
        where = check_role(app, role)
        most = _count(role.num_replicas, f"num_replicas of {where}")
        fewest = getattr(role, "min_replicas", None)
        if fewest is not None and _count(fewest, f"min_replicas of {where}") > most:
            raise AppDefError(f"{where} has min_replicas={fewest}, which is more than its num_replicas ({most}).")
    known = [role.name for role in app.roles]
    for name in known:
        if known.count(name) > 1:
            raise AppDefError(f"AppDef {app.name!r} has several roles {name!r}. Give each role its own name.")
    return tuple(app.roles)


def read_replicas(replicas: object, roles: Sequence[specs.Role]) -> dict[str, Parts]:
    """Read the numbers of replicas that are known only when the stage runs, by role.

    Raises:
        AppDefError: there is no such role, or a number is not between the role's ``min_replicas`` (else 1) and its
            ``num_replicas``.
        ChannelError: a channel is not one for a whole number.
    """
    if replicas is None:
        return {}
    known = {role.name: role for role in roles}
    if not isinstance(replicas, Mapping):
        if len(roles) > 1:
            raise AppDefError(
                f"replicas is {_shown(replicas)}, but the AppDef has {len(roles)} roles. Give "
                f"{{role: number}}, with the roles {', '.join(map(repr, known))}."
            )
        replicas = {roles[0].name: replicas}
    read: dict[str, Parts] = {}
    for name, count in replicas.items():
        if name not in known:
            raise AppDefError(
                f"replicas names the role {_shown(name)}, which the AppDef does not have.{did_you_mean(name, known)} "
                f"Its roles: {', '.join(map(repr, known))}."
            )
        where = f"replicas of role {name!r}"
        if contains_channel(count):
            parts = () if isinstance(count, list | tuple | set | Mapping) else parse(count, where)
            types = [part.type for part in parts if isinstance(part, Reference)]
            if len(parts) != 1 or not may_be_a_whole_number(parts[0]):
                what = (
                    f"a channel of the type {types[0]}" if len(parts) == 1 else "text or a list with a channel inside"
                )
                raise ChannelError(f"{where} is {what}. Give a channel for a whole number, such as an int result.")
            read[name] = parts
        else:
            most, least = known[name].num_replicas, fewest(known[name])
            wanted = _count(count, where)
            if wanted > most:
                raise AppDefError(f"{where} is {count!r}, but its num_replicas, the most it may have, is {most}.")
            if wanted < least:
                raise AppDefError(
                    f"{where} is {count!r}, but its min_replicas, the fewest it may have, is {least}. With dist.ddp, "
                    f"j='1:{most}x...' allows fewer: its command would wait for {least} nodes."
                )
            read[name] = (str(count),)
    return read


def fewest(role: specs.Role) -> int:
    """Return the lowest number of replicas with which the role's application starts."""
    return getattr(role, "min_replicas", None) or 1


def role_names(roles: Sequence[specs.Role]) -> list[str]:
    """Return a name for each role that Kubernetes accepts within names of pods: short, distinct DNS labels."""
    names: list[str] = []
    for position, role in enumerate(roles):
        whole = component_name(role.name)
        whole = name = whole if whole[0].isalpha() else f"r{whole}"
        number = position
        while len(name) > _LONGEST_ROLE or name in names:
            suffix = f"-{number}"
            name = whole[: _LONGEST_ROLE - len(suffix)].rstrip("-") + suffix
            number += 1
        names.append(name)
    return names


def plan_role(
    role: specs.Role,
    name: str,
    image: str | Manifest,
    *,
    env: Sequence[Mapping[str, Any]] = (),
    labels: Mapping[str, str] | None = None,
) -> Role:
    """Return the role as the engines take it: everything but what the launcher fills in.

    Args:
        role: a role that ``read_roles`` has checked.
        name: its name in Kubernetes.
        image: its image, or a marker for the launcher.
        env: entries of the container's environment that come from secrets and from fields of the pod.
        labels: further labels of its pods.
    """
    where = f"role {role.name!r}"
    devices = {device: str(count) for device, count in read_devices(role.resource, where).items()}
    return Role(
        name=name,
        given=role.name,
        replicas=role.num_replicas,
        image=image,
        fewest=getattr(role, "min_replicas", None),
        env=env,
        limits={**read_amounts(role.resource, where), **devices},
        node_selector=read_node_selector(role),
        mounts=[_mount(mount) for mount in role.mounts],
        privileged=any(isinstance(mount, specs.DeviceMount) for mount in role.mounts),
        ports=_ports(role),
        labels=labels or {},
        restarts=read_retries(role),
        restarts_all=role.retry_policy != specs.RetryPolicy.REPLICA,
        overlay=_overlay(role),
    )


def claims(role: specs.Role) -> list[tuple[str, str]]:
    """Return the persistent volume claims that the role mounts for writing, as (claim, path)."""
    return [
        (mount.src, mount.dst_path)
        for mount in role.mounts
        if isinstance(mount, specs.VolumeMount) and not mount.read_only
    ]


def _mount(mount: specs.BindMount | specs.VolumeMount | specs.DeviceMount) -> Mount:
    if isinstance(mount, specs.VolumeMount):
        return Mount({"persistentVolumeClaim": {"claimName": mount.src}}, mount.dst_path, bool(mount.read_only))
    source = {"hostPath": {"path": mount.src_path}}
    if isinstance(mount, specs.BindMount):
        return Mount(source, mount.dst_path, bool(mount.read_only))
    # TorchX's Kubernetes scheduler: a device that may be made (m) may be written.
    return Mount(source, mount.dst_path, not set(mount.permissions) & set("wm"))


def _ports(role: specs.Role) -> dict[str, int]:
    """Return the ports by names that Kubernetes accepts: 15 characters, with a letter, each in one place."""
    ports: dict[str, int] = {}
    for name, port in (role.port_map or {}).items():
        value = number(port, f"port_map[{name!r}] of role {role.name!r}")
        if value != int(value) or not 0 < value < 65536:
            raise AppDefError(f"port_map[{name!r}] of role {role.name!r} is {port!r}; give a port from 1 to 65535.")
        label = re.sub(r"[^a-z0-9]+", "-", str(name).lower()).strip("-")[:15].strip("-")
        others = (f"port-{int(value)}{suffix}" for suffix in ("", *map("-{}".format, range(len(ports)))))
        taken = label in ports or not re.search("[a-z]", label)
        ports[next(other for other in others if other not in ports) if taken else label] = int(value)
    return ports


def _overlay(role: specs.Role) -> Mapping[str, Any]:
    """Return the changes of the pod that ``metadata["kubernetes"]`` asks for.

    TorchX's nightly stores them as ``{"V1Pod": changes}``, and still accepts the changes themselves and the URI of a
    file. Where TorchX would ignore a form of which it is not sure, an error says so.
    """
    given = role.metadata.get("kubernetes")
    if given is None:
        return {}
    found: object = given
    if isinstance(given, str):
        try:
            from torchx.specs.overlays import get_overlay

            found = get_overlay(role, "kubernetes", "V1Pod")
        except ImportError:  # TorchX 0.7.0
            found = None
        except (OSError, ValueError) as error:
            raise AppDefError(
                f"metadata['kubernetes'] of role {role.name!r} is {given!r}, which cannot be read: {error}"
            ) from None
    elif isinstance(given, Mapping) and not _POD.issuperset(map(_field, given)):
        found = given["V1Pod"] if set(given) <= {"V1Pod", "__torchx_overlays__"} and "V1Pod" in given else None
    if not isinstance(found, Mapping) or (isinstance(given, str) and not found):
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} is {given!r}. Give a dict that changes the pod, such as "
            "{'spec': {'tolerations': [...]}}."
        )
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AppDefError(
            f"metadata['kubernetes'] of role {role.name!r} cannot be written as JSON: {error}. Got: {given!r}."
        ) from None
    return found


def _field(key: object) -> str:
    """Return the field that a key of an overlay names, without an operator of TorchX's nightly."""
    return re.sub(r"^__(?:put|del|join)__:([^:]*).*", r"\1", str(key), flags=re.DOTALL)


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf or value % 1:
        raise AppDefError(f"{where} is {value!r} ({type(value).__name__}); give a whole number, 1 or more.")
    return int(value)


def _shown(value: object) -> str:
    return "a pipeline channel" if contains_channel(value) else repr(value)
