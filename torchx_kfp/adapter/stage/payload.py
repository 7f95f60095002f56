"""The payload of a stage's command: the application, or the launcher of a distributed stage's replicas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kfp import dsl
from torchx import specs
from torchx.schedulers import kubernetes_scheduler

from torchx_kfp.adapter.stage import command
from torchx_kfp.adapter.stage.application import REPLICA, Application, read_application
from torchx_kfp.adapter.stage.fields import Resources, read_retries, read_role
from torchx_kfp.adapter.stage.options import Settings
from torchx_kfp.adapter.stage.replicas import claims, fewest, plan_role, read_replicas, read_roles, role_names
from torchx_kfp.adapter.stage.secrets import PROTOCOL_VARIABLES, check_variables, secret_variables
from torchx_kfp.adapter.stage.trackers import tracker_env
from torchx_kfp.adapter.values import names
from torchx_kfp.adapter.values.channels import check_parts, parse_checked
from torchx_kfp.adapter.values.escapes import check_word
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.carried.programs import LAUNCHER, PUBLISHER, RESULTS_PUBLISHER
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import Outputs, installed_program, launcher_words
from torchx_kfp.contract.inputs import RUN_ID, TASK_CONFIG, output_placeholder
from torchx_kfp.contract.scripts import retry_words
from torchx_kfp.contract.specification import RoleSpecification, Specification
from torchx_kfp.engines import Engine
from torchx_kfp.engines.engine import Role, marker
from torchx_kfp.errors import AppDefError

#: The launcher's object gets the stage's name, and a hash, within the 63 characters of a pod's name.
_LONGEST_STAGE = 20
#: The exit code with which the launcher of a stage that may fail says that it failed itself, as other launchers do:
#: docker, env, timeout.
LAUNCHER_FAILED = 125


@dataclass(frozen=True)
class Payload:
    """The program of a stage and its pod.

    ``variables`` are the words of ``env`` before the program, ``program`` constant words that begin it, and ``words``
    the others. ``kept`` are variables that all stages of a pipeline share. ``takes_config`` tells whether the program
    gets what is set on the task, and ``has_volumes`` whether its own pod has the task's volumes, too.
    """

    role: specs.Role
    image: Parts
    variables: Sequence[Parts]
    program: Sequence[str]
    words: Sequence[Parts]
    kept: Iterable[str] = ()
    field_paths: Mapping[str, str] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[tuple[str, str]] = ()
    takes_config: bool = False
    has_volumes: bool = True


def read_payload(app: specs.AppDef, settings: Settings, alias: str) -> Payload:
    """Read what the stage runs.

    Args:
        app: an AppDef.
        settings: the options of the stage.
        alias: the stage's name.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
    """
    if settings.engine is None:
        if settings.replicas is not None:
            raise AppDefError("replicas is given, but no engine. Give one, such as engine='job': it runs the replicas.")
        return _read_application(app, settings)
    return _read_launcher(app, settings, settings.engine, alias)


def _read_application(app: specs.AppDef, settings: Settings) -> Payload:
    """Read the stage of a role with one replica, whose pod KFP makes."""
    fields = read_role(app)
    role = fields.role
    where = f"role {role.name!r}"
    application = _application(app, role, settings)
    shared = tracker_env(settings.trackers)
    variables, words = command.application_words(
        application.entrypoint,
        application.args,
        {**shared, **application.env},
        where,
        first=settings.tracker_base is None,
    )
    return Payload(
        role=role,
        image=parse_checked(role.image, f"image of {where}"),
        variables=variables,
        program=_check_program(
            retry_words(fields.retries, output_placeholder(RUN_ID) if settings.tracker_base is not None else None)
        ),
        words=words,
        kept={*shared, *application.env} - role.env.keys(),
        field_paths=application.field_paths,
        resources=fields.resources,
        node_selector=fields.node_selector,
        volumes=fields.volumes,
    )


def _check_program(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of a stage's own program if processes can receive them."""
    for word in words:
        check_word(word, "What the stage's own program is told, such as the roles of a distributed stage,")
    return words


def _application(app: specs.AppDef, role: specs.Role, settings: Settings, *, replicas: bool = False) -> Application:
    """Read the role's application, and reject variables that something else sets."""
    where = f"role {role.name!r}"
    tracked = settings.tracker_base is not None
    configs = [protocol.tracker_config_variable(name) for name in settings.trackers]
    if tracked:
        refuse_variables(role, where, (*protocol.VARIABLES, protocol.PIPELINE_RUN, *configs))
    application = read_application(
        app.name, role, where, taken=(*secret_variables(settings.secrets), *configs), replicas=replicas
    )
    reserved = (*PROTOCOL_VARIABLES, *tracker_env(settings.trackers)) if tracked else ()
    check_variables(settings.secrets, application.variables, reserved, where)
    return application


def refuse_variables(role: specs.Role, where: str, variables: Iterable[str]) -> None:
    """Reject variables of the role that the pipeline sets.

    Raises:
        AppDefError: the role sets one of them.
    """
    for name in variables:
        if name in role.env:
            raise AppDefError(
                f"env of {where} sets {name} to {role.env[name]!r}, but a tracked stage gets this variable from the "
                "pipeline. Remove it, or do not track the stage (no tracker_base)."
            )


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


def _read_launcher(app: specs.AppDef, settings: Settings, engine: Engine, alias: str) -> Payload:
    """Read the stage whose replicas an engine runs."""
    roles = read_roles(app)
    counts = read_replicas(settings.replicas, roles)
    for role in roles:
        for name in protocol.OF_REPLICAS:
            if name in role.env:
                raise AppDefError(
                    f"env of role {role.name!r} sets {name} to {role.env[name]!r}, but each replica gets this variable "
                    "from its engine. Remove it."
                )
    shared = tracker_env(settings.trackers)
    words = _Words()
    planned: list[Role] = []
    described: list[RoleSpecification] = []
    variables: Sequence[Parts] = ()
    first: Application | None = None
    for role, name in zip(roles, role_names(roles), strict=True):
        where = f"role {role.name!r}"
        application = _application(app, role, settings, replicas=True)
        env: list[tuple[str, list[int | None] | None]] = []
        inherited: dict[str, Parts] = {}
        for variable, parts in application.env.items():
            if first is None and REPLICA not in parts:
                # The program that publishes results gets them, too: they may configure the storage.
                inherited[variable] = parts
                env.append((variable, None))
            else:
                env.append((variable, words.place(parts, f"env[{variable!r}] of {where}")))
        image = parse_checked(role.image, f"image of {where}")
        filled = any(isinstance(part, Reference) for part in image)
        arguments = [application.entrypoint, *application.args]
        counted = role.name in counts
        described.append(
            RoleSpecification(
                name=name,
                most=role.num_replicas,
                fewest=getattr(role, "min_replicas", None) or role.num_replicas,
                env=env,
                ports=sorted({int(port) for port in (role.port_map or {}).values()}),
                restarts=(role.retry_policy == specs.RetryPolicy.REPLICA and read_retries(role)) or None,
                command=[words.place(parts, f"an argument of {where}") for parts in arguments],
                count=words.place(counts[role.name], f"replicas of {where}")[0] if counted else None,
                least=fewest(role) if counted else None,
                image=words.place(image, f"image of {where}") if filled else None,
            )
        )
        secrets = [
            {"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}
            for secret, keys in settings.secrets.items()
            for key, variable in keys.items()
        ]
        fields = [
            {"name": variable, "valueFrom": {"fieldRef": {"fieldPath": path}}}
            for variable, path in application.field_paths.items()
        ]
        planned.append(
            plan_role(
                role,
                name,
                marker(f"{len(planned)}.image") if filled else role.image,
                env=[*secrets, *fields],
                labels=pod_labels(app, role) if settings.labels else {},
            )
        )
        if first is None:
            first = application
            variables, _ = command.application_words(("",), (), {**shared, **inherited}, where, first=False)
    workload = engine.workload(planned)
    assert first is not None
    main = roles[0]
    # The publisher may have to read files there; a launcher that publishes nothing would only bind a node to them.
    volumes = claims(main) if settings.publication else []
    stage = names.component_name(alias)[:_LONGEST_STAGE].rstrip("-")
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
        failure=LAUNCHER_FAILED if settings.may_fail else None,
        retries=workload.retries or None,
    )
    return Payload(
        role=main,
        image=(engine.launcher_image,) if engine.launcher_image else parse_checked(main.image, "image"),
        variables=variables,
        program=_check_program(
            launcher_words(
                LAUNCHER if settings.inline else installed_program("torchx_kfp.carried", "launcher"), specification
            )
        ),
        words=words.words,
        kept={*shared, *first.env} - main.env.keys(),
        field_paths={
            protocol.ARGO_NODE: protocol.ARGO_NODE_ANNOTATION,
            protocol.SERVICE_ACCOUNT: "spec.serviceAccountName",
            protocol.PIPELINE_RUN: protocol.RUN_ID_LABEL,
        },
        volumes=volumes,
        takes_config=hasattr(dsl, "TaskConfig"),
        has_volumes=settings.publication is not None,
    )


def publisher_program(outputs: Outputs, *, inline: bool) -> str:
    """Return the program that publishes the outputs: its text, or one that needs torchx-kfp in the image."""
    if not inline:
        return installed_program("torchx_kfp.carried", "publisher")
    # The metrics are always there.
    is_plain = len(outputs.artifacts) == 1 and not any(kind in ("list", "dict") for kind, _ in outputs.results.values())
    return RESULTS_PUBLISHER if is_plain and outputs.may_fail is None else PUBLISHER


def pod_labels(app: specs.AppDef, role: specs.Role, *, alone: bool = False) -> dict[str, str]:
    """Return the labels that TorchX's Kubernetes scheduler sets; Kubernetes recommends some of them.

    Args:
        app: the AppDef.
        role: one of its roles.
        alone: whether the pod is the only one. Otherwise, the labels with its number are left out.
    """
    labels = kubernetes_scheduler.pod_labels(app, 0, role, 0, app.name)
    numbers = ("/replica-id", "/role-index")
    return {key: names.label_value(str(value)) for key, value in labels.items() if alone or not key.endswith(numbers)}
