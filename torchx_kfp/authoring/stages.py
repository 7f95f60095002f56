"""The public functions: make tasks and components from AppDefs, with the options of ``Stages``."""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from kfp import dsl, kubernetes
from kfp.dsl import pipeline_context
from kfp.local import config
from torchx import specs

from torchx_kfp.authoring import emit
from torchx_kfp.authoring.channels import contains_channel, parse
from torchx_kfp.authoring.emit import StageComponent
from torchx_kfp.authoring.functions import call_function
from torchx_kfp.authoring.naming import component_name, is_input_name
from torchx_kfp.authoring.options import Artifacts, Results, StageOptions, is_artifact_class
from torchx_kfp.authoring.plan import StagePlan, plan_publisher, plan_stage
from torchx_kfp.authoring.python import OF_KFP, function_app, returned_results
from torchx_kfp.authoring.reads import Readable, check_alias, outputs_of
from torchx_kfp.authoring.references import Channel, Reference, parameter
from torchx_kfp.common.signatures import with_keywords
from torchx_kfp.common.text import did_you_mean, listed, shown
from torchx_kfp.contract.inputs import TASK_CONFIG
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.contract.protocol import WORKSPACE_PARAMETER
from torchx_kfp.errors import AppDefError

#: The options of stages that call functions. Other stages have them in their AppDefs.
_OF_FUNCTIONS = ("image", "env", "resource")
#: The options of a stage that publishes results.
_OF_PUBLISHER = ("cache", "inline", "secrets", "tracker_base")
#: The descriptions of parameters in KFP's UI.
_PARAMETERS = {
    TRACKER_BASE: "Where the stage records its results, such as s3://bucket/results.",
    WORKSPACE_PARAMETER: "The URL of the code's archive, as torchx-kfp stores it.",
}
_Options = ParamSpec("_Options")
_Result = TypeVar("_Result")


def _takes(
    kind: Callable[_Options, object],
) -> Callable[[Callable[..., _Result]], Callable[Concatenate[Any, specs.AppDef, _Options], _Result]]:
    """Show the options of this class in the signature of a method with an app and options."""
    return with_keywords(inspect.signature(kind).parameters.values())


@dataclass(frozen=True, kw_only=True, eq=False)
class Stages(StageOptions):
    """Options that stages share, and methods that make stages with them.

    In a pipeline function::

        stages = Stages(tracker_base=tracker_base)
        prepared = stages.task(prepare)
        stages.task(train, reads=prepared, results={"accuracy": float})

    ``image``, ``env`` and ``resource`` apply to stages that call functions: ``Stages(image=IMAGE).python(fit)``.

    A module can share options that do not depend on a pipeline, and its pipelines add others::

        STAGES = Stages(secrets={"s3": {"id": "AWS_ACCESS_KEY_ID", "key": "AWS_SECRET_ACCESS_KEY"}})
        convert = STAGES.component(app, tracked=True)

        @dsl.pipeline
        def pipeline(tracker_base: str):
            stages = STAGES.with_options(tracker_base=tracker_base)

    An option of a method replaces the shared one. ``Stages`` are immutable; ``with_options`` returns new ones.
    """

    image: str | Channel | None = None
    env: Mapping[str, str | Channel] | None = None
    resource: specs.Resource | None = None

    def __new__(cls, **options: Any) -> Stages:
        for name in options:
            if name not in cls.__dataclass_fields__:
                hint = did_you_mean(name, cls.__dataclass_fields__) or f" {OF_KFP}"
                raise TypeError(f"Stages got an unexpected keyword argument {name!r}.{hint}")
        return super().__new__(cls)

    def with_options(self, **options: Any) -> Stages:
        """Return ``Stages`` with these options added or replaced."""
        return replace(self, **options)

    def _with(self, method: str, options: Mapping[str, Any]) -> Stages:
        """Return ``Stages`` with the options of a method that makes a stage from an AppDef."""
        for name in options:
            if name in _OF_FUNCTIONS:
                raise TypeError(f"{method}() got an unexpected keyword argument {name!r}: set it in the AppDef's role.")
        return self.with_options(**options)

    @_takes(StageOptions)
    def task(self, app: specs.AppDef, **options: Any) -> dsl.PipelineTask:
        """Make a task from an AppDef, in the pipeline that is being defined.

        The entrypoint, args and values of env may be channels or text with channels inside. The image may be a channel.

        Args:
            app: an AppDef. Several roles or replicas need an engine.
            options: those of ``StageOptions``.

        Returns:
            The task. If it is tracked, it has the output ``run_id`` and an output for each declared result and
            artifact. In output names, characters other than ASCII letters, digits and ``_`` become ``_``: the result
            ``l2norm/mean`` is the output ``l2norm_mean``.

        Raises:
            AppDefError: the app or an option cannot be translated without loss.
        """
        stage = self._with("task", options)
        _check_in_pipeline("task_from_app", "component_from_app makes components anywhere")
        task = emit.make_task(plan_stage(app, stage))
        if (outputs := outputs_of(task)) is not None:
            outputs.made_of = app, stage
        return task

    def python(
        self,
        function: Callable[..., Any],
        /,
        **options_and_arguments: Any,
    ) -> dsl.PipelineTask:
        """Make a task that calls a function of a module, and records its return value.

        In a pipeline function, with ``train.py`` beside its file::

            trained = stages.python(train.fit, image=IMAGE, rate=rate)
            stages.python(train.judge, image=IMAGE, reads=trained)

        The application is ``python -m torchx_kfp.tracking.call -m train fit rate=0.1``. It imports the module from the
        workspace or the image, which needs torchx-kfp. Parameters are annotated with str, int, float, bool, list or
        dict. A parameter that is not passed gets the result with its name from a parent, or its default. If it has the
        name of a parent and is annotated with dict or not at all, it gets everything that the parent returned: see
        ``torchx_kfp.tracking.call``. The return value is recorded: a mapping as results by name, any other value as one
        result with the function's name. The annotation ``-> float``, or the fields of a ``TypedDict``, declare results
        as outputs.

        Args:
            function: a function at the top level of a module.
            options_and_arguments: ``image``, with python and torchx-kfp, which may be a channel; ``env``, the variables
                of its process, whose values may be channels; ``resource``, the resources of its pod; the options of
                ``task``; and arguments of the function by name: constants, channels, or text with channels inside.

        Raises:
            AppDefError: a stage cannot import the function or record what it returns, an argument has no parameter or
                the wrong type, or an option is wrong.
        """
        known = [option.name for option in fields(Stages)]
        own = {name: value for name, value in options_and_arguments.items() if name in known}
        arguments = {name: value for name, value in options_and_arguments.items() if name not in known}
        role = {name: own.pop(name, getattr(self, name)) for name in _OF_FUNCTIONS}
        app = function_app(function, arguments, known, **role, reads=own.get("reads"))
        declared = returned_results(function)
        if declared and own.get("tracker_base", self.tracker_base) is not None:
            own = {"results": declared, **own}
        # The image has torchx-kfp, so the command does not need to carry its programs.
        return self.task(app, **{"inline": False, **own})

    def publish(
        self,
        task: Readable,
        results: Results | None = None,
        *,
        image: str | Channel,
        artifacts: Artifacts | None = None,
        name: str | None = None,
        **shared: Any,
    ) -> dsl.PipelineTask:
        """Make a task that publishes the records of a stage whose image lacks Python.

        Args:
            task: a tracked task, or a channel or string that is an execution id.
            results: see ``StageOptions``.
            image: an image with python3 (3.8 or newer), fsspec and the storage's driver, such as s3fs.
            artifacts: see ``StageOptions``.
            name: the stage's name. The default is ``publish-`` followed by the other stage's name.
            shared: ``tracker_base`` of that stage, which a task already has but an execution id needs; ``secrets``,
                ``cache`` and ``inline``. Other options of ``Stages`` do not apply.

        Returns:
            The task, with an output for each declared result and artifact, the artifact ``metrics``, and the other
            stage's ``run_id``: a stage that reads this task reads that stage.

        Raises:
            AppDefError: the task is not tracked, the tracker base is not known, or a result or an artifact cannot be an
                output of KFP.
        """
        _check_in_pipeline("publish_results", "it publishes the records of a task of that pipeline")
        given = {option: shared.pop(option, getattr(self, option)) for option in _OF_PUBLISHER}
        if shared:
            raise TypeError(f"publish() got an unexpected keyword argument {min(shared)!r}")
        known = outputs_of(task)
        if given["tracker_base"] is None and known is not None:
            given["tracker_base"] = known.tracker_base
        declared = {} if results is None else results
        stage = StageOptions(results=declared, artifacts=artifacts, name=name, **given)
        return emit.make_task(plan_publisher(stage, task, f"publish-{known.stage}" if known else "publish", image))

    def component(
        self,
        app: specs.AppDef,
        *,
        tracked: bool = False,
        reads: Iterable[str] = (),
        **options: Any,
    ) -> StageComponent:
        """Make a KFP component from an AppDef, to be called in pipelines.

        Args:
            app: a static AppDef, without pipeline channels.
            tracked: whether the stage records results. If so, the component has the input ``tracker_base`` and the
                output ``run_id``.
            reads: aliases of the stages that the component reads. Each is an input for another stage's ``run_id``.
                Implies ``tracked``.
            options: those of ``task``, except ``tracker_base``, with constant values. Options that give the stage
                outputs imply ``tracked``.

        Raises:
            AppDefError: the app or an option cannot be translated without loss, or a tracker base is shared, which a
                component takes as an input.
        """
        return StageComponent(self._plan_component(app, tracked, reads, options))

    def component_from_function(
        self, fn: Callable[..., specs.AppDef], /, **options_and_constants: Any
    ) -> StageComponent:
        """Make a KFP component from a TorchX component: a function that returns an AppDef.

        The function's parameters become inputs with the same names, types, defaults and descriptions (from the
        docstring), unless they are given as constants. The function gets an input as text. It may put the text into the
        entrypoint, args, values of env and the image, even inside other text. When the component runs, KFP fills in
        the value (``true``, ``0.1``, JSON). If the function needs a parameter's value (for arithmetic, a comparison, a
        number of replicas), that parameter must be a constant. A parameter with the default None stays None unless it
        is given. The function is called several times.

        Args:
            fn: the function, such as ``torchx.components.utils.echo``.
            options_and_constants: options of ``component``, except ``name``, and values of parameters; for ``*args``, a
                list with that name. If an option and a parameter have the same name, it is the parameter.

        Raises:
            AppDefError: a parameter must be a constant or has a name that the stage needs, or the AppDef or an option
                cannot be translated without loss.
        """
        try:
            names = inspect.signature(fn).parameters.keys()
        except (TypeError, ValueError) as error:
            raise AppDefError(
                f"component_from_function takes a function that returns an AppDef, but got {shown(fn)}: {error}."
            ) from None
        reserved = {"name", TRACKER_BASE, *names}
        known = [
            name for name in ("tracked", *(option.name for option in fields(StageOptions))) if name not in reserved
        ]
        options = {name: value for name, value in options_and_constants.items() if name in known}
        constants = {name: value for name, value in options_and_constants.items() if name not in known}
        app, parameters = call_function(fn, constants, known)
        tracked, reads = options.pop("tracked", False), options.pop("reads", ())
        described = fn.func if isinstance(fn, functools.partial) else fn
        plan = self._plan_component(app, tracked, reads, options, parameters, description=inspect.getdoc(described))
        return StageComponent(plan, constants=names - plan.parameters.keys())

    def _plan_component(
        self,
        app: specs.AppDef,
        tracked: bool,
        reads: Iterable[str],
        options: Mapping[str, Any],
        parameters: Sequence[Reference] = (),
        description: str | None = None,
    ) -> StagePlan:
        """Plan a component. Its caller passes the tracker base and the execution ids of parents as inputs.

        ``parameters`` are further inputs, to which the AppDef may refer.
        """
        stage = self._with("component", options)
        if stage.tracker_base is not None:
            raise AppDefError(
                f"A component takes its tracker base as an input, but {str(stage.tracker_base)!r} is given here. Use "
                "Stages without it, and pass it when you call the component: component(tracker_base=...)."
            )
        if isinstance(reads, str | Mapping) or not isinstance(reads, Iterable):
            raise AppDefError(f"reads of a component must be a list of aliases. Got {reads!r}. Write reads=['train'].")
        aliases = [check_alias(alias) for alias in reads]
        if not isinstance(tracked, bool):
            raise AppDefError(f"tracked is {tracked!r}, but must be True or False.")
        tracked = tracked or bool(aliases or stage.publishing)
        names = [*(reference.name for reference in parameters), *aliases]
        if tracked:
            sources: Any = {alias: parameter(alias, "STRING") for alias in aliases}
            base: Any = parameter(TRACKER_BASE, "STRING")
            stage = replace(stage, tracker_base=base, reads=sources)
            parameters = [*parameters, *sources.values(), base]
        plan = plan_stage(app, stage, parameters=parameters, description=description)
        of_engine = [TASK_CONFIG] if plan.pod.task_config else []
        _check_inputs(names, aliases, [*([TRACKER_BASE] if tracked else []), *plan.outputs, *of_engine])
        for key, planned in plan.parameters.items():
            if planned.argument is not None and not isinstance(planned.argument, str):
                holders = [name for name in ("trackers", "replicas") if contains_channel(getattr(stage, name))]
                raise AppDefError(
                    f"{holders[0] if holders else f'AppDef {app.name!r}'} contains the pipeline channel {key!r}. A "
                    "component needs a static AppDef and static options, because any pipeline can use it. Call "
                    "task_from_app in the pipeline function instead."
                )
        return plan


# That of ``__new__`` hides the names.
vars(Stages.__new__)["__signature__"] = inspect.signature(Stages.__init__)
_STAGES = Stages()
task_from_app = _STAGES.task
component_from_app = _STAGES.component
publish_results = _STAGES.publish
component_from_function = _STAGES.component_from_function


def component_spec_from_app(app: specs.AppDef, **options: Any) -> str:
    """Return the text of a KFP v2 component file for an AppDef, for ``kfp.components.load_component_from_text``.

    The file contains the whole AppDef. It is a pipeline with one task, because the file of a single component cannot
    hold resources and pod settings. Arguments and errors are those of ``Stages.component``.
    """
    if pipeline_context.Pipeline.get_default_pipeline():
        raise AppDefError(
            "component_spec_from_app compiles a file, which KFP cannot do while a pipeline is being defined. Call it "
            "outside the pipeline function, or use component_from_app or task_from_app inside."
        )
    return emit.component_yaml(_STAGES.component(app, **options))


def artifact_from_uri(
    uri: str | Channel, artifact_class: type[dsl.Artifact] = dsl.Artifact, *, metadata: Mapping[str, Any] | None = None
) -> Any:
    """Make a KFP artifact with this URI, for KFP's own components and for KFP's lineage.

    If a stage registers an artifact by its URL, KFP's artifact has the URI of a small file that names the URL. An
    artifact of this function has the URI itself::

        evaluated = task_from_app(app, tracker_base=tracker_base, results={"model_uri": str})
        deploy(model=artifact_from_uri(evaluated.outputs["model_uri"], dsl.Model))

    Before a component that takes it starts, KFP downloads it with the credentials of the ConfigMap ``kfp-launcher``. If
    they do not grant access, the component fails.

    Args:
        uri: the URI, such as ``s3://models/7``: a constant, or an output, a parameter or a loop item that is a string.
        artifact_class: ``dsl.Model``, ``dsl.Dataset`` or another artifact class.
        metadata: the artifact's metadata, which must be constants.

    Returns:
        The artifact, to pass to a component.

    Raises:
        AppDefError: the metadata contains a channel, or an argument has the wrong type.
    """
    _check_in_pipeline("artifact_from_uri", "it makes an artifact of that pipeline")
    try:
        json.dumps(metadata, allow_nan=False)
        known = not contains_channel(dict(metadata or {}))
    except (TypeError, ValueError):
        known = False
    if not known:
        raise AppDefError(f"metadata of artifact_from_uri is {metadata!r}. Give constants that JSON has.")
    if not is_artifact_class(artifact_class):
        raise AppDefError(f"artifact_class is {artifact_class!r}. Give a class of kfp.dsl, such as dsl.Model.")
    first, *rest = parse(uri, "uri")
    kind = first.type if isinstance(first, Reference) else "STRING"
    if rest or first == "" or kind != "STRING":
        raise AppDefError(
            f"uri is {str(uri)!r} of type {kind}. Give a URI such as 's3://models/7', or a channel that is the whole "
            "URI: let the stage record it as a result."
        )
    given = first.argument if isinstance(first, Reference) else first

    return emit.uri_component(artifact_class, metadata or {})(uri=given).output


def single_stage_pipeline(
    app: specs.AppDef,
    *,
    tracked: bool,
    has_workspace: bool = False,
    annotations: Mapping[str, str] | None = None,
    **options: Any,
) -> Any:
    """Return a pipeline with one stage that runs the app and has its name.

    If it is ``tracked``, the pipeline has the parameter ``tracker_base``. If it ``has_workspace``, it has the parameter
    ``workspace``, which replaces the workspaces of the app's roles, like TorchX's ``--workspace``. The stage's pod gets
    the ``annotations``. ``options`` are those of ``task_from_app``.
    """
    if has_workspace:
        app = copy.copy(app)
        app.roles = [copy.copy(role) for role in app.roles]
        for role in app.roles:
            role.workspace = None
    wanted = {TRACKER_BASE: tracked, WORKSPACE_PARAMETER: has_workspace}
    names = [name for name, is_wanted in wanted.items() if is_wanted]

    def one_stage(*channels: Any) -> None:
        task = task_from_app(app, **dict(zip(names, channels, strict=True)), **options)
        for name, text in (annotations or {}).items():
            kubernetes.add_pod_annotation(task, name, text)

    one_stage.__doc__ = f"Run {app.name}.\n\nArgs:\n" + "".join(f"    {name}: {_PARAMETERS[name]}\n" for name in names)
    # KFP reads the parameters from the signature, and their descriptions from the docstring.
    parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=str) for name in names]
    vars(one_stage)["__signature__"] = inspect.Signature(parameters)
    return dsl.pipeline(name=component_name(app.name))(one_stage)


def _check_in_pipeline(function: str, otherwise: str) -> None:
    """Refuse to make a task outside a pipeline, unless ``kfp.local`` runs it."""
    if not pipeline_context.Pipeline.get_default_pipeline() and not config.LocalExecutionConfig.instance:
        raise AppDefError(f"{function} must be called inside a function decorated with kfp.dsl.pipeline; {otherwise}.")


def _check_inputs(names: Sequence[str], aliases: Collection[str], taken: Sequence[str]) -> None:
    """Reject names of a component's inputs that KFP does not accept or that are in use."""
    for name in names:
        if name in taken or names.count(name) > 1 or not is_input_name(name):
            what = "the alias" if name in aliases else "the parameter"
            raise AppDefError(
                f"A component cannot have an input for {what} {name!r}: names of inputs are unique Python identifiers "
                f"other than 'self', and this stage already has {listed(map(repr, taken)) or 'none'}. Rename it, or "
                "give a parameter as a constant."
            )
