"""Where a pipeline channel has one value: in the loops, conditions and exit handlers that its task is in."""

from __future__ import annotations

from kfp.dsl import for_loop, pipeline_channel, pipeline_context, tasks_group

from torchx_kfp.errors import ChannelError


def pipeline_here(where: str) -> pipeline_context.Pipeline:
    """The pipeline that is being defined.

    Raises:
        ChannelError: there is none.
    """
    pipeline = pipeline_context.Pipeline.get_default_pipeline()
    if pipeline is None:
        raise ChannelError(
            f"{where} holds a pipeline channel, but no pipeline is being defined here. Components are made of static "
            "AppDefs; call task_from_app inside of the pipeline function instead."
        )
    return pipeline


def check_in_scope(channel: pipeline_channel.PipelineChannel, where: str) -> None:
    """Refuse a channel that has no value, or many, where it is used.

    Raises:
        ChannelError: it is an item of a loop, or an output of a task in a loop, a condition or an exit handler, that is
            closed here; or its task is one of another pipeline.
    """
    pipeline = pipeline_here(where)
    if isinstance(channel, for_loop.LoopArgumentVariable | for_loop.LoopParameterArgument):
        # Not getattr: an item makes a field of every attribute that it has not.
        item = channel.loop_argument if isinstance(channel, for_loop.LoopArgumentVariable) else channel
        loops = [group.loop_argument for group in pipeline.groups if isinstance(group, tasks_group.ParallelFor)]
        if not any((loop.task_name, loop.name) == (item.task_name, item.name) for loop in loops):
            raise ChannelError(f"{where} uses {channel.full_name!r} outside of its loop. Use loop items inside of it.")
        return
    task = pipeline.tasks.get(channel.task_name)
    if not isinstance(channel, pipeline_channel.OneOfMixin) and getattr(channel, "task", task) not in (None, task):
        raise ChannelError(
            f"{where} uses the output {channel.name!r} of {channel.task_name!r}, a task of another pipeline. Pass it "
            "into this one as a parameter."
        )
    for group in _closed_groups(channel, pipeline):
        uses = f"{where} uses the output {channel.name!r} of {channel.task_name!r} outside of the"
        if isinstance(group, tasks_group.ParallelFor):
            raise ChannelError(
                f"{uses} dsl.ParallelFor loop that it runs in: it has a value for each item. Read the results of all "
                "through the tracker, with reads={'trials': dsl.Collected(task.outputs['run_id'])}."
            )
        if isinstance(group, tasks_group.ExitHandler):
            raise ChannelError(f"{uses} dsl.ExitHandler that it runs in, and KFP hands out none. Use it inside.")
        raise ChannelError(
            f"{uses} condition that it runs under: it may have no value. Use it inside, or give both branches one and "
            "pass dsl.OneOf(task.outputs[...], other_task.outputs[...])."
        )


def is_in_loop(channel: pipeline_channel.PipelineChannel) -> bool:
    """Whether the channel's task is in a loop that is closed here, so that it has many values."""
    groups = _closed_groups(channel, pipeline_here("dsl.Collected"))
    return any(isinstance(group, tasks_group.ParallelFor) for group in groups)


def _closed_groups(
    channel: pipeline_channel.PipelineChannel, pipeline: pipeline_context.Pipeline
) -> list[tasks_group.TasksGroup]:
    """The groups that the channel's task is in, from the inside out, and that are not open here."""
    task = pipeline.tasks.get(channel.task_name)
    group = task.parent_task_group if task else None
    groups = []
    while group is not None:
        if group not in pipeline.groups:
            groups.append(group)
        group = group.parent_task_group
    return groups
