"""Values that are known at run time only: KFP's types of them, and references to them beside constant text.

Neither kfp nor torchx is typed, so their classes are ``Any`` to mypy, and a parameter of such a type would accept
anything. The protocols here declare what kfp's classes have in common.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

#: Stands for an input of the component, in text that a component function makes: see ``parameter_text``.
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

    ``key`` tells equal references; ``argument`` is what the task's input gets: a channel, or text that is one of KFP's
    placeholders; ``type`` is the IR's name of the type, such as ``NUMBER_INTEGER``. Without an argument it is an input
    of a component, under this very name, which the caller of the component gives.
    """

    key: str
    argument: object
    name: str
    type: str
    #: A reference that the task has to take as well, for KFP to carry this one into the group that the task is in.
    carrier: Reference | None = None

    def __eq__(self, other: object) -> bool:
        # A channel's == makes a condition for dsl.If.
        return isinstance(other, Reference) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Parts = tuple["str | Reference", ...]


def parameter(name: str, kind: str) -> Reference:
    """The input of a component under this name, of this type of the IR."""
    return Reference(f"parameter {name}", None, name, kind)


def parameter_text(reference: Reference) -> str:
    """Text that stands for an input of a component, as an f-string of KFP does for a channel."""
    return f"{{{{parameter:input={reference.name};kind={reference.type};}}}}"


def parameters_in(text: str) -> list[str]:
    """The names of the inputs that stand in the text."""
    return [found["input"] for found in PARAMETER.finditer(text)]


def fill_parameters(text: str, values: Mapping[str, str]) -> str:
    """The text with these values in place of the inputs that stand in it; others stay."""
    return PARAMETER.sub(lambda found: values.get(found["input"], found[0]), text)
