"""AppDefs, and TorchX component functions, as KFP components."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kfp.dsl import pipeline_context
from torchx import specs

from torchx_kfp.authoring import emit
from torchx_kfp.authoring.channels import contains_channel
from torchx_kfp.authoring.engines import Engine
from torchx_kfp.authoring.functions import call_function
from torchx_kfp.authoring.naming import is_input_name
from torchx_kfp.authoring.options import (
    ComponentOptions,
    Replicas,
    Secrets,
    Trackers,
    Workspace,
    check_names,
    given_outputs,
    read_settings,
)
from torchx_kfp.authoring.outputs import METRICS, Artifacts, Results, UiMetadata
from torchx_kfp.authoring.plan import StagePlan, plan_stage
from torchx_kfp.authoring.reads import ReadSource, check_alias
from torchx_kfp.authoring.references import Reference, parameter
from torchx_kfp.contract.inputs import RUN_ID, TASK_CONFIG
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.errors import AppDefError, ChannelError, OutputsError, ReadsError

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


def component_from_app(
    app: specs.AppDef,
    ui_metadata: UiMetadata | None = None,
    *,
    tracked: bool = False,
    reads: Iterable[str] = (),
    **options: Unpack[ComponentOptions],
) -> emit.StageComponent:
    """Make a KFP component from the AppDef, to be called in pipelines.

    Args:
        app: a static AppDef, without pipeline channels.
        ui_metadata: see ``task_from_app``. It is the second argument, as in TorchX's own adapter.
        tracked: whether the stage records results. The component then has the input ``tracker_base`` and the output
            ``run_id``.
        reads: aliases of the stages that the component reads. Each becomes an input that takes another stage's
            ``run_id``. Implies ``tracked``.
        options: those of ``task_from_app``, except ``tracker_base``. Options that give the stage outputs imply
            ``tracked``; the values of trackers are constants.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
        ChannelError: the app or a tracker's configuration contains a pipeline channel.
        ReadsError: an alias cannot be the name of an input.
        OutputsError: a result or an artifact cannot be an output of KFP.
    """
    check_names("component_from_app", options, ComponentOptions)
    return emit.StageComponent(_plan_component(app, tracked, reads, {**options, "ui_metadata": ui_metadata}))


def component_spec_from_app(
    app: specs.AppDef,
    *,
    tracked: bool = False,
    reads: Iterable[str] = (),
    ui_metadata: UiMetadata | None = None,
    **options: Unpack[ComponentOptions],
) -> str:
    """Return the AppDef as the text of a KFP v2 component file, for ``kfp.components.load_component_from_text``.

    The file contains the whole AppDef. It is a pipeline with one task, because the file of a single component has no
    place for resources and pod settings. Arguments and errors are those of ``component_from_app``.
    """
    check_names("component_spec_from_app", options, ComponentOptions)
    if pipeline_context.Pipeline.get_default_pipeline():
        raise AppDefError(
            "component_spec_from_app compiles a file, which KFP cannot do while a pipeline is being defined. Call it "
            "outside the pipeline function, or use component_from_app or task_from_app inside."
        )
    return emit.component_yaml(_plan_component(app, tracked, reads, {**options, "ui_metadata": ui_metadata}))


def component_from_function(
    fn: Callable[..., specs.AppDef],
    /,
    *,
    tracked: bool = False,
    reads: Iterable[str] = (),
    results: Results | None = None,
    artifacts: Artifacts | None = None,
    trackers: Trackers | None = None,
    secrets: Secrets | None = None,
    cache: bool = True,
    inline: bool = True,
    labels: bool = False,
    engine: Engine | str | None = None,
    replicas: Replicas | None = None,
    may_fail: bool = False,
    workspace: Workspace | None = None,
    **constants: Any,
) -> emit.StageComponent:
    """Make a KFP component from a TorchX component, which is a function that returns an AppDef.

    The function's parameters become inputs with the same names, types, defaults and descriptions (from the docstring),
    except those that are given as constants. The function sees an input as text. It may put it into the entrypoint, the
    args, the values of env and the image, also inside other text; when the component runs, the value is filled in as
    KFP writes it (``true``, ``0.1``, JSON). If the function needs a parameter's value (arithmetic, a comparison, a
    number of replicas), that parameter must be a constant. A parameter with the default None stays None unless it is
    given. The function is called several times.

    Args:
        fn: the function, such as ``torchx.components.utils.echo``.
        tracked: see ``component_from_app``, also for ``reads``. For the other options, see ``task_from_app``. If the
            function has a parameter with the name of an option, the value is passed to that parameter.
        constants: values of parameters; for ``*args``, a list under that name.

    Raises:
        AppDefError: a parameter that must be a constant is not one, or the AppDef cannot become a stage.
        ReadsError: an alias or a parameter has a name that the stage needs.
        OutputsError: a result or an artifact cannot be an output of KFP.
    """
    values = locals()
    defaults = component_from_function.__kwdefaults__ or {}
    given = {name: values[name] for name, default in defaults.items() if values[name] is not default}
    return make_function_component(fn, {}, {**given, **constants})


def make_function_component(
    fn: Callable[..., specs.AppDef], shared: Mapping[str, Any], given: Mapping[str, Any]
) -> emit.StageComponent:
    """Make a KFP component from a TorchX component function.

    Args:
        fn: a function that returns an AppDef.
        shared: options of the stage, even if the function has a parameter with such a name.
        given: constants, and options if the function does not have a parameter with such a name.
    """
    own = {"name", *inspect.signature(fn).parameters}
    known = [option for option in ("tracked", "reads", *ComponentOptions.__annotations__) if option not in own]
    constants = {name: value for name, value in given.items() if name not in known}
    options = {**shared, **{name: value for name, value in given.items() if name in known}}
    app, parameters = call_function(fn, constants, options, known)
    tracked, reads = options.pop("tracked", False), options.pop("reads", ())
    return emit.StageComponent(
        _plan_component(app, tracked, reads, options, parameters=parameters, description=inspect.getdoc(fn))
    )


def _plan_component(
    app: specs.AppDef,
    tracked: bool,
    reads: Iterable[str],
    options: Mapping[str, Any],
    *,
    parameters: Mapping[Reference, object] | None = None,
    description: str | None = None,
) -> StagePlan:
    """Plan a component. The tracker base and the run ids of stages that it reads are inputs, which its caller passes.

    Args:
        app: an AppDef without pipeline channels.
        tracked: see ``component_from_app``.
        reads: see ``component_from_app``.
        options: ``ComponentOptions`` and ``ui_metadata``.
        parameters: further inputs, which the AppDef may contain, and their defaults.
        description: the component's description. The default names the AppDef.
    """
    own = {reference.name for reference in parameters or {}}
    sources = _read_aliases(reads, own)
    taken = {RUN_ID, *sources, *own}
    publishes = given_outputs(options)
    if METRICS in own and publishes:
        raise OutputsError(
            f"The component has an input {METRICS!r}, the name of the artifact that shows results. Rename the input."
        )
    tracked = bool(tracked or sources or publishes)
    if tracked:
        if own & {TRACKER_BASE, RUN_ID}:
            raise ReadsError(
                f"The component has the inputs {sorted(own & {TRACKER_BASE, RUN_ID})}, names that a tracked stage uses "
                "itself. Give these parameters as constants, or rename them."
            )
        taken.add(TRACKER_BASE)
    base = (parameter(TRACKER_BASE, "STRING"),) if tracked else None
    if options.get("engine") is not None and TASK_CONFIG in taken:
        raise AppDefError(
            f"The component has the input {TASK_CONFIG!r}, the name of the input through which a stage with an engine "
            "gets the settings of its task. Give it as a constant, or rename it."
        )
    settings = read_settings(options, base, sources, taken=taken)
    plan = plan_stage(app, settings, parameters=parameters, description=description)
    for key, planned in plan.inputs.items():
        if planned.argument is not None and not isinstance(planned.argument, str):
            given = {"trackers": dict(options.get("trackers") or {}), "replicas": settings.replicas}
            holders = [name for name, option in given.items() if contains_channel(option)]
            raise ChannelError(
                f"{holders[0] if holders else f'AppDef {app.name!r}'} contains the pipeline channel {key!r}. A "
                "component needs a static AppDef and static options, because any pipeline can use it. Call "
                "task_from_app in the pipeline function instead."
            )
    return plan


def _read_aliases(reads: object, own: Collection[str]) -> dict[str, ReadSource]:
    """Return an input for each alias of a stage that is read; ``own`` are the names of other inputs."""
    if isinstance(reads, str | Mapping) or not isinstance(reads, Iterable):
        raise ReadsError(f"reads of a component must be a list of aliases. Got {reads!r}. Write reads=['train'].")
    sources: dict[str, ReadSource] = {}
    for alias in reads:
        check_alias(alias)
        if not is_input_name(alias) or alias in (TRACKER_BASE, RUN_ID, *own):
            raise ReadsError(
                f"reads has the alias {alias!r}, which cannot be an input of a component. Use a Python identifier that "
                f"is not a keyword, other than {TRACKER_BASE!r}, {RUN_ID!r}, 'self' and the names of other inputs."
            )
        if alias in sources:
            raise ReadsError(f"reads has the alias {alias!r} twice. Give each stage its own alias.")
        sources[alias] = parameter(alias, "STRING")
    return sources
