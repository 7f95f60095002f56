"""The options of stages, their validation, and the variables of secrets and further trackers."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from kfp import dsl

from torchx_kfp.authoring.channels import contains_channel, parse_checked
from torchx_kfp.authoring.engines import Engine
from torchx_kfp.authoring.naming import is_shell_variable, output_name
from torchx_kfp.authoring.reads import Reads, TrackerBase
from torchx_kfp.authoring.references import PYTHON_TYPES, Channel, Text, check_word
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.contract import protocol
from torchx_kfp.contract.command import METRICS, Outputs
from torchx_kfp.errors import AppDefError

#: {a result's name: its type}.
Results = Mapping[str, type[int] | type[float] | type[bool] | type[str] | type[list[Any]] | type[dict[str, Any]]]
#: {an artifact's name: its class in ``kfp.dsl``}.
Artifacts = Mapping[str, type[dsl.Artifact]]
#: {a Kubernetes secret's name: {key in it: environment variable}}.
Secrets = Mapping[str, Mapping[str, str]]
#: {tracker: its configuration}. A tracker is the name of an entry point ``torchx.tracker``, or ``module:function``.
Trackers = Mapping[str, str | Channel | None]
#: The URL of a workspace.
Workspace = str | Channel
#: The number of replicas of a role, which may be a channel; {role: number} if there are several.
Replicas = int | Channel | Mapping[str, "int | Channel"]

#: The variables of every tracked stage, set by the pipeline or the engine.
PROTOCOL_VARIABLES = (*protocol.VARIABLES, protocol.PIPELINE_RUN, protocol.POD_NAME, protocol.POD_UID)

_RESULT_TYPES = tuple(PYTHON_TYPES.values())
#: The artifacts whose content KFP's UI shows.
_SHOWN = (dsl.HTML, dsl.Markdown)
_SECRETS_EXAMPLE = "secrets={'s3-credentials': {'access_key': 'AWS_ACCESS_KEY_ID'}}"
_TRACKERS_EXAMPLE = "trackers={'mlflow': 'http://mlflow:5000'}"


@dataclass(frozen=True, kw_only=True, eq=False)
class StageOptions:
    """The options of a stage.

    Attributes:
        tracker_base: the fsspec URL or directory for results, or a channel for one. With None, the stage is not
            tracked: it does not have an execution id, and its application does not get the variables of the tracker.
        workspace: the code with which the application starts: the pipeline's parameter ``workspace: str = ""``, which
            ``torchx-kfp submit --workspace DIR`` fills in, or the URL of a stored workspace. It is unpacked into a new
            folder, which is the working directory and the first entry of PYTHONPATH. If empty, the code is that of the
            image. The image needs python3 (3.8 or newer) and fsspec with the driver of the storage.
        trackers: further TorchX trackers, {name: configuration}. ``{"mlflow": "http://mlflow:5000"}`` gets copies of
            all records. Others get the records of ``torchx.tracker``: the name is that of an entry point of this group,
            or ``module:function``. The configuration may be or contain channels; None means no configuration.
        secrets: variables from Kubernetes secrets, {secret: {key: variable}}. Each value has the form of
            ``secret_key_to_env`` of ``kfp.kubernetes.use_secret_as_env``.
        cache: if False, the stage always runs, even if the cache has an execution with the same inputs.
        inline: if False, the command does not carry the program that publishes results: the image must have torchx-kfp.
        reads: the stages that this one reads: a task, a list of tasks, or {alias: stage}, where a stage is a task,
            ``dsl.Collected`` of execution ids, or any channel or string that is an execution id. The task runs after
            them.
        results: results that become output parameters, {name: int, float, bool, str, list or dict}. KFP also shows all
            recorded numbers as the artifact ``metrics``; ``results={}`` requests only these. The application records
            lists and dicts as metadata, ``current_run().add_metadata(trials=[...])``, of at most 64 KiB as JSON.
            ``dsl.ParallelFor`` loops over a list, and the fields of its dicts are channels. The image needs python3
            (3.8 or newer) and fsspec; otherwise, use ``publish_results``.
        artifacts: artifacts that become KFP artifacts, {name: dsl.Model, dsl.HTML, dsl.Markdown or another class}.
            The application registers them: ``current_run().add_artifact(name, path)``.
        may_fail: if True, the stage succeeds even if its application fails. The exit code is recorded as the result
            ``exit_code``, which ``results={"exit_code": int}`` makes an output. The stage still fails if a declared
            result or artifact is missing, or if a signal ends the stage itself.
        name: the stage's name. The default is the AppDef's name.
        engine: the engine that runs several replicas or roles: ``"job"``, ``"jobset"``, ``"trainjob"``, or one
            of ``torchx_kfp.engines`` with options. The stage's pod then starts them, shows their output, and ends with
            them; it needs python3 (3.8 or newer) in the image of the first role. An engine also runs a single replica
            with mounts or devices that KFP does not support.
        replicas: the number of replicas, if it is known only when the stage runs: a channel for an integer
            from the role's ``min_replicas`` (else 1) to its ``num_replicas``; {role: channel} if there are several.
        inputs: patterns of files of the workspace that the stage reads although its code does not name them, such as
            ``data/*.csv``. If one of them changes, the stage runs again.
    """

    tracker_base: TrackerBase | None = None
    workspace: Workspace | None = None
    trackers: Trackers | None = None
    secrets: Secrets | None = None
    cache: bool = True
    inline: bool = True
    reads: Reads | None = None
    results: Results | None = None
    artifacts: Artifacts | None = None
    may_fail: bool = False
    name: str | None = None
    engine: Engine | str | None = None
    replicas: Replicas | None = None
    inputs: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name, option in self.__dataclass_fields__.items():
            if isinstance(option.default, bool) and not isinstance(value := getattr(self, name), bool):
                raise AppDefError(
                    f"{name} is {value!r}, but must be True or False, known when the pipeline is compiled."
                )
        given = self.inputs
        if not isinstance(given, list | tuple) or not all(
            isinstance(one, str) and one and ":" not in one for one in given
        ):
            raise AppDefError(f"inputs is {given!r}. Give patterns of files without ':', such as ['data/*.csv'].")
        # Copies: later changes of the caller's dicts have no effect.
        object.__setattr__(self, "secrets", check_secrets(self.secrets))
        _mapping("trackers", self.trackers, _TRACKERS_EXAMPLE)
        if self.trackers is not None:
            object.__setattr__(self, "trackers", dict(self.trackers))

    @property
    def publishing(self) -> list[str]:
        """The options that give the stage outputs, for which it needs a tracker base."""
        declared = {"results": self.results is not None, "artifacts": self.artifacts is not None}
        return [name for name, given in {**declared, "may_fail": self.may_fail}.items() if given]


def check_secrets(secrets: Secrets | None) -> dict[str, dict[str, str]]:
    """Validate the secrets, and return a copy."""
    for secret, variables in _mapping("secrets", secrets, _SECRETS_EXAMPLE).items():
        for key, variable in _mapping(f"secrets[{secret!r}]", variables, _SECRETS_EXAMPLE).items():
            is_text = all(isinstance(each, str) and each for each in (secret, key, variable))
            if contains_channel([secret, key]) or not (is_text and is_shell_variable(variable)):
                raise AppDefError(
                    f"{_gives(secret, key, variable)}. Give names that are known when the pipeline is compiled, and "
                    f"variables of ASCII letters, digits and '_', which shells pass on: {_SECRETS_EXAMPLE}. For a "
                    "channel, call kfp.kubernetes.use_secret_as_env on the task."
                )
    return {secret: dict(variables) for secret, variables in (secrets or {}).items()}


def _mapping(option: str, value: object, example: str) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping) and value is not None:
        raise AppDefError(f"{option} is {value!r}. Write {example}.")
    return value or {}


def _gives(secret: str, key: str, variable: str) -> str:
    return f"secrets[{secret!r}] gives the key {key!r} the variable {variable!r}"


def secret_variables(secrets: Secrets) -> list[str]:
    """Return the variables from secrets."""
    return [variable for variables in secrets.values() for variable in variables.values()]


def check_variables(env: Mapping[str, object], secrets: Secrets, reserved: Container[str], where: str) -> None:
    """Reject variables set twice: by a role's env, secrets or, if ``reserved``, the stage."""
    given = [(variable, f"env of {where} sets {variable!r} to {value!r}") for variable, value in env.items()]
    for secret, variables in secrets.items():
        given += [(variable, _gives(secret, key, variable)) for key, variable in variables.items()]
    sources: dict[str, str] = {}
    for variable, gives in given:
        if variable in reserved:
            raise AppDefError(
                f"{gives}, but a tracked or distributed stage sets this variable itself. Rename or remove it."
            )
        if variable in sources:
            raise AppDefError(f"{gives}, and {sources[variable]}. Remove one of them.")
        sources[variable] = gives


def tracker_env(trackers: Trackers | None) -> dict[str, Text]:
    """Return the variables with the names and configurations of further trackers."""
    if not trackers:
        return {}
    env: dict[str, Text] = {}
    names: dict[str, str] = {}
    for name, config in trackers.items():
        if contains_channel(name) or not name or "," in name:  # TorchX separates names by commas
            raise AppDefError(
                f"trackers has the name {name!r}. Name an entry point torchx.tracker, or a function as "
                f"'module:function': {_TRACKERS_EXAMPLE}."
            )
        variable = protocol.tracker_config_variable(name)
        if variable == protocol.TRACKER_CONFIG:
            raise AppDefError(
                f"trackers has the name {name!r}, the tracker of torchx-kfp, which every tracked stage has. Remove it."
            )
        known = ["mlflow", *(entry.name for entry in metadata.entry_points(group="torchx.tracker"))]
        if name not in known and ":" not in name and (hint := did_you_mean(name, known)):
            raise AppDefError(f"trackers has the name {name!r}.{hint} Another tracker is named 'module:function'.")
        if variable in names:
            raise AppDefError(
                f"trackers has {names[variable]!r} and {name!r}, but TorchX reads the configuration of both from the "
                f"variable {variable}. Use one of them."
            )
        names[variable] = name
        # A channel == "" would be a condition for dsl.If.
        if config is None or (isinstance(config, str) and not config):
            continue
        if not is_shell_variable(variable):
            raise AppDefError(
                f"trackers has a configuration for {name!r}, which TorchX reads from the variable {variable!r}, but "
                "shells do not pass on a variable of that name. Register the tracker as an entry point torchx.tracker "
                "with a name of ASCII letters, digits and '_', or give None and configure it otherwise."
            )
        env[variable] = parse_checked(config, f"trackers[{name!r}]")
    return {protocol.TRACKERS: (protocol.encode_tracker_names(names.values()),), **env}


def parse_outputs(
    results: Results | None, artifacts: Artifacts | None, taken: Iterable[str]
) -> tuple[dict[str, type], Outputs]:
    """Return the types of the declared outputs and of ``METRICS`` by KFP's names, and the publisher's ``Outputs``.

    ``taken`` are names that the stage already uses.
    """
    names: dict[str, str] = {}
    types: dict[str, type] = {}
    for what, declared, is_type, example in (
        (
            "results",
            results,
            _RESULT_TYPES.__contains__,
            "{'accuracy': float}, with int, float, bool, str, list or dict",
        ),
        ("artifacts", artifacts, is_artifact_class, "{'model': dsl.Model}, with classes of kfp.dsl's artifacts"),
    ):
        if not isinstance(declared or {}, Mapping):
            raise AppDefError(f"{what} is {declared!r}. Write {what}={example}.")
        for name, kind in (declared or {}).items():
            output = output_name(name) if isinstance(name, str) and not contains_channel(name) else ""
            if not output or not is_type(kind):
                raise AppDefError(f"{what} has {name!r}: {kind!r}. Write {what}={example}.")
            check_word(name, f"The name {name!r} in {what}")
            if output in (METRICS, "Output", *taken):
                raise AppDefError(
                    f"{what} has the name {name!r}, but the stage or KFP already has an input or output {output!r}. "
                    "Record it under another name."
                )
            if output in names:
                raise AppDefError(
                    f"{what} has the name {name!r}, but {names[output]!r} is declared as well. Both would be the "
                    f"output {output!r}: KFP's names have letters, digits and '_' only. Record one under another name."
                )
            names[output], types[output] = name, kind
    types[METRICS] = dsl.Metrics
    shown = {output: issubclass(types[output], _SHOWN) for output in names if types[output] not in _RESULT_TYPES}
    return types, Outputs(
        {output: (types[output].__name__, name) for output, name in names.items() if output not in shown},
        {output: (names[output], is_shown) for output, is_shown in shown.items()},
    )


def is_artifact_class(kind: object) -> bool:
    """Return whether this is a class of KFP's artifacts."""
    return isinstance(kind, type) and issubclass(kind, dsl.Artifact)
