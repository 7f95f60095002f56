"""AppDef -> StagePlan: everything about a stage as pure data. Nothing here changes its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp import dsl
from torchx import specs
from torchx.schedulers import kubernetes_scheduler

from torchx_kfp import protocol
from torchx_kfp.adapter.options import Secrets
from torchx_kfp.adapter.stage import command, fields, macros, names
from torchx_kfp.adapter.stage.constants import lift
from torchx_kfp.adapter.stage.fields import Resources
from torchx_kfp.adapter.stage.inputs import NO_DEFAULT, STAGE, Input, image_inputs, name_inputs, parent, signature
from torchx_kfp.adapter.stage.outputs import UI_METADATA, Publication, publisher_words, ui_metadata_words
from torchx_kfp.adapter.stage.reads import RUN_ID, Source
from torchx_kfp.adapter.stage.secrets import (
    PROTOCOL_VARIABLES,
    check_variables,
    read_secrets,
    secret_variables,
)
from torchx_kfp.adapter.stage.trackers import read_trackers, tracker_env
from torchx_kfp.adapter.values import shell
from torchx_kfp.adapter.values.channels import check_parts, parse, parse_checked
from torchx_kfp.adapter.values.references import Parts, Reference
from torchx_kfp.errors import AppDefError, ChannelError

#: The label that KFP's backend puts on every pod of a run.
_RUN_ID_LABEL = "metadata.labels['pipeline/runid']"
#: How TorchX's Kubernetes scheduler marks a variable that names a field of the pod; None before it could.
_FIELD_PATH: str | None = getattr(kubernetes_scheduler, "PLACEHOLDER_FIELD_PATH", None)


@dataclass(frozen=True)
class StagePlan:
    """A stage, ready to be made a KFP component and task.

    ``stage`` is the stage's part of run ids, ``component`` KFP's name, ``alias`` the name as it was given. ``outputs``
    maps names to the Python types of parameters, or to classes of artifacts. ``field_paths`` maps variables to fields
    of the pod, ``volumes`` holds (claim, path) pairs, ``secrets`` maps secrets to their keys and variables.
    """

    alias: str
    stage: str
    component: str
    description: str
    image: str
    command: tuple[str, ...]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, type] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    retries: int = 0
    cache: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    field_paths: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[tuple[str, str], ...] = ()
    secrets: Secrets = field(default_factory=dict)


def plan_stage(
    app: specs.AppDef,
    *,
    tracker_base: Parts | None = None,
    sources: Mapping[str, Source] | None = None,
    publication: Publication | None = None,
    ui_metadata: Mapping[str, object] | None = None,
    inline: bool = True,
    labels: bool = False,
    cache: bool = True,
    secrets: object = None,
    trackers: object = None,
    parameters: Mapping[Reference, object] | None = None,
    description: str | None = None,
    name: str | None = None,
) -> StagePlan:
    """The plan of the stage that runs the app.

    Args:
        app: an AppDef of one role and one replica.
        tracker_base: where results are stored; None for an untracked stage.
        sources: what is read, by alias.
        publication: what becomes outputs of KFP.
        ui_metadata: what KFP v1's UI metadata says.
        inline: whether the program that publishes travels in the command.
        labels: whether the pod gets TorchX's labels.
        cache: whether KFP may use an earlier execution's outputs.
        secrets: {secret: {key: variable}}.
        trackers: further trackers and their configuration.
        parameters: inputs of the component, and their defaults (``NO_DEFAULT``: none), also where nothing uses them.
        description: what the component is for, in place of the AppDef's name.
        name: the stage's name where it is not the AppDef's.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
    """
    role = fields.read_role(app)
    sources = sources or {}
    alias = app.name if name is None else name
    fields.check_name(alias, "The stage's name")
    where = f"role {role.name!r}"
    others = read_trackers(trackers)
    configs = [protocol.tracker_config_variable(name) for name in others]
    if tracker_base is not None:
        _refuse_protocol_variables(role, where, configs)
    elif others:
        raise AppDefError(
            f"trackers names {', '.join(map(repr, others))} for a stage that is not tracked. Give it a tracker base: "
            "task_from_app(app, tracker_base=...), component_from_app(app, tracked=True)."
        )
    keys = read_secrets(secrets)
    entrypoint, args, env, field_paths = _application(app, role, where, taken=(*secret_variables(keys), *configs))
    own = {**env, **field_paths}
    env = {**tracker_env(others), **env}
    check_variables(keys, own, () if tracker_base is None else (*PROTOCOL_VARIABLES, *env.keys() - own), where)
    image = parse_checked(role.image, f"image of {where}")
    variables, words = command.application_words(entrypoint, args, env, where, first=tracker_base is None)
    lifted = lift(names.stage_name(alias), list(sources), variables, words, kept=env.keys() - role.env.keys())
    values = () if tracker_base is None else (Reference("stage", lifted.text, STAGE, "STRING"),)

    outputs: dict[str, type] = {} if tracker_base is None else {RUN_ID: str}
    outputs.update(publication.types if publication else {})
    outputs.update({UI_METADATA: dsl.Artifact} if ui_metadata is not None else {})
    parameters = parameters or {}
    parts = [*(tracker_base or ()), *(part for word in (*variables, *words) for part in word), *image, *values]
    inputs = name_inputs(parameters, sources, parts, outputs)
    image_text, further = image_inputs(image, inputs)
    planned = {
        **{
            key: Input(reference.type, reference.argument, parameters.get(reference, NO_DEFAULT))
            for reference, key in inputs.items()
        },
        **further,
    }
    script_name = signature(planned, outputs)
    ui = () if ui_metadata is None else ui_metadata_words(ui_metadata)
    if tracker_base is None:
        argv = command.untracked_command(script_name, variables, words, inputs, ui_metadata=ui)
    else:
        argv = command.tracked_command(
            script_name,
            tracker_base,
            protocol.parent_words({key: parent(source, inputs) for key, source in sources.items()}, lifted.aliases)
            if sources
            else (),
            command.output_placeholder(RUN_ID),
            values,
            lifted.variables,
            lifted.words,
            inputs,
            publisher=publisher_words(publication, inline=inline) if publication else (),
            ui_metadata=ui,
        )
        field_paths = {**field_paths, protocol.PIPELINE_RUN: _RUN_ID_LABEL}
    return StagePlan(
        alias=alias,
        stage=names.stage_name(alias),
        component=names.component_name(alias),
        description=description or f"TorchX application {app.name}, role {role.name}",
        image=image_text,
        command=argv,
        inputs=planned,
        outputs=outputs,
        resources=fields.read_resources(role),
        retries=fields.read_retries(role),
        cache=cache,
        labels=_labels(app, role) if labels else {},
        field_paths=field_paths,
        node_selector=fields.read_node_selector(role),
        volumes=fields.read_volumes(role),
        secrets=keys,
    )


def plan_publisher(
    alias: str,
    image: str,
    tracker_base: Parts,
    source: Source,
    publication: Publication,
    *,
    inline: bool = True,
    cache: bool = True,
    secrets: object = None,
) -> StagePlan:
    """The plan of a stage that publishes what another stage has recorded.

    Args:
        alias: the stage's name.
        image: an image with python3 and fsspec.
        tracker_base: where the results are stored.
        source: the run id of the other stage.
        publication: what becomes outputs of KFP.
        inline: whether the program that publishes travels in the command.
        cache: whether KFP may use an earlier execution's outputs.
        secrets: {secret: {key: variable}}.
    """
    fields.check_name(alias, "The stage's name")
    keys = read_secrets(secrets)
    check_variables(keys, (), PROTOCOL_VARIABLES, "the publisher")
    if image == "":
        raise AppDefError("publish_results has no image. Name one with python3 and fsspec, such as images/publisher.")
    parts = parse_checked(image, "image")
    outputs = {RUN_ID: str, **publication.types}
    inputs = name_inputs({}, {"stage": source}, [*tracker_base, *parts], outputs)
    image_text, further = image_inputs(parts, inputs)
    planned = {**{key: Input(reference.type, reference.argument) for reference, key in inputs.items()}, **further}
    return StagePlan(
        alias=alias,
        stage=names.stage_name(alias),
        component=names.component_name(alias),
        description="Results of another stage as outputs of KFP",
        image=image_text,
        command=command.publisher_command(
            signature(planned, outputs),
            tracker_base,
            str(parent(source, inputs)),
            command.output_placeholder(RUN_ID),
            publisher_words(publication, inline=inline),
            inputs,
        ),
        inputs=planned,
        outputs=outputs,
        cache=cache,
        secrets=keys,
    )


def _refuse_protocol_variables(role: specs.Role, where: str, configs: Sequence[str]) -> None:
    for name in (*protocol.VARIABLES, protocol.PIPELINE_RUN, *configs):
        if name in role.env:
            raise AppDefError(
                f"env of {where} sets {name} to {role.env[name]!r}, which a tracked stage gets from the pipeline. "
                "Remove it, or leave the stage untracked (no tracker_base)."
            )


def _application(
    app: specs.AppDef, role: specs.Role, where: str, taken: Sequence[str]
) -> tuple[Parts, list[Parts], dict[str, Parts], dict[str, str]]:
    """The entrypoint, arguments and variables with macros applied, and variables that name a field of the pod."""
    values = macros.macro_values(app.name)
    texts = [value for value in (*role.args, *role.env.values()) if isinstance(value, str)]
    variables: dict[str, Any] = dict(role.env)
    if any("${rank0_env}" in text for text in texts):
        variables.setdefault(macros.RANK0_HOST, "localhost")

    def read(value: object, place: str) -> Parts:
        return parse(macros.substitute(value, values) if isinstance(value, str) else value, place)

    env: dict[str, Parts] = {}
    field_paths: dict[str, str] = {}
    for key, value in variables.items():
        command.check_variable(key, where)
        parts = check_parts(read(value, f"env[{key!r}] of {where}"), f"env[{key!r}] of {where}")
        if _FIELD_PATH and isinstance(parts[0], str) and parts[0].startswith(_FIELD_PATH):
            if len(parts) > 1:
                raise ChannelError(
                    f"env[{key!r}] of {where} names a field of the pod with a pipeline channel inside. The field must "
                    "be known when the pipeline is compiled."
                )
            field_paths[key] = parts[0].removeprefix(_FIELD_PATH)
        else:
            env[key] = parts
    # TorchX applies macros to args and env alone.
    entrypoint = parse_checked(role.entrypoint, f"entrypoint of {where}")
    args = [read(value, f"args[{index}] of {where}") for index, value in enumerate(role.args)]
    args, lifted = shell.lift_arguments(entrypoint, args, env, where, taken)
    env.update({variable: (reference,) for variable, reference in lifted.items()})
    args = [check_parts(parts, f"args[{index}] of {where}") for index, parts in enumerate(args)]
    return entrypoint, args, env, field_paths


def _labels(app: specs.AppDef, role: specs.Role) -> dict[str, str]:
    """The labels that TorchX's Kubernetes scheduler sets, Kubernetes' recommended ones among them."""
    labels = kubernetes_scheduler.pod_labels(app, 0, role, 0, app.name)
    return {key: names.label_value(str(value)) for key, value in labels.items()}
