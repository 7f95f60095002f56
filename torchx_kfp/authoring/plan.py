"""Plan a stage: an AppDef and its options become pure data. No function here changes its arguments."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kfp import dsl
from torchx import specs

from torchx_kfp.authoring.application import NOT_STARTED, pod_labels, publisher_program, read_payload, role_workspace
from torchx_kfp.authoring.channels import parse_checked
from torchx_kfp.authoring.component_inputs import Input, Prefix, describe, lift, name_inputs, plan_inputs, reads, render
from torchx_kfp.authoring.fields import Resources, check_app
from torchx_kfp.authoring.naming import component_name, stage_name
from torchx_kfp.authoring.options import PROTOCOL_VARIABLES, Secrets, StageSettings, check_variables
from torchx_kfp.authoring.reads import CollectedRuns
from torchx_kfp.authoring.references import Parts, Reference, check_word, is_constant
from torchx_kfp.authoring.replicas import read_launcher
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import UI_METADATA, Application, Word, publish_other
from torchx_kfp.contract.inputs import RUN_ID, STAGE, TASK_CONFIG, escape, find_rewritten, parameter_placeholder
from torchx_kfp.contract.scripts import signature, workspace_words
from torchx_kfp.errors import AppDefError


@dataclass(frozen=True)
class StagePlan:
    """The facts about a stage from which its KFP component and task are made.

    ``alias`` is the stage's name as it was given, ``stage`` its part of run ids, and ``component`` its name in KFP.
    ``outputs`` maps names to the Python types of parameters, or to classes of artifacts. ``field_paths`` maps variables
    to fields of the pod, ``volumes`` has (claim, path) pairs, and ``secrets`` maps secrets to their keys and variables.
    ``task_config`` is the input through which the stage gets the settings of its task, instead of its pod;
    ``has_volumes`` says whether its pod has the task's volumes anyway.
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
    settings: StageSettings | None = None,
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
    """
    settings = settings or StageSettings()
    tracked = settings.tracker_base is not None
    alias = settings.name
    if alias is None:
        check_app(app)
        alias = app.name
    engine = settings.engine
    payload = read_launcher(app, settings, engine, alias) if engine else read_payload(app, settings)
    if not engine:
        settings = replace(settings, workspace=role_workspace(payload.role, settings))
    variables, words, image = payload.variables, payload.words, payload.image
    lifted = lift(stage_name(alias), list(settings.sources), variables, words, kept=list(payload.kept))
    values = (Reference("stage", lifted.text, STAGE, "STRING"),) if tracked else ()

    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    outputs.update(settings.publication.types if settings.publication else {})
    outputs.update({UI_METADATA: dsl.Artifact} if settings.ui_metadata is not None else {})
    workspace = settings.workspace or ()
    parts = [
        *(settings.tracker_base or ()),
        *workspace,
        *(part for word in (*variables, *words) for part in word),
        *image,
        *values,
    ]
    # The name is kept free whatever kfp compiles the pipeline, so that all name other inputs in the same way.
    taken = (*outputs, TASK_CONFIG) if settings.engine else outputs
    inputs = name_inputs(parameters or {}, settings.sources, parts, taken)
    image_text, planned = plan_inputs(inputs, image, parameters or {})
    field_paths = dict(payload.field_paths)
    if tracked and settings.publication is None:
        field_paths[protocol.PIPELINE_RUN] = protocol.RUN_ID_LABEL
    if tracked:
        variables, words = lifted.variables, lifted.words
    program = payload.program
    if workspace and not engine:
        program = (*workspace_words(render(workspace, inputs)), *program)
    application = Application(
        _encode_words(variables, inputs), _encode_words(words, inputs), program, settings.ui_metadata
    )
    return StagePlan(
        alias=alias,
        stage=stage_name(alias),
        component=component_name(alias),
        description=description or f"TorchX application {app.name}, role {payload.role.name}",
        image=image_text,
        command=_command(application, settings, signature(describe(planned, outputs)), lifted.aliases, inputs),
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


def _command(
    application: Application,
    settings: StageSettings,
    component: str,
    aliases: Sequence[str],
    inputs: Mapping[Reference, str],
) -> tuple[str, ...]:
    """Return the command of a stage.

    ``component`` is the signature of its component; the input ``stage`` has the names ``aliases``.
    """
    if settings.tracker_base is None:
        return application.untracked(component)
    base, stages = render(settings.tracker_base, inputs), reads(settings.sources, aliases, inputs)
    if settings.publication is None:
        return application.tracked(component, base, stages)
    fatal = (NOT_STARTED,) if settings.engine or settings.workspace else ()
    published = settings.publication.outputs(fatal if settings.may_fail else None)
    program = publisher_program(published, inline=settings.inline)
    return application.published(component, base, stages, published, program)


def plan_publisher(settings: StageSettings, name: str, image: str) -> StagePlan:
    """Plan a stage that publishes the records of another stage.

    Args:
        settings: the options of the stage; its one source is the other stage.
        name: the stage's name, unless the settings have one.
        image: an image with python3 and fsspec.
    """
    (source,) = settings.sources.values()
    assert settings.tracker_base is not None
    assert settings.publication is not None
    assert not isinstance(source, CollectedRuns)
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
        stage=stage_name(alias),
        component=component_name(alias),
        description="Results of another stage as outputs of KFP",
        image=image_text,
        command=publish_other(
            signature(describe(planned, outputs)),
            render(settings.tracker_base, inputs),
            source if isinstance(source, str) else parameter_placeholder(inputs[source]),
            published,
            publisher_program(published, inline=settings.inline),
        ),
        inputs=planned,
        outputs=outputs,
        cache=settings.cache,
        secrets=settings.secrets,
    )


def _encode_words(words: Iterable[Parts], inputs: Mapping[Reference, str]) -> list[Word]:
    """Return the words as text for KFP, escaped if an engine would change them."""
    encoded = []
    for parts in words:
        text = render(parts, inputs)
        escaped = is_constant(parts) and find_rewritten(text) is not None
        text = check_word(escape(text) if escaped else text, "An argument or variable, as it is passed on,")
        encoded.append(Word(text, "v" if isinstance(parts[0], Prefix) else "b" if escaped else "s"))
    return encoded
