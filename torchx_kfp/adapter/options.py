"""The options of stages and their types. ``task_from_app`` documents them all.

Neither kfp nor torchx is typed, so that their classes are ``Any`` to mypy, and a parameter of such a type takes
anything. The protocols here are what kfp's classes have in common.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypedDict

from kfp import dsl

if sys.version_info >= (3, 11):
    from typing import Unpack
elif TYPE_CHECKING:  # annotations are never evaluated here, so that Python 3.10 needs no typing_extensions
    from typing_extensions import Unpack

__all__ = ["Unpack"]


class Channel(Protocol):
    """A value that is known at run time: an output of a task, an item of a loop, ``dsl.Collected`` or ``dsl.OneOf``.

    The parameters of a pipeline are channels too; to a type checker they are what the function declares, such as str.
    """

    @property
    def full_name(self) -> str: ...


class Task(Protocol):
    """A task of a pipeline: ``dsl.PipelineTask``."""

    @property
    def outputs(self) -> Mapping[str, Any]: ...


#: An fsspec URL, a directory, or a channel that holds one.
TrackerBase = str | Channel
#: A task, or its run id: a channel, or a string.
Readable = Task | Channel | str
#: One task, several, or {alias: what is read}.
Reads = Task | Channel | Iterable[Task | Channel] | Mapping[str, Readable | Sequence[Readable]]
#: {name of a result: its type}.
Results = Mapping[str, type[int] | type[float] | type[bool] | type[str]]
#: {name of an artifact: its class in ``kfp.dsl``}.
Artifacts = Mapping[str, type[dsl.Artifact]]
#: KFP v1's UI metadata: what JSON holds.
UiMetadata = Mapping[str, Any]
#: {tracker: its configuration}.
Trackers = Mapping[str, str | Channel | None]
#: {name of a Kubernetes secret: {key in it: environment variable}}.
Secrets = Mapping[str, Mapping[str, str]]


class PublisherOptions(TypedDict, total=False):
    """The options that every stage has."""

    secrets: Secrets | None
    cache: bool
    inline: bool


class StageOptions(PublisherOptions, total=False):
    """The options that every stage of an AppDef has."""

    trackers: Trackers | None
    labels: bool


class SharedOptions(StageOptions, total=False):
    """The options that stages can share: see ``Stages``."""

    tracker_base: TrackerBase | None


class ComponentOptions(StageOptions, total=False):
    """The options that tasks and components have in common."""

    results: Results | None
    artifacts: Artifacts | None
    name: str | None


class TaskOptions(SharedOptions, ComponentOptions, total=False):
    """The options of ``task_from_app``, beside ``reads``."""

    ui_metadata: UiMetadata | None
