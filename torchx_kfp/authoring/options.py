"""Kubernetes secrets as variables of a stage: ``{a secret's name: {key in it: environment variable}}``."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any, TypedDict, TypeVar

from torchx_kfp.authoring.channels import contains_channel, parse_checked
from torchx_kfp.authoring.engines import Engine, option_hint, read_engine
from torchx_kfp.authoring.fields import (
    check_name,
    warn_caller,
)
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.outputs import Artifacts, Publication, Results, UiMetadata, read_publication, read_ui_metadata
from torchx_kfp.authoring.reads import Reads, ReadSource, TrackerBase, read_workspace
from torchx_kfp.authoring.references import Channel, Parts, check_word
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.contract import protocol
from torchx_kfp.contract.inputs import RUN_ID, TASK_CONFIG
from torchx_kfp.errors import AppDefError

#: {a Kubernetes secret's name: {key in it: environment variable}}.
Secrets = Mapping[str, Mapping[str, str]]

_SECRETS_EXAMPLE = "secrets={'s3-credentials': {'access_key': 'AWS_ACCESS_KEY_ID'}}"


def read_secrets(secrets: object) -> dict[str, dict[str, str]]:
    """Read the secrets as plain data."""
    if secrets is None:
        return {}
    if not isinstance(secrets, Mapping):
        raise AppDefError(f"secrets is {secrets!r}. Give {{secret: {{key: variable}}}}, such as {_SECRETS_EXAMPLE}.")
    read: dict[str, dict[str, str]] = {}
    sources: dict[str, str] = {}
    for secret, variables in secrets.items():
        _check_secret_text(secret, f"secrets has {secret!r} as the name of a secret")
        where = f"secrets[{secret!r}]"
        if not isinstance(variables, Mapping) or not variables:
            raise AppDefError(
                f"{where} is {variables!r}. Name its keys and their variables, such as {_SECRETS_EXAMPLE}."
            )
        read[secret] = {}
        for key, variable in variables.items():
            _check_secret_text(key, f"{where} has {key!r} as a key of the secret")
            _check_secret_text(variable, f"{where} gives the key {key!r} the variable {variable!r}")
            if not is_shell_variable(variable):
                raise AppDefError(
                    f"{where} gives the key {key!r} the variable {variable!r}, which shells do not pass on. Use ASCII "
                    "letters, digits and '_', and do not begin with a digit."
                )
            if variable in sources:
                raise AppDefError(
                    f"{where} gives the key {key!r} the variable {variable!r}, which {sources[variable]} has as "
                    "well. Give each key its own variable."
                )
            sources[variable] = f"the key {key!r} of {secret!r}"
            read[secret][key] = variable
    return read


def secret_variables(secrets: Secrets) -> list[str]:
    """Return the variables that get their values from secrets."""
    return [variable for variables in secrets.values() for variable in variables.values()]


def check_variables(secrets: Secrets, env: Container[str], reserved: Container[str], where: str) -> None:
    """Reject variables from secrets that the role sets (``env``), or the pipeline (``reserved``)."""
    for secret, variables in secrets.items():
        for key, variable in variables.items():
            if variable in reserved:
                raise AppDefError(
                    f"secrets[{secret!r}] gives the key {key!r} the variable {variable!r}, which a tracked stage gets "
                    "from the pipeline. Use another one."
                )
            if variable in env:
                raise AppDefError(
                    f"secrets[{secret!r}] gives the key {key!r} the variable {variable!r}, which env of {where} sets "
                    "as well. Remove one of them."
                )


#: The variables that every tracked stage gets from the pipeline or the engine.
PROTOCOL_VARIABLES = (*protocol.VARIABLES, protocol.PIPELINE_RUN, protocol.POD_NAME, protocol.POD_UID)


def _check_secret_text(value: object, what: str) -> None:
    if contains_channel(value):
        raise AppDefError(
            f"{what}, which contains a pipeline channel. Names of secrets must be known when the pipeline is compiled. "
            "For others, call kfp.kubernetes.use_secret_as_env on the task."
        )
    if not isinstance(value, str) or not value:
        raise AppDefError(f"{what}. Give text, such as in {_SECRETS_EXAMPLE}.")


#: The URL of a workspace.
Workspace = str | Channel
#: How many replicas a role has: a channel for a number, or a number; by role if there are several.
Replicas = int | Channel | Mapping[str, "int | Channel"]
#: {tracker: its configuration}. A tracker is the name of an entry point ``torchx.tracker``, or ``module:function``.
Trackers = Mapping[str, str | Channel | None]

_TRACKERS_EXAMPLE = "trackers={'mlflow': 'http://mlflow:5000'}"


def read_trackers(trackers: object) -> dict[str, Parts | None]:
    """Read the configuration of each further tracker as text and references; None for a tracker without one."""
    if trackers is None:
        return {}
    if not isinstance(trackers, Mapping):
        raise AppDefError(f"trackers is {trackers!r}. Give {{name: configuration}}, such as {_TRACKERS_EXAMPLE}.")
    read: dict[str, Parts | None] = {}
    names: dict[str, str] = {}
    for name, config in trackers.items():
        _check_tracker_name(name)
        variable = protocol.tracker_config_variable(name)
        if variable in names:
            raise AppDefError(
                f"trackers has {names[variable]!r} and {name!r}, but TorchX reads the configuration of both from the "
                f"variable {variable}. Use one of them."
            )
        names[variable] = name
        # Do not write config == "": with a channel, this makes a condition for dsl.If.
        missing = config is None or (isinstance(config, str) and not config)
        read[name] = None if missing else parse_checked(config, f"trackers[{name!r}]")
        if read[name] is not None and not is_shell_variable(variable):
            raise AppDefError(
                f"trackers has a configuration for {name!r}, which TorchX reads from the variable {variable!r}, but "
                "shells do not pass on a variable of that name. Register the tracker as an entry point torchx.tracker "
                "with a name of ASCII letters, digits and '_', or give None and configure it otherwise."
            )
    return read


def tracker_env(trackers: Mapping[str, Parts | None]) -> dict[str, Parts]:
    """Return the variables that tell a stage its trackers; none if it does not have further trackers."""
    if not trackers:
        return {}
    configs = {protocol.tracker_config_variable(name): config for name, config in trackers.items() if config}
    return {protocol.TRACKERS: (protocol.encode_tracker_names(trackers),), **configs}


def _check_tracker_name(name: object) -> None:
    if not isinstance(name, str) or not name or contains_channel(name):
        raise AppDefError(
            f"trackers has the name {name!r}. Name an entry point torchx.tracker, or a function as 'module:function': "
            f"{_TRACKERS_EXAMPLE}."
        )
    check_word(name, f"The name {name!r} in trackers")
    if "," in name:
        raise AppDefError(
            f"trackers has the name {name!r}, but TorchX separates names by commas. Give each tracker its own entry."
        )
    if protocol.tracker_config_variable(name) == protocol.TRACKER_CONFIG:
        raise AppDefError(
            f"trackers has the name {name!r}, the tracker of torchx-kfp, which every tracked stage has. Remove it."
        )
    # The image may have trackers that are not installed here, so only a misspelled one is suspicious.
    known = _installed_trackers()
    if ":" not in name and name not in known and (hint := did_you_mean(name, known)):
        warn_caller(
            f"trackers has the name {name!r}, which is not an entry point torchx.tracker of this environment.{hint} A "
            "stage whose image does not have it records nothing there."
        )


@functools.cache
def _installed_trackers() -> frozenset[str]:
    return frozenset(point.name for point in entry_points(group="torchx.tracker")) - {protocol.TRACKER_NAME}


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
        workspace: the code with which the application starts: the pipeline's parameter ``workspace: str = ""``, which
            ``torchx-kfp submit --workspace DIR`` fills in, or the URL of a stored workspace. It is unpacked into a new
            folder, which is the working directory and the first in PYTHONPATH. Empty, the code is that of the image.
            The image needs python3 (3.8 or newer) and fsspec with the driver of the storage.
        trackers: further TorchX trackers that get the stage's records: {name: configuration}, such as
            ``{"mlflow": "http://mlflow:5000"}``. The name is that of an entry point ``torchx.tracker``, or
            ``module:function``. The configuration may be or contain channels; None means no configuration.
        labels: if True, the pod gets the labels that TorchX's Kubernetes scheduler sets
            (``torchx.pytorch.org/app-name``, ``app.kubernetes.io/name`` and others). They take about 1.5 kB of the
            1 MiB that Argo allows for a run. KFP and Argo always label pods with the run and the workflow;
            ``kubernetes.add_pod_label`` adds single labels.
    """

    workspace: Workspace | None
    trackers: Trackers | None
    labels: bool


class EngineOptions(StageOptions, total=False):
    """The options of every stage of an AppDef, and those of its replicas.

    Attributes:
        engine: the engine that runs several replicas or roles: ``"job"``, ``"jobset"``,
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
class StageSettings:
    """The options of one stage, read and checked. A stage without a tracker base is not tracked."""

    tracker_base: Parts | None = None
    workspace: Parts | None = None
    sources: Mapping[str, ReadSource] = field(default_factory=dict)
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
    sources: Mapping[str, ReadSource],
    *,
    taken: Iterable[str] = (RUN_ID,),
) -> StageSettings:
    """Read the options of a stage.

    Args:
        options: ``TaskOptions``. The tracker base is not read from here.
        tracker_base: where results are stored.
        sources: the stages that this one reads, by alias.
        taken: names that results and artifacts must not have.
    """
    if options.get("name") is not None:
        check_name(options["name"], "The stage's name")
    own = {name: value for name, value in options.items() if name in StageSettings.__dataclass_fields__}
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
        "workspace": read_workspace(options.get("workspace")),
    }
    return StageSettings(**own)


def default_of(name: str) -> Any:
    """Return the default of an option; None also stands for none of several."""
    return getattr(StageSettings, name, None)


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
