"""Which KFP host a command means.

``torchx run`` gives a scheduler the options of ``-cfg``, over those of a ``.torchxconfig``; most other commands give it
none. So they are read here from the ``.torchxconfig``. Behind them come the environment and the settings file, as for
torchx-kfp's own commands. A process keeps the connections of the apps that it has submitted.
"""

from __future__ import annotations

import configparser
from collections.abc import Mapping

from torchx.runner.config import find_configs

from torchx_kfp.backend.connection import Connection
from torchx_kfp.backend.settings import read_settings
from torchx_kfp.scheduler.options import NAME, OF_CONNECTION

_UNSET = "None"


def configured() -> dict[str, str]:
    """Return the options of the connection in the ``.torchxconfig`` files that TorchX reads, the first ones first."""
    found: dict[str, str] = {}
    for path in find_configs():
        parser = configparser.ConfigParser()
        # Names keep their case, as TorchX reads them.
        parser.optionxform = str  # type: ignore[assignment,method-assign]
        parser.read(path, encoding="utf-8")
        for name in OF_CONNECTION if parser.has_section(NAME) else ():
            value = parser.get(NAME, name, fallback="")
            if value and value != _UNSET:
                found.setdefault(name, value)
    return found


class Connections:
    """The connections of this process: those of apps that it has submitted, and the one of all others."""

    def __init__(self) -> None:
        self._of_options: dict[tuple[tuple[str, str], ...], Connection] = {}
        self._of_apps: dict[str, Connection] = {}

    def with_options(self, options: Mapping[str, str] | None = None) -> Connection:
        """Return the connection with these options; without any, with those of a ``.torchxconfig``.

        Raises:
            HostSettingsError: the settings are wrong.
        """
        options = dict(configured() if options is None else options)
        key = tuple(sorted(options.items()))
        if key not in self._of_options:
            self._of_options[key] = Connection(read_settings(options))
        return self._of_options[key]

    def of_app(self, app_id: str) -> Connection:
        """Return the connection to the host of an app."""
        return self._of_apps.get(app_id) or self.with_options()

    def remember(self, app_id: str, connection: Connection) -> None:
        """Remember that the app was submitted through this connection."""
        self._of_apps[app_id] = connection
