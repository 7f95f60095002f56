"""Functions to call in a pipeline function: they make tasks from AppDefs, publish results, and import artifacts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kfp import dsl
from kfp.dsl import pipeline_context
from kfp.local import config
from torchx import specs

from torchx_kfp.adapter import emit
from torchx_kfp.adapter.stage.options import (
    PublisherOptions,
    TaskOptions,
    check_names,
    given_outputs,
    read_settings,
    with_task_options,
)
from torchx_kfp.adapter.stage.outputs import Artifacts, Results, check_artifact_class
from torchx_kfp.adapter.stage.plan import plan_publisher, plan_stage
from torchx_kfp.adapter.stage.reads import (
    FanIn,
    Readable,
    TrackerBase,
    read_sources,
    read_tracker_base,
    read_uri,
    stage_of,
)
from torchx_kfp.adapter.stage.secrets import Secrets
from torchx_kfp.adapter.values.channels import contains_channel
from torchx_kfp.adapter.values.references import Channel
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
    if isinstance(sources["stage"], FanIn):
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
