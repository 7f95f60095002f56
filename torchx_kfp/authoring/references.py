"""Values that are known only at run time: their types in KFP, and references to them inside constant text.

kfp is not typed, so its classes are ``Any`` to mypy, and parameters with these types would accept anything. The
protocols here declare the common attributes of kfp's classes.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from torchx_kfp.errors import AppDefError

#: Matches an input of the component in text of a component function: see ``parameter_text``.
PARAMETER = re.compile(r"\{\{parameter:input=(?P<input>\w+);kind=(?P<kind>\w+);\}\}", re.ASCII)

#: The Python types of parameters by their names in the IR.
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

    A pipeline's parameters are channels, too, but have their declared types for a type checker.
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

    References with the same ``key`` are equal. ``argument`` is the value of the input in the task: a channel, one of
    KFP's own placeholders, or constant text. For an input of a component, it is None: the component's caller passes the
    value, or ``default`` applies. ``type`` is the name of the type in the IR, such as ``NUMBER_INTEGER``.
    """

    key: str
    argument: object
    name: str
    type: str
    #: The loop item of which this is a field, if KFP passes on the field only together with the item.
    loop_item: Reference | None = None
    default: object = inspect.Parameter.empty

    def __eq__(self, other: object) -> bool:
        # Channels compared with == would be a condition for dsl.If.
        return isinstance(other, Reference) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


#: A text of constants and references to values that KFP fills in.
Text = tuple["str | Reference", ...]


def is_constant(parts: Text) -> bool:
    """Return whether the parts are one constant text."""
    return len(parts) == 1 and isinstance(parts[0], str)


def join_constants(parts: Iterable[str | Reference]) -> Text:
    """Join neighboring constants."""
    joined: list[str | Reference] = []
    for part in parts:
        if joined and isinstance(part, str) and isinstance(joined[-1], str):
            joined[-1] += part
        else:
            joined.append(part)
    return tuple(joined)


def parameter(name: str, kind: str, default: object = inspect.Parameter.empty) -> Reference:
    """Return a reference to an input of the component."""
    return Reference(f"parameter {name}", None, name, kind, default=default)


#: The index of a replica, which the launcher fills in, not KFP. No input can have this name.
REPLICA = parameter("0", "STRING")


def parameter_text(reference: Reference) -> str:
    """Return text that represents an input of a component, as KFP does for channels."""
    return f"{{{{parameter:input={reference.name};kind={reference.type};}}}}"


#: The longest argument on Linux in bytes (MAX_ARG_STRLEN is 128 KiB with the final NUL).
LONGEST_WORD = 128 * 1024 - 1


def check_word(text: str, where: str) -> str:
    """Return the text if a process can receive it as an argument."""
    if "\0" in text:
        raise AppDefError(f"{where} contains a NUL character, which arguments cannot have: {text!r}. Remove it.")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise AppDefError(
            f"{where} is not valid Unicode (a lone surrogate): {text!r}. Decode bytes as UTF-8 first, "
            "or pass them base64-encoded."
        ) from None
    if size > LONGEST_WORD:
        raise AppDefError(
            f"{where} is {size} bytes long; Linux accepts at most {LONGEST_WORD} bytes in one argument. "
            "Put the text into a file in the image or on the tracker's storage, and pass its path."
        )
    return text
