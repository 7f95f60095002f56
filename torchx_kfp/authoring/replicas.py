"""The roles of a distributed stage: fields of AppDef, Role and Resource with an engine.

Where an engine makes a difference, ``WITH_ENGINE`` says which; everything else is as in ``fields.FIELDS``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kfp import dsl
from torchx import specs

from torchx_kfp.authoring.application import (
    NOT_STARTED,
    Payload,
    RoleCommand,
    application_words,
    check_program,
    pod_labels,
    read_role_command,
    role_workspace,
)
from torchx_kfp.authoring.channels import check_parts, contains_channel, may_be_a_whole_number, parse, parse_checked
from torchx_kfp.authoring.engines import ENGINES, Engine
from torchx_kfp.authoring.engines.engine import Manifest, PodMount, Role, marker
from torchx_kfp.authoring.fields import (
    FIELDS,
    check_app,
    check_role,
    number,
    read_amounts,
    read_devices,
    read_node_selector,
    read_retries,
    shown_value,
)
from torchx_kfp.authoring.naming import component_name
from torchx_kfp.authoring.options import StageSettings, tracker_env
from torchx_kfp.authoring.references import REPLICA, Parts, Reference
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried.programs import LAUNCHER
from torchx_kfp.contract.command import installed_program, launcher_words
from torchx_kfp.contract.inputs import TASK_CONFIG
from torchx_kfp.contract.scripts import workspace_words
from torchx_kfp.contract.specification import RoleSpecification, Specification
from torchx_kfp.errors import AppDefError, ChannelError

#: The launcher's object gets the stage's name, and a hash, within the 63 characters of a pod's name.
_LONGEST_STAGE = 20
#: A role's name is part of names of pods, which may have 63 characters. The longest is that of a JobSet,
#: ``<31 characters>-<role>-0-<index>-<5 characters>``, which leaves six digits for the index.
_LONGEST_ROLE = 16

#: The fields of a pod that an overlay can change.
_POD = {"apiVersion", "kind", "metadata", "spec"}
#: A key of an overlay with an operator of TorchX's nightly, and the field that it names.
_OPERATOR = re.compile(r"^__(?:put|del|join)__:([^:]*).*", re.DOTALL)

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


class _Words:
    """The words of the launcher's command line, to which its specification refers by number."""

    def __init__(self) -> None:
        self.words: list[Parts] = []

    def place(self, parts: Parts, where: str) -> list[int | None]:
        """Add the text to the words; return its numbers, with None for the index of the replica."""
        placed: list[int | None] = []
        run: list[str | Reference] = []
        for part in (*parts, REPLICA):
            if part != REPLICA:
                run.append(part)
                continue
            if run:
                self.words.append(check_parts(tuple(run), where))
                placed.append(len(self.words) - 1)
                run = []
            placed.append(None)
        placed.pop()
        return placed or self.place(("",), where)


def read_launcher(app: specs.AppDef, settings: StageSettings, engine: Engine, alias: str) -> Payload:
    """Read the stage whose replicas an engine runs; ``alias`` is the stage's name."""
    roles = _read_roles(app)
    counts = _read_replicas(settings.replicas, roles)
    applications = [read_role_command(app, role, settings, replicas=True) for role in roles]
    # The program that publishes results gets the first role's variables, too: they may configure the storage.
    inherited = {name: parts for name, parts in applications[0].env.items() if REPLICA not in parts}
    words = _Words()
    prefixes: dict[Parts, list[list[int | None]]] = {}
    described: list[RoleSpecification] = []
    planned: list[Role] = []
    for role, name, application in zip(roles, role_names(roles), applications, strict=True):
        own = {} if described else inherited
        workspace = role_workspace(role, settings)
        if workspace and workspace not in prefixes:
            unpack: list[Parts] = [*((word,) for word in workspace_words("")[:-1]), workspace]
            prefixes[workspace] = [words.place(parts, "the workspace") for parts in unpack]
        prefix = prefixes[workspace] if workspace else []
        described.append(_describe_role(role, name, application, words, own, counts.get(role.name), prefix))
        image = marker(f"{len(planned)}.image") if described[-1].image else role.image
        planned.append(_plan_role(app, role, name, application, settings, image))
    workload = engine.workload(planned)
    main, shared = roles[0], tracker_env(settings.trackers)
    # The publisher may have to read files there; a launcher that publishes nothing would only bind a node to them.
    mounts = [mount for mount in main.mounts if isinstance(mount, specs.VolumeMount) and not mount.read_only]
    volumes = [(mount.src, mount.dst_path) for mount in mounts] if settings.publication else []
    stage = component_name(alias)[:_LONGEST_STAGE].rstrip("-")
    specification = Specification(
        stage=stage if stage[0].isalpha() else f"s{stage}"[:_LONGEST_STAGE].rstrip("-"),
        engine=engine.NAME,
        needs=engine.NEEDS,
        api=workload.api,
        plural=workload.plural,
        object=workload.manifest,
        companions=workload.companions,
        state=workload.state,
        succeeded=workload.succeeded,
        failed=workload.failed,
        index=workload.index,
        host=workload.host,
        protocol=[*protocol.VARIABLES, *(name for name in shared if name not in protocol.VARIABLES)],
        config=TASK_CONFIG,
        logs=engine.logs,
        restarts=workload.restarts,
        available=workload.available,
        claims=[path for _, path in volumes],
        success=workload.success or [role.name for role in planned],
        roles=described,
        failure=NOT_STARTED if settings.may_fail else None,
        retries=workload.retries or None,
    )
    launcher = LAUNCHER if settings.inline else installed_program("torchx_kfp", "launcher")
    where = f"role {main.name!r}"
    return Payload(
        role=main,
        image=(engine.launcher_image,) if engine.launcher_image else parse_checked(main.image, "image"),
        variables=application_words(("",), (), {**shared, **inherited}, where, first=False)[0],
        program=check_program(launcher_words(launcher, specification)),
        words=words.words,
        kept={*shared, *applications[0].env} - main.env.keys(),
        field_paths={
            protocol.ARGO_NODE: protocol.ARGO_NODE_ANNOTATION,
            protocol.SERVICE_ACCOUNT: "spec.serviceAccountName",
            protocol.PIPELINE_RUN: protocol.RUN_ID_LABEL,
        },
        volumes=volumes,
        takes_config=hasattr(dsl, "TaskConfig"),
        has_volumes=settings.publication is not None,
    )


def _read_roles(app: specs.AppDef) -> tuple[specs.Role, ...]:
    """Check the fields of all roles that do not differ from engine to engine, and return the roles."""
    check_app(app)
    for role in app.roles:
        where = check_role(app, role)
        most = _count(role.num_replicas, f"num_replicas of {where}")
        fewest = getattr(role, "min_replicas", None)
        if fewest is not None and _count(fewest, f"min_replicas of {where}") > most:
            raise AppDefError(f"{where} has min_replicas={fewest}, which is more than its num_replicas ({most}).")
        for name in protocol.OF_REPLICAS:
            if name in role.env:
                raise AppDefError(
                    f"env of role {role.name!r} sets {name} to {role.env[name]!r}, but each replica gets this variable "
                    "from its engine. Remove it."
                )
    known = [role.name for role in app.roles]
    for name in known:
        if known.count(name) > 1:
            raise AppDefError(f"AppDef {app.name!r} has several roles {name!r}. Give each role its own name.")
    return tuple(app.roles)


def _read_replicas(replicas: object, roles: Sequence[specs.Role]) -> dict[str, Parts]:
    """Read the numbers of replicas that are known only when the stage runs, by role."""
    if replicas is None:
        return {}
    known = {role.name: role for role in roles}
    if not isinstance(replicas, Mapping):
        if len(roles) > 1:
            raise AppDefError(
                f"replicas is {shown_value(replicas)}, but the AppDef has {len(roles)} roles. Give "
                f"{{role: number}}, with the roles {', '.join(map(repr, known))}."
            )
        replicas = {roles[0].name: replicas}
    read: dict[str, Parts] = {}
    for name, count in replicas.items():
        if name not in known:
            raise AppDefError(
                f"replicas names the role {shown_value(name)}, which the AppDef does not have."
                f"{did_you_mean(name, known)} Its roles: {', '.join(map(repr, known))}."
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
            most, least = known[name].num_replicas, _fewest(known[name])
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


def _fewest(role: specs.Role) -> int:
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


def _plan_role(
    app: specs.AppDef,
    role: specs.Role,
    name: str,
    application: RoleCommand,
    settings: StageSettings,
    image: str | Manifest,
) -> Role:
    """Return the role as the engines take it: everything but what the launcher fills in."""
    where = f"role {role.name!r}"
    devices = {device: str(count) for device, count in read_devices(role.resource, where).items()}
    secrets = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for secret, keys in settings.secrets.items()
        for key, variable in keys.items()
    ]
    fields = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for variable, path in application.field_paths.items()
    ]
    return Role(
        name=name,
        given=role.name,
        replicas=role.num_replicas,
        image=image,
        fewest=getattr(role, "min_replicas", None),
        env=[*secrets, *fields],
        limits={**read_amounts(role.resource, where), **devices},
        node_selector=read_node_selector(role),
        mounts=[_mount(mount) for mount in role.mounts],
        privileged=any(isinstance(mount, specs.DeviceMount) for mount in role.mounts),
        ports=read_ports(role),
        labels=pod_labels(app, role) if settings.labels else {},
        restarts=read_retries(role),
        restarts_all=role.retry_policy != specs.RetryPolicy.REPLICA,
        overlay=_overlay(role),
    )


def _describe_role(
    role: specs.Role,
    name: str,
    application: RoleCommand,
    words: _Words,
    inherited: Collection[str],
    count: Parts | None,
    prefix: Sequence[list[int | None]],
) -> RoleSpecification:
    """Return the role as the launcher takes it, and add its text to the words.

    ``inherited`` are the variables that the launcher passes on from its own environment, ``count`` the number of
    replicas if the option ``replicas`` names the role, ``prefix`` the words that unpack its workspace.
    """
    where = f"role {role.name!r}"
    env = [
        (variable, None if variable in inherited else words.place(parts, f"env[{variable!r}] of {where}"))
        for variable, parts in application.env.items()
    ]
    image = parse_checked(role.image, f"image of {where}")
    filled = any(isinstance(part, Reference) for part in image)
    arguments = [application.entrypoint, *application.args]
    return RoleSpecification(
        name=name,
        most=role.num_replicas,
        fewest=getattr(role, "min_replicas", None) or role.num_replicas,
        env=env,
        ports=sorted({int(port) for port in (role.port_map or {}).values()}),
        restarts=(role.retry_policy == specs.RetryPolicy.REPLICA and read_retries(role)) or None,
        command=[*prefix, *(words.place(parts, f"an argument of {where}") for parts in arguments)],
        count=None if count is None else words.place(count, f"replicas of {where}")[0],
        least=None if count is None else _fewest(role),
        image=words.place(image, f"image of {where}") if filled else None,
    )


def _mount(mount: specs.BindMount | specs.VolumeMount | specs.DeviceMount) -> PodMount:
    if isinstance(mount, specs.VolumeMount):
        return PodMount({"persistentVolumeClaim": {"claimName": mount.src}}, mount.dst_path, bool(mount.read_only))
    source = {"hostPath": {"path": mount.src_path}}
    if isinstance(mount, specs.BindMount):
        return PodMount(source, mount.dst_path, bool(mount.read_only))
    # TorchX's Kubernetes scheduler: a device that may be made (m) may be written.
    return PodMount(source, mount.dst_path, not set(mount.permissions) & set("wm"))


def read_ports(role: specs.Role) -> dict[str, int]:
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
    elif isinstance(given, Mapping) and not _POD.issuperset(_OPERATOR.sub(r"\1", str(key)) for key in given):
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


def _count(value: object, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < math.inf or value % 1:
        raise AppDefError(f"{where} is {value!r} ({type(value).__name__}); give a whole number, 1 or more.")
    return int(value)
