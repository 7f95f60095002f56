"""Functions to call in a pipeline function: they make tasks from AppDefs, publish results, and import artifacts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from kfp import dsl
from kfp.dsl import pipeline_context
from kfp.local import config
from torchx import specs

from torchx_kfp.authoring import emit
from torchx_kfp.authoring.channels import contains_channel
from torchx_kfp.authoring.components import component_from_app, make_function_component
from torchx_kfp.authoring.emit import StageComponent
from torchx_kfp.authoring.options import (
    ComponentOptions,
    PublisherOptions,
    Secrets,
    SharedOptions,
    TaskOptions,
    check_names,
    given_outputs,
    read_secrets,
    read_settings,
    read_trackers,
    with_task_options,
)
from torchx_kfp.authoring.outputs import Artifacts, Results, UiMetadata, check_artifact_class
from torchx_kfp.authoring.plan import plan_publisher, plan_stage
from torchx_kfp.authoring.reads import (
    CollectedRuns,
    Readable,
    TrackerBase,
    read_sources,
    read_tracker_base,
    read_uri,
    read_workspace,
    stage_of,
)
from torchx_kfp.authoring.references import Channel
from torchx_kfp.errors import AppDefError, OutputsError, ReadsError

if TYPE_CHECKING:  # `typing` has it from Python 3.11 on, and nothing evaluates annotations
    from typing_extensions import Unpack


@with_task_options
def task_from_app(app: specs.AppDef, **options: Unpack[TaskOptions]) -> dsl.PipelineTask:
    """Make a task from the AppDef, in the pipeline that is being defined.

    The entrypoint, the args, the values of env and the image may be pipeline channels, or text with channels inside.

    Args:
        app: an AppDef. With several roles or replicas, it needs an engine.
        options: see ``TaskOptions``.

    Returns:
        The task. A tracked one has the output ``run_id`` and one output for each declared result and artifact. In
        their names, each run of characters other than ASCII letters, digits and ``_`` becomes one ``_``: the result
        ``l2norm/mean`` is the output ``l2norm_mean``.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
        ChannelError: a channel is used where its value cannot be filled in.
        ReadsError: a stage that is read has no run id or alias, or there is no tracker base.
        OutputsError: a result or an artifact cannot be an output of KFP.
    """
    check_names("task_from_app", options, TaskOptions)
    tracker_base, reads = options.get("tracker_base"), options.get("reads")
    if tracker_base is None:
        for what in (*(["reads"] if reads else []), *given_outputs(options)):
            raise ReadsError(
                f"{what} needs a tracker base, under which results are stored: Stages(tracker_base=...).task(app, "
                f"{what}=...), or task_from_app(app, tracker_base=..., {what}=...)."
            )
    _check_in_pipeline("task_from_app", "component_from_app makes components anywhere")
    base = None if tracker_base is None else read_tracker_base(tracker_base)
    plan = plan_stage(app, read_settings(options, base, read_sources(reads)))
    return emit.make_task(plan, tracker_base)


#: The name of this function in TorchX's own adapter.
container_from_app = task_from_app


def publish_results(
    task: Readable,
    results: Results | None = None,
    *,
    image: str,
    artifacts: Artifacts | None = None,
    tracker_base: TrackerBase | None = None,
    name: str | None = None,
    secrets: Secrets | None = None,
    cache: bool = True,
    inline: bool = True,
) -> dsl.PipelineTask:
    """Make a task that publishes the records of another stage, for stages whose image does not have Python.

    Args:
        task: a tracked task, or a channel or string that is a run id.
        results: see ``task_from_app``.
        image: an image with python3 (3.8 or newer), fsspec and the storage's driver, such as s3fs.
        artifacts: see ``task_from_app``.
        tracker_base: the tracker base of that stage. It is needed for a run id; a task's tracker base is known.
        name: the stage's name. The default is ``publish-`` followed by the other stage's name.
        secrets: see ``task_from_app``, also for ``cache`` and ``inline``.

    Returns:
        The task, with an output for each declared result and artifact, the artifact ``metrics``, and the output
        ``run_id``, which is the other stage's run id: a stage that reads this task reads that stage.

    Raises:
        ReadsError: the task is not tracked, or the tracker base is not known.
        OutputsError: a result or an artifact cannot be an output of KFP.
        ChannelError: a channel is used where its value cannot be filled in.
    """
    _check_in_pipeline("publish_results", "it publishes the records of a task of that pipeline")
    known = stage_of(task)
    sources = read_sources({"stage": task})
    if isinstance(sources["stage"], CollectedRuns):
        raise ReadsError("publish_results publishes one stage and got several. Publish each inside its loop.")
    if tracker_base is None:
        if known is None or known.tracker_base is None:
            raise ReadsError(
                "publish_results needs the tracker base of a stage that is not a task of task_from_app: "
                "publish_results(run_id, ..., tracker_base=...)."
            )
        tracker_base = known.tracker_base
    options = PublisherOptions(secrets=secrets, cache=cache, inline=inline)
    declared = {"results": {} if results is None else results, "artifacts": artifacts, "name": name}
    settings = read_settings({**options, **declared}, read_tracker_base(tracker_base), sources)
    plan = plan_publisher(settings, f"publish-{known.name}" if known else "publish", image)
    return emit.make_task(plan, tracker_base)


def artifact_from_uri(
    uri: str | Channel, artifact_class: type[dsl.Artifact] = dsl.Artifact, *, metadata: Mapping[str, Any] | None = None
) -> Any:
    """Make a KFP artifact with this URI, for KFP's own components and for KFP's lineage.

    If a stage registers an artifact by its URL, KFP's artifact has a different URI: that of a small file that names the
    URL. An artifact that this function makes has the URI itself::

        evaluated = task_from_app(app, tracker_base=tracker_base, results={"model_uri": str})
        deploy(model=artifact_from_uri(evaluated.outputs["model_uri"], dsl.Model))

    KFP downloads it before it starts a component that takes it, with the credentials of the ConfigMap ``kfp-launcher``.
    If they do not grant access, the component fails.

    Args:
        uri: the URI, such as ``s3://models/7``: a constant, or an output, a parameter or a loop item that is a string.
        artifact_class: ``dsl.Model``, ``dsl.Dataset`` or another artifact class.
        metadata: the artifact's metadata, which must be constants.

    Returns:
        The artifact, to pass to a component.

    Raises:
        OutputsError: the class is not an artifact class, or the metadata is not constant.
        ChannelError: the URI is text with a channel inside, or not a string.
    """
    _check_in_pipeline("artifact_from_uri", "it makes an artifact of that pipeline")
    check_artifact_class(artifact_class)
    try:
        json.dumps(metadata)
    except (TypeError, ValueError, RecursionError):
        constant = False
    else:
        constant = metadata is None or (isinstance(metadata, Mapping) and not contains_channel(dict(metadata)))
    if not constant:
        raise OutputsError(
            f"metadata of artifact_from_uri is {metadata!r}. Give a dict of constants that JSON can represent."
        )
    return emit.import_artifact(read_uri(uri), artifact_class, dict(metadata or {}))


def _check_in_pipeline(function: str, otherwise: str) -> None:
    if not pipeline_context.Pipeline.get_default_pipeline() and not config.LocalExecutionConfig.instance:
        raise AppDefError(
            f"{function} makes a task of a pipeline, and no pipeline is being defined here. Call it inside a function "
            f"that is decorated with kfp.dsl.pipeline; {otherwise}."
        )


class Stages:
    """The options that the stages of a pipeline share.

    In a pipeline function::

        stages = Stages(tracker_base=tracker_base)
        prepared = stages.task(prepare)
        stages.task(train, reads=prepared, results={"accuracy": float})

    Options that do not depend on a pipeline can be shared by a whole module, and completed in its pipelines::

        STAGES = Stages(secrets={"s3": {"id": "AWS_ACCESS_KEY_ID", "key": "AWS_SECRET_ACCESS_KEY"}})
        convert = STAGES.component(app, tracked=True)

        @dsl.pipeline
        def pipeline(tracker_base: str):
            stages = STAGES.with_options(tracker_base=tracker_base)

    An option that is passed to a method replaces the shared one. ``Stages`` are immutable; ``with_options`` returns new
    ones.
    """

    __slots__ = ("_options",)
    _options: Mapping[str, Any]

    def __init__(self, **options: Unpack[SharedOptions]) -> None:
        """Check and keep the options.

        Args:
            options: ``tracker_base``, ``workspace``, ``trackers``, ``secrets``, ``cache``, ``inline`` and ``labels``:
                see ``task_from_app``.

        Raises:
            ReadsError: the tracker base is neither text nor a channel for text.
            AppDefError: the secrets or the trackers are malformed.
            ChannelError: a pipeline channel is used where its value cannot be filled in.
        """
        check_names("Stages", options, SharedOptions)
        kept: dict[str, Any] = dict(options)
        # Check the options now, so that errors point to the line that passes them. Keep copies, so that later changes
        # to the caller's dicts have no effect.
        if kept.get("tracker_base") is not None:
            read_tracker_base(kept["tracker_base"])
        read_workspace(kept.get("workspace"))
        if kept.get("secrets") is not None:
            kept["secrets"] = read_secrets(kept["secrets"])
        if kept.get("trackers") is not None:
            read_trackers(kept["trackers"])
            kept["trackers"] = dict(kept["trackers"])
        object.__setattr__(self, "_options", MappingProxyType(kept))

    def with_options(self, **options: Unpack[SharedOptions]) -> Stages:
        """Return ``Stages`` that also share these options. An option replaces the one with the same name."""
        check_names("Stages.with_options", options, SharedOptions)
        merged: Any = {**self._options, **options}
        return Stages(**merged)

    def task(self, app: specs.AppDef, **options: Unpack[TaskOptions]) -> dsl.PipelineTask:
        """Make a task from the AppDef, in the pipeline that is being defined: see ``task_from_app``."""
        check_names("Stages.task", options, TaskOptions)
        merged: Any = {**self._options, **options}
        return task_from_app(app, **merged)

    def publish(
        self,
        task: Readable,
        results: Results | None = None,
        *,
        image: str,
        artifacts: Artifacts | None = None,
        name: str | None = None,
        **options: Unpack[PublisherOptions],
    ) -> dsl.PipelineTask:
        """Publish the results of a stage whose image does not have Python: see ``publish_results``."""
        check_names("Stages.publish", options, PublisherOptions, "results", "image", "artifacts", "name")
        taken = ("tracker_base", *PublisherOptions.__annotations__)
        shared = {option: value for option, value in self._options.items() if option in taken}
        merged: Any = {**shared, **options}
        return publish_results(task, results, image=image, artifacts=artifacts, name=name, **merged)

    def component(
        self,
        app: specs.AppDef,
        *,
        tracked: bool = False,
        reads: Iterable[str] = (),
        ui_metadata: UiMetadata | None = None,
        **options: Unpack[ComponentOptions],
    ) -> StageComponent:
        """Make a KFP component from the AppDef: see ``component_from_app``.

        Raises:
            ReadsError: these stages share a tracker base, but a component takes it as an input.
        """
        check_names("Stages.component", options, ComponentOptions, "tracked", "reads", "ui_metadata")
        merged: Any = {**self._of_components("component"), **options}
        return component_from_app(app, ui_metadata, tracked=tracked, reads=reads, **merged)

    def component_from_function(
        self, fn: Callable[..., specs.AppDef], /, **options_and_constants: Any
    ) -> StageComponent:
        """Make a KFP component from a TorchX component function: see ``component_from_function``.

        Raises:
            ReadsError: these stages share a tracker base, but a component takes it as an input.
        """
        return make_function_component(fn, self._of_components("component_from_function"), options_and_constants)

    def _of_components(self, method: str) -> dict[str, Any]:
        shared = dict(self._options)
        tracker_base = shared.pop("tracker_base", None)
        if tracker_base is not None:
            raise ReadsError(
                f"Stages.{method} makes a component, which takes its tracker base as an input, but these stages share "
                f"the tracker base {str(tracker_base)!r}. Use Stages without it, and pass it when you call the "
                "component: component(tracker_base=...)."
            )
        return shared

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Stages are immutable. Make new ones: stages.with_options({name}=...).")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Stages are immutable. Make new ones: stages.with_options({name}=None).")

    def __repr__(self) -> str:
        return f"Stages({', '.join(f'{name}={value!r}' for name, value in self._options.items())})"
