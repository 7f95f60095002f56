"""Plan a stage: an AppDef and its options become pure data. No function here changes its arguments."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from kfp import dsl
from torchx import specs

from torchx_kfp.authoring.appdef import (
    Resources,
    check_app,
    check_name,
    parse_node_selector,
    parse_resources,
    parse_volumes,
)
from torchx_kfp.authoring.channels import parse_checked
from torchx_kfp.authoring.component_inputs import Input, describe, name_inputs, parent_words, plan_inputs
from torchx_kfp.authoring.engines import parse_engine
from torchx_kfp.authoring.naming import component_name, stage_name
from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.authoring.outputs import parse_outputs, parse_ui_metadata
from torchx_kfp.authoring.program import (
    LAUNCHER_FAILED,
    env_words,
    parse_workspace,
    pod_labels,
    pod_program,
    publisher_program,
    role_workspace,
)
from torchx_kfp.authoring.reads import CollectedRuns, ReadSource, parse_reads, parse_tracker_base
from torchx_kfp.authoring.references import Reference, Text
from torchx_kfp.authoring.replicas import launcher_program, publisher_volumes
from torchx_kfp.authoring.variables import PROTOCOL_VARIABLES, Secrets, check_variables, tracker_env
from torchx_kfp.authoring.words import encode_word, render, split_constants
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import UI_METADATA, Application, publish_other
from torchx_kfp.contract.inputs import (
    RUN_ID,
    STAGE,
    TASK_CONFIG,
    encode_aliases,
    encode_value,
    join_values,
    parameter_placeholder,
)
from torchx_kfp.contract.scripts import component_digest, workspace_words
from torchx_kfp.errors import AppDefError, ReadsError


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
    options: StageOptions | None = None,
    *,
    parameters: Mapping[Reference, object] | None = None,
    description: str | None = None,
) -> StagePlan:
    """Plan the stage that runs the app.

    Args:
        app: an AppDef. Without an engine, it has one role and one replica.
        options: the options of the stage.
        parameters: inputs of the component, even unused ones, and their defaults (``NO_DEFAULT`` if there is none).
        description: the component's description. The default names the AppDef.
    """
    options = options or StageOptions()
    check_app(app)
    alias = app.name if options.name is None else options.name
    check_name(alias, "The stage's name")
    tracked = options.tracker_base is not None
    if tracker_env(options.trackers) and options.trackers and not tracked:
        raise AppDefError(
            f"trackers names {', '.join(map(repr, options.trackers))} for a stage that is not tracked. Give it a "
            "tracker base: Stages(tracker_base=...).task(app), task_from_app(app, tracker_base=...), or "
            "component_from_app(app, tracked=True)."
        )
    base, sources = parse_tracker_base(options.tracker_base), parse_reads(options.reads)
    engine = parse_engine(options.engine)
    program = launcher_program(app, options, engine, alias) if engine else pod_program(app, options)
    main = app.roles[0]
    where = f"role {main.name!r}"
    workspace = (parse_workspace(options.workspace) if engine else role_workspace(main, options)) or ()
    image = parse_checked((engine and engine.launcher_image) or main.image, f"image of {where}")

    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    published = None
    if options.publishing:
        given = (part.name for part in _references(parameters or {}, base, sources) if part.argument is None)
        # The program that publishes results also records the exit code of a stage that may fail.
        types, published = parse_outputs(
            options.results, options.artifacts, [RUN_ID, *([TASK_CONFIG] if engine else []), *given]
        )
        if options.may_fail:
            published = replace(published, may_fail=(LAUNCHER_FAILED,) if engine or workspace else ())
        outputs |= types
    ui_metadata = parse_ui_metadata(options.ui_metadata)
    if ui_metadata is not None:
        outputs[UI_METADATA] = dsl.Artifact

    variables = env_words(program, where, first=not tracked)
    words = [*variables, *program.words]
    shared = program.env.keys() - main.env.keys()
    split = split_constants(words, len(variables), shared) if tracked else [None] * len(words)
    values = [encode_value(found[1]) for found in split if found]
    stage = join_values(stage_name(alias), encode_aliases(sources), values)
    own = Reference("stage", stage, STAGE, "STRING")

    parts = [*base, *workspace, *itertools.chain.from_iterable(words), *image, *([own] if tracked else ())]
    # The name is kept free whatever kfp compiles the pipeline, so that all name other inputs in the same way.
    inputs = name_inputs(parameters or {}, sources, parts, (*outputs, TASK_CONFIG) if engine else outputs)
    image_text, planned = plan_inputs(inputs, image, parameters or {})

    encoded = [encode_word(word, inputs, found) for word, found in zip(words, split, strict=True)]
    unpack = workspace_words(render(workspace, inputs)) if workspace and not engine else ()
    application = Application(
        encoded[: len(variables)],
        encoded[len(variables) :],
        (*unpack, *program.starter),
        ui_metadata,
        published,
        publisher_program(inline=options.inline),
    )
    digest = component_digest(describe(planned, outputs))
    if tracked:
        command = application.tracked(
            digest, render(base, inputs), parent_words(sources, inputs), parameter_placeholder(inputs[own])
        )
    else:
        command = application.untracked(digest)
    needs_run = {protocol.PIPELINE_RUN: protocol.RUN_ID_LABEL} if tracked and not published else {}
    return StagePlan(
        alias=alias,
        stage=stage_name(alias),
        component=component_name(alias),
        description=description or f"TorchX application {app.name}, role {main.name}",
        image=image_text,
        command=command,
        inputs=planned,
        outputs=outputs,
        resources=Resources() if engine else parse_resources(main),
        cache=options.cache,
        labels=pod_labels(app, main, alone=True) if options.labels else {},
        field_paths={**program.field_paths, **needs_run},
        node_selector={} if engine else parse_node_selector(main),
        volumes=publisher_volumes(main, options) if engine else parse_volumes(main),
        task_config=TASK_CONFIG if engine and hasattr(dsl, "TaskConfig") else None,
        has_volumes=not engine or bool(options.publishing),
        secrets=options.secrets or {},
    )


def _references(parameters: Iterable[Reference], base: Text, sources: Mapping[str, ReadSource]) -> Iterator[Reference]:
    """Yield the references to inputs of the stage's component that are not in its AppDef."""
    yield from parameters
    for part in (*base, *sources.values()):
        if isinstance(part, Reference):
            yield part


def plan_publisher(options: StageOptions, name: str, image: str) -> StagePlan:
    """Plan a stage that publishes the records of another stage.

    Args:
        options: the options of the stage, which reads the other stage.
        name: the stage's name, unless the options have one.
        image: an image with python3 and fsspec.
    """
    base, sources = parse_tracker_base(options.tracker_base), parse_reads(options.reads)
    (source,) = sources.values()
    if isinstance(source, CollectedRuns):
        raise ReadsError("publish_results publishes one stage and got several. Publish each inside its loop.")
    if not base:
        raise ReadsError(
            "publish_results needs the tracker base of a stage that is not a task of task_from_app: "
            "publish_results(run_id, ..., tracker_base=...)."
        )
    alias = name if options.name is None else options.name
    check_name(alias, "The stage's name")
    check_variables(options.secrets or {}, (), PROTOCOL_VARIABLES, "the publisher")
    if image == "":
        raise AppDefError("publish_results has no image. Name one with python3 and fsspec, such as images/publisher.")
    parts = parse_checked(image, "image")
    types, published = parse_outputs(options.results or {}, options.artifacts)
    outputs = {RUN_ID: str, **types}
    inputs = name_inputs({}, sources, [*base, *parts], outputs)
    image_text, planned = plan_inputs(inputs, parts)
    return StagePlan(
        alias=alias,
        stage=stage_name(alias),
        component=component_name(alias),
        description="Results of another stage as outputs of KFP",
        image=image_text,
        command=publish_other(
            component_digest(describe(planned, outputs)),
            render(base, inputs),
            source if isinstance(source, str) else parameter_placeholder(inputs[source]),
            published,
            publisher_program(inline=options.inline),
        ),
        inputs=planned,
        outputs=outputs,
        cache=options.cache,
        secrets=options.secrets or {},
    )
