"""The public functions: an AppDef as a KFP component file, component or task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kfp import dsl
from kfp.dsl import pipeline_context
from kfp.local import config
from torchx import specs

from torchx_kfp.adapter import emit
from torchx_kfp.adapter.channels import Reference
from torchx_kfp.adapter.names import is_input_name
from torchx_kfp.adapter.plan import StagePlan, plan_stage
from torchx_kfp.adapter.reads import RUN_ID, TRACKER_BASE, Source, check_alias, read_sources, read_tracker_base
from torchx_kfp.errors import AppDefError, ChannelError, ReadsError


def task_from_app(
    app: specs.AppDef,
    *,
    tracker_base: object = None,
    reads: object = None,
    results: Mapping[str, type] | None = None,
    name: str | None = None,
) -> dsl.PipelineTask:
    """The AppDef as a task of the pipeline that is being defined.

    Pipeline channels may stand in the entrypoint, the args, the values of env and the image, alone or inside of text.

    Args:
        app: an AppDef of one role and one replica.
        tracker_base: fsspec URL or directory under which results are stored, or a channel that holds one. None: an
            untracked stage, which runs exactly the AppDef's command.
        reads: whose results the stage reads: a task, a list of tasks, or {alias: what is read}. What is read is a
            task, ``dsl.Collected`` of run ids, or any channel or string that is a run id. The task runs after them.
        results: not supported yet; results are read through the tracker.
        name: the stage's name, the AppDef's otherwise.

    Returns:
        The task; a tracked one has the output ``run_id``.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
        ChannelError: a channel stands where its value cannot be filled in.
        ReadsError: what is read has no run id or alias, or there is no tracker base.
    """
    _refuse_results(results)
    if tracker_base is None and reads:
        raise ReadsError(
            "reads needs a tracker base, under which the results are: task_from_app(app, tracker_base=..., reads=...)."
        )
    if not pipeline_context.Pipeline.get_default_pipeline() and not config.LocalExecutionConfig.instance:
        raise AppDefError(
            "task_from_app makes a task of a pipeline, and none is being defined here. Call it inside of a function "
            "that is decorated with kfp.dsl.pipeline; component_from_app makes components anywhere."
        )
    parts = None if tracker_base is None else read_tracker_base(tracker_base)
    return emit.make_task(plan_stage(app, tracker_base=parts, sources=read_sources(reads), name=name))


#: The name that TorchX's own adapter had for it.
container_from_app = task_from_app


def component_from_app(
    app: specs.AppDef,
    *,
    tracked: bool = False,
    reads: Iterable[str] = (),
    results: Mapping[str, type] | None = None,
    name: str | None = None,
) -> emit.StageComponent:
    """The AppDef as a KFP component, to be called in pipelines.

    Args:
        app: a static AppDef, without pipeline channels.
        tracked: whether the stage records results. The component then has the input ``tracker_base`` and the output
            ``run_id``.
        reads: aliases of stages that it reads; each is an input that takes another stage's ``run_id``. Implies
            ``tracked``.
        results: not supported yet; results are read through the tracker.
        name: the stage's name, the AppDef's otherwise.

    Raises:
        AppDefError: the app cannot become a stage without losing something.
        ChannelError: the app holds a pipeline channel.
        ReadsError: an alias that cannot be an input.
    """
    return emit.StageComponent(_component_plan(app, tracked, reads, results, name))


def component_spec_from_app(
    app: specs.AppDef,
    *,
    tracked: bool = False,
    reads: Iterable[str] = (),
    results: Mapping[str, type] | None = None,
    name: str | None = None,
) -> str:
    """The AppDef as the text of a KFP v2 component file, for ``kfp.components.load_component_from_text``.

    It holds the whole AppDef, resources and pod settings included, for which a single component has no place: it is a
    pipeline of one task. Arguments and errors are those of ``component_from_app``.
    """
    if pipeline_context.Pipeline.get_default_pipeline():
        raise AppDefError(
            "component_spec_from_app compiles a file, which KFP cannot do while a pipeline is being defined. Call it "
            "outside of the pipeline function, or use component_from_app or task_from_app inside."
        )
    return emit.component_yaml(_component_plan(app, tracked, reads, results, name))


def _component_plan(
    app: specs.AppDef,
    tracked: bool,
    reads: Iterable[str],
    results: Mapping[str, type] | None,
    name: str | None,
) -> StagePlan:
    _refuse_results(results)
    if isinstance(reads, str | Mapping) or not isinstance(reads, Iterable):
        raise ReadsError(f"reads of a component is a list of aliases, got {reads!r}. Write reads=['train'].")
    sources: dict[str, Source] = {}
    for alias in reads:
        check_alias(alias)
        if not is_input_name(alias) or alias in (TRACKER_BASE, RUN_ID):
            raise ReadsError(
                f"reads has the alias {alias!r}, which cannot be an input of a component. Use a Python identifier that "
                f"is no keyword, other than {TRACKER_BASE!r}, {RUN_ID!r} and 'self'."
            )
        if alias in sources:
            raise ReadsError(f"reads has the alias {alias!r} twice. Give each stage an alias of its own.")
        sources[alias] = Reference(f"reads {alias}", None, alias, "STRING")
    base = (Reference(TRACKER_BASE, None, TRACKER_BASE, "STRING"),) if tracked or sources else None
    plan = plan_stage(app, tracker_base=base, sources=sources, name=name)
    for key, planned in plan.inputs.items():
        if planned.argument is not None:
            raise ChannelError(
                f"AppDef {app.name!r} holds the pipeline channel {key!r}. A component is made of a static AppDef, to "
                "be used in any pipeline: call task_from_app in the pipeline function instead."
            )
    return plan


def _refuse_results(results: object) -> None:
    if results:
        raise ReadsError(
            f"results={results!r} as outputs of KFP are not supported yet. Record them in the application with "
            "current_run().put(...), and read them in later stages with reads=..."
        )
