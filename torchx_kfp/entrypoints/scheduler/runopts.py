"""The run options, which ``-cfg`` and the section ``[kfp]`` of a ``.torchxconfig`` take, and the host that they name.

``torchx run`` gives a scheduler the options of ``-cfg``, over those of a ``.torchxconfig``; most other commands give it
none, so the scheduler reads the ``.torchxconfig`` itself. The environment and the settings file follow, as for
torchx-kfp's own commands.
"""

from __future__ import annotations

import configparser
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx import specs
from torchx.util.types import to_dict

from torchx_kfp.common.text import did_you_mean, shown
from torchx_kfp.errors import AppDefError
from torchx_kfp.execution.host.settings import FLAGS, SUBMISSION, Submission, read_settings

if TYPE_CHECKING:  # TorchX constructs all schedulers to show their options
    from torchx_kfp.authoring.engines import Engine
    from torchx_kfp.execution.host.connection import Connection

_logger = logging.getLogger(__name__)

#: The name of the scheduler: ``torchx run -s kfp``.
NAME = "kfp"
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

#: The help of each option, by its name. All are texts, except ``cache``.
_OPTIONS = {
    "host": "URL of KFP, such as https://kfp.example.com. Commands that take no -cfg (status, log, cancel, describe) "
    "read it from [kfp] in .torchxconfig, from TORCHX_KFP_HOST, or from torchx-kfp's settings file, as this one does "
    "without it. Credentials come from there, too.",
    "namespace": "your namespace, in a Kubeflow that several users share",
    "tracker_base": "where results are stored, such as s3://bucket/results. It makes the app a tracked stage; without "
    "it, the app gets none of torchx-kfp's variables.",
    **{name: option.more or option.help for name, option in SUBMISSION.items()},
    "engine": "what runs several replicas or roles: job (an Indexed Job), jobset (a JobSet) or volcano (a Volcano Job)",
    "queue": "the queue that admits the replicas: Kueue's (job, jobset) or Volcano's. It needs an engine.",
    "secrets": "variables from Kubernetes secrets, as VARIABLE:secret/key;OTHER_VARIABLE:secret/key",
}
#: The options of the connection. Commands that TorchX gives no options read them from a ``.torchxconfig``.
OF_CONNECTION = [name for name in _OPTIONS if name in FLAGS]


class KfpRunOpts(specs.runopts):  # type: ignore[misc]
    """TorchX's collection of options, which refuses unknown ones instead of ignoring them."""

    def cfg_from_str(self, cfg_str: str) -> dict[str, specs.CfgVal]:
        """Parse ``-cfg``. Its mistakes are left to ``resolve``, whose errors TorchX shows without a traceback."""
        found: dict[str, specs.CfgVal] = {}
        for name, text in to_dict(cfg_str or "").items():
            option = self.get(name)
            is_boolean = option is not None and option.opt_type is bool
            found[name] = _BOOLEANS.get(text.lower(), text) if is_boolean else text
        return found

    def resolve(self, cfg: Mapping[str, specs.CfgVal], *args: Any, **kwargs: Any) -> dict[str, specs.CfgVal]:
        """Return the options with their defaults.

        Raises:
            InvalidRunConfigException: an option is unknown, or has a value of another type.
        """
        names = [name for name, _ in self]
        for name, value in cfg.items():
            if name not in names and value is not None:
                raise refusal(
                    f"The scheduler kfp has no option {name!r}.{did_you_mean(name, names)} Its options: "
                    f"{', '.join(names)}",
                    name,
                    cfg,
                )
            kind = self.get(name).opt_type if name in names else object
            if kind is bool and isinstance(value, str):
                raise refusal(f"{name} is {shown(value)}. Give true or false", name, cfg)
        # ``name = None`` in a .torchxconfig is an option without a value.
        given = {name: value for name, value in cfg.items() if name in names}
        resolved: dict[str, specs.CfgVal] = super().resolve(given, *args, **kwargs)
        return resolved


def run_options() -> KfpRunOpts:
    """Return the options that ``torchx runopts kfp`` shows."""
    options = KfpRunOpts()
    for name, about in _OPTIONS.items():
        is_boolean = name == "cache"
        options.add(name, type_=bool if is_boolean else str, default=True if is_boolean else None, help=about)
    return options


@dataclass(frozen=True)
class Options:
    """The options of a run, read and checked; texts are empty if they are not given.

    ``of_connection`` has those of the connection that are given. ``secrets`` has the form of `task_from_app`: {secret:
    {key: variable}}.
    """

    of_connection: Mapping[str, str] = field(default_factory=dict)
    submission: Submission = field(default_factory=Submission)
    tracker_base: str = ""
    engine: Engine | None = None
    secrets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def read_options(cfg: Mapping[str, Any]) -> Options:
    """Read the options that TorchX has resolved.

    Raises:
        InvalidRunConfigException: an engine or a secret is not one.
    """
    texts = {name: str(cfg.get(name) or "") for name in _OPTIONS if name != "cache"}
    queue, engine, secrets, tracker_base = (texts.pop(name) for name in ("queue", "engine", "secrets", "tracker_base"))
    of_connection = {name: texts.pop(name) for name in OF_CONNECTION}
    return Options(
        of_connection={name: text for name, text in of_connection.items() if text},
        submission=Submission(**texts, cache=cfg.get("cache") is not False),
        tracker_base=tracker_base,
        engine=_engine(engine, queue, cfg),
        secrets=_secrets(secrets, cfg),
    )


def refusal(reason: str, name: str, cfg: Mapping[str, Any]) -> specs.InvalidRunConfigException:
    """Return the error for an option."""
    if not hasattr(specs, "Workspace"):
        # The command line of TorchX 0.7.0 names the option, and keeps the reason to itself.
        _logger.error("%s.", reason)
    return specs.InvalidRunConfigException(reason, name, cfg)


def _engine(name: str, queue: str, cfg: Mapping[str, Any]) -> Engine | None:
    from torchx_kfp.authoring.engines import ENGINES

    if not name:
        if queue:
            raise refusal(f"queue is {queue!r}, but no engine is given. Give one, such as engine=job", "queue", cfg)
        return None
    if name not in ENGINES:
        raise refusal(
            f"engine is {name!r}.{did_you_mean(name, ENGINES)} Give one of {', '.join(ENGINES)}", "engine", cfg
        )
    try:
        return ENGINES[name](queue=queue or None)
    except AppDefError as error:
        raise refusal(str(error).rstrip("."), "queue", cfg) from None


def _secrets(text: str, cfg: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    secrets: dict[str, dict[str, str]] = {}
    for word in filter(None, (word.strip() for word in text.replace(",", ";").split(";"))):
        variable, _, place = word.partition(":")
        secret, _, key = place.partition("/")
        if not (variable and secret and key):
            raise refusal(
                f"secrets has {word!r}. Give VARIABLE:secret/key, such as AWS_ACCESS_KEY_ID:s3/accesskey",
                "secrets",
                cfg,
            )
        other = secrets.setdefault(secret, {}).setdefault(key, variable)
        if other != variable:
            raise refusal(
                f"secrets gives the key {key!r} of {secret!r} to two variables, {other} and {variable}. KFP can give "
                "it to one",
                "secrets",
                cfg,
            )
    return secrets


class Connections:
    """The connections of this process: those of apps that it has submitted, and the one of all others."""

    def __init__(self) -> None:
        self._of_options: dict[tuple[tuple[str, str], ...], Connection] = {}
        #: The connections of the submitted apps, by their ids.
        self.of_apps: dict[str, Connection] = {}

    def with_options(self, options: Mapping[str, str] | None = None) -> Connection:
        """Return the connection with these options; without any, with those of a ``.torchxconfig``.

        Raises:
            HostSettingsError: the settings are wrong.
        """
        from torchx_kfp.execution.host.connection import Connection

        options = _configured() if options is None else options
        key = tuple(sorted(options.items()))
        if key not in self._of_options:
            self._of_options[key] = Connection(read_settings(options))
        return self._of_options[key]

    def of_app(self, app_id: str) -> Connection:
        """Return the connection to the host of an app."""
        return self.of_apps.get(app_id) or self.with_options()


def _configured() -> dict[str, str]:
    """Return the options of the connection in the ``.torchxconfig`` files that TorchX reads, the first ones first."""
    from torchx.runner.config import find_configs

    found: dict[str, str] = {}
    for path in find_configs():
        parser = configparser.ConfigParser()
        # Names keep their case, as TorchX reads them.
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path, encoding="utf-8")
        for name in OF_CONNECTION if parser.has_section(NAME) else ():
            value = parser.get(NAME, name, fallback="")
            if value and value != "None":
                found.setdefault(name, value)
    return found
