"""``torchx.schedulers.api.Scheduler`` for runs on a KFP host."""

from __future__ import annotations

import functools
import itertools
import logging
import os
from collections.abc import Iterable, Mapping
from contextlib import closing
from datetime import datetime
from typing import TYPE_CHECKING, Any

from torchx import specs
from torchx.schedulers.api import DescribeAppResponse, ListAppResponse, Scheduler, Stream, filter_regex
from torchx.workspace.api import WorkspaceMixin

from torchx_kfp.common.text import UUID
from torchx_kfp.entrypoints.scheduler.runopts import (
    NAME,
    configured_options,
    connection_options,
    parse_options,
    run_options,
)
from torchx_kfp.errors import HostNotFoundError, TorchxKfpError, UnknownRunError

if TYPE_CHECKING:  # TorchX constructs all schedulers to show their options
    from torchx_kfp.entrypoints.scheduler.app_run import Request
    from torchx_kfp.execution.host.connection import Connection
    from torchx_kfp.execution.host.run import HostRun

_logger = logging.getLogger(__name__)

#: The most listed runs; `torchx-kfp runs` shows more.
_LISTED = 200


class KfpScheduler(WorkspaceMixin[None], Scheduler[Any]):  # type: ignore[misc]  # TorchX is skipped by mypy
    """Runs apps on a KFP host. An app's id is that of its pipeline run."""

    def __init__(self, session_name: str) -> None:
        """Create the scheduler without any requests: ``torchx runopts`` constructs every scheduler."""
        super().__init__(NAME, session_name)
        self._connect = functools.cache(_connect)
        #: The connections of the apps submitted by this scheduler, by id.
        self._of_apps: dict[str, Connection] = {}

    def _run_opts(self) -> specs.runopts:
        return run_options()

    def _validate(self, app: specs.AppDef, scheduler: str, *cfg: object) -> None:
        """Do nothing: `authoring` checks all fields, some of which KFP does not need, such as resources."""

    def build_workspace_and_update_role(self, role: specs.Role, workspace: str, cfg: Mapping[str, Any]) -> None:
        """Store the folder from TorchX 0.7.0: it is packed with the request, and uploaded when the app starts."""
        role.workspace = None if _is_default(workspace) else workspace

    def caching_build_workspace_and_update_role(self, role: specs.Role, cfg: Mapping[str, Any], *_: object) -> None:
        """Do the same for a role of TorchX's nightly, which already has its workspace."""
        if _is_default(str(role.workspace)):
            role.workspace = None
        else:
            # The nightly would take an unchanged role for one whose image has the code.
            role.metadata = {**role.metadata, NAME: {"workspace": "packed when the app is submitted"}}

    def _submit_dryrun(self, app: specs.AppDef, cfg: Mapping[str, Any]) -> specs.AppDryRunInfo[Request]:
        from torchx_kfp.entrypoints.scheduler.app_run import make_request

        try:
            request = make_request(app, parse_options(cfg))
        except TorchxKfpError as error:
            raise _as_validation_error(error) from error
        return specs.AppDryRunInfo(request, str)

    def schedule(self, dryrun_info: specs.AppDryRunInfo[Request]) -> str:
        """Start the run and return its id.

        Raises:
            TorchxKfpError: there is no host, it does not answer, or it rejects the run.
        """
        from torchx_kfp.execution.host.host_runs import Host
        from torchx_kfp.execution.host.submission import check_submission, refuse_submission, start_run, version_of

        request = dryrun_info.request
        try:
            connection = self._connection(request.options.of_connection)
            for warning in connection.settings.warnings:
                _logger.warning("%s", warning)
            # The dry run asks the host for nothing, not even its version.
            pipeline, version = request.prepared.pipeline, version_of(connection)
            findings = check_submission(pipeline, request.prepared.values, connection.settings, version=version)
            refuse_submission(pipeline, findings)
            run = start_run(
                Host(connection), request.prepared, request.options.submission, say=_logger.info, warn=_logger.warning
            )
            if request.options.of_connection and self._connection(configured_options()).name != connection.name:
                _logger.warning(
                    "The host %s is only given by -cfg. For torchx status, log, describe and cancel, run: "
                    "export TORCHX_KFP_HOST=%s (or set it in [kfp] of a .torchxconfig).",
                    connection.name,
                    connection.name,
                )
        except TorchxKfpError as error:
            raise _as_validation_error(error) from error
        self._of_apps[run.run_id] = connection
        return run.run_id

    def describe(self, app_id: str) -> DescribeAppResponse | None:
        """Return the app's state, and its roles with numbers of replicas; None if the app is unknown.

        Raises:
            HostError: there is no host, or it does not answer.
        """
        from torchx_kfp.entrypoints.scheduler.app_run import STATES, role_statuses, roles_of
        from torchx_kfp.execution.host.states import run_state

        if not UUID.fullmatch(app_id.lower()):
            return None
        with closing(self._run(app_id)) as run:
            try:
                record = run.read()
            except (UnknownRunError, HostNotFoundError):
                return None
            result, roles = record.run.result(), roles_of(record)
            failed = [f"{stage.name} {stage.reason or 'failed'}" for stage in result.stages if stage.state == "failed"]
            ended = f"ended by {result.reason}" if result.state == "canceled" else result.reason
            return DescribeAppResponse(
                app_id=app_id,
                state=STATES[run_state(run.answer)],
                num_restarts=sum(max(0, stage.attempts - 1) for stage in result.stages),
                msg=next(iter(failed), ended or specs.NONE),
                ui_url=record.link or None,
                roles_statuses=role_statuses(result, roles),
                roles=[
                    specs.Role(name, image="", num_replicas=count)
                    for stage in roles.values()
                    for name, count in stage.counts.items()
                ],
            )

    def list(self, cfg: Mapping[str, Any] | None = None) -> list[ListAppResponse]:
        """Return the newest runs of the host, from all users."""
        from torchx_kfp.entrypoints.scheduler.app_run import STATES
        from torchx_kfp.execution.host.host_runs import Host

        host = Host(self._connection(connection_options(cfg or {}) or configured_options()))
        responses = []
        for run in itertools.islice(host.list(), _LISTED):
            response = ListAppResponse(app_id=run.run_id, state=STATES[run.state])
            if hasattr(response, "name"):
                response.name = run.name
            responses.append(response)
        return responses

    def log_iter(
        self,
        app_id: str,
        role_name: str,
        k: int = 0,
        regex: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        should_tail: bool = False,
        streams: Stream | None = None,
    ) -> Iterable[str]:
        """Yield the lines of a replica.

        Args:
            role_name: a role of the app; for a run not submitted by TorchX, the name of a stage.
            k: the replica, from 0.
            since: ignored: KFP's logs have no times.
            until: ignored as well.
            should_tail: wait for further lines until the run ends.
            streams: only ``combined`` is supported, because KFP has both streams in one log.

        Raises:
            ValueError: a single stream is requested, or the app has no such replica.
            HostError: there is no host, or it does not answer.
        """
        from torchx_kfp.entrypoints.scheduler.app_run import find_replica, lines_of, roles_of

        if streams not in (None, Stream.COMBINED):
            raise ValueError(
                f"KFP keeps stdout and stderr in one log, so streams={streams.value!r} cannot be read. Leave it out."
            )
        if since is not None or until is not None:
            _logger.warning("KFP's logs have no times: since and until are ignored.")
        run = self._run(app_id)
        roles = roles_of(run.read())
        lines = lines_of(run, roles, find_replica(roles, role_name, k), should_tail=should_tail)
        return filter_regex(regex, lines) if regex else lines

    def _cancel_existing(self, app_id: str) -> None:
        self._run(app_id).terminate()

    def _delete_existing(self, app_id: str) -> None:
        """Cancel the app unless it has ended; KFP's records of the run are kept."""
        described = self.describe(app_id)
        if described is not None and not specs.is_terminal(described.state):
            self._cancel_existing(app_id)

    def _run(self, app_id: str) -> HostRun:
        """Return the app's run without a request; its messages go to TorchX's log."""
        from torchx_kfp.execution.host.run import HostRun

        connection = self._of_apps.get(app_id) or self._connection(configured_options())
        return HostRun(connection, app_id, say=lambda text: _logger.warning("%s", text), reads="none")

    def _connection(self, options: Mapping[str, str]) -> Connection:
        """Return the connection with these options, the same one each time."""
        return self._connect(tuple(sorted(options.items())))


def _connect(options: tuple[tuple[str, str], ...]) -> Connection:
    from torchx_kfp.execution.host.connection import Connection
    from torchx_kfp.execution.host.settings import read_settings

    return Connection(read_settings(dict(options)))


def _is_default(workspace: str) -> bool:
    """Return whether a workspace is the default of ``torchx run``."""
    folder = os.getcwd()
    if workspace not in (folder, f"file://{folder}"):
        return False
    _logger.info("The code in %s is not sent. To send it: --workspace .", folder)
    return True


def _as_validation_error(error: TorchxKfpError) -> Exception:
    """Return the error as a subclass that ``torchx run`` shows without a traceback."""
    from torchx.specs.finder import ComponentValidationException

    kind = type(error)
    made: Exception = type(kind.__name__, (kind, ComponentValidationException), {})(str(error))
    return made
