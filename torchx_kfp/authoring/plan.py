"""Plan a stage: an AppDef and its options become pure data. No function here changes its arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torchx import specs

from torchx_kfp.authoring.appdef import check_app, check_name
from torchx_kfp.authoring.application import Application, env_words, single_application
from torchx_kfp.authoring.channels import parse_checked
from torchx_kfp.authoring.engines import parse_engine
from torchx_kfp.authoring.naming import component_name, stage_name
from torchx_kfp.authoring.options import PROTOCOL_VARIABLES, Secrets, StageOptions, check_variables
from torchx_kfp.authoring.outputs import parse_outputs
from torchx_kfp.authoring.reads import Readable, TrackerBase, is_list, parse_reads, parse_tracker_base
from torchx_kfp.authoring.references import Reference, Text
from torchx_kfp.authoring.rendering import Renderer, digest
from torchx_kfp.authoring.replicas import launcher
from torchx_kfp.contract import command
from torchx_kfp.contract.command import Outputs
from torchx_kfp.contract.inputs import RUN_ID, STAGE, TASK_CONFIG, stage_value
from torchx_kfp.contract.scripts import OF_LAUNCHER, OF_MAY_FAIL, OF_PUBLISHER
from torchx_kfp.errors import AppDefError


@dataclass(frozen=True)
class StagePlan:
    """The facts about a stage from which its KFP component and task are made.

    ``name`` is the stage's name as it was given, ``component`` its name in KFP. ``image`` and ``command`` are text for
    KFP. ``tracker_base`` is the option; for a component, a reference to its parameter. ``parameters`` are KFP's inputs,
    ``outputs`` maps names to the Python types of parameters, or to classes of artifacts. ``pod`` says what the pod is
    like, and ``secrets`` maps secrets to their keys and variables.
    """

    name: str
    component: str
    description: str
    image: str
    tracker_base: TrackerBase | None
    command: tuple[str, ...]
    parameters: Mapping[str, Reference]
    outputs: Mapping[str, type]
    pod: Application
    secrets: Secrets
    cache: bool


def plan_stage(
    app: specs.AppDef,
    options: StageOptions | None = None,
    *,
    parameters: Sequence[Reference] = (),
    description: str | None = None,
) -> StagePlan:
    """Plan the stage that runs the app.

    Args:
        app: an AppDef. Without an engine, it has one role and one replica.
        options: the options of the stage.
        parameters: parameters of the component, even unused ones.
        description: the component's description. The default names the AppDef.
    """
    options = options or StageOptions()
    check_app(app)
    if options.tracker_base is None:
        needing = {"reads": options.reads, "trackers": options.trackers}
        for what in (*(name for name, value in needing.items() if value), *options.publishing):
            raise AppDefError(
                f"{what} needs a tracker base, under which results are stored: Stages(tracker_base=...).task(app, "
                f"{what}=...), task_from_app(app, tracker_base=..., {what}=...), or component_from_app(app, "
                f"tracked=True, {what}=...)."
            )
    name = _stage_name(options, app.name)
    main, engine = app.roles[0], parse_engine(options.engine)
    application = launcher(app, options, engine, name) if engine else single_application(app, options)
    variables = env_words(application, f"role {main.name!r}", first=options.tracker_base is None)
    description = description or f"TorchX application {app.name}, role {main.name}"
    return _plan(options, name, description, application, variables, parameters)


def plan_publisher(options: StageOptions, stage: Readable, name: str, image: str) -> StagePlan:
    """Plan a stage that publishes the records of another stage, and runs no application.

    Args:
        options: the options of the publishing stage.
        stage: the other stage.
        name: the publishing stage's name, unless the options have one.
        image: an image with python3 and fsspec.
    """
    (run,) = parse_reads({STAGE: stage}).values()
    if isinstance(run, tuple) or is_list(run):
        raise AppDefError("publish_results publishes one stage and got several. Publish each inside its loop.")
    if not parse_tracker_base(options.tracker_base):
        raise AppDefError(
            "publish_results needs the tracker base of a stage that is not a task of task_from_app: "
            "publish_results(run_id, ..., tracker_base=...)."
        )
    check_variables({}, options.secrets or {}, PROTOCOL_VARIABLES, "the publisher")
    if image == "":
        raise AppDefError(
            "publish_results has no image. Name one with python3 and fsspec, such as components/publisher."
        )
    application = Application(image=parse_checked(image, "image"))
    description = "Results of another stage as outputs of KFP"
    return _plan(options, _stage_name(options, name), description, application, run=run)


def _stage_name(options: StageOptions, default: str) -> str:
    name = default if options.name is None else options.name
    check_name(name, "The stage's name")
    return name


def _plan(
    options: StageOptions,
    name: str,
    description: str,
    application: Application,
    variables: Sequence[Text] = (),
    parameters: Sequence[Reference] = (),
    run: Reference | str | None = None,
) -> StagePlan:
    """Plan a stage in three steps, each of which needs all of the one before.

    1. The outputs get their names. Parameters get those that are left.
    2. Each text is rendered. That adds the parameters to which it refers.
    3. The command is made, whose digest and values depend on all parameters and outputs.

    ``run`` is the run whose records the stage publishes instead of its own, which it then does not have.
    """
    tracked = options.tracker_base is not None
    outputs: dict[str, type] = {RUN_ID: str} if tracked else {}
    # Only kfp 2.15 and newer give a launcher this parameter, but with older versions the others get the same names.
    taken = [RUN_ID, *([TASK_CONFIG] if application.is_launcher else [])]
    published = None
    if options.publishing:
        # The program that publishes results also records the exit code of a stage that may fail.
        names = [*taken, *(reference.name for reference in parameters)]
        types, published = parse_outputs(options.results, options.artifacts, names)
        if options.may_fail:
            published = replace(published, may_fail=application.failures)
        outputs |= types

    renderer = Renderer(parameters, [*taken, *outputs])
    sources = parse_reads(options.reads)
    parents = renderer.render_reads(sources, by_alias=isinstance(options.reads, Mapping))
    run_id = "" if run is None else renderer.render_run_id(run, STAGE)
    base = renderer.render(parse_tracker_base(options.tracker_base))
    publisher = command.carried_program("publisher", inline=options.inline)
    starter = [*(published.words(publisher) if published else ()), *map(renderer.render, application.starter)]
    words, mask, moved = renderer.render_words(variables, starter, application.words, move=tracked)
    image = renderer.render_image(application.image)

    values = ""
    if tracked and run is None:
        values = renderer.add_text(STAGE, stage_value(stage_name(name), sources, moved))
    return StagePlan(
        name=name,
        component=component_name(name),
        description=description,
        image=image,
        tracker_base=options.tracker_base,
        command=command.encode(
            digest(renderer.parameters, outputs),
            words,
            mask,
            needs_python=_needs_python(application, published),
            tracker_base=base,
            run_id=run_id,
            has_outputs=published is not None,
            values=values,
            parents=parents,
        ),
        parameters=renderer.parameters,
        outputs=outputs,
        pod=application,
        secrets=options.secrets or {},
        cache=options.cache,
    )


def _needs_python(application: Application, published: Outputs | None) -> str:
    """Return the message for an image without python3; empty if the stage does not need it."""
    if "PATH" in application.env:
        return ""  # the script does not know where the application's programs are
    if application.is_launcher:
        return OF_LAUNCHER
    if published is None:
        return ""
    return OF_PUBLISHER if published.may_fail is None else OF_MAY_FAIL
