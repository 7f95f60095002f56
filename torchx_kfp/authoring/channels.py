"""Find pipeline channels in text, and their types."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re

from kfp import dsl
from kfp.dsl import for_loop, pipeline_channel, pipeline_context, tasks_group
from kfp.dsl.types import type_utils

from torchx_kfp.authoring.references import PARAMETER, PYTHON_TYPES, REPLICA, Reference, Text, check_word, parameter
from torchx_kfp.common.text import did_you_mean, shown
from torchx_kfp.contract.inputs import find_rewritten
from torchx_kfp.errors import AppDefError


def pipeline_here(where: str) -> pipeline_context.Pipeline:
    """Return the pipeline that is being defined."""
    pipeline = pipeline_context.Pipeline.get_default_pipeline()
    if pipeline is None:
        raise AppDefError(
            f"{where} contains a pipeline channel, but no pipeline is being defined. Components need static AppDefs; "
            "call task_from_app in the pipeline function instead."
        )
    return pipeline


def channel_here(channel: pipeline_channel.PipelineChannel, where: str) -> pipeline_channel.PipelineChannel:
    """Return the channel, or reject another pipeline's, which KFP would accept.

    KFP itself rejects channels that are used outside the loop or condition in which they have a value.
    """
    if isinstance(channel, for_loop.LoopArgumentVariable | for_loop.LoopParameterArgument):
        match = _CHANNEL.fullmatch(str(channel))
        return channel if match is None else _resolve(match, where)
    task = pipeline_here(where).tasks.get(channel.task_name)
    if not isinstance(channel, pipeline_channel.OneOfMixin) and getattr(channel, "task", task) not in (None, task):
        raise AppDefError(
            f"{where} uses the output {channel.name!r} of {channel.task_name!r}, a task of another pipeline. Pass it "
            "into this one as a parameter."
        )
    return channel


_CHANNEL = re.compile(r"\{\{channel:task=(?P<task>.*?);name=(?P<name>.*?);type=(?P<type>.*?);\}\}", re.DOTALL)
_CHANNELS = re.compile(f"{_CHANNEL.pattern}|{PARAMETER.pattern}", re.DOTALL)
#: Matches the rest of a channel's text that was changed or cut; ``;}}`` is legal after an opening brace.
_REMAINS = re.compile(r"\{\{channel:|\{\{c(h(a(n(n(el?)?)?)?)?)?\Z|\A[^\s{]*;\}\}", re.IGNORECASE)
_FIELD = for_loop.LoopArgumentVariable.SUBVAR_NAME_DELIMITER
_IF = tasks_group.TasksGroupType.CONDITION

#: Objects that an f-string converted to text, by their text.
_TRACES = {
    "<kfp.dsl.pipeline_task.PipelineTask object at 0x": "a task (pass one of its outputs, or reads=task)",
    "ConditionOperation(operator=": "a comparison of pipeline channels (only dsl.If takes one)",
}

#: The placeholders that KFP fills in if they are the whole value of an input.
_PLACEHOLDERS = {
    getattr(dsl, name): name.removesuffix("_PLACEHOLDER").lower()
    for name in dir(dsl)
    if re.fullmatch(r"PIPELINE_(?!TASK_EXECUTOR_).*_PLACEHOLDER", name)
}


def parse(value: object, where: str) -> Text:
    """Parse a channel, or a string that may contain channels as text, into constant text and references, in order."""
    if not isinstance(value, str):
        if isinstance(value, pipeline_channel.PipelineChannel):
            return (_reference(value, where),)
        shown = f"the task {value.name!r}" if isinstance(value, dsl.PipelineTask) else repr(value)
        raise AppDefError(
            f"{where} is {shown} ({type(value).__name__}), but must be a string or a channel: a parameter, "
            "task.outputs['...'] or a loop's item. "
            "To read a task's results through the tracker, give reads=task."
        )
    if "{{" not in value and "}}" not in value:
        _refuse_lost(value, where)
        return (value,)
    if value in _PLACEHOLDERS:
        return (Reference(value, value, _PLACEHOLDERS[value], "STRING"),)
    for placeholder in _PLACEHOLDERS:
        if placeholder in value:
            raise AppDefError(
                f"{where} contains {placeholder} inside other text: {value!r}. KFP fills it in only if it is the whole "
                "value: pass it as a separate argument or variable."
            )
    parts: list[str | Reference] = []
    end = 0
    for found in _CHANNELS.finditer(value):
        if found.start() > end:
            parts.append(value[end : found.start()])
        if found["input"]:
            parts.append(parameter(found["input"], found["kind"]))
        else:
            parts.append(_reference(_resolve(found, where), where))
        end = found.end()
    if end < len(value) or not parts:
        parts.append(value[end:])
    for part in parts:
        if isinstance(part, str):
            _refuse_lost(part, where)
    remains = _REMAINS.search(_CHANNELS.sub("{", value))
    if remains:
        raise AppDefError(
            f"{where} contains {remains.group()!r}, a part of a pipeline channel's text, in {value!r}. The channel has "
            'a value only when the pipeline runs: pass its whole text, f"{channel}", and cut or convert the value in '
            "the application."
        )
    return tuple(parts)


def check_text(parts: Text, where: str) -> Text:
    """Return the parts if they arrive unchanged: constant text can be escaped, but text next to a channel cannot.

    The index of a replica is not a channel: the launcher gets the text around it as separate words.
    """
    if REPLICA in parts:
        at = parts.index(REPLICA)
        return (*check_text(parts[:at], where), REPLICA, *check_text(parts[at + 1 :], where))
    for part, follower in itertools.pairwise((*parts, None)):
        if not isinstance(part, str):
            continue
        check_word(part, where)
        # After another brace, the placeholder of the next channel would look like one of Argo's.
        rewritten = find_rewritten(part if follower is None else part + "{") if len(parts) > 1 else None
        if rewritten:
            raise AppDefError(
                f"{where} contains {rewritten!r} in one string with a pipeline channel: {part!r}. Argo or the kubelet "
                "would change it, and text next to a channel cannot be escaped. Split it: pass the text and the "
                "channel as two arguments or variables, and let the application join them."
            )
    return parts


def parse_checked(value: object, where: str) -> Text:
    """Parse a value, and check that it arrives unchanged: see ``parse`` and ``check_text``."""
    return check_text(parse(value, where), where)


def contains_channel(value: object) -> bool:
    """Return whether a value is or contains a channel, also as text or in lists, dicts and dataclasses."""
    if value is None or isinstance(value, int):
        return False
    if isinstance(value, str):
        return _CHANNELS.search(value) is not None
    if isinstance(value, pipeline_channel.PipelineChannel | pipeline_channel.ConditionOperation):
        return True
    if isinstance(value, dict):
        return any(contains_channel(item) for pair in value.items() for item in pair)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(contains_channel(getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return isinstance(value, list | tuple | set | frozenset) and any(map(contains_channel, value))


def ir_type(channel: pipeline_channel.PipelineChannel) -> str:
    """Return the channel's type in the IR; ``ARTIFACT`` if it is not a parameter."""
    return _ir_type(channel.channel_type) if isinstance(channel.channel_type, str) else "ARTIFACT"


@functools.cache
def _ir_type(channel_type: str) -> str:
    try:
        return str(type_utils.get_parameter_type_name(channel_type))
    except (ValueError, TypeError, AttributeError):
        return "ARTIFACT"


def _refuse_lost(text: str, where: str) -> None:
    """Reject an object's repr in an f-string, which KFP would use as a constant."""
    for trace, what in _TRACES.items():
        if trace in text:
            raise AppDefError(f"{where} contains {what} as text: {text!r}.")
    pipeline = pipeline_context.Pipeline.get_default_pipeline()
    for group in pipeline.groups if pipeline else ():
        name = group.loop_argument.name if isinstance(group, tasks_group.ParallelFor) else None
        if isinstance(name, str) and name in text:
            raise AppDefError(
                f"{where} contains {text!r}, KFP's own name of a loop's item: .name and .full_name of an item are this "
                "name, not fields of its dict. Rename the field."
            )


def _reference(channel: pipeline_channel.PipelineChannel, where: str) -> Reference:
    if isinstance(channel, dsl.Collected):
        raise AppDefError(
            f"{where} contains dsl.Collected of {channel.task_name!r}, a list of values. Read it instead, with "
            "reads={'trials': dsl.Collected(task.outputs['run_id'])}: the tracker has the results of each."
        )
    channel = channel_here(channel, where)
    kind = ir_type(channel)
    if kind not in PYTHON_TYPES or isinstance(channel, pipeline_channel.PipelineArtifactChannel):
        raise AppDefError(
            f"{where} contains {channel.full_name!r} of type {kind}, but text can only contain parameters. Pass its "
            "URI, the output of a KFP component that takes it: def uri_of(data: dsl.Input[dsl.Artifact]) -> str: "
            "return data.uri. Or let a stage record it, and read that stage."
        )
    _loop_items(where)
    channel = _with_true_type(channel, where)
    loop_item = None
    if isinstance(channel, for_loop.LoopArgumentVariable) and channel.is_with_items_loop_argument:
        loop = pipeline_here(where).groups[-1]
        if getattr(loop, "loop_argument", None) is not channel.loop_argument:
            # KFP passes a field of a constant item into an inner group only together with the item.
            loop_item = _reference(channel.loop_argument, where)
    key = f"{channel.task_name or ''};{channel.name}"
    return Reference(key, channel, _short_name(channel), ir_type(channel), loop_item)


def _with_true_type(channel: pipeline_channel.PipelineChannel, where: str) -> pipeline_channel.PipelineChannel:
    """Return the channel. The item of a loop over constants, or its field, gets the common type of all items.

    KFP uses the type of the first item, and for all fields that of the first field. So ``name`` in ``{"lr": 0.1,
    "name": "a"}`` becomes a number, which the backend rejects, and the items of ``[1, 0.5]`` become integers, which
    kfp.local truncates. A field that no item has is rejected.
    """
    if isinstance(channel, for_loop.LoopArgumentVariable):
        loop_item, field = channel.loop_argument, channel.subvar_name
        items = loop_item.items_or_pipeline_channel
        if isinstance(items, list):
            fields = list(dict.fromkeys(name for item in items for name in item))
            if fields and field not in fields:
                raise AppDefError(
                    f"{where} contains the field {field!r}, which no item of the loop has."
                    f"{did_you_mean(field, fields)} Their fields: {', '.join(map(repr, fields))}."
                )
            lacking = [item for item in items if field not in item]
            if lacking and not any(it.group_type == _IF for it in pipeline_here(where).groups):
                raise AppDefError(
                    f"{where} contains the field {field!r}, which the loop's item {shown(lacking[0])} does not have. "
                    "Give it one there, or use the field inside a dsl.If that skips this item."
                )
            channel = for_loop.LoopArgumentVariable(loop_item, field)
            channel.channel_type = _common_type([item.get(field) for item in items])
    elif isinstance(channel, for_loop.LoopParameterArgument) and isinstance(channel.items_or_pipeline_channel, list):
        kind = _common_type(channel.items_or_pipeline_channel)
        if type_utils.get_parameter_type(kind) != type_utils.get_parameter_type(channel.channel_type):
            channel = for_loop.LoopParameterArgument(
                channel.items_or_pipeline_channel, name_override=channel.name, channel_type=kind
            )
    return channel


def _common_type(values: list[object]) -> str:
    kinds = {type(value) for value in values}
    if kinds == {int, float}:
        return "float"
    return kinds.pop().__name__ if len(kinds) == 1 else "str"


def _short_name(channel: pipeline_channel.PipelineChannel) -> str:
    """Return the input's name in KFP's UI: ``lr``, ``item``, ``item_lr``, or ``accuracy`` for the output of a task."""
    if isinstance(channel, for_loop.LoopArgumentVariable):
        return f"item_{channel.subvar_name}"
    if isinstance(channel, for_loop.LoopParameterArgument):
        return "item"
    # KFP names the only output of a Python component "Output", which cannot be the name of an input.
    return "output" if channel.name == "Output" else str(channel.name)


def _loop_items(where: str) -> list[pipeline_channel.PipelineChannel]:
    """Return the items of the surrounding loops, innermost first."""
    loops = [group for group in reversed(pipeline_here(where).groups) if isinstance(group, tasks_group.ParallelFor)]
    for loop, attribute in itertools.product(loops, ("name", "task_name", "channel_type", "pipeline")):
        if isinstance(getattr(loop.loop_argument, attribute), for_loop.LoopArgumentVariable):
            raise AppDefError(
                f"{where} is in a dsl.ParallelFor loop whose dicts have a field {attribute!r}, which would hide an "
                "attribute of KFP. Rename the field."
            )
    return [loop.loop_argument for loop in loops]


def _resolve(found: re.Match[str], where: str) -> pipeline_channel.PipelineChannel:
    """Return the channel for KFP's text of it."""
    task_name, name = found["task"], found["name"]
    for item in _loop_items(where):
        if (item.task_name or "") != task_name:
            continue
        if name == item.name:
            return item
        if name.startswith(item.name + _FIELD):
            return for_loop.LoopArgumentVariable(item, name.removeprefix(item.name + _FIELD))
    if task_name:
        task = pipeline_here(where).tasks.get(task_name)
        if task is not None and name in task.outputs:
            output = task.outputs[name]
            if str(output) != found.group():
                # dsl.Collected(output) has the output's name and the type LIST.
                return dsl.Collected(output)
            return output
    elif name.isidentifier():
        return pipeline_channel.create_pipeline_channel(name=name, channel_type=found["type"])
    raise AppDefError(
        f"{where} contains the channel {found.group()!r}, which is neither an output of a task of this pipeline, a "
        "parameter, nor the item of a surrounding loop. Use loop items inside their loop."
    )
