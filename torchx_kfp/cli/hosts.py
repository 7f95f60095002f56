"""The KFP host of a command line: its options, and the connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.backend.settings import FLAGS, flag, read_settings
from torchx_kfp.cli.display.printing import print_message

if TYPE_CHECKING:
    from torchx_kfp.backend.host import Host

#: The settings of the host that a command line gives, by name.
Flags = Mapping[str, Any]


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection to a KFP host, which the command takes as the argument ``flags``."""

    @wraps(command)
    def with_flags(**words: Any) -> Any:
        flags = {name: words.pop(name) for name in FLAGS}
        flags["verify_ssl"] = False if flags["verify_ssl"] else None
        return command(flags={name: value for name, value in flags.items() if value is not None}, **words)

    decorated: Callable[..., Any] = with_flags
    for name, setting in reversed(FLAGS.items()):
        words = ("-n", flag(name), name) if name == "namespace" else (flag(name), name)
        about: dict[str, Any] = {"metavar": setting.metavar, "hidden": setting.metavar is None, "help": setting.help}
        decorated = click.option(*words, is_flag=name == "verify_ssl", **about)(decorated)
    return decorated


def connect(flags: Flags, *, is_patient: bool = True) -> Host:
    """Return the host that the flags, the environment or the settings file name.

    Args:
        flags: the options of the host.
        is_patient: whether a host that does not answer is asked again. Otherwise a request takes some seconds at most.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    from torchx_kfp.backend.connection import Connection, Patience
    from torchx_kfp.backend.host import Host

    settings = read_settings(flags)
    for sentence in settings.warnings:
        print_message(sentence)
    return Host(Connection(settings, Patience() if is_patient else Patience(connect=2.0, read=5.0, retries=0)))


def host_words(flags: Flags) -> list[str]:
    """Return the options with which another command finds the same host; secrets are left out."""
    words: list[str] = []
    for name, value in flags.items():
        if value not in (None, "") and not FLAGS[name].secret:
            words += [flag(name)] if value is False else [flag(name), str(value)]
    return words


def names_host(flags: Flags) -> bool:
    """Tell whether the flags themselves name a host."""
    return bool(flags.get("host") or flags.get("kube_context"))


def is_host_known() -> bool:
    """Tell whether the environment or the settings file names a host, or this process runs in a cluster."""
    return bool(known_host_words() or os.environ.get("KUBERNETES_SERVICE_HOST"))


def known_host_words() -> list[str]:
    """Return the options that name the host of the environment or the settings file; none if they name none.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    settings = read_settings()
    return next(
        ([flag(name), getattr(settings, name)] for name in ("host", "kube_context") if getattr(settings, name)), []
    )
