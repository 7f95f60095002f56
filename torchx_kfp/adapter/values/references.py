"""Values that are known at run time only: their types in KFP, and references to them beside constant text.

Neither kfp nor torchx is typed, so their classes are ``Any`` to mypy, and a parameter of such a type would accept
anything. The protocols here declare what kfp's classes have in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

#: An input of the component in text that a component function makes: see ``parameter_text``.
PARAMETER = re.compile(r"\{\{parameter:input=(?P<input>\w+);kind=(?P<kind>\w+);\}\}", re.ASCII)


class Channel(Protocol):
    """A pipeline channel: a task's output, a loop's item, ``dsl.Collected`` or ``dsl.OneOf``.

    Parameters of a pipeline are channels too. To a type checker they have the type that the function declares.
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

    References with the same ``key`` are equal. ``argument`` is what the task passes to the input: a channel, or a
    placeholder of KFP. ``type`` is the name of the type in the IR, such as ``NUMBER_INTEGER``. A reference
    without an argument is an input of a component, with the same name, which the component's caller passes.
    """

    key: str
    argument: object
    name: str
    type: str
    #: A reference that the task must also take, so that KFP carries this one into the task's group.
    carrier: Reference | None = None

    def __eq__(self, other: object) -> bool:
        # With a channel, == makes a condition for dsl.If.
        return isinstance(other, Reference) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Parts = tuple["str | Reference", ...]


def parameter(name: str, kind: str) -> Reference:
    """Return the input of a component with this name and this type of the IR."""
    return Reference(f"parameter {name}", None, name, kind)


def parameter_text(reference: Reference) -> str:
    """Return text that stands for an input of a component, as an f-string does for a channel of KFP."""
    return f"{{{{parameter:input={reference.name};kind={reference.type};}}}}"


def parameters_in(text: str) -> list[str]:
    """Return the names of the inputs in the text."""
    return [found["input"] for found in PARAMETER.finditer(text)]


def fill_parameters(text: str, values: Mapping[str, str]) -> str:
    """Replace the inputs in the text by these values; other inputs stay."""
    return PARAMETER.sub(lambda found: values.get(found["input"], found[0]), text)
