"""The run options of ``-cfg`` and of the section ``[kfp]`` in a ``.torchxconfig``, and the host that they name.

``torchx run`` passes the options of ``-cfg``, over those of a ``.torchxconfig``. Most other commands pass none, so the
scheduler reads the ``.torchxconfig`` itself. The environment and the settings file follow, as for torchx-kfp's
commands.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Dict  # noqa: UP035 (TorchX 0.7.0 knows no other)

from torchx import specs

from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.settings import FLAGS, SUBMISSION, Submission

if TYPE_CHECKING:  # TorchX constructs all schedulers to show their options
    from torchx_kfp.authoring.engines import Engine

#: The name of the scheduler: ``torchx run -s kfp``.
NAME = "kfp"
#: The help of each option, by its name.
_OPTIONS = {
    "host": "URL of KFP, such as https://kfp.example.com. Default: host in [kfp] of .torchxconfig, TORCHX_KFP_HOST, or "
    "torchx-kfp's settings file. Commands without -cfg (status, log, cancel, describe) use the default. Credentials "
    "come from the environment or the settings file.",
    "namespace": "your namespace, in multi-user Kubeflow",
    "tracker_base": "where to store results, such as s3://bucket/results. It makes the app a tracked stage; without "
    "it, the app gets none of torchx-kfp's variables.",
    **{name: option.more or option.help for name, option in SUBMISSION.items()},
    "engine": "engine for several replicas or roles: job (an Indexed Job), jobset (a JobSet), trainjob (a TrainJob)",
    "queue": "Kueue's LocalQueue that admits the replicas. It needs an engine.",
    "secrets": "variables from Kubernetes secrets, as VARIABLE:secret/key;OTHER_VARIABLE:secret/key",
}
#: The options of the connection, which commands without ``-cfg`` read from a ``.torchxconfig``.
_OF_CONNECTION = [name for name in _OPTIONS if name in FLAGS]


def run_options() -> specs.runopts:
    """Return the options that ``torchx runopts kfp`` shows."""
    options = specs.runopts()
    for name, about in _OPTIONS.items():
        kind, default = {"cache": (bool, True), "secrets": (Dict[str, str], None)}.get(name, (str, None))  # noqa: UP006 (TorchX compares with it)
        options.add(name, type_=kind, default=default, help=about)
    return options


@dataclass(frozen=True)
class Options:
    """The options of a run; texts are empty if not given.

    ``of_connection`` has the given options of the connection. ``secrets`` has the form of `task_from_app`:
    {secret: {key: variable}}.
    """

    of_connection: Mapping[str, str]
    submission: Submission
    tracker_base: str
    engine: Engine | None
    secrets: Mapping[str, Mapping[str, str]]


def parse_options(cfg: Mapping[str, Any]) -> Options:
    """Read the options as TorchX resolved them.

    Raises:
        ArgumentError: a queue has no engine, or a secret is malformed.
        AppDefError: the engine is unknown.
    """
    given = {name: value for name, value in cfg.items() if value is not None}
    return Options(
        of_connection=connection_options(given),
        submission=Submission(**{name: given[name] for name in SUBMISSION if name in given}),
        tracker_base=given.get("tracker_base", ""),
        engine=_engine(given.get("engine", ""), given.get("queue", "")),
        secrets=_secrets(given.get("secrets", {})),
    )


def connection_options(cfg: Mapping[str, Any]) -> dict[str, str]:
    """Return the given options of the connection."""
    return {name: str(cfg[name]) for name in _OF_CONNECTION if cfg.get(name)}


def configured_options() -> dict[str, str]:
    """Return the options of the connection in TorchX's ``.torchxconfig`` files; earlier files take precedence."""
    from torchx.runner.config import find_configs

    parser = configparser.ConfigParser()
    # Names keep their case, as TorchX reads them.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(reversed(find_configs()), encoding="utf-8")
    section = parser[NAME] if parser.has_section(NAME) else {}
    return connection_options({name: value for name, value in section.items() if value != "None"})


def _engine(name: str, queue: str) -> Engine | None:
    from torchx_kfp.authoring.engines import named_engine

    engine = named_engine(name or None)
    if engine is None and queue:
        raise ArgumentError(f"queue is {queue!r}, but no engine is given. Give one, such as -cfg engine=job")
    return replace(engine, queue=queue or None) if engine else None


def _secrets(given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    secrets: dict[str, dict[str, str]] = {}
    for variable, place in given.items():
        secret, _, key = place.partition("/")
        if not (secret and key):
            raise ArgumentError(
                f"secrets gives {variable} the value {place!r}. Give VARIABLE:secret/key, such as "
                "AWS_ACCESS_KEY_ID:s3/accesskey."
            )
        other = secrets.setdefault(secret, {}).setdefault(key, variable)
        if other != variable:
            raise ArgumentError(
                f"secrets gives the key {key!r} of {secret!r} to two variables, {other} and {variable}. KFP can set "
                "only one."
            )
    return secrets
