"""The stages that a stage reads, with their aliases and run ids, and the tracker base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from kfp import dsl
from kfp.dsl import pipeline_channel

from torchx_kfp.authoring.channels import (
    channel_key,
    check_in_scope,
    contains_channel,
    ir_type,
    is_in_loop,
    parse,
    parse_checked,
)
from torchx_kfp.authoring.references import Channel, Parts, PipelineTask, Reference, check_word
from torchx_kfp.contract.inputs import RUN_ID, find_rewritten
from torchx_kfp.errors import ReadsError, TrackerError
from torchx_kfp.tracking.tracker import check_tracker_base

#: An fsspec URL, a directory, or a channel for one of these.
TrackerBase = str | Channel
#: A task, or its run id: a channel, or a string.
Readable = PipelineTask | Channel | str
#: One task, several tasks, or {alias: stage}.
Reads = PipelineTask | Channel | Iterable[PipelineTask | Channel] | Mapping[str, Readable | Sequence[Readable]]


@dataclass(frozen=True)
class TaskStage:
    """Facts about a stage that its task does not have: its name as it was given, and its tracker base."""

    name: str
    tracker_base: TrackerBase | None = None


_STAGES: WeakKeyDictionary[dsl.PipelineTask, TaskStage] = WeakKeyDictionary()


class StageName(str):
    """The name of a stage as its alias, because the author did not give one."""


@dataclass(frozen=True)
class CollectedRuns:
    """Several stages with one alias: a reference to a list of run ids, or the run id of each."""

    run_ids: Reference | tuple[Reference | str, ...]


#: What an alias stands for: a reference to a run id, several run ids, or a run id as text.
ReadSource = Reference | CollectedRuns | str

_collect = dsl.Collected.__init__


def _collect_output_or_run_id(self: dsl.Collected, output: object) -> None:
    """Let ``dsl.Collected(task)`` collect the run ids of a stage."""
    if isinstance(output, dsl.PipelineTask):
        if RUN_ID not in output.outputs:
            names = ", ".join(map(repr, output.outputs)) or "none"
            raise ReadsError(
                f"dsl.Collected is given the task {output.name!r}, which is not tracked and has no run ids. Name one "
                f"of its outputs: dsl.Collected(task.outputs['...']). Its outputs: {names}."
            )
        output = output.outputs[RUN_ID]
    _collect(self, output)


# KFP would fail with an AttributeError before any function here gets the object.
dsl.Collected.__init__ = _collect_output_or_run_id


def remember_stage(task: dsl.PipelineTask, stage: TaskStage) -> None:
    """Remember which stage the task is. The stage's name is its default alias when it is read."""
    _STAGES[task] = stage


def stage_of(what: object) -> TaskStage | None:
    """Return the stage of a task; None for anything else."""
    return _STAGES.get(what) if isinstance(what, dsl.PipelineTask) else None


def parse_reads(reads: object) -> dict[str, ReadSource]:
    """Return the sources by alias, in order. An alias that the author did not give is a ``StageName``.

    Args:
        reads: a task, a list of tasks, or {alias: stage}; None and empty collections read nothing.
    """
    if reads is None:
        return {}
    if isinstance(reads, Mapping):
        if _are_outputs(reads):
            raise ReadsError("reads has the outputs of a task. Pass the task itself: reads=task.")
        for alias in reads:
            check_alias(alias)
        return {alias: _source(what, f"reads[{alias!r}]") for alias, what in reads.items()}
    if isinstance(reads, str | pipeline_channel.PipelineChannel) or not isinstance(reads, Iterable):
        reads = [reads]
    sources: dict[str, ReadSource] = {}
    for what in reads:
        alias = _default_alias(what)
        if alias in sources:
            raise ReadsError(
                f"reads has two stages named {alias!r}. Give each its own alias: "
                f"reads={{'{alias}_1': task, '{alias}_2': other_task}}."
            )
        sources[StageName(alias)] = _source(what, f"reads ({alias!r})")
    return sources


def check_alias(alias: object) -> str:
    """Return the alias if it is valid."""
    if isinstance(alias, str) and alias and not contains_channel(alias):
        return check_word(alias, f"The alias {alias!r}")
    raise ReadsError(
        f"reads has the alias {alias!r}. Give a name such as 'train', which is known when the pipeline is compiled."
    )


def parse_tracker_base(tracker_base: object) -> Parts:
    """Return the tracker base as text and references; nothing for a stage that is not tracked."""
    if tracker_base is None:
        return ()
    if isinstance(tracker_base, pipeline_channel.PipelineChannel):
        if ir_type(tracker_base) != "STRING":
            raise ReadsError(
                f"tracker_base is {_show(tracker_base)} of type {ir_type(tracker_base)}. It must be a string: declare "
                "the parameter as str."
            )
    elif not isinstance(tracker_base, str):
        raise ReadsError(
            f"tracker_base is {tracker_base!r}. Give an fsspec URL such as 's3://bucket/results', a directory, or a "
            "pipeline parameter of type str."
        )
    else:
        try:
            check_tracker_base(tracker_base)
        except TrackerError as error:
            raise ReadsError(f"tracker_base: {error}") from None
    parts = parse_checked(tracker_base, "tracker_base")
    for part in parts:
        if isinstance(part, str) and find_rewritten(part):
            raise ReadsError(
                f"tracker_base is {tracker_base!r}; Argo or the kubelet would change {find_rewritten(part)!r} in it."
            )
    return parts


def _default_alias(what: object) -> str:
    task: Any = what.output.task if isinstance(what, dsl.Collected) else what
    if isinstance(task, dsl.PipelineTask):
        stage = stage_of(task)
        return stage.name if stage else str(task.component_spec.name)
    if isinstance(what, str) and not contains_channel(what):
        raise ReadsError(
            f"reads has the text {what!r}. Pass the task: reads=task. If this is a run id, give it an alias: "
            f"reads={{'train': {what!r}}}."
        )
    parts = parse(what, "reads") if isinstance(what, str) else (what,)
    if len(parts) > 1:
        raise _mixed_text(what, "reads")
    channel = parts[0].argument if isinstance(parts[0], Reference) else what
    if isinstance(channel, pipeline_channel.PipelineChannel):
        raise _without_alias(channel)
    raise _not_readable(what, "reads")


def _are_outputs(reads: Mapping[Any, Any]) -> bool:
    """Return whether the author passed ``task.outputs``, whose names are not aliases."""
    tasks = (what.task for what in reads.values() if isinstance(what, pipeline_channel.PipelineChannel))
    return any(isinstance(task, dsl.PipelineTask) and task.outputs is reads for task in tasks)


def _without_alias(channel: pipeline_channel.PipelineChannel) -> ReadsError:
    """Return the error for a channel that reads has in place of a task."""
    made_by = channel.task if channel.task_name else None
    what = f"the output {channel.name!r} of the task {channel.task_name!r}" if made_by else _show(channel)
    if stage_of(made_by) and channel.name == RUN_ID:
        return ReadsError(f"reads has {what}. Pass the task itself: reads=task.")
    way_out = " To read the results of that task, pass the task itself: reads=task." if stage_of(made_by) else ""
    return ReadsError(
        f"reads has {what}.{way_out} If this is a run id, give it an alias: "
        f"reads={{{channel.task_name or channel.name!r}: ...}}."
    )


def _not_readable(what: object, where: str) -> ReadsError:
    return ReadsError(
        f"{where} is {what!r} ({type(what).__name__}). Give a task, dsl.Collected of run ids, or a run id (a channel "
        "or a string)."
    )


def _source(what: object, where: str) -> ReadSource:
    if isinstance(what, dsl.PipelineTask):
        if RUN_ID not in what.outputs and what.pipeline_spec is not None:
            raise ReadsError(
                f"{where} is the task {what.name!r}, a nested pipeline. Let it return the run id of the stage, "
                f"task.outputs[{RUN_ID!r}], and read this output: reads={{{what.name!r}: task.output}}."
            )
        if RUN_ID not in what.outputs:
            raise ReadsError(
                f"{where} is the task {what.name!r}, which has no output {RUN_ID!r}, because it is not tracked. Pass a "
                "tracker_base to its task_from_app, or tracked=True to its component_from_function. If it is a task of "
                "another component, use its outputs as channels."
            )
        return _source(what.outputs[RUN_ID], where)
    if isinstance(what, pipeline_channel.PipelineChannel):
        return _channel_source(what, where)
    if isinstance(what, str):
        return _text_source(what, where)
    if isinstance(what, list | tuple):
        sources = tuple(_source(item, f"{where}[{index}]") for index, item in enumerate(what))
        if any(isinstance(source, CollectedRuns) for source in sources):
            raise ReadsError(f"{where} is a list with a fan-in inside. Give each fan-in its own alias.")
        return CollectedRuns(tuple(source for source in sources if not isinstance(source, CollectedRuns)))
    raise _not_readable(what, where)


def _mixed_text(text: object, where: str) -> ReadsError:
    return ReadsError(f"{where} is {text!r}, text with a pipeline channel inside. Pass the task or the channel itself.")


def _channel_source(channel: pipeline_channel.PipelineChannel, where: str) -> ReadSource:
    collected = isinstance(channel, dsl.Collected)
    kind = ir_type(channel.output if collected else channel)
    if collected and not is_in_loop(channel.output):
        raise ReadsError(
            f"{where} collects {_show(channel.output)}, whose task runs once: it is not in a loop that ends before "
            "this line. Pass the task itself; dsl.Collected is for tasks of a dsl.ParallelFor loop, after that loop."
        )
    if collected and kind != "STRING":
        raise ReadsError(
            f"{where} collects {_show(channel.output)} of type {kind}, which is not a run id. Write "
            "dsl.Collected(task.outputs['run_id'])."
        )
    if kind not in ("STRING", "LIST"):
        raise ReadsError(
            f"{where} is {_show(channel)} of type {kind}. A run id is a string, a fan-in a list of strings."
        )
    if collected:
        return CollectedRuns(Reference(channel_key(channel), channel, channel.name, "LIST"))
    check_in_scope(channel, where)
    reference = Reference(channel_key(channel), channel, channel.name, kind)
    return CollectedRuns(reference) if kind == "LIST" else reference


def _text_source(run_id: str, where: str) -> ReadSource:
    parts = parse(run_id, where)
    if len(parts) > 1:
        raise _mixed_text(run_id, where)
    if isinstance(parts[0], Reference):
        argument = parts[0].argument
        if argument is None:  # an input of a component
            return parts[0]
        if isinstance(argument, pipeline_channel.PipelineChannel):
            return _channel_source(argument, where)
    # Run ids are ASCII, like those that a stage's script makes, and must read the same in JSON.
    if (
        not run_id
        or not (run_id.isascii() and run_id.isprintable())
        or find_rewritten(run_id)
        or set(run_id) & set('"\\')
    ):
        raise ReadsError(f"{where} is {run_id!r}, which is not a run id. A run id looks like 'run/stage/execution'.")
    if "/" not in run_id:
        raise ReadsError(
            f"{where} is {run_id!r}, which is not a run id ('run/stage/execution'). To read a stage of this pipeline, "
            f"give its task, not its name: reads={run_id if run_id.isidentifier() else 'task'}."
        )
    return check_word(run_id, where)


def _show(what: object) -> str:
    return f"the channel {what.full_name!r}" if isinstance(what, pipeline_channel.PipelineChannel) else repr(what)
