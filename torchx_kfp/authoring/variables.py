"""Variables that a stage gets besides those of its AppDef: from Kubernetes secrets, and those of further trackers."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torchx_kfp.authoring.channels import contains_channel, parse_checked
from torchx_kfp.authoring.naming import is_shell_variable
from torchx_kfp.authoring.references import Channel, Parts, check_word
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


def parse_secrets(secrets: object) -> dict[str, dict[str, str]]:
    """Return the secrets as plain data."""
    if secrets is None:
        return {}
    if not isinstance(secrets, Mapping):
        raise AppDefError(f"secrets is {secrets!r}. Give {{secret: {{key: variable}}}}, such as {_SECRETS_EXAMPLE}.")
    parsed: dict[str, dict[str, str]] = {}
    sources: dict[str, str] = {}
    for secret, variables in secrets.items():
        _check_secret_text(secret, f"secrets has {secret!r} as the name of a secret")
        where = f"secrets[{secret!r}]"
        if not isinstance(variables, Mapping) or not variables:
            raise AppDefError(
                f"{where} is {variables!r}. Name its keys and their variables, such as {_SECRETS_EXAMPLE}."
            )
        parsed[secret] = {}
        for key, variable in variables.items():
            gives = f"{where} gives the key {key!r} the variable {variable!r}"
            _check_secret_text(key, f"{where} has {key!r} as a key of the secret")
            _check_secret_text(variable, gives)
            if not is_shell_variable(variable):
                raise AppDefError(
                    f"{gives}, which shells do not pass on. Use ASCII letters, digits and '_', and do not begin with a "
                    "digit."
                )
            if variable in sources:
                raise AppDefError(f"{gives}, which {sources[variable]} has as well. Give each key its own variable.")
            sources[variable] = f"the key {key!r} of {secret!r}"
            parsed[secret][key] = variable
    return parsed


def secret_variables(secrets: Secrets) -> list[str]:
    """Return the variables that get their values from secrets."""
    return [variable for variables in secrets.values() for variable in variables.values()]


def check_variables(secrets: Secrets, env: Container[str], reserved: Container[str], where: str) -> None:
    """Reject variables from secrets that the role sets (``env``), or the pipeline (``reserved``)."""
    for secret, variables in secrets.items():
        for key, variable in variables.items():
            gives = f"secrets[{secret!r}] gives the key {key!r} the variable {variable!r}"
            if variable in reserved:
                raise AppDefError(f"{gives}, which a tracked stage gets from the pipeline. Use another one.")
            if variable in env:
                raise AppDefError(f"{gives}, which env of {where} sets as well. Remove one of them.")


def _check_secret_text(value: object, what: str) -> None:
    if contains_channel(value):
        raise AppDefError(
            f"{what}, which contains a pipeline channel. Names of secrets must be known when the pipeline is compiled. "
            "For others, call kfp.kubernetes.use_secret_as_env on the task."
        )
    if not isinstance(value, str) or not value:
        raise AppDefError(f"{what}. Give text, such as in {_SECRETS_EXAMPLE}.")


def tracker_env(trackers: Trackers | None) -> dict[str, Parts]:
    """Return the variables that tell a stage its further trackers and their configurations; none if it has none."""
    if not trackers:
        return {}
    if not isinstance(trackers, Mapping):
        raise AppDefError(f"trackers is {trackers!r}. Give {{name: configuration}}, such as {_TRACKERS_EXAMPLE}.")
    env: dict[str, Parts] = {}
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
