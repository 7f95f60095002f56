"""An app as its run on a KFP host, and its roles."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torchx_kfp.backend.connection import Connection
from torchx_kfp.backend.results import NoResults
from torchx_kfp.backend.run import HostRun
from torchx_kfp.errors import PipelineFileError
from torchx_kfp.runs.record import RunRecord
from torchx_kfp.scheduler.roles import StageRoles, roles_by_stage

_logger = logging.getLogger(__name__)


def open_app(connection: Connection, app_id: str) -> HostRun:
    """Return the app's run. Nothing is asked yet; what it has to say goes to TorchX's log."""
    return HostRun(connection, app_id, say=lambda sentence: _logger.warning("%s", sentence), results=NoResults())


def roles_of(record: RunRecord) -> Mapping[str, StageRoles]:
    """Return the roles of each stage of a run; none if the host does not tell its pipeline."""
    try:
        return roles_by_stage(record.load(), record.arguments)
    except PipelineFileError:
        return {}
