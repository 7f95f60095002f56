"""The roles of a distributed stage: fields of AppDef, Role and Resource with an engine.

``_ALL`` holds for all engines, ``Engine.FIELDS`` for one; everything else is as in ``appdef.FIELDS``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchx import specs

from torchx_kfp.authoring.appdef import FIELDS, check_role, role_retries, shown_value, whole_number
from torchx_kfp.authoring.application import LAUNCHER_FAILED, Application, macro_values, role_application
from torchx_kfp.authoring.channels import contains_channel, parse, parse_checked
from torchx_kfp.authoring.engines import ENGINES, Engine, marker, restarts_alone
from torchx_kfp.authoring.naming import component_name
from torchx_kfp.authoring.options import StageOptions, tracker_env
from torchx_kfp.authoring.pods import pod_template
from torchx_kfp.authoring.references import REPLICA, Reference, Text, check_word, is_constant, parameter_text
from torchx_kfp.common.text import describe_unknown
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import carried_program, launcher_words
from torchx_kfp.contract.inputs import TASK_CONFIG
from torchx_kfp.contract.specification import LauncherSpec, RoleSpec
from torchx_kfp.errors import AppDefError

#: The launcher's object gets the stage's name, and a hash, within the 63 characters of a pod's name.
_LONGEST_STAGE = 20
#: A role's name is part of names of pods, which may have 63 characters. The longest is that of a JobSet,
#: ``<31 characters>-<role>-0-<index>-<5 characters>``, which leaves six digits for the index.
_LONGEST_ROLE = 16

_ALL: Mapping[str, Mapping[str, str]] = {
    "AppDef": {"roles": "mapped: one or several"},
    "Role": {
        "min_replicas": "ignored: replicas start one by one, so that fewer run at first; Kueue admits all at once",
        "num_replicas": "mapped: pods; `replicas=` can reduce it at run time",
        "port_map": "mapped: ports of the container. On one machine, stages with the same port take turns",
        "retry_policy": "mapped: REPLICA starts the failed replica again, every other policy all replicas",
        "metadata": "mapped: `kubernetes` is applied to the pods, as TorchX's overlay; others are other schedulers'",
        "mounts": "mapped: volumes, paths and devices of the host, also read-only",
    },
    "Resource": {
        "devices": "mapped: all types",
        "memMB": "mapped: request and limit, decimal megabytes",
    },
}
#: How each engine treats each field.
WITH_ENGINE: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    name: {kind: {**fields, **_ALL.get(kind, {}), **engine.FIELDS.get(kind, {})} for kind, fields in FIELDS.items()}
    for name, engine in ENGINES.items()
}


def launcher(app: specs.AppDef, options: StageOptions, engine: Engine, stage: str) -> Application:
    """Return the application that starts the replicas of the stage with an engine."""
    _check_roles(app)
    roles = dict(zip(role_names(app.roles), app.roles, strict=True))
    main = app.roles[0]
    counts = _parse_replicas(options.replicas, app.roles)
    applications = [role_application(app, role, options, replicas=True) for role in app.roles]
    # The program that publishes results gets the first role's variables, too: they may configure the storage.
    own = {name: parts for name, parts in applications[0].env.items() if REPLICA not in parts}
    shared = tracker_env(options.trackers)
    code = [protocol.CODE_URL] if any(application.starter for application in applications) else []
    of_launcher = dict.fromkeys([*protocol.VARIABLES, *code, *shared])
    described = []
    for position, ((name, role), application) in enumerate(zip(roles.items(), applications, strict=True)):
        handed_on = own if position == 0 else {}
        env = {variable: parts for variable, parts in application.env.items() if variable not in handed_on}
        inherited = [variable for variable in {**of_launcher, **handed_on} if variable not in env]
        command = [*application.starter, *application.words]
        texts = [_constant(parts) for parts in (*command, *application.env.values())]
        variables = _variables(options, application)
        number = len(env) + len(inherited) + len(variables)
        engine.check_text(role, texts[: len(command)], texts[len(command) :], number)
        described.append(
            RoleSpec(
                name=name,
                most=role.num_replicas,
                fewest=getattr(role, "min_replicas", None) or 1,
                inherited=inherited,
                env=env,
                ports=sorted({int(port) for port in role.port_map.values()}),
                restarts=restarts_alone(role) or None,
                command=command,
                count=counts.get(role.name),
                image=application.image,
                pod=pod_template(
                    engine,
                    role,
                    name,
                    position,
                    macro_values(app, "0" if role.num_replicas == 1 else parameter_text(REPLICA)),
                    image=role.image if is_constant(application.image) else marker(f"{position}.image"),
                    env=variables,
                ),
            )
        )
    # A publisher may have to read files on volumes. Without one, they would only bind the launcher's pod to a node.
    mounts = [mount for mount in main.mounts if isinstance(mount, specs.VolumeMount) and not mount.read_only]
    volumes = [(mount.src, mount.dst_path) for mount in mounts] if options.publishing else []
    short = component_name(stage)[:_LONGEST_STAGE].rstrip("-")
    specification = LauncherSpec(
        stage=short if short[0].isalpha() else f"s{short}"[:_LONGEST_STAGE].rstrip("-"),
        engine=engine.NAME,
        needs=engine.NEEDS,
        config=TASK_CONFIG,
        logs=engine.logs,
        claims=[path for _, path in volumes],
        roles=described,
        failure=LAUNCHER_FAILED if options.may_fail else None,
        **engine.workload(roles, [dict(one.pod) for one in described]),
    )
    data, words = specification.encode(REPLICA)
    program = launcher_words(carried_program("launcher", inline=options.inline), data)
    for word in program:
        check_word(word, "An argument of the stage's own program, such as the roles of a distributed stage,")
    image = engine.launcher_image
    return Application(
        words=words,
        env={**shared, **own},
        field_paths={
            protocol.ARGO_NODE: protocol.ARGO_NODE_ANNOTATION,
            protocol.SERVICE_ACCOUNT: "spec.serviceAccountName",
            protocol.PIPELINE_RUN: protocol.RUN_ID_LABEL,
        },
        image=parse_checked(image, "launcher_image") if image else applications[0].image,
        starter=[(word,) for word in program],
        failures=(LAUNCHER_FAILED,),
        volumes=volumes,
        # The launcher needs its own variables, and its publisher the volumes on which stages leave files.
        task_config=("ENV", *(["KUBERNETES_VOLUMES"] if options.publishing else [])),
    )


def _constant(parts: Text) -> str:
    """Return the text that is known when the pipeline is compiled."""
    return "".join(part for part in parts if isinstance(part, str))


def _check_roles(app: specs.AppDef) -> None:
    """Check fields of roles that all engines treat alike."""
    for role in app.roles:
        where = check_role(app, role)
        role_retries(role)
        if role.retry_policy not in (policies := [policy.value for policy in specs.RetryPolicy]):
            raise AppDefError(
                f"retry_policy of {where} is {role.retry_policy!r}. Give a RetryPolicy of torchx.specs: "
                f"{', '.join(policies)}."
            )
        most = whole_number(role.num_replicas, f"num_replicas of {where}", 1)
        fewest = getattr(role, "min_replicas", None)
        if fewest is not None and whole_number(fewest, f"min_replicas of {where}", 1) > most:
            raise AppDefError(f"{where} has min_replicas={fewest}, which is more than its num_replicas ({most}).")
    known = [role.name for role in app.roles]
    for name in known:
        if known.count(name) > 1:
            raise AppDefError(f"AppDef {app.name!r} has several roles {name!r}. Give each role its own name.")


def _parse_replicas(replicas: object, roles: Sequence[specs.Role]) -> dict[str, Text]:
    """Read the numbers of replicas that the option ``replicas`` gives, by role."""
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
    for name in replicas:
        if name not in known:
            raise AppDefError(describe_unknown("replicas is wrong: the AppDef", "role", name, known))
    return {name: _parse_count(count, known[name]) for name, count in replicas.items()}


def _parse_count(count: object, role: specs.Role) -> Text:
    """Return a role's number of replicas: a constant, or a channel, which the launcher checks."""
    where = f"replicas of role {role.name!r}"
    if contains_channel(count):
        parts = parse(count, where)
        kind = parts[0].type if len(parts) == 1 and isinstance(parts[0], Reference) else "text"
        # To KFP, an item of a list is a string, and so are its fields.
        if kind not in ("NUMBER_INTEGER", "STRING"):
            what = f"a channel of the type {kind}" if len(parts) == 1 else "text with a channel"
            raise AppDefError(f"{where} is {what}. Give a channel for an integer, such as an int result.")
        return parts
    fewest, most = getattr(role, "min_replicas", None) or 1, role.num_replicas
    if not fewest <= whole_number(count, where, 1) <= most:
        raise AppDefError(
            f"{where} is {count!r}. Give a number from {fewest} to {most}, as its min_replicas and num_replicas allow. "
            f"With dist.ddp, j='1:{most}x...' allows fewer: otherwise, its command waits for all nodes."
        )
    return (str(count),)


def role_names(roles: Sequence[specs.Role]) -> list[str]:
    """Return a short, distinct DNS label for each role, for names of pods."""
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


def _variables(options: StageOptions, application: Application) -> list[Mapping[str, object]]:
    """Return the variables of a role's container that Kubernetes fills in: from secrets, and fields of the pod."""
    secrets = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
        for secret, keys in (options.secrets or {}).items()
        for key, variable in keys.items()
    ]
    fields = [
        {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for variable, path in application.field_paths.items()
    ]
    return [*secrets, *fields]
