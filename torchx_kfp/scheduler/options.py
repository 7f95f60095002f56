"""The run options: what ``-cfg`` and the section ``[kfp]`` of a ``.torchxconfig`` take."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchx import specs
from torchx.util.types import to_dict

from torchx_kfp.backend.settings import FLAGS
from torchx_kfp.backend.submission import Submission
from torchx_kfp.errors import AppDefError
from torchx_kfp.text import did_you_mean, shown

if TYPE_CHECKING:  # TorchX constructs all schedulers to show their options
    from torchx_kfp.engines import Engine

_logger = logging.getLogger(__name__)

#: The name of the scheduler: ``torchx run -s kfp``.
NAME = "kfp"
_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}

#: Name, type, default and help of each option.
_OPTIONS: tuple[tuple[str, Any, specs.CfgVal, str], ...] = (
    (
        "host",
        str,
        None,
        "URL of KFP, such as https://kfp.example.com. Commands that take no -cfg (status, log, cancel, describe) read "
        "it from [kfp] in .torchxconfig, from TORCHX_KFP_HOST, or from torchx-kfp's settings file, as this one does "
        "without it. Credentials come from there, too.",
    ),
    ("namespace", str, None, "your namespace, in a Kubeflow that several users share"),
    (
        "tracker_base",
        str,
        None,
        "where results are stored, such as s3://bucket/results. It makes the app a tracked stage; without it, the app "
        "gets none of torchx-kfp's variables.",
    ),
    ("experiment", str, None, "the experiment of the run, created if it does not exist"),
    ("name", str, None, "the name of the run in KFP's UI. The default is the app's name with the date."),
    ("service_account", str, None, "the Kubernetes service account of the run"),
    ("pipeline_root", str, None, "where KFP stores artifacts of the run"),
    ("cache", bool, True, "whether KFP may take the outputs of an earlier run that did the same work"),
    (
        "engine",
        str,
        None,
        "what runs several replicas or roles: job (an Indexed Job), jobset (a JobSet) or volcano (a Volcano Job)",
    ),
    ("queue", str, None, "the queue that admits the replicas: Kueue's (job, jobset) or Volcano's. It needs an engine."),
    (
        "secrets",
        str,
        None,
        "variables from Kubernetes secrets, as VARIABLE:secret/key;OTHER_VARIABLE:secret/key",
    ),
)
#: The options of the connection. Commands that TorchX gives no options read them from a ``.torchxconfig``.
OF_CONNECTION = [name for name, *_ in _OPTIONS if name in FLAGS]


class RunOptions(specs.runopts):  # type: ignore[misc]
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


def run_options() -> RunOptions:
    """Return the options that ``torchx runopts kfp`` shows."""
    options = RunOptions()
    for name, kind, default, about in _OPTIONS:
        options.add(name, type_=kind, default=default, help=about)
    return options


@dataclass(frozen=True)
class Options:
    """The options of a run, read and checked; texts are empty if they are not given.

    ``of_connection`` has those of the connection that are given. ``secrets`` has the form of the adapter: {secret:
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
    texts = {name: str(cfg.get(name) or "") for name, kind, _, _ in _OPTIONS if kind is str}
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
    from torchx_kfp.engines import ENGINES

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
