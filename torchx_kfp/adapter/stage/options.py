"""The options of a stage: their names and types, and ``Settings``, which are read from them.

``task_from_app`` documents the options. To add one, name it in a ``TypedDict`` here and read it into ``Settings``, add
it to ``task_from_app`` (and to ``component_from_function``), and use it in the plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict

from torchx_kfp.adapter.stage.fields import check_name
from torchx_kfp.adapter.stage.inputs import TASK_CONFIG
from torchx_kfp.adapter.stage.outputs import (
    Artifacts,
    Publication,
    Results,
    UiMetadata,
    read_publication,
    read_ui_metadata,
)
from torchx_kfp.adapter.stage.reads import RUN_ID, Source, TrackerBase
from torchx_kfp.adapter.stage.replicas import Replicas
from torchx_kfp.adapter.stage.secrets import Secrets, read_secrets
from torchx_kfp.adapter.stage.trackers import Trackers, read_trackers
from torchx_kfp.adapter.values.references import Parts
from torchx_kfp.engines import Engine, option_hint, read_engine
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean


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
    engine: Engine | str | None
    replicas: Replicas | None
    may_fail: bool
    name: str | None


class TaskOptions(SharedOptions, ComponentOptions, total=False):
    """The options of ``task_from_app``, except ``reads``."""

    ui_metadata: UiMetadata | None


@dataclass(frozen=True)
class Settings:
    """The options of one stage, read and checked. A stage without a tracker base is not tracked."""

    tracker_base: Parts | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)
    publication: Publication | None = None
    ui_metadata: str | None = None
    trackers: Mapping[str, Parts | None] = field(default_factory=dict)
    secrets: Secrets = field(default_factory=dict)
    cache: bool = True
    inline: bool = True
    labels: bool = False
    engine: Engine | None = None
    replicas: object = None
    may_fail: bool = False
    name: str | None = None


def read_settings(
    options: Mapping[str, Any],
    tracker_base: Parts | None,
    sources: Mapping[str, Source],
    *,
    taken: Iterable[str] = (RUN_ID,),
) -> Settings:
    """Read the options of a stage.

    Args:
        options: ``TaskOptions``. The tracker base is not read from here.
        tracker_base: where results are stored.
        sources: the stages that this one reads, by alias.
        taken: names that results and artifacts must not have.

    Raises:
        AppDefError: secrets, trackers or a switch are malformed, or a stage that is not tracked has trackers.
        OutputsError: a result or an artifact cannot be an output of KFP.
        ChannelError: a channel is used where its value cannot be filled in.
    """
    if options.get("name") is not None:
        check_name(options["name"], "The stage's name")
    for name in ("cache", "inline", "labels", "may_fail"):
        if not isinstance(options.get(name, False), bool):
            raise AppDefError(
                f"{name} is {options[name]!r}. Give True or False, which is known when the pipeline is compiled."
            )
    trackers = read_trackers(options.get("trackers"))
    if trackers and tracker_base is None:
        raise AppDefError(
            f"trackers names {', '.join(map(repr, trackers))} for a stage that is not tracked. Give it a tracker base: "
            "Stages(tracker_base=...).task(app), task_from_app(app, tracker_base=...), or component_from_app(app, "
            "tracked=True)."
        )
    engine = read_engine(options.get("engine"))
    taken = (*taken, TASK_CONFIG) if engine else taken
    results, artifacts = options.get("results"), options.get("artifacts")
    if options.get("may_fail") and results is None and artifacts is None:
        results = {}  # the program that publishes results records the exit code
    return Settings(
        tracker_base=tracker_base,
        sources=sources,
        publication=read_publication(results, artifacts, taken=taken),
        ui_metadata=read_ui_metadata(options.get("ui_metadata")),
        trackers=trackers,
        secrets=read_secrets(options.get("secrets")),
        engine=engine,
        replicas=options.get("replicas"),
        **{name: options[name] for name in ("cache", "inline", "labels", "may_fail", "name") if name in options},
    )


def check_names(function: str, options: Mapping[str, object], known: type[Any], *listed: str) -> None:
    """Reject unknown options of a function that takes a ``TypedDict``, as Python does if a function lists its options.

    Args:
        function: the function's name.
        options: the keyword arguments that the ``TypedDict`` describes.
        known: the ``TypedDict``.
        listed: parameters that the function itself lists, for the message.

    Raises:
        TypeError: an option is not a key of the ``TypedDict``.
    """
    names = [*listed, *known.__annotations__]
    for name, value in options.items():
        if name not in names:
            hint = option_hint(name, repr(value)) or did_you_mean(name, names)
            if known is SharedOptions and name in ("reads", *TaskOptions.__annotations__):
                hint = " It is not shared by stages: give it to task()."
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}.{hint} Its options: {', '.join(names)}."
            )
