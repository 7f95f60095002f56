"""Variables that a stage gets besides those of its AppDef: from Kubernetes secrets, and those of further trackers."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torchx_kfp.authoring.channels import contains_channel, parse_checked
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Channel, Text
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError

#: {a Kubernetes secret's name: {key in it: environment variable}}.
Secrets = Mapping[str, Mapping[str, str]]
#: {tracker: its configuration}. A tracker is the name of an entry point ``torchx.tracker``, or ``module:function``.
Trackers = Mapping[str, str | Channel | None]

#: The variables that every tracked stage gets from the pipeline or the engine.
PROTOCOL_VARIABLES = (*protocol.VARIABLES, protocol.PIPELINE_RUN, protocol.POD_NAME, protocol.POD_UID)

_SECRETS_EXAMPLE = "secrets={'s3-credentials': {'access_key': 'AWS_ACCESS_KEY_ID'}}"
_TRACKERS_EXAMPLE = "trackers={'mlflow': 'http://mlflow:5000'}"


def parse_secrets(secrets: Secrets | None) -> dict[str, dict[str, str]]:
    """Return the secrets as plain data."""
    for secret, variables in (secrets or {}).items():
        for key, variable in variables.items():
            if contains_channel([secret, key]) or not (secret and key and is_shell_variable(variable)):
                raise AppDefError(
                    f"{_gives(secret, key, variable)}. Give names that are known when the pipeline is compiled, and "
                    f"variables of ASCII letters, digits and '_', which shells pass on: {_SECRETS_EXAMPLE}. For a "
                    "channel, call kfp.kubernetes.use_secret_as_env on the task."
                )
    return {secret: dict(variables) for secret, variables in (secrets or {}).items()}


def _gives(secret: str, key: str, variable: str) -> str:
    return f"secrets[{secret!r}] gives the key {key!r} the variable {variable!r}"


def secret_variables(secrets: Secrets) -> list[str]:
    """Return the variables that get their values from secrets."""
    return [variable for variables in secrets.values() for variable in variables.values()]


def check_variables(env: Mapping[str, object], secrets: Secrets, reserved: Container[str], where: str) -> None:
    """Reject variables with two sources, which are a role's env, secrets and, for ``reserved`` ones, the stage."""
    given = [(variable, f"env of {where} sets {variable!r} to {value!r}") for variable, value in env.items()]
    for secret, variables in secrets.items():
        given += [(variable, _gives(secret, key, variable)) for key, variable in variables.items()]
    sources: dict[str, str] = {}
    for variable, gives in given:
        if variable in reserved:
            raise AppDefError(
                f"{gives}, but a tracked or distributed stage gets this variable itself. Use another one, or remove it."
            )
        if variable in sources:
            raise AppDefError(f"{gives}, and {sources[variable]}. Remove one of them.")
        sources[variable] = gives


def tracker_env(trackers: Trackers | None) -> dict[str, Text]:
    """Return the variables that tell a stage its further trackers and their configurations; none if it has none."""
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
        if variable in names:
            raise AppDefError(
                f"trackers has {names[variable]!r} and {name!r}, but TorchX reads the configuration of both from the "
                f"variable {variable}. Use one of them."
            )
        names[variable] = name
        # Do not write config == "": with a channel, this makes a condition for dsl.If.
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
