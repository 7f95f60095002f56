"""Further trackers of a stage: their names in TorchX, and the configuration that TorchX passes to them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from importlib.metadata import entry_points

from torchx_kfp.adapter.stage.fields import warn_caller
from torchx_kfp.adapter.values.channels import contains_channel, parse_checked
from torchx_kfp.adapter.values.escapes import check_word
from torchx_kfp.adapter.values.names import is_shell_variable
from torchx_kfp.adapter.values.references import Channel, Parts
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean

#: {tracker: its configuration}. A tracker is the name of an entry point ``torchx.tracker``, or ``module:function``.
Trackers = Mapping[str, str | Channel | None]

_EXAMPLE = "trackers={'mlflow': 'http://mlflow:5000'}"


def read_trackers(trackers: object) -> dict[str, Parts | None]:
    """Read the configuration of each further tracker as text and references; None for a tracker without one.

    Raises:
        AppDefError: they are not a mapping, a stage's environment cannot carry a name, or a value is not text.
        ChannelError: a channel cannot be filled in.
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


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or contains_channel(name):
        raise AppDefError(
            f"trackers has the name {name!r}. Name an entry point torchx.tracker, or a function as 'module:function': "
            f"{_EXAMPLE}."
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
