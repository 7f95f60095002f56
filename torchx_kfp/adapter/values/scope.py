"""The scope in which a pipeline channel has one value: the loops, conditions and exit handlers around its task."""

from __future__ import annotations

from kfp.dsl import for_loop, pipeline_channel, pipeline_context, tasks_group

from torchx_kfp.errors import ChannelError


def pipeline_here(where: str) -> pipeline_context.Pipeline:
    """Return the pipeline that is being defined.

    Raises:
        ChannelError: no pipeline is being defined.
    """
    pipeline = pipeline_context.Pipeline.get_default_pipeline()
    if pipeline is None:
        raise ChannelError(
            f"{where} contains a pipeline channel, but no pipeline is being defined here. Components need static "
            "AppDefs; call task_from_app inside the pipeline function instead."
        )
    return pipeline


def check_in_scope(channel: pipeline_channel.PipelineChannel, where: str) -> None:
    """Reject a channel that has no value, or several values, where it is used.

    Raises:
        ChannelError: the channel is an item of a loop that has ended, an output of a task in a loop, a condition or an
            exit handler that has ended, or an output of a task in another pipeline.
    """
    pipeline = pipeline_here(where)
    if isinstance(channel, for_loop.LoopArgumentVariable | for_loop.LoopParameterArgument):
        # Do not use getattr: an item takes every attribute that it does not have for a field.
        item = channel.loop_argument if isinstance(channel, for_loop.LoopArgumentVariable) else channel
        loops = [group.loop_argument for group in pipeline.groups if isinstance(group, tasks_group.ParallelFor)]
        if not any((loop.task_name, loop.name) == (item.task_name, item.name) for loop in loops):
            raise ChannelError(f"{where} uses {channel.full_name!r} outside its loop. Use loop items inside it.")
        return
    task = pipeline.tasks.get(channel.task_name)
    if not isinstance(channel, pipeline_channel.OneOfMixin) and getattr(channel, "task", task) not in (None, task):
        raise ChannelError(
            f"{where} uses the output {channel.name!r} of {channel.task_name!r}, a task of another pipeline. Pass it "
            "into this one as a parameter."
        )
    for group in _closed_groups(channel, pipeline):
        uses = f"{where} uses the output {channel.name!r} of {channel.task_name!r} outside the"
        if isinstance(group, tasks_group.ParallelFor):
            raise ChannelError(
                f"{uses} dsl.ParallelFor loop in which the task runs: there is a value for each item. Read the results "
                "of all through the tracker, with reads={'trials': dsl.Collected(task.outputs['run_id'])}."
            )
        if isinstance(group, tasks_group.ExitHandler):
            raise ChannelError(
                f"{uses} dsl.ExitHandler in which the task runs, but KFP does not pass it on. Use it inside."
            )
        raise ChannelError(
            f"{uses} condition under which the task runs: there may be no value. Use it inside, or have a task in both "
            "branches and pass dsl.OneOf(task.outputs[...], other_task.outputs[...])."
        )


def is_in_loop(channel: pipeline_channel.PipelineChannel) -> bool:
    """Tell whether the channel's task is in a loop that has ended, so that the channel has several values."""
    groups = _closed_groups(channel, pipeline_here("dsl.Collected"))
    return any(isinstance(group, tasks_group.ParallelFor) for group in groups)


def _closed_groups(
    channel: pipeline_channel.PipelineChannel, pipeline: pipeline_context.Pipeline
) -> list[tasks_group.TasksGroup]:
    """Return the groups around the channel's task that have ended, innermost first."""
    task = pipeline.tasks.get(channel.task_name)
    group = task.parent_task_group if task else None
    groups = []
    while group is not None:
        if group not in pipeline.groups:
            groups.append(group)
        group = group.parent_task_group
    return groups
