"""Values that are known only at run time: their types in KFP, and references to them among constant text.

Neither kfp nor torchx is typed, so their classes are ``Any`` to mypy, and a parameter with such a type would accept
anything. The protocols here declare the attributes that kfp's classes have in common.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torchx_kfp.errors import AppDefError

#: Matches an input of the component in text that a component function has made: see ``parameter_text``.
PARAMETER = re.compile(r"\{\{parameter:input=(?P<input>\w+);kind=(?P<kind>\w+);\}\}", re.ASCII)

#: The types of parameters in Python, by their names in the IR.
PYTHON_TYPES = {
    "STRING": str,
    "NUMBER_INTEGER": int,
    "NUMBER_DOUBLE": float,
    "BOOLEAN": bool,
    "LIST": list,
    "STRUCT": dict,
}


class Channel(Protocol):
    """A pipeline channel: a task's output, a loop item, ``dsl.Collected`` or ``dsl.OneOf``.

    A pipeline's parameters are channels, too. For a type checker, they have the type that the function declares.
    """

    @property
    def full_name(self) -> str: ...


class PipelineTask(Protocol):
    """A task of a pipeline: ``dsl.PipelineTask``."""

    @property
    def outputs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Reference:
    """A value that KFP fills in at run time.

    References with the same ``key`` are equal. ``argument`` is what the task passes to the input: a channel, one of
    KFP's own placeholders, or constant text. It is None for an input of a component, which the component's caller
    passes, if it has no ``default``. ``type`` is the name of the type in the IR, such as ``NUMBER_INTEGER``.
    """

    key: str
    argument: object
    name: str
    type: str
    #: The item whose field this is, if the task must take it as well: KFP passes on the field only together with it.
    loop_item: Reference | None = None
    default: object = inspect.Parameter.empty

    def __eq__(self, other: object) -> bool:
        # Comparing channels with == would make a condition for dsl.If.
        return isinstance(other, Reference) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


#: A text whose parts are constants, or references to values that KFP fills in.
Text = tuple["str | Reference", ...]


def is_constant(parts: Text) -> bool:
    """Tell whether the parts are one text that is known when the pipeline is compiled."""
    return len(parts) == 1 and isinstance(parts[0], str)


def join_constants(parts: Iterable[str | Reference]) -> Text:
    """Return the parts with neighboring constants joined."""
    joined: list[str | Reference] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def parameter(name: str, kind: str, default: object = inspect.Parameter.empty) -> Reference:
    """Return a reference to the component's input with this name, this type in the IR, and this default."""
    return Reference(f"parameter {name}", None, name, kind, default=default)


#: The index of a replica, which only the replica knows: its launcher fills it in, not KFP. No input has such a name.
REPLICA = parameter("0", "STRING")


def parameter_text(reference: Reference) -> str:
    """Return text that represents an input of a component, as KFP does for a channel in an f-string."""
    return f"{{{{parameter:input={reference.name};kind={reference.type};}}}}"


def fill_parameters(text: str, values: Mapping[str, str]) -> str:
    """Replace the inputs in the text with these values; other inputs stay."""
    return PARAMETER.sub(lambda found: values.get(found["input"], found[0]), text)


#: The bytes that Linux accepts in one argument (MAX_ARG_STRLEN is 128 KiB with the final NUL).
LONGEST_WORD = 128 * 1024 - 1


def check_word(text: str, where: str) -> str:
    """Return the text if a process can receive it."""
    if "\0" in text:
        raise AppDefError(f"{where} contains a NUL character, which an argument cannot: {text!r}. Remove it.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise AppDefError(
            f"{where} is not valid Unicode (a lone surrogate): {text!r}. Decode bytes as UTF-8 before they "
            "go into an AppDef, or pass them base64-encoded."
        ) from None
    if size > LONGEST_WORD:
        raise AppDefError(
            f"{where} is {size} bytes long; Linux accepts at most {LONGEST_WORD} bytes in one argument. "
            "Put the text into a file in the image or on the tracker's storage, and pass its path."
        )
    return text
