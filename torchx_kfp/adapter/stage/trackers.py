"""Further trackers of a stage: what TorchX calls them, and the configuration that it hands to them."""

from __future__ import annotations

from collections.abc import Mapping

from torchx_kfp import protocol
from torchx_kfp.adapter.values.channels import contains_channel, parse_checked
from torchx_kfp.adapter.values.escapes import check_word
from torchx_kfp.adapter.values.names import is_shell_variable
from torchx_kfp.adapter.values.references import Channel, Parts
from torchx_kfp.errors import AppDefError

#: {tracker: its configuration}: the name of an entry point ``torchx.tracker``, or ``module:function``.
Trackers = Mapping[str, str | Channel | None]

_EXAMPLE = "trackers={'mlflow': 'http://mlflow:5000'}"


def read_trackers(trackers: object) -> dict[str, Parts | None]:
    """The configuration of each further tracker as text and references; None of one without any.

    Raises:
        AppDefError: they are no mapping, a name cannot be one in a stage's environment, or a value is no text.
        ChannelError: a channel that cannot be filled in.
    """
    if trackers is None:
        return {}
    if not isinstance(trackers, Mapping):
        raise AppDefError(f"trackers is {trackers!r}. Give {{name: configuration}}, such as {_EXAMPLE}.")
    read: dict[str, Parts | None] = {}
    names: dict[str, str] = {}
    for name, config in trackers.items():
        _check_name(name)
        variable = protocol.tracker_config_variable(name)
        if variable in names:
            raise AppDefError(
                f"trackers has {names[variable]!r} and {name!r}, whose configuration TorchX reads from one variable, "
                f"{variable}. Use one of them."
            )
        names[variable] = name
        # Not config == "": of a channel, that makes a condition for dsl.If.
        missing = config is None or (isinstance(config, str) and not config)
        read[name] = None if missing else parse_checked(config, f"trackers[{name!r}]")
        if read[name] is not None and not is_shell_variable(variable):
            raise AppDefError(
                f"trackers has a configuration for {name!r}, which TorchX reads from the variable {variable!r}, and "
                "shells do not hand that on. Register the tracker as an entry point torchx.tracker with a name of "
                "ASCII letters, digits and '_', or give it None and configure it otherwise."
            )
    return read


def tracker_env(trackers: Mapping[str, Parts | None]) -> dict[str, Parts]:
    """The variables that tell a stage its trackers, where it has further ones."""
    if not trackers:
        return {}
    configs = {protocol.tracker_config_variable(name): config for name, config in trackers.items() if config}
    return {protocol.TRACKERS: (protocol.encode_tracker_names(trackers),), **configs}


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or contains_channel(name):
        raise AppDefError(
            f"trackers has the name {name!r}. Name an entry point torchx.tracker, or a function as 'module:function': "
            f"{_EXAMPLE}."
        )
    check_word(name, f"The name {name!r} in trackers")
    if "," in name:
        raise AppDefError(
            f"trackers has the name {name!r}, and TorchX separates names by commas. Give each its own entry."
        )
    if protocol.tracker_config_variable(name) == protocol.TRACKER_CONFIG:
        raise AppDefError(
            f"trackers has the name {name!r}, this project's own, which every tracked stage has. Leave it out."
        )
