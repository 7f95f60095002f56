"""The settings of the connection to a KFP host, and the options of a submission.

Flags override environment variables, which override the settings file. If none of them names a host, the connection is
that of ``kfp.Client()``: inside a cluster KFP's service, otherwise the proxy of the Kubernetes API server in the
kubeconfig.
"""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import functools
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchx_kfp.common.text import did_you_mean, joined, listed, printable, shown
from torchx_kfp.errors import HostSettingsError
from torchx_kfp.execution.pipeline.endpoints import is_this_machine

#: The environment variable of each setting begins with this: ``TORCHX_KFP_HOST``.
PREFIX = "TORCHX_KFP_"
#: Names the settings file.
CONFIG = "TORCHX_KFP_CONFIG"
#: The section of the settings file.
SECTION = "kfp"
#: Two forms of one setting: if a place gives either, the other one is not taken from the next place.
_TOKENS = {"existing_token", "token_file"}
#: The settings that name a host.
_HOSTS = ("host", "kube_context")
#: The mode of a file that others can read.
_FOR_OTHERS = stat.S_IRGRP | stat.S_IROTH
_BOOLEANS = configparser.ConfigParser.BOOLEAN_STATES
#: ``host``, ``host:8080/pipeline`` and the like; ``localhost:8080`` is not a URL with the scheme ``localhost``.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
#: Kubeflow's dashboard shows KFP's UI in a frame at this path; the API is at the path of the frame's content.
_FRAME = re.compile(r"^/_(/pipeline)(?:/.*)?$")
#: The rest of a URL that was copied from a browser or from a request.
_BELOW = re.compile(r"/(?:apis(?:/.*)?|index\.html)$")


@dataclass(frozen=True)
class Setting:
    """A setting of the connection.

    Attributes:
        help: the help text, even of settings without a flag.
        more: further text for the docs.
        metavar: its value in help texts. A FILE is relative to the settings file.
        of_client: the corresponding variable of kfp.Client, if any.
        kind: ``credential`` for credentials; ``runs`` for settings of runs rather than of the connection.
        secret: True if messages and commands to copy must not show it.
    """

    help: str
    more: str = ""
    metavar: str | None = None
    of_client: str = ""
    kind: str = ""
    secret: bool = False


def _setting(about: str, more: str = "", *, default: str | bool = "", **facts: Any) -> Any:
    setting = Setting(about, more, **facts)
    return field(default=default, repr=not setting.secret, metadata={"setting": setting})


@dataclass(frozen=True)
class Settings:
    """The settings of a connection, with the names of ``kfp.Client``; empty if not given.

    Flags, variables, the settings file and the docs are made from this list.
    """

    host: str = _setting(
        "The KFP host, such as https://kfp.example.com.",
        "It is the URL of KFP's UI, such as `https://kubeflow.example.com/pipeline`. A URL copied from the UI works.",
        metavar="URL",
        of_client="KF_PIPELINES_ENDPOINT",
    )
    kube_context: str = _setting(
        "Without --host: reach KFP through the API server of this context of the kubeconfig.", metavar="NAME"
    )
    namespace: str = _setting(
        "The namespace of the runs, on a multi-user host.", "It is that of your profile.", metavar="NAME"
    )
    token_file: str = _setting(
        "A file with the token for the host, which is read for each request.", metavar="FILE", kind="credential"
    )
    existing_token: str = _setting(
        "The token itself.", "It is sent as `Authorization: Bearer`.", kind="credential", secret=True
    )
    cookies: str = _setting(
        "The cookies of a browser that is signed in, such as 'authservice_session=...'.",
        kind="credential",
        secret=True,
    )
    ssl_ca_cert: str = _setting(
        "The certificate of the authority that signed the host's certificate.", "In PEM format.", metavar="FILE"
    )
    verify_ssl: bool = _setting(
        "Check the host's certificate.", "Use `false` only on a network that you trust.", default=True
    )
    ui_host: str = _setting(
        "The URL of KFP's UI, for links to runs, if it differs from the host.", of_client="KF_PIPELINES_UI_ENDPOINT"
    )
    client_id: str = _setting(
        "The client ID of Google's Identity-Aware Proxy (IAP) in front of the host.",
        of_client="KF_PIPELINES_IAP_OAUTH2_CLIENT_ID",
        kind="credential",
    )
    other_client_id: str = _setting(
        "The ID of an OAuth client for a person who signs in to IAP.",
        of_client="KF_PIPELINES_APP_OAUTH2_CLIENT_ID",
        kind="credential",
    )
    other_client_secret: str = _setting(
        "The secret of that client.", of_client="KF_PIPELINES_APP_OAUTH2_CLIENT_SECRET", kind="credential", secret=True
    )
    service_namespace: str = _setting("The namespace of KFP itself.", default="kubeflow")
    proxy: str = _setting(
        "The URL of an HTTP proxy for the host.",
        "Default: that of `HTTPS_PROXY` or `HTTP_PROXY`, unless `NO_PROXY` names the host.",
        secret=True,
    )
    experiment: str = _setting(
        "The default experiment of submitted runs.",
        of_client="KF_PIPELINES_DEFAULT_EXPERIMENT_NAME",
        kind="runs",
    )
    tracker_base: str = _setting(
        "The default tracker base of commands; for submitted runs, it overrides the pipeline's default.",
        "If it is not in an object store, this setting also lets this machine read the results of other runs there.",
        kind="runs",
    )
    storage_variables: str = _setting(
        "Variables for tracked stages of submitted runs, such as AWS_ENDPOINT_URL=http://seaweedfs.kubeflow:9000.",
        "They are separated by spaces. A variable of the AppDef takes precedence.",
        kind="runs",
    )
    storage_secret: str = _setting(
        "The Kubernetes secret with the credentials of the tracker base, and the variables for its keys, such as "
        "`storage accesskey=AWS_ACCESS_KEY_ID secretkey=AWS_SECRET_ACCESS_KEY`.",
        "Tracked stages of submitted runs get them.",
        kind="runs",
    )
    storage_folder: str = _setting(
        "A folder at the same path on this machine and in all pods; tracker bases may be below it.", kind="runs"
    )
    #: The source of each setting: ``--host``, ``TORCHX_KFP_HOST``, ``host in /home/me/config.ini``.
    sources: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    #: Sentences for the user, such as one about a token file that others can read.
    warnings: tuple[str, ...] = field(default=(), repr=False, compare=False)
    _again: Callable[[], Settings] | None = field(default=None, repr=False, compare=False)

    def read_again(self) -> Settings:
        """Return the current settings of the environment and the settings file."""
        return self._again() if self._again else self

    def source(self, name: str) -> str:
        """Return the source of a setting, for messages."""
        return self.sources.get(name, name)


#: All settings, by name.
SETTINGS: dict[str, Setting] = {
    item.name: item.metadata["setting"] for item in dataclasses.fields(Settings) if item.metadata
}
#: The settings with flags, which all commands for runs on a host have.
FLAGS = ("host", "kube_context", "namespace")


@dataclass(frozen=True)
class Submission:
    """The options of a submitted run; the host decides about empty ones.

    The options of ``torchx-kfp submit`` and of TorchX's scheduler are made from this list, and ``submit`` has them as
    keywords. ``more`` is the help text for the scheduler, if it differs.
    """

    name: str = _setting("The run's name in KFP's UI.  [default: pipeline and time]", metavar="NAME")
    experiment: str = _setting("The run's experiment; it is created if it does not exist.", metavar="NAME")
    service_account: str = _setting("The Kubernetes service account of the stages.", metavar="NAME")
    pipeline_root: str = _setting("Where KFP stores the artifacts of the run.", metavar="URL")
    #: False to run all stages, even those in nested pipelines and loops, whatever the pipeline says.
    cache: bool = _setting(
        "Run every stage, even if an earlier run has its outputs.",
        "Let KFP reuse the outputs of an earlier run that did the same work.",
        default=True,
        metavar="",
    )


#: All options of a submission, by name.
SUBMISSION: dict[str, Setting] = {item.name: item.metadata["setting"] for item in dataclasses.fields(Submission)}


def read_settings(flags: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings from flags, the environment and the settings file.

    A source that names a different host than the one before it is ignored, so a token in the settings file is not sent
    to a flag's host.

    Args:
        flags: values by setting, including those without a flag, which only Python takes; None and empty values count
            as not given.

    Raises:
        HostSettingsError: a setting is unknown or wrong, or the settings file cannot be read.
    """
    flags = flags or {}
    if unknown := sorted(set(flags) - set(SETTINGS)):
        raise HostSettingsError(f"There is no setting {unknown[0]!r}.{did_you_mean(unknown[0], SETTINGS)}")
    warnings: list[str] = []
    settings: dict[str, tuple[str | bool, str]] = {}
    file = config_file(environ)
    in_file = _file(file, is_needed=bool(environ.get(CONFIG)))
    places = {
        "the flags": {
            name: (str(value), flag(name) if name in FLAGS or SETTINGS[name].kind == "runs" else name)
            for name, value in flags.items()
            if value not in (None, "")
        },
        "the environment": {
            # Ours come last and take precedence.
            name: (environ[named], named)
            for name, setting in SETTINGS.items()
            for named in (setting.of_client, variable(name))
            if environ.get(named)
        },
        str(file): {name: (value, f"{name} in {file}") for name, value in in_file.items()},
    }
    for place, texts in places.items():
        folder = file.parent if place == str(file) else Path()
        given = {name: (_value(name, text, source, folder), source) for name, (text, source) in texts.items()}
        ours, theirs = (next((name for name in _HOSTS if name in each), "") for each in (settings, given))
        if ours and theirs and (ours, settings[ours][0]) != (theirs, given[theirs][0]):
            if given.keys() - {*_HOSTS}:
                warnings.append(
                    f"The settings of {place} are for {printable(str(given[theirs][0]))}, so they are not used for "
                    f"{printable(str(settings[ours][0]))}."
                )
        else:
            known = {*settings, *(_TOKENS if _TOKENS & settings.keys() else ())}
            settings |= {name: it for name, it in given.items() if name not in known}
    if secrets := [name for name in in_file if SETTINGS[name].secret]:
        warnings += _readable_by_others(file, joined(secrets))
    if "token_file" in settings:
        warnings += _readable_by_others(Path(str(settings["token_file"][0])), "a token")
    if "proxy" not in settings and "host" in settings and (proxy := _proxy_to(str(settings["host"][0]), environ)):
        settings["proxy"] = proxy
    # The values have the types of the fields, by which they were read.
    values: dict[str, Any] = {name: value for name, (value, _) in settings.items()}
    sources = {name: source for name, (_, source) in settings.items()}
    again = functools.partial(read_settings, flags, environ)
    return Settings(**values, sources=sources, warnings=tuple(warnings), _again=again)


def _readable_by_others(file: Path, content: str) -> Iterator[str]:
    """Yield a warning if other users of this machine can read a file that exists."""
    with contextlib.suppress(OSError):
        if file.stat().st_mode & _FOR_OTHERS:
            yield f"Run chmod 600 {file}: other users of this machine can read it, and it has {content}."


def _proxy_to(host: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the proxy for a host from the usual variables, and the variable that names it."""
    parts = urlsplit(host)
    names = (f"{parts.scheme}_proxy", "all_proxy")
    source = next((each for name in names for each in (name, name.upper()) if environ.get(each)), "")
    excluded = {"no": environ.get("no_proxy") or environ.get("NO_PROXY") or ""}
    if not source or is_near(parts.hostname or ""):
        return None
    # Slow to load, and typeshed lacks it.
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

    if proxy_bypass_environment(parts.netloc, excluded):
        return None
    text = environ[source]
    refuse_in_header(text, source)
    return (text if "://" in text else f"http://{text}"), source


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the settings file, which may not exist."""
    if given := environ.get(CONFIG):
        return Path(given).expanduser()
    folder = environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".config"
    return Path(folder, "torchx-kfp", "config.ini")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def flag(name: str) -> str:
    """Return the command line's flag of a setting."""
    return "--no-cache" if name == "cache" else f"--{name.replace('_', '-')}"


def way_to_give(name: str) -> str:
    """Return how to set a setting without a flag, for messages."""
    return f"{variable(name)}, or {name} in {config_file()}"


def _file(path: Path, *, is_needed: bool) -> dict[str, str]:
    """Return the settings of the settings file, as text."""
    # Messages never quote a line, which may contain a secret.
    parser = configparser.ConfigParser(interpolation=None, default_section="")
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if is_needed:
            raise HostSettingsError(f"The settings file {str(path)!r} of {CONFIG} does not exist.") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise HostSettingsError(f"The settings file {str(path)!r} cannot be read: {why}.") from None
    except configparser.Error as error:
        line = getattr(error, "lineno", None) or next(number for number, _ in getattr(error, "errors", ()))
        way_out = f"Write [{SECTION}] in a line, and below it lines such as: host = https://kfp.example.com"
        if isinstance(error, configparser.DuplicateOptionError):
            way_out = f"Give the setting {error.option!r} once."
        raise HostSettingsError(
            f"The settings file {str(path)!r} is not valid in line {line} ({type(error).__name__}). {way_out}"
        ) from None
    for section in parser.sections():
        if section != SECTION:
            raise HostSettingsError(
                f"The settings file {str(path)!r} has the unknown section [{section}]. Its settings are in [{SECTION}]."
            )
        for name in parser[section]:
            if name not in SETTINGS:
                raise HostSettingsError(
                    f"The settings file {str(path)!r} has the unknown setting {shown(name)}."
                    f"{did_you_mean(name, SETTINGS)} It may have: {listed(SETTINGS, len(SETTINGS))}."
                )
    return {name: value for name, value in parser[SECTION].items() if value.strip()} if SECTION in parser else {}


def _value(name: str, text: str, source: str, folder: Path = Path()) -> str | bool:
    text = text.strip()
    if name == "verify_ssl":
        if text.lower() not in _BOOLEANS:
            raise HostSettingsError(f"{source} is {shown(text)}, but must be true or false.")
        return _BOOLEANS[text.lower()]
    if name in ("host", "ui_host"):
        return host_address(text, source)
    if SETTINGS[name].metavar == "FILE":
        return str(folder / Path(text).expanduser())
    if SETTINGS[name].secret:
        refuse_in_header(text, source)
    return text


def refuse_in_header(text: str, source: str) -> None:
    """Raise HostSettingsError if a header cannot contain this text, such as a token copied with an invisible space."""
    for place, character in enumerate(text, 1):
        if not " " <= character <= "~":
            raise HostSettingsError(
                f"{source} contains {character!a} as character {place}, which HTTP headers do not allow. Give it in "
                "one line, as it was issued."
            )


def host_address(text: str, source: str = "the host") -> str:
    """Return the base URL of a host's API, without a trailing slash.

    Args:
        text: a URL or the name of a host. The rest of a URL that was copied from KFP's UI is ignored. Without a scheme,
            it is http for this machine and for services of a cluster, and https otherwise.
        source: the source of the text, for messages.

    Raises:
        HostSettingsError: it is not the address of a host.
    """
    given, why = text.strip(), ""
    scheme = _SCHEME.match(given)
    if scheme and scheme[1].lower() not in ("http", "https"):
        raise HostSettingsError(
            f"{source} is {shown(without_password(text))}, but the URL of a KFP host begins with https:// or http://."
        )
    try:
        parts = urlsplit(given if scheme else f"//{given}")
        name, _ = parts.hostname, parts.port
        why = "it contains a space or a backslash" if re.search(r"[\s\\]", given) else ""
        why = why if name else "there is no host in it"
    except ValueError as error:
        name, why = "", str(error)
    if "@" in (text if why else parts.netloc):  # the error may quote a part of the password
        raise HostSettingsError(
            f"{source} is {shown(without_password(text))}, which contains user information (user:password@) that KFP "
            "does not support. Remove it, and give a token (existing_token, token_file) or cookies."
        )
    if why or not name:
        raise HostSettingsError(
            f"{source} is {shown(text)}, which is not the address of a KFP host: {why}. Give the URL of KFP's UI, such "
            "as https://kfp.example.com or http://localhost:8080."
        )
    protocol = scheme[1].lower() if scheme else "http" if is_near(name) else "https"
    path = _BELOW.sub("", parts.path.rstrip("/")).rstrip("/")
    frame = _FRAME.match(path)
    return f"{protocol}://{parts.netloc}{frame[1] if frame else path}"


def without_password(text: str) -> str:
    """Return the text of a URL, which may be malformed, without a possible user and password."""
    return f"...{text[text.rindex('@') :]}" if "@" in text else text


def is_near(name: str) -> bool:
    """Return whether a host is this machine or a service in a cluster, which rarely have TLS."""
    return is_this_machine(name) or name.lower().rstrip(".").endswith((".svc", ".svc.cluster.local"))
