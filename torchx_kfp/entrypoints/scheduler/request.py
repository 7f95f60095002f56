"""AppDefs as pipelines of one stage, without the variables that TorchX's runner adds to every role.

The runner sets ``TORCHX_JOB_ID`` and others for its own tracker. A tracked stage gets those of the stage protocol in
their place, and a variable with the id of TorchX's session would make each run differ for KFP's cache.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx import specs

from torchx_kfp.common.text import printable
from torchx_kfp.contract import protocol
from torchx_kfp.entrypoints.scheduler.app_run import ROLE_NAME
from torchx_kfp.entrypoints.scheduler.runopts import Options
from torchx_kfp.errors import AppDefError
from torchx_kfp.execution.host.settings import read_settings
from torchx_kfp.execution.host.submission import check_submission, refuse_submission
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.runs.prepared_run import PreparedRun, prepare

_logger = logging.getLogger(__name__)

_SESSION_ID = "TORCHX_INTERNAL_SESSION_ID"
#: The alias of the run that ``--parent_run_id`` names: applications find it as ``current_run().parent``.
PARENT = "parent"


@dataclass(frozen=True)
class Request:
    """A request to a KFP host, which ``torchx run --dryrun`` shows."""

    #: The run that the request starts, with the code of its workspaces.
    prepared: PreparedRun
    options: Options

    def __str__(self) -> str:
        """Return the file to upload, below the other parts of the request as comments."""
        options = {**self.options.of_connection, **vars(self.options.submission)}
        said = {name: value for name, value in options.items() if value not in ("", True)}
        arguments = {f"argument {name}": value for name, value in self.prepared.arguments.items()}
        code = {f"workspace {folder}": workspace.url for folder, workspace in self.prepared.workspaces.items()}
        lines = [f"# {name}: {printable(str(value))}" for name, value in {**said, **arguments, **code}.items()]
        return "\n".join([*lines, self.prepared.pipeline.text])


def make_request(app: specs.AppDef, options: Options) -> Request:
    """Return the request that runs the app, with its code, after the check of what KFP would refuse or change.

    Raises:
        AppDefError: the app cannot become a stage without losing something, has a parent run, but no tracker base; or
            the tracker base is not one.
        UnsupportedPipelineError: the run would surely fail, such as with a tracker base that pods do not reach.
        WorkspaceError: the workspace of a role cannot travel.
    """
    app, trackers, parent = without_runner_variables(app)
    arguments = {protocol.TRACKER_BASE_PARAMETER: options.tracker_base} if options.tracker_base else {}
    if not options.tracker_base and parent:
        raise AppDefError(
            f"The app is to read the run {parent!r} (--parent_run_id), but there is no tracker base, under "
            "which results are stored. Give one: -cfg tracker_base=s3://bucket/results"
        )
    if not options.tracker_base and trackers:
        _logger.warning(
            "Nothing is recorded in the trackers %s: an app that runs on KFP gets TorchX's trackers with a tracker "
            "base, such as -cfg tracker_base=s3://bucket/results.",
            ", ".join(trackers),
        )
    if not options.tracker_base and any(getattr(role, "workspace", None) for role in app.roles):
        raise AppDefError(
            "The app's workspace is stored under a tracker base, and there is none. Give one, such as -cfg "
            "tracker_base=s3://bucket/results, or run the code of the image: --workspace ''"
        )
    prepared = prepare(_compile(app, options, trackers, parent), arguments)
    findings = check_submission(prepared.pipeline, prepared.values, read_settings(options.of_connection))
    refuse_submission(prepared.pipeline, findings)
    for finding in findings:
        _logger.warning("%s: %s", finding.kind.value, finding)
    return Request(prepared, options)


def without_runner_variables(app: specs.AppDef) -> tuple[specs.AppDef, dict[str, str | None], str]:
    """Return a copy of the app without the variables of TorchX's runner, its trackers, and its parent run."""
    trackers: dict[str, str | None] = {}
    parent = ""
    roles = []
    for role in app.roles:
        env = dict(role.env)
        trackers.update(protocol.decode_trackers(env))
        parent = parent or env.get(protocol.PARENT_RUN_ID, "")
        names = [protocol.JOB_ID, protocol.TRACKERS, protocol.PARENT_RUN_ID, _SESSION_ID, protocol.TRACKER_CONFIG]
        for name in (*names, *map(protocol.tracker_config_variable, trackers)):
            env.pop(name, None)
        role = copy.copy(role)
        role.env = env
        roles.append(role)
    app = copy.copy(app)
    app.roles = roles
    return app, trackers, parent


def _compile(app: specs.AppDef, options: Options, trackers: Mapping[str, str | None], parent: str) -> Pipeline:
    from torchx_kfp.authoring.stages import single_stage_pipeline
    from torchx_kfp.execution.pipeline.load import compile_function

    of_stage: dict[str, Any] = {"engine": options.engine, "secrets": options.secrets}
    if app.roles and not options.engine:
        of_stage["annotations"] = {ROLE_NAME: app.roles[0].name}
    if options.tracker_base:
        of_stage["reads"] = {PARENT: parent} if parent else None
        of_stage["trackers"] = trackers
    return compile_function(single_stage_pipeline(app, tracked=bool(options.tracker_base), **of_stage), app.name)
