"""Kubernetes secrets as variables of a stage: ``{a secret's name: {key in it: environment variable}}``."""

from __future__ import annotations

from collections.abc import Container, Mapping

from torchx_kfp.adapter.values.channels import contains_channel
from torchx_kfp.adapter.values.names import is_shell_variable
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError

#: {a Kubernetes secret's name: {key in it: environment variable}}.
Secrets = Mapping[str, Mapping[str, str]]

_EXAMPLE = "secrets={'s3-credentials': {'access_key': 'AWS_ACCESS_KEY_ID'}}"


def read_secrets(secrets: object) -> dict[str, dict[str, str]]:
    """Read the secrets as plain data.

    Raises:
        AppDefError: they are not a mapping of mappings of text, or two keys would become the same variable.
    """
    if secrets is None:
        return {}
    if not isinstance(secrets, Mapping):
        raise AppDefError(f"secrets is {secrets!r}. Give {{secret: {{key: variable}}}}, such as {_EXAMPLE}.")
    read: dict[str, dict[str, str]] = {}
    sources: dict[str, str] = {}
    for secret, variables in secrets.items():
        _check_text(secret, f"secrets has {secret!r} as the name of a secret")
        where = f"secrets[{secret!r}]"
        if not isinstance(variables, Mapping) or not variables:
            raise AppDefError(f"{where} is {variables!r}. Name its keys and their variables, such as {_EXAMPLE}.")
        read[secret] = {}
        for key, variable in variables.items():
            _check_text(key, f"{where} has {key!r} as a key of the secret")
            _check_text(variable, f"{where} gives the key {key!r} the variable {variable!r}")
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
    """Reject variables that are already set by something else.

    Args:
        secrets: the result of ``read_secrets``.
        env: the variables of the role.
        reserved: the variables that the pipeline sets in this stage.
        where: the role, for errors.

    Raises:
        AppDefError: a variable is set by something else.
    """
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


def _check_text(value: object, what: str) -> None:
    if contains_channel(value):
        raise AppDefError(
            f"{what}, which contains a pipeline channel. Names of secrets must be known when the pipeline is compiled. "
            "For others, call kfp.kubernetes.use_secret_as_env on the task."
        )
    if not isinstance(value, str) or not value:
        raise AppDefError(f"{what}. Give text, such as in {_EXAMPLE}.")
