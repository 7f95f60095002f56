"""Plan a stage: an AppDef and its options become pure data. No function here changes its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kfp import dsl
from torchx import specs

from torchx_kfp.adapter.stage import command
from torchx_kfp.adapter.stage.fields import Resources, check_app
from torchx_kfp.adapter.stage.inputs import Input, describe, name_inputs, plan_inputs, reads
from torchx_kfp.adapter.stage.options import Settings
from torchx_kfp.adapter.stage.payload import LAUNCHER_FAILED, pod_labels, publisher_program, read_payload
from torchx_kfp.adapter.stage.secrets import PROTOCOL_VARIABLES, Secrets, check_variables
from torchx_kfp.adapter.stage.stage_input import lift
from torchx_kfp.adapter.values import names
from torchx_kfp.adapter.values.channels import parse_checked
from torchx_kfp.adapter.values.references import Reference
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import UI_METADATA, Application, publish_other
from torchx_kfp.contract.inputs import RUN_ID, STAGE, TASK_CONFIG
from torchx_kfp.contract.scripts import signature
from torchx_kfp.errors import AppDefError


@dataclass(frozen=True)
class StagePlan:
    """The facts about a stage from which its KFP component and task are made.

    ``alias`` is the stage's name as it was given, ``stage`` its part of run ids, and ``component`` its name in KFP.
    ``outputs`` maps names to the Python types of parameters, or to classes of artifacts. ``field_paths`` maps variables
    to fields of the pod, ``volumes`` has (claim, path) pairs, and ``secrets`` maps secrets to their keys and variables.
    ``task_config`` is the input through which the stage gets the settings of its task, instead of its pod;
    ``has_volumes`` tells whether its pod has the task's volumes all the same.
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
    cache: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)
    field_paths: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[tuple[str, str], ...] = ()
    secrets: Secrets = field(default_factory=dict)
    task_config: str | None = None
    has_volumes: bool = True


def plan_stage(
    app: specs.AppDef,
    settings: Settings | None = None,
    *,
    parameters: Mapping[Reference, object] | None = None,
    description: str | None = None,
) -> StagePlan:
    """Plan the stage that runs the app.

    Args:
        app: an AppDef. Without an engine, it has one role and one replica.
        settings: the options of the stage.
        parameters: inputs of the component, even unused ones, and their defaults (``NO_DEFAULT`` if there is none).
        description: the component's description. The default names the AppDef.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
    """
    settings = settings or Settings()
    tracked = settings.tracker_base is not None
    alias = settings.name
    if alias is None:
        check_app(app)
        alias = app.name
    payload = read_payload(app, settings, alias)
    variables, words, image = payload.variables, payload.words, payload.image
    lifted = lift(names.stage_name(alias), list(settings.sources), variables, words, kept=list(payload.kept))
    values = (Reference("stage", lifted.text, STAGE, "STRING"),) if tracked else ()

    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    outputs.update(settings.publication.types if settings.publication else {})
    outputs.update({UI_METADATA: dsl.Artifact} if settings.ui_metadata is not None else {})
    parts = [*(settings.tracker_base or ()), *(part for word in (*variables, *words) for part in word), *image, *values]
    # The name is kept free whatever kfp compiles the pipeline, so that all name other inputs in the same way.
    taken = (*outputs, TASK_CONFIG) if settings.engine else outputs
    inputs = name_inputs(parameters or {}, settings.sources, parts, taken)
    image_text, planned = plan_inputs(inputs, image, parameters or {})
    name = signature(describe(planned, outputs))
    field_paths = dict(payload.field_paths)
    base, publication = settings.tracker_base, settings.publication
    if base is not None:
        variables, words = lifted.variables, lifted.words
    application = Application(
        command.encode(variables, inputs), command.encode(words, inputs), payload.program, settings.ui_metadata
    )
    stages = reads(settings.sources, lifted.aliases, inputs)
    if base is None:
        argv = application.untracked(name)
    elif publication is None:
        argv = application.tracked(name, command.render(base, inputs), stages)
        field_paths[protocol.PIPELINE_RUN] = protocol.RUN_ID_LABEL
    else:
        fatal = (LAUNCHER_FAILED,) if settings.engine else ()
        published = publication.outputs(fatal if settings.may_fail else None)
        program = publisher_program(published, inline=settings.inline)
        argv = application.published(name, command.render(base, inputs), stages, published, program)
    return StagePlan(
        alias=alias,
        stage=names.stage_name(alias),
        component=names.component_name(alias),
        description=description or f"TorchX application {app.name}, role {payload.role.name}",
        image=image_text,
        command=argv,
        inputs=planned,
        outputs=outputs,
        resources=payload.resources,
        cache=settings.cache,
        labels=pod_labels(app, payload.role, alone=True) if settings.labels else {},
        field_paths=field_paths,
        node_selector=payload.node_selector,
        volumes=tuple(payload.volumes),
        task_config=TASK_CONFIG if payload.takes_config else None,
        has_volumes=payload.has_volumes,
        secrets=settings.secrets,
    )


def plan_publisher(settings: Settings, name: str, image: str) -> StagePlan:
    """Plan a stage that publishes the records of another stage.

    Args:
        settings: the options of the stage; its one source is the other stage.
        name: the stage's name, unless the settings have one.
        image: an image with python3 and fsspec.
    """
    (source,) = settings.sources.values()
    assert settings.tracker_base is not None
    assert settings.publication is not None
    alias = settings.name if settings.name is not None else name
    check_variables(settings.secrets, (), PROTOCOL_VARIABLES, "the publisher")
    if image == "":
        raise AppDefError("publish_results has no image. Name one with python3 and fsspec, such as images/publisher.")
    parts = parse_checked(image, "image")
    outputs = {RUN_ID: str, **settings.publication.types}
    published = settings.publication.outputs()
    inputs = name_inputs({}, settings.sources, [*settings.tracker_base, *parts], outputs)
    image_text, planned = plan_inputs(inputs, parts)
    return StagePlan(
        alias=alias,
        stage=names.stage_name(alias),
        component=names.component_name(alias),
        description="Results of another stage as outputs of KFP",
        image=image_text,
        command=publish_other(
            signature(describe(planned, outputs)),
            command.render(settings.tracker_base, inputs),
            command.run_id_text(source, inputs),
            published,
            publisher_program(published, inline=settings.inline),
        ),
        inputs=planned,
        outputs=outputs,
        cache=settings.cache,
        secrets=settings.secrets,
    )
