"""The KFP host of a command line: its options, and the connection."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.display.printing import print_message

if TYPE_CHECKING:
    from torchx_kfp.backend.host import Host

#: The options that messages name, so help texts show them; the settings file and the environment have the others, too.
_SHOWN = {
    "host": ("URL", "The KFP host, such as https://kfp.example.com."),
    "kube_context": ("NAME", "Without --host: reach KFP through the API server of this context of the kubeconfig."),
    "namespace": ("NAME", "The namespace of the runs, on a host that has several users."),
    "token_file": ("FILE", "A file with the token for the host; it is read again for each request."),
    "existing_token": ("TOKEN", "The token itself."),
    "cookies": ("TEXT", "The cookies of a browser that is signed in, such as 'authservice_session=...'."),
    "ssl_ca_cert": ("FILE", "The certificate of the authority that signed the host's."),
}
_HIDDEN = ("ui_host", "client_id", "other_client_id", "other_client_secret", "service_namespace", "proxy")

#: The settings of the host that a command line gives, by name.
Flags = Mapping[str, Any]


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection to a KFP host, which the command takes as the argument ``flags``."""

    @wraps(command)
    def with_flags(**words: Any) -> Any:
        names = (*_SHOWN, *_HIDDEN)
        flags = {name: words.pop(name) for name in names}
        flags["verify_ssl"] = False if words.pop("no_verify_ssl") else None
        return command(flags={name: value for name, value in flags.items() if value is not None}, **words)

    decorated: Callable[..., Any] = with_flags
    for name in _HIDDEN:
        decorated = click.option(_flag(name), name, hidden=True)(decorated)
    decorated = click.option("--no-verify-ssl", is_flag=True, help="Do not check the host's certificate.")(decorated)
    for name, (metavar, text) in reversed(_SHOWN.items()):
        words = ("-n", _flag(name)) if name == "namespace" else (_flag(name),)
        decorated = click.option(*words, name, metavar=metavar, help=text)(decorated)
    return decorated


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


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
    from torchx_kfp.backend.settings import read_settings

    settings = read_settings(flags)
    for sentence in settings.warnings:
        print_message(sentence)
    return Host(Connection(settings, Patience() if is_patient else Patience(connect=2.0, read=5.0, retries=0)))


def host_words(flags: Flags) -> list[str]:
    """Return the options with which another command finds the same host; secrets are left out."""
    from torchx_kfp.backend.settings import SECRETS

    given = [name for name in (*_SHOWN, *_HIDDEN) if flags.get(name) and name not in SECRETS]
    words = [word for name in given for word in (_flag(name), str(flags[name]))]
    return [*words, *(["--no-verify-ssl"] if flags.get("verify_ssl") is False else [])]


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
    from torchx_kfp.backend.settings import read_settings

    settings = read_settings()
    return next(
        ([_flag(name), getattr(settings, name)] for name in ("host", "kube_context") if getattr(settings, name)), []
    )
