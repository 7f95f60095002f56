"""The KFP host of a command line, and the runs that its words mean: on this machine, or on that host."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from torchx_kfp.cli.display.printing import print_message
from torchx_kfp.errors import ArgumentError, HostError, TrackerBaseError, UnknownRunError
from torchx_kfp.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE

if TYPE_CHECKING:
    from torchx_kfp.backend.host import Host
    from torchx_kfp.backend.run import HostRun
    from torchx_kfp.runs.history import RunReader

#: The options that help texts show, with their texts; the settings file and the environment have the others, too.
_SHOWN = {
    "host": ("URL", "The KFP host, such as https://kfp.example.com."),
    "namespace": ("NAME", "The namespace of the runs, on a host that has several users."),
    "token_file": ("FILE", "A file with the token for the host; it is read again for each request."),
    "ssl_ca_cert": ("FILE", "The certificate of the authority that signed the host's."),
}
_HIDDEN = ("ui_host", "existing_token", "cookies", "client_id", "other_client_id", "other_client_secret")
_HIDDEN_TOO = ("service_namespace", "kube_context", "proxy")
#: The id of a run on a host, or a part of the URL of its page there.
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

#: The settings of the host that a command line gives, by name.
Flags = Mapping[str, Any]


class Located(NamedTuple):
    """A run, its arguments, and where its results are."""

    base: str
    run_id: str
    arguments: Mapping[str, Any]


def host_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of the connection to a KFP host, which the command takes as the argument ``flags``."""

    @wraps(command)
    def with_flags(**words: Any) -> Any:
        names = (*_SHOWN, *_HIDDEN, *_HIDDEN_TOO)
        flags = {name: words.pop(name) for name in names}
        flags["verify_ssl"] = False if words.pop("no_verify_ssl") else None
        return command(flags={name: value for name, value in flags.items() if value is not None}, **words)

    decorated: Callable[..., Any] = with_flags
    for name in (*_HIDDEN, *_HIDDEN_TOO):
        decorated = click.option(_flag(name), name, hidden=True)(decorated)
    decorated = click.option("--no-verify-ssl", is_flag=True, help="Do not check the host's certificate.")(decorated)
    for name, (metavar, text) in reversed(_SHOWN.items()):
        words = ("-n", _flag(name)) if name == "namespace" else (_flag(name),)
        decorated = click.option(*words, name, metavar=metavar, help=text)(decorated)
    return decorated


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def connect(flags: Flags) -> Host:
    """Return the host that the flags, the environment or the settings file name.

    Raises:
        HostSettingsError: a setting is wrong.
    """
    from torchx_kfp.backend.connection import Connection
    from torchx_kfp.backend.host import Host
    from torchx_kfp.backend.settings import read_settings

    settings = read_settings(flags)
    for sentence in settings.warnings:
        print_message(sentence)
    return Host(Connection(settings))


def host_words(flags: Flags) -> list[str]:
    """Return the options with which another command finds the same host; secrets are left out."""
    from torchx_kfp.backend.settings import SECRETS

    given = [name for name in (*_SHOWN, *_HIDDEN, *_HIDDEN_TOO) if flags.get(name) and name not in SECRETS]
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


def find_source(run: str, output_dir: str, flags: Flags, *, results: bool = True) -> RunReader | HostRun:
    """Find a run: on the host that the flags name; otherwise on this machine, or else on the host that is set up.

    Args:
        run: the run's id, the beginning or end of one, its name on a host, or ``latest``: if the flags name no host,
            the newest here and on the host that is set up.
        output_dir: the folder with the runs on this machine.
        flags: the options of the host.
        results: whether a run on a host is read with the results of its stages, which may take some seconds.

    Raises:
        UnknownRunError: there is no such run.
        HostError: the host does not answer.
    """
    from torchx_kfp.pipeline.names import LATEST
    from torchx_kfp.runs.history import RunReader, find_run

    if names_host(flags):
        return _on_host(run, flags, results=results)
    try:
        folder = find_run(output_dir, run)
    except ArgumentError as error:
        # Only runs on a host have such an id.
        if not _UUID.search(run.lower()) and not is_host_known():
            raise UnknownRunError(f"{error} For a run on KFP, give its --host.") from None
        try:
            source = _on_host(run, flags, results=results)
            source.read()  # whether it exists: a whole id is not looked up
        except (UnknownRunError, HostError) as other:
            raise type(other)(f"{error} And on the host: {other}") from None
        return source
    newer = _newer_on_host(folder, flags, results=results) if run == LATEST and is_host_known() else None
    return newer or RunReader(folder)


def _newer_on_host(folder: Path, flags: Flags, *, results: bool) -> HostRun | None:
    """Return the newest run on the host that is set up, if it is newer than the one in the folder."""
    from torchx_kfp.runs.history import created

    host = connect(flags)
    try:
        newest = next(host.list(limit=1), None)
    except HostError as error:
        print_message(f"Only the runs on this machine were looked at: {error}")
        return None
    if newest is None or newest.created < created(folder):
        return None
    return _on_host(newest.run_id, flags, results=results)


def is_run(word: str, flags: Flags) -> bool:
    """Tell whether a word in the place of a tracker base means a run, whose tracker base is then that of its arguments.

    With the options of a host, it always does. Otherwise it does if it cannot be a tracker base, and a host is set up.
    """
    if names_host(flags):
        return True
    if "://" in word or word.startswith(("/", ".", "~")) or os.path.exists(word):
        return "/runs/details/" in word  # the URL of a page in KFP's UI
    return bool(_UUID.search(word.lower())) or is_host_known()


def locate(run: str, output_dir: str, flags: Flags, given: str = "") -> Located:
    """Find a run, on the host or on this machine, and the tracker base that it was given.

    The arguments and errors are those of ``find_source``. The whole id of a run on this machine means that run, even if
    the flags name a host. ``given`` is the tracker base that the user has given in place of the run's.

    Raises:
        ArgumentError: the run has no tracker base.
        TrackerBaseError: only pods have this tracker base, or only the run names it.
    """
    from torchx_kfp.backend.results import missing, why_not_read
    from torchx_kfp.backend.settings import read_settings

    is_here = names_host(flags) and run in _here(output_dir)
    try:
        record = find_source(run, output_dir, {} if is_here else flags, results=False).read()
    except UnknownRunError as error:
        if names_host(flags):
            raise
        raise UnknownRunError(f"There is no directory {run!r}. {error}") from None
    base = given or record.arguments.get(TRACKER_BASE)
    if not isinstance(base, str) or not base:
        raise ArgumentError(
            f"The run {record.run_id} has no argument {TRACKER_BASE!r}, so it is not known where its results are. Give "
            "their tracker base before the run."
        )
    if record.folder is None and (why := why_not_read(base, [given, read_settings(flags).tracker_base])):
        raise TrackerBaseError(missing(base, why))
    return Located(base, record.run_id, record.arguments)


def _here(output_dir: str) -> set[str]:
    """Return the ids of the runs on this machine."""
    from torchx_kfp.runs.history import find_runs

    try:
        return {folder.name for folder in find_runs(output_dir)}
    except ArgumentError:  # there is no such folder
        return set()


def _on_host(run: str, flags: Flags, *, results: bool) -> HostRun:
    from torchx_kfp.backend.results import NoResults
    from torchx_kfp.backend.run import HostRun

    host = connect(flags)
    return HostRun(host.connection, host.find(run), results=None if results else NoResults())
