"""The checks of ``torchx-kfp doctor``: this machine, a KFP host and storage. No check changes a host.

A check returns a message, or raises: ``Skipped`` if there is nothing to check, ``Doubt`` for a warning, and any other
error if something required is missing.
"""

from __future__ import annotations

import contextlib
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import metadata
from typing import Any

from torchx_kfp.common.extras import require
from torchx_kfp.common.text import printable, shorten, shown, without_passwords
from torchx_kfp.errors import (
    ArgumentError,
    HostCredentialsError,
    HostError,
    HostNotFoundError,
    HostSettingsError,
    HostUnreachableError,
    TorchxKfpError,
)
from torchx_kfp.execution.host.answers import NO_NAMESPACE, as_object, as_text
from torchx_kfp.execution.host.connection import V1BETA1, V2BETA1, Connection, Timeouts
from torchx_kfp.execution.host.settings import SETTINGS, Settings, config_file, read_settings, variable
from torchx_kfp.execution.host.storage import storage_of
from torchx_kfp.execution.model.versions import NEWEST, OLDEST, parse_version
from torchx_kfp.execution.pipeline.endpoints import is_of_this_machine
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker

#: The versions of Python with which torchx-kfp is tested.
_OLDEST_PYTHON, _NEWEST_PYTHON = (3, 10), (3, 13)
_PACKAGES = (
    *("torchx-kfp", "kfp", "kfp-kubernetes", "kfp-server-api", "torchx", "torchx-nightly", "urllib3", "fsspec"),
    *("s3fs", "gcsfs", "adlfs"),
)
#: Keys of the health of KFP's API server, or of its UI, which answers for it.
_HEALTH = {"commit_sha", "tag_name", "multi_user", "apiServerReady"}
_TIMEOUTS = Timeouts(connect=5.0, read=20.0, whole=30.0, retries=1)
#: The id of no run.
_NOBODY = "00000000-0000-0000-0000-000000000000"
#: The most characters of an error's message.
_LONGEST = 900


class Skipped(Exception):
    """A skipped check; the message says why."""


class Doubt(Exception):
    """A problem that leaves most features working."""


@dataclass(frozen=True)
class Finding:
    """The outcome of a check; ``level`` is "ok", "warning", "missing" or "skipped"."""

    level: str
    subject: str
    found: str


@dataclass
class CheckUp:
    """The input of the checks: ``flags`` are settings of the command line; earlier checks set the rest."""

    flags: Mapping[str, Any]
    settings: Settings = field(default_factory=Settings)
    health: Mapping[str, Any] = field(default_factory=dict)

    @property
    def base(self) -> str:
        """The tracker base, even if the other settings cannot be read."""
        return str(self.flags.get("tracker_base") or self.settings.tracker_base)

    @cached_property
    def connection(self) -> Connection:
        """The connection to the host of the settings."""
        return Connection(self.settings, _TIMEOUTS)


def check_up(flags: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the outcome of each check. A check is skipped unless the one that it needs succeeded."""
    look = CheckUp(flags)
    without: set[str] = set()
    for subject, (needed, check) in CHECKS.items():
        try:
            if needed in without:
                raise Skipped(f"It needs the {needed}: see above.")
            level, message = "ok", check(look)
        except Skipped as why:
            level, message = "skipped", str(why)
        except Doubt as doubt:
            level, message = "warning", str(doubt)
        except Exception as error:  # also from libraries; other checks continue
            level = "missing"
            message = str(error) if isinstance(error, TorchxKfpError) else f"{type(error).__name__}: {error}"
        if level in ("missing", "skipped"):
            without.add(subject)
        message = shorten(printable(" ".join(without_passwords(message).split())), _LONGEST)
        yield Finding(level, subject, message)


def _python(look: CheckUp) -> str:
    found = f"{platform.python_version()} ({platform.system()}, {sys.executable})."
    if not _OLDEST_PYTHON <= sys.version_info[:2] <= _NEWEST_PYTHON:
        oldest, newest = (".".join(map(str, each)) for each in (_OLDEST_PYTHON, _NEWEST_PYTHON))
        raise Doubt(f"{found} torchx-kfp is tested with {oldest} to {newest}.")
    return found


def _packages(look: CheckUp) -> str:
    require("pipelines", "torchx-kfp")
    found = []
    for name in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    return f"{', '.join(found)}. To check their compatibility: pip check"


def _container_engine(look: CheckUp) -> str:
    from torchx_kfp.execution.local.executors.engine import find_engine

    try:
        engine = find_engine()
    except TorchxKfpError:
        raise Doubt(
            "Neither Docker nor Podman answers. Only torchx-kfp run --docker needs one: start Docker, set DOCKER_HOST, "
            "or install Podman."
        ) from None
    return f"{engine.version} of {engine.program} answers."


def _settings(look: CheckUp) -> str:
    look.settings = settings = read_settings(look.flags)
    described = []
    for name, source in settings.sources.items():
        value = "(not shown)" if SETTINGS[name].secret else getattr(settings, name)
        described.append(f"{name} {value} from {source}")
    found = "; ".join(described) or f"None in flags, the environment, or {config_file()}"
    if settings.warnings:
        raise Doubt(" ".join([f"{found}.", *settings.warnings]))
    return f"{found}."


def _host(look: CheckUp) -> str:
    connection = look.connection
    try:
        health = connection.get(f"{V2BETA1}/healthz")
    except HostSettingsError:
        if not (look.settings.host or look.settings.kube_context):
            raise Skipped("None is given: --host URL, TORCHX_KFP_HOST, or host in the settings file.") from None
        raise
    if not _HEALTH & health.keys():
        raise HostUnreachableError(
            f"{connection.name}{V2BETA1}/healthz is not from KFP: it has {', '.join(map(repr, health)) or 'nothing'}. "
            "Check the host and its port."
        )
    # KFP's UI answers for the API server, with different names.
    if health.get("apiServerReady") is False:
        raise HostUnreachableError(
            "KFP's UI answers, but its API server does not. An administrator can look at it: kubectl -n kubeflow get "
            "pods -l app=ml-pipeline"
        )
    look.health = {
        "tag_name": health.get("apiServerTagName"),
        "multi_user": health.get("apiServerMultiUser"),
        **health,
    }
    return f"{connection.name} answers."


def _version(look: CheckUp) -> str:
    tag = str(look.health["tag_name"] or "unknown")
    users = "several users" if look.health["multi_user"] else "one user"
    version = parse_version(tag)
    if version is None:
        return f"KFP for {users}; its version is unknown."
    found = f"KFP {tag.removeprefix('v')}, for {users}."
    if version < OLDEST:
        raise Doubt(f"{found} torchx-kfp supports KFP {OLDEST} and later, and was tested on {OLDEST} and {NEWEST}.")
    return found


def _login(look: CheckUp) -> str:
    namespace = look.connection.namespace
    if look.health["multi_user"] and not namespace:
        raise ArgumentError(NO_NAMESPACE)
    look.connection.get(f"{V2BETA1}/runs", page_size=1, namespace=namespace)
    if not look.health["multi_user"]:
        added = f" The namespace {namespace!r} has no effect: the host has one user." if namespace else ""
        return f"Runs can be listed.{added}"
    return f"Runs can be listed{_submitting(look.connection, namespace)} in the namespace {namespace!r}."


def _submitting(connection: Connection, namespace: str) -> str:
    """Return " and submitted" if runs can be submitted in a namespace, or "" if that is unknown.

    KFP checks the permission before the pipeline, which is empty, so nothing is started. (``BaseRunServer`` and
    ``ResourceManager.CreateRun`` in ``backend/src/apiserver``.)
    """
    answer = connection.get(f"{V2BETA1}/experiments", page_size=1, namespace=namespace)
    experiments = answer.get("experiments")
    if not isinstance(experiments, list) or not experiments:
        return ""  # the first run makes one
    experiment = as_text(as_object(experiments[0]).get("experiment_id"))
    request: dict[str, Any] = {"display_name": "doctor", "pipeline_spec": {}, "experiment_id": experiment}
    try:
        connection.post(f"{V2BETA1}/runs", request)
    except HostCredentialsError as error:
        raise Doubt(f"Runs can be listed in the namespace {namespace!r}, but not submitted: {error}") from None
    except HostError as error:
        return " and submitted" if "pipeline spec" in str(error) else ""
    return ""


def _states_of_stages(look: CheckUp) -> str:
    served = "The host serves the API v1beta1, which has them."
    try:
        look.connection.get(f"{V1BETA1}/runs/{_NOBODY}")
    except HostError as error:
        if isinstance(error, HostNotFoundError) and "Is this the URL of a KFP host?" not in str(error):
            return served  # KFP did not find the run
        lost = "Without the API v1beta1, only the states of runs are known, not those of stages, their results and logs"
        raise Doubt(f"{lost}: {error}") from None
    return served


def _tracker_base(look: CheckUp) -> str:
    if not look.base:
        raise Skipped("None is given: --tracker-base s3://bucket/results.")
    RecordTracker(look.base, patience=SHORT_PATIENCE).verify_writable()
    return f"{shown(look.base)} can be written and read from this machine; the test file was removed."


def _storage_of_stages(look: CheckUp) -> str:
    storage = storage_of(look.settings)
    if not storage:
        raise Skipped(f"Stages on the host get none: {variable('storage_variables')}, {variable('storage_secret')}.")
    for name, value in storage.variables.items():
        if is_of_this_machine(value):
            raise Doubt(
                f"Stages on the host get {name}={value}, which is the pod itself on KFP, not this machine. Give the "
                "server's address in the cluster, such as http://seaweedfs.kubeflow:9000"
            )
    variables = [f"{name}={value}" for name, value in storage.variables.items()]
    variables += [f"{name} (the key {key!r} of the secret {storage.secret!r})" for name, key in storage.keys.items()]
    return f"Stages on the host get {', '.join(variables)}. Only a pod can test that."


#: The checks by subject, each with the subject of the check that it needs.
CHECKS: Mapping[str, tuple[str, Callable[[CheckUp], str]]] = {
    "Python": ("", _python),
    "packages": ("", _packages),
    "container engine": ("", _container_engine),
    "settings": ("", _settings),
    "host": ("settings", _host),
    "version": ("host", _version),
    "login": ("host", _login),
    "states of stages": ("login", _states_of_stages),
    "tracker base": ("", _tracker_base),
    "storage of stages": ("settings", _storage_of_stages),
}
