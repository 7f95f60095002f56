"""The option ``reads``: the parents of a stage with their aliases and execution ids; and the tracker base."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kfp import dsl
from kfp.dsl import pipeline_channel

from torchx_kfp.authoring.channels import contains_channel, parse, parse_checked
from torchx_kfp.authoring.naming import output_name
from torchx_kfp.authoring.references import Channel, PipelineTask, Reference, Text, check_word
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.contract.command import METRICS
from torchx_kfp.contract.inputs import RUN_ID, find_rewritten
from torchx_kfp.errors import AppDefError, TrackerError, UnknownNameError
from torchx_kfp.tracking.tracker import check_tracker_base

if TYPE_CHECKING:
    from torchx import specs

#: An fsspec URL, a directory, or a channel for one of these.
TrackerBase = str | Channel
#: A task, or its execution id: a channel, or a string.
Readable = PipelineTask | Channel | str
#: One task, several tasks, or {alias: stage}.
Reads = PipelineTask | Channel | Iterable[PipelineTask | Channel] | Mapping[str, Readable | Sequence[Readable]]


class StageOutputs(dict[str, Any]):
    """The outputs of a stage's task, by KFP's names or by the recorded names of results.

    They also have the stage's name, its tracker base, and the AppDef and options of its task.
    """

    made_of: tuple[specs.AppDef, Any] | None = None

    def __init__(self, outputs: Mapping[str, Any], stage: str, tracker_base: TrackerBase | None) -> None:
        super().__init__(outputs)
        self.stage = stage
        self.tracker_base = tracker_base

    def __missing__(self, name: object) -> Any:
        if isinstance(name, str) and output_name(name) in self:
            return self[output_name(name)]
        if name == RUN_ID:
            raise UnknownNameError(
                f"The stage {self.stage!r} has no output {RUN_ID!r}, because it is not tracked. Pass a tracker_base to "
                "its task_from_app, or tracked=True to its component_from_function."
            )
        raise UnknownNameError(
            f"The stage {self.stage!r} has no output {name!r}.{did_you_mean(name, self)} Its outputs: "
            f"{', '.join(map(repr, self)) or 'none'}. To make a result or an artifact an output, declare it where the "
            "stage is made: results={'accuracy': float}."
        )


def outputs_of(what: object) -> StageOutputs | None:
    """Return the outputs of a stage's task; None for any other value."""
    outputs = what.outputs if isinstance(what, dsl.PipelineTask) else None
    return outputs if isinstance(outputs, StageOutputs) else None


def results_read(reads: object) -> list[str]:
    """Return the declared results of the stages in ``reads``."""
    if isinstance(reads, Mapping):
        return results_read(list(reads.values()))
    if isinstance(reads, list | tuple):
        return [name for each in reads for name in results_read(each)]
    stage = outputs_of(reads.output.task if isinstance(reads, dsl.Collected) else reads)
    return [name for name in stage or () if name not in (RUN_ID, METRICS)]


#: A parent: an execution id as text, a reference to an execution id or to a list of them, or several of these.
ReadSource = Reference | str | Text


def is_list(source: ReadSource) -> bool:
    """Return whether a parent is a fan-in."""
    return isinstance(source, tuple) or (isinstance(source, Reference) and source.type == "LIST")


def parse_reads(reads: object) -> dict[str, ReadSource]:
    """Return the parents by alias, in order. Without aliases, the names of their stages are used."""
    if reads is None:
        return {}
    if isinstance(reads, Mapping):
        return {check_alias(alias): _source(what, f"reads[{alias!r}]") for alias, what in reads.items()}
    if isinstance(reads, str | pipeline_channel.PipelineChannel) or not isinstance(reads, Iterable):
        reads = [reads]
    sources: dict[str, ReadSource] = {}
    for what in reads:
        task: Any = what.output.task if isinstance(what, dsl.Collected) else what
        if not isinstance(task, dsl.PipelineTask):
            raise AppDefError(
                f"reads has {_show(what)}, which is not a task. Pass the task itself: reads=task. If this is an "
                "execution id, give it an alias: reads={'train': ...}."
            )
        stage = outputs_of(task)
        alias = stage.stage if stage is not None else str(task.component_spec.name)
        if alias in sources:
            raise AppDefError(
                f"reads has two stages named {alias!r}. Give each its own alias: "
                f"reads={{'{alias}_1': task, '{alias}_2': other_task}}."
            )
        sources[alias] = _source(what, f"reads ({alias!r})")
    return sources


def check_alias(alias: object) -> str:
    """Return the alias if it is valid."""
    if isinstance(alias, str) and alias and not contains_channel(alias):
        return check_word(alias, f"The alias {alias!r}")
    raise AppDefError(
        f"reads has the alias {alias!r}. Give a name such as 'train', which is known when the pipeline is compiled."
    )


def parse_tracker_base(tracker_base: object) -> Text:
    """Return the tracker base as text and references; empty for a stage that is not tracked."""
    if tracker_base is None:
        return ()
    if isinstance(tracker_base, Reference):  # an input of a component
        return (tracker_base,)
    parts = parse_checked(tracker_base, "tracker_base")
    if isinstance(tracker_base, str):
        try:
            check_tracker_base(tracker_base)
        except TrackerError as error:
            raise AppDefError(f"tracker_base: {error}") from None
    for part in parts:
        if isinstance(part, str) and find_rewritten(part):
            raise AppDefError(
                f"tracker_base is {tracker_base!r}; Argo or the kubelet would change {find_rewritten(part)!r} in it."
            )
        if isinstance(part, Reference) and part.type != "STRING" and len(parts) == 1:
            raise AppDefError(
                f"tracker_base is the channel {part.name!r} of type {part.type}. It must be a string: declare the "
                "parameter as str."
            )
    return parts


def _source(what: object, where: str) -> ReadSource:
    if isinstance(what, Reference):  # an input of a component
        return what
    if isinstance(what, dsl.PipelineTask):
        if RUN_ID not in what.outputs:
            raise AppDefError(
                f"{where} is the task {what.name!r}, which has no output {RUN_ID!r}. Give its stage a tracker_base "
                "(task_from_app) or tracked=True (a component). Let a nested pipeline return the execution id of its "
                f"stage, and read that: reads={{{what.name!r}: task.output}}. For other components, use outputs as "
                "channels."
            )
        what = what.outputs[RUN_ID]
    if isinstance(what, list | tuple):
        sources = [_source(item, f"{where}[{index}]") for index, item in enumerate(what)]
        if any(map(is_list, sources)):
            raise AppDefError(f"{where} is a list with a fan-in inside. Give each fan-in its own alias.")
        return tuple(source for source in sources if not isinstance(source, tuple))
    if not isinstance(what, str | pipeline_channel.PipelineChannel):
        raise AppDefError(
            f"{where} is {what!r} ({type(what).__name__}). Give a task, dsl.Collected of execution ids, or an "
            "execution id (a channel or a string)."
        )
    item = what.output if isinstance(what, dsl.Collected) else what
    collected, is_artifact = item is not what, isinstance(item, pipeline_channel.PipelineArtifactChannel)
    parts: Text = (Reference("", item, "", "ARTIFACT"),) if is_artifact else parse(item, where)
    if len(parts) > 1:
        raise AppDefError(
            f"{where} is {what!r}, text with a pipeline channel inside. Pass the task or the channel itself."
        )
    (source,) = parts
    if isinstance(source, str):
        return _run_id(source, where)
    fits = ("STRING",) if collected else ("STRING", "LIST")
    if isinstance(source.argument, str) or source.type not in fits:  # one of KFP's placeholders is text
        raise AppDefError(
            f"{where} is {_show(source.argument)} of type {source.type}, which is not an execution id. Give a task, "
            "dsl.Collected(task.outputs['run_id']), or a channel for an execution id or a list of execution ids."
        )
    return replace(source, argument=what, type="LIST") if collected else source


def _run_id(text: str, where: str) -> str:
    # Execution ids are ASCII, as a stage's script makes them, and must be the same text in JSON.
    is_plain = text.isascii() and text.isprintable() and not find_rewritten(text) and not set(text) & set('"\\')
    if "/" not in text or not is_plain:
        raise AppDefError(
            f"{where} is {text!r}, which is not an execution id ('run/stage/execution'). To read a stage of this "
            f"pipeline, give its task, not its name: reads={text if text.isidentifier() else 'task'}."
        )
    return check_word(text, where)


def _show(what: object) -> str:
    return f"the channel {what.full_name!r}" if isinstance(what, pipeline_channel.PipelineChannel) else repr(what)
