"""The options of a stage: their names, types and documentation, and ``Settings``, which are read from them.

To add an option, add it with its type and documentation to a ``TypedDict`` here, with its default to ``Settings``, and
to the keywords of ``component_from_function``; then use it in the plan.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict, TypeVar

from torchx_kfp.adapter.stage.fields import check_name
from torchx_kfp.adapter.stage.outputs import (
    Artifacts,
    Publication,
    Results,
    UiMetadata,
    read_publication,
    read_ui_metadata,
)
from torchx_kfp.adapter.stage.reads import Reads, Source, TrackerBase
from torchx_kfp.adapter.stage.replicas import Replicas
from torchx_kfp.adapter.stage.secrets import Secrets, read_secrets
from torchx_kfp.adapter.stage.trackers import Trackers, read_trackers
from torchx_kfp.adapter.values.references import Parts
from torchx_kfp.contract.inputs import RUN_ID, TASK_CONFIG
from torchx_kfp.engines import Engine, option_hint, read_engine
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean

_Function = TypeVar("_Function", bound=Callable[..., Any])


class OutputOptions(TypedDict, total=False):
    """The options that give a stage outputs. They need a tracker base.

    Attributes:
        results: results that become output parameters, {name: int, float, bool, str, list or dict}. KFP also shows all
            numbers that the application records, as the artifact ``metrics``; ``results={}`` asks only for these. The
            application records lists and dicts as metadata, ``current_run().add_metadata(trials=[...])``, of at most
            64 KiB as JSON. ``dsl.ParallelFor`` loops over a list, and the fields of its dicts are channels. The image
            needs python3 (3.8 or newer) and fsspec; if it does not have them, use ``publish_results``.
        artifacts: artifacts that become KFP artifacts, {name: dsl.Model, dsl.HTML, dsl.Markdown or another class}.
            The application registers them: ``current_run().add_artifact(name, path)``.
        may_fail: if True, the stage succeeds even if its application fails. The exit code is recorded as the result
            ``exit_code``, which ``results={"exit_code": int}`` makes an output. A declared result or artifact that is
            missing still fails the stage, and so does a signal that ends the stage itself.
    """

    results: Results | None
    artifacts: Artifacts | None
    may_fail: bool


class PublisherOptions(TypedDict, total=False):
    """The options that every stage has.

    Attributes:
        secrets: variables from Kubernetes secrets, {secret: {key: variable}}. Each value has the form of
            ``secret_key_to_env`` of ``kfp.kubernetes.use_secret_as_env``.
        cache: if False, the stage runs each time, even if KFP's cache has an execution with the same inputs.
        inline: if False, the image must have torchx-kfp: the command does not carry the program that publishes results.
    """

    secrets: Secrets | None
    cache: bool
    inline: bool


class StageOptions(PublisherOptions, total=False):
    """The options that every stage of an AppDef has.

    Attributes:
        trackers: further TorchX trackers that get the stage's records: {name: configuration}, such as
            ``{"mlflow": "http://mlflow:5000"}``. The name is that of an entry point ``torchx.tracker``, or
            ``module:function``. The configuration may be or contain channels; None means no configuration.
        labels: if True, the pod gets the labels that TorchX's Kubernetes scheduler sets
            (``torchx.pytorch.org/app-name``, ``app.kubernetes.io/name`` and others). They take about 1.5 kB of the
            1 MiB that Argo allows for a run. KFP and Argo always label pods with the run and the workflow;
            ``kubernetes.add_pod_label`` adds single labels.
    """

    trackers: Trackers | None
    labels: bool


class EngineOptions(StageOptions, total=False):
    """The options of every stage of an AppDef, and those of its replicas.

    Attributes:
        engine: what runs the replicas of an AppDef with several replicas or roles: ``"job"``, ``"jobset"``,
            ``"volcano"``, or one of ``torchx_kfp.engines`` with options. The stage's pod then starts them, shows their
            output, and ends with them; it needs python3 (3.8 or newer) in the image of the first role. An engine also
            runs a single replica whose mounts or devices KFP has no place for.
        replicas: the number of replicas, if it is known only when the stage runs: a channel for a whole number
            from the role's ``min_replicas`` (else 1) to its ``num_replicas``; {role: channel} if there are several.
    """

    engine: Engine | str | None
    replicas: Replicas | None


class ComponentOptions(OutputOptions, EngineOptions, total=False):
    """The options that tasks and components have in common.

    Attributes:
        name: the stage's name. The default is the AppDef's name.
    """

    name: str | None


class SharedOptions(StageOptions, total=False):
    """The options that stages can share: see ``Stages``.

    Attributes:
        tracker_base: the fsspec URL or directory in which results are stored, or a channel for one. With None, the
            stage is not tracked and runs exactly the AppDef's command.
    """

    tracker_base: TrackerBase | None


class TaskOptions(ComponentOptions, SharedOptions, total=False):
    """The options of ``task_from_app``.

    Attributes:
        reads: the stages whose results this one reads: a task, a list of tasks, or {alias: stage}, where a stage is a
            task, ``dsl.Collected`` of run ids, or any channel or string that is a run id. The task runs after them.
        ui_metadata: KFP v1's UI metadata, a constant. It becomes the artifact ``mlpipeline_ui_metadata``.
    """

    reads: Reads | None
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
    own = {name: value for name, value in options.items() if name in Settings.__dataclass_fields__}
    for name, value in own.items():
        if isinstance(default_of(name), bool) and not isinstance(value, bool):
            raise AppDefError(f"{name} is {value!r}. Give True or False, which is known when the pipeline is compiled.")
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
    if results is None and artifacts is None and given_outputs(options):
        results = {}  # the program that publishes results records the exit code
    own |= {
        "tracker_base": tracker_base,
        "sources": sources,
        "publication": read_publication(results, artifacts, taken=taken),
        "ui_metadata": read_ui_metadata(options.get("ui_metadata")),
        "trackers": trackers,
        "secrets": read_secrets(options.get("secrets")),
        "engine": engine,
    }
    return Settings(**own)


def default_of(name: str) -> Any:
    """Return the default of an option; None also stands for none of several."""
    return getattr(Settings, name, None)


def given_outputs(options: Mapping[str, Any]) -> list[str]:
    """Return the options that give this stage outputs."""
    defaults = {name: default_of(name) for name in OutputOptions.__annotations__}
    return [name for name, default in defaults.items() if options.get(name, default) is not default]


def with_task_options(function: _Function) -> _Function:
    """List ``TaskOptions`` in the signature and the docstring of a function that takes an app and these options."""
    signature = inspect.signature(function)
    app = signature.parameters["app"]
    listed = [
        app.replace(name=name, kind=app.KEYWORD_ONLY, default=default_of(name), annotation=kind.__forward_arg__)
        for name, kind in TaskOptions.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[app, *listed])  # type: ignore[attr-defined]
    kinds = (OutputOptions, PublisherOptions, StageOptions, EngineOptions, ComponentOptions, SharedOptions, TaskOptions)
    about = [inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")[2] for kind in kinds]
    function.__doc__ = re.sub(" *options: .*", lambda _: "\n".join(about), inspect.cleandoc(function.__doc__ or ""))
    return function


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
            if known is SharedOptions and name in TaskOptions.__annotations__:
                hint = " It is not shared by stages: give it to task()."
            raise TypeError(
                f"{function}() got an unexpected keyword argument {name!r}.{hint} Its options: {', '.join(names)}."
            )
