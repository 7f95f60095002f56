"""Plan a stage: an AppDef and its options become pure data. No function here changes its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kfp import dsl
from torchx import specs

from torchx_kfp.authoring.appdef import check_app, check_name
from torchx_kfp.authoring.channels import parse_checked
from torchx_kfp.authoring.component_inputs import Input, Inputs, describe
from torchx_kfp.authoring.engines import parse_engine
from torchx_kfp.authoring.naming import component_name, stage_name
from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.authoring.outputs import parse_outputs, parse_ui_metadata
from torchx_kfp.authoring.program import Program, env_words, pod_labels, pod_program, publisher_program
from torchx_kfp.authoring.reads import is_list, parse_reads, parse_tracker_base
from torchx_kfp.authoring.references import Reference
from torchx_kfp.authoring.replicas import launcher_program
from torchx_kfp.authoring.variables import PROTOCOL_VARIABLES, Secrets, check_variables
from torchx_kfp.authoring.words import encode
from torchx_kfp.contract.command import UI_METADATA, Application, publish_other
from torchx_kfp.contract.inputs import RUN_ID, STAGE, TASK_CONFIG, encode_aliases, join_values
from torchx_kfp.contract.scripts import component_digest
from torchx_kfp.errors import AppDefError, ReadsError


@dataclass(frozen=True)
class StagePlan:
    """The facts about a stage from which its KFP component and task are made.

    ``alias`` is the stage's name as it was given, ``stage`` its part of run ids, and ``component`` its name in KFP.
    ``outputs`` maps names to the Python types of parameters, or to classes of artifacts. ``secrets`` maps secrets to
    their keys and variables. ``image`` and ``command`` are text for KFP; ``program`` has the settings of the pod.
    """

    alias: str
    stage: str
    component: str
    description: str
    image: str
    command: tuple[str, ...]
    inputs: Mapping[str, Input]
    outputs: Mapping[str, type]
    program: Program
    cache: bool
    secrets: Secrets
    labels: Mapping[str, str] = field(default_factory=dict)


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
    if options.trackers and not tracked:
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

    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    # The name of a launcher's input is kept free whatever kfp compiles the pipeline, so that all name others the same.
    taken = [RUN_ID, *([] if program.task_config is None else [TASK_CONFIG])]
    published = None
    if options.publishing:
        # The program that publishes results also records the exit code of a stage that may fail.
        types, published = parse_outputs(
            options.results, options.artifacts, [*taken, *(reference.name for reference in parameters or {})]
        )
        if options.may_fail:
            published = replace(published, may_fail=program.failures)
        outputs |= types
    ui_metadata = parse_ui_metadata(options.ui_metadata)
    if ui_metadata is not None:
        outputs[UI_METADATA] = dsl.Artifact

    inputs = Inputs(parameters or {}, [*taken, *outputs])
    parents, base_text = inputs.render_reads(sources), inputs.render(base)
    starter = tuple(map(inputs.render, program.starter))
    variables = env_words(program, where, first=not tracked)
    shared = program.env.keys() - main.env.keys() if tracked else None
    words = encode([*variables, *program.words], len(variables), inputs, shared)
    image = inputs.render_image(program.image)
    application = Application(
        words[: len(variables)],
        words[len(variables) :],
        starter,
        ui_metadata,
        published,
        publisher_program(inline=options.inline),
    )
    if tracked:
        values = [word.value for word in words if word.kind == "v"]
        stage = inputs.add_text(STAGE, join_values(stage_name(alias), encode_aliases(sources), values))
        command = application.tracked(_digest(inputs, outputs), base_text, parents, stage)
    else:
        command = application.untracked(_digest(inputs, outputs))
    return StagePlan(
        alias=alias,
        stage=stage_name(alias),
        component=component_name(alias),
        description=description or f"TorchX application {app.name}, role {main.name}",
        image=image,
        command=command,
        inputs=inputs.planned,
        outputs=outputs,
        program=program,
        cache=options.cache,
        secrets=options.secrets or {},
        labels=pod_labels(app, main, alone=True) if options.labels else {},
    )


def _digest(inputs: Inputs, outputs: Mapping[str, type]) -> str:
    return component_digest(describe(inputs.planned, outputs))


def plan_publisher(options: StageOptions, name: str, image: str) -> StagePlan:
    """Plan a stage that publishes the records of another stage.

    Args:
        options: the options of the stage, which reads the other stage.
        name: the stage's name, unless the options have one.
        image: an image with python3 and fsspec.
    """
    base, sources = parse_tracker_base(options.tracker_base), parse_reads(options.reads)
    (source,) = sources.values()
    if is_list(source):
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
        raise AppDefError(
            "publish_results has no image. Name one with python3 and fsspec, such as components/publisher."
        )
    parts = parse_checked(image, "image")
    types, published = parse_outputs(options.results or {}, options.artifacts)
    outputs = {RUN_ID: str, **types}
    inputs = Inputs({}, outputs)
    (run_id,) = inputs.render_reads(sources)
    base_text, image_text = inputs.render(base), inputs.render_image(parts)
    return StagePlan(
        alias=alias,
        stage=stage_name(alias),
        component=component_name(alias),
        description="Results of another stage as outputs of KFP",
        image=image_text,
        command=publish_other(
            _digest(inputs, outputs),
            base_text,
            run_id[1:-1],
            published,
            publisher_program(inline=options.inline),
        ),
        inputs=inputs.planned,
        outputs=outputs,
        program=Program(),
        cache=options.cache,
        secrets=options.secrets or {},
    )
