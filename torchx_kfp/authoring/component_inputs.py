"""The inputs of a stage's component: their names, their types, and the arguments of a task."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.authoring.naming import input_name, is_shell_variable
from torchx_kfp.authoring.reads import CollectedRuns, ReadSource, StageName
from torchx_kfp.authoring.references import Parts, Reference
from torchx_kfp.contract.inputs import (
    INNER,
    READS,
    RUN_ID,
    SUFFIXES,
    encode_aliases,
    encode_value,
    join_values,
    parameter_placeholder,
)

#: The types of parameters in Python, by their names in the IR.
PYTHON_TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}
#: The default of an input that the caller must pass.
NO_DEFAULT = object()


@dataclass(frozen=True)
class Input:
    """An input of the component: its type in the IR, the task's argument (None: the caller passes it), its default."""

    type: str
    argument: Any = None
    default: Any = NO_DEFAULT


def name_inputs(
    parameters: Iterable[Reference],
    sources: Mapping[str, ReadSource],
    parts: Iterable[str | Reference],
    taken: Iterable[str],
) -> dict[Reference, str]:
    """Name the input of each reference: by the alias under which a stage is read, or by the channel.

    KFP's backend merges components whose containers have the same text, even if their inputs differ
    (kubeflow/pipelines, argocompiler). So a name in the text shows the input's type, and whether there is a loop item.
    """
    inputs: dict[Reference, str] = {reference: reference.name for reference in parameters}
    taken = {RUN_ID, *taken, *inputs.values()}

    def add(reference: Reference, wanted: str) -> None:
        if reference not in inputs:
            inputs[reference] = input_name(wanted, taken)
            taken.add(inputs[reference])
            if reference.loop_item:
                add(reference.loop_item, _typed_name(reference.loop_item))

    for alias, source in sources.items():
        run_ids = source.run_ids if isinstance(source, CollectedRuns) else source
        for run_id in run_ids if isinstance(run_ids, tuple) else (run_ids,):
            if isinstance(run_id, Reference):
                add(run_id, READS if isinstance(alias, StageName) else alias)
    for part in parts:
        if isinstance(part, Reference):
            add(part, _typed_name(part))
    return inputs


def _typed_name(reference: Reference) -> str:
    if reference.argument is None:
        return reference.name
    name = f"{INNER}{reference.name}" if reference.loop_item else reference.name
    return name + SUFFIXES.get(reference.type, "")


def describe(inputs: Mapping[str, Input], outputs: Mapping[str, type]) -> str:
    """Return a text that differs for components with different inputs, defaults or outputs."""
    kinds = {name: getattr(kind, "schema_title", kind.__name__) for name, kind in outputs.items()}
    defaults = {
        name: [planned.type, *([] if planned.default is NO_DEFAULT else [planned.default])]
        for name, planned in inputs.items()
    }
    return json.dumps([defaults, kinds], sort_keys=True, default=repr)


def parent_words(sources: Mapping[str, ReadSource], inputs: Mapping[Reference, str]) -> list[str]:
    """Return the run ids that are read, as JSON with placeholders."""

    def word(source: ReadSource) -> str:
        if isinstance(source, CollectedRuns):
            its = source.run_ids
            return f"[{', '.join(map(word, its))}]" if isinstance(its, tuple) else parameter_placeholder(inputs[its])
        return f'"{source if isinstance(source, str) else parameter_placeholder(inputs[source])}"'

    return [*map(word, sources.values())]


def plan_inputs(
    inputs: Mapping[Reference, str], image: Parts, defaults: Mapping[Reference, object] | None = None
) -> tuple[str, dict[str, Input]]:
    """Return the image's text and all inputs of the component, including one for an image with text next to a channel.

    If an image contains a placeholder, the backend's driver replaces the whole image with the value of that input, and
    drops the text around it. So the whole text becomes the value of one input.
    """
    planned = {
        name: Input(reference.type, reference.argument, (defaults or {}).get(reference, NO_DEFAULT))
        for reference, name in inputs.items()
    }
    text = render(image, inputs)
    names = [inputs[part] for part in image if isinstance(part, Reference)]
    if names and (len(image) > 1 or planned[names[0]].type != "STRING"):
        key = input_name("_".join(("image", *names)), inputs.values())
        planned[key] = Input("STRING", text)
        text = parameter_placeholder(key)
    return text, planned


#: The bytes that one value may have, and all of them. Storing more than that twice would take more than another
#: container.
LONGEST, MOST = 256, 1024
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_OPTION = re.compile(r"--?[A-Za-z][\w-]*", re.ASCII)


class Prefix(str):
    """The part of a word that stays in the container: ``NAME=`` of a variable, an empty text of an argument."""


@dataclass(frozen=True)
class Lifted:
    """The text of the input ``stage``, and the words that stay in the container.

    ``variables`` and ``words`` have a ``Prefix`` where the text has the value.
    """

    text: str
    variables: Sequence[Parts]
    words: Sequence[Parts]


def lift(
    stage: str,
    aliases: Iterable[str],
    variables: Sequence[Parts],
    words: Sequence[Parts],
    *,
    kept: Collection[str] = (),
) -> Lifted:
    """Move aliases and values into the input ``stage``.

    Args:
        stage: the stage's part of run ids.
        aliases: the aliases of the stages that are read.
        variables: ``env`` and ``NAME=value``.
        words: the program and its arguments.
        kept: variables that stay in the container, because the stages of a pipeline share them.
    """
    names = encode_aliases(aliases)
    split = [*(_split_variable(word, kept) for word in variables), None, *map(_split_argument, words[1:])]
    if _is_program(words):
        split[len(variables) + 2] = None
    values = [encode_value(word[1]) for word in split if word]
    if sum(map(len, values)) > MOST:
        return Lifted(join_values(stage, names, ()), variables, words)
    parts = [(Prefix(found[0]),) if found else word for found, word in zip(split, (*variables, *words), strict=True)]
    return Lifted(join_values(stage, names, values), parts[: len(variables)], parts[len(variables) :])


def _split_variable(word: Parts, kept: Collection[str]) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str):
        return None
    name, equals, value = word[0].partition("=")
    stays = name in kept or not is_shell_variable(name)
    return None if stays or not _is_value(value) else (name + equals, value)


def _split_argument(word: Parts) -> tuple[str, str] | None:
    if len(word) != 1 or not isinstance(word[0], str) or not _is_value(word[0]) or _OPTION.fullmatch(word[0]):
        return None
    return "", word[0]


def _is_program(words: Sequence[Parts]) -> bool:
    """Return whether the third word is a program for Python that finds what differs in its arguments."""
    return (
        len(words) > 2
        and all(isinstance(word[0], str) for word in words[:3])
        and _PYTHON.fullmatch(str(words[0][0])) is not None
        and words[1][0] == "-c"
        and "argv" in str(words[2][0])
    )


def _is_value(text: str) -> bool:
    return 0 < len(text) <= LONGEST and text.isascii() and text.isprintable()


def render(parts: Parts, inputs: Mapping[Reference, str]) -> str:
    """Return the parts as text for KFP, in which each reference is the placeholder for its input."""
    return "".join(part if isinstance(part, str) else parameter_placeholder(inputs[part]) for part in parts)
