"""Values that are known only at run time: their types in KFP, and references to them among constant text.

Neither kfp nor torchx is typed, so their classes are ``Any`` to mypy, and a parameter with such a type would accept
anything. The protocols here declare the attributes that kfp's classes have in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

#: Matches an input of the component in text that a component function has made: see ``parameter_text``.
PARAMETER = re.compile(r"\{\{parameter:input=(?P<input>\w+);kind=(?P<kind>\w+);\}\}", re.ASCII)


class Channel(Protocol):
    """A pipeline channel: a task's output, a loop item, ``dsl.Collected`` or ``dsl.OneOf``.

    A pipeline's parameters are channels, too. For a type checker, they have the type that the function declares.
    """

    @property
    def full_name(self) -> str: ...


class Task(Protocol):
    """A task of a pipeline: ``dsl.PipelineTask``."""

    @property
    def outputs(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Reference:
    """A value that KFP fills in at run time.

    References with the same ``key`` are equal. ``argument`` is the channel or KFP placeholder that the task passes to
    the input. ``type`` is the name of the type in the IR, such as ``NUMBER_INTEGER``. A reference without an argument
    is an input of a component, with the same name, which the component's caller passes.
    """

    key: str
    argument: object
    name: str
    type: str
    #: A reference that the task must also take, so that KFP passes this one into the task's group.
    carrier: Reference | None = None

    def __eq__(self, other: object) -> bool:
        # Comparing channels with == would make a condition for dsl.If.
        return isinstance(other, Reference) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Parts = tuple["str | Reference", ...]


def parameter(name: str, kind: str) -> Reference:
    """Return a reference to the component's input with this name and this type in the IR."""
    return Reference(f"parameter {name}", None, name, kind)


def parameter_text(reference: Reference) -> str:
    """Return text that represents an input of a component, as KFP does for a channel in an f-string."""
    return f"{{{{parameter:input={reference.name};kind={reference.type};}}}}"


def parameters_in(text: str) -> list[str]:
    """Return the names of the inputs in the text."""
    return [found["input"] for found in PARAMETER.finditer(text)]


def fill_parameters(text: str, values: Mapping[str, str]) -> str:
    """Replace the inputs in the text with these values; other inputs stay."""
    return PARAMETER.sub(lambda found: values.get(found["input"], found[0]), text)
