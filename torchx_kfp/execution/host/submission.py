"""Submit runs to a KFP host from Python, after a check for problems on KFP, and attach to runs."""

from __future__ import annotations

import os
import posixpath
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.errors import HostNotFoundError
from torchx_kfp.execution.host.answers import as_text
from torchx_kfp.execution.host.connection import V2BETA1, Connection
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.run import HostRun
from torchx_kfp.execution.host.settings import Settings, Submission, read_settings, variable
from torchx_kfp.execution.host.storage import Storage, storage_of, submitted_documents
from torchx_kfp.execution.model import checks
from torchx_kfp.execution.model.findings import REJECTED_ON_KFP, Finding, Kind, merge, refuse
from torchx_kfp.execution.model.versions import NEWEST, Version, address_of_store, parse_version
from torchx_kfp.execution.pipeline.endpoints import is_of_this_machine, s3_endpoints
from torchx_kfp.execution.pipeline.load import PipelineLike, load_pipeline, pipeline_errors, pipeline_from_documents
from torchx_kfp.execution.pipeline.pod_settings import VARIABLES, entries
from torchx_kfp.execution.pipeline.spec import Component, Pipeline
from torchx_kfp.execution.pipeline.walk import ScopedTask, known_bases, known_stages
from torchx_kfp.execution.runs.prepared_run import PreparedRun, prepare

_S3 = ("s3", "s3a")
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WAY_OUT = (
    "Give a tracker base that pods and this machine can reach, such as s3://bucket/results, or mount a volume claim at "
    "this path in each stage (kubernetes.mount_pvc)"
)


def submit(
    pipeline: PipelineLike,
    arguments: Mapping[str, Any] | None = None,
    *,
    workspace: str | os.PathLike[str] | None = None,
    name: str = "",
    experiment: str = "",
    service_account: str = "",
    pipeline_root: str = "",
    cache: bool = True,
    fresh: Collection[str] = (),
    host: Host | str | None = None,
) -> HostRun:
    """Start a run on a KFP host.

    Args:
        pipeline: the path of a compiled pipeline, or a function decorated with ``dsl.pipeline``.
        arguments: values of the pipeline's parameters.
        workspace: the folder with the code of the stages. It is stored under the tracker base, once; the parameter
            ``workspace`` gets its URL.
        name: the run's name in KFP's UI. Default: the pipeline's name and the time.
        experiment: the run's experiment; it is created if it does not exist.
        service_account: the Kubernetes service account of the stages.
        pipeline_root: where KFP stores the run's artifacts.
        cache: False to run all stages, regardless of the pipeline's settings.
        fresh: stages, or nested pipelines, that run even if KFP's cache has them. The stages that read them run as
            well. KFP does not cache their outputs.
        host: the host, from ``connect``, or its URL. Default: the configured one.

    Returns:
        The run, which is in progress on the host; ``.wait()`` returns its result.

    Raises:
        PipelineError: the file is not a compiled pipeline, it would fail on KFP, or its pods cannot reach the tracker
            base.
        ArgumentError: the arguments do not fit the pipeline's parameters, or the workspace cannot be packed.
        TrackerError: the workspace cannot be stored.
        HostError: there is no host, it does not answer, or it rejects the run.
    """
    submission = Submission(name, experiment, service_account, pipeline_root, cache)
    host = _host(host)
    given = {} if arguments is None else arguments
    prepared = prepare(load_pipeline(pipeline), given, workspace=workspace, fresh=fresh)
    findings = check_submission(
        prepared.pipeline, prepared.values, host.connection.settings, version=version_of(host.connection)
    )
    refuse_submission(prepared.pipeline, findings)
    return start_run(host, prepared, submission, warn=_warn)


def start_run(
    host: Host,
    prepared: PreparedRun,
    submission: Submission,
    *,
    say: Callable[[str], object] | None = None,
    warn: Callable[[str], object],
) -> HostRun:
    """Start a prepared run on a host.

    Args:
        say: receives messages about stored code.
        warn: receives a message if the run's code cannot be recorded.

    Raises:
        TrackerError: the code cannot be stored.
        HostError: the host does not answer or rejects the run.
    """
    prepared.upload(say)
    run_id = host.submit(prepared.pipeline, prepared.arguments, submission)
    prepared.record(run_id, warn)
    return HostRun(host.connection, run_id, named_bases=prepared.bases)


def as_file(prepared: PreparedRun, settings: Settings, submission: Submission) -> str:
    """Return the pipeline that ``start_run`` submits as YAML, with the run's arguments as defaults of its parameters.

    So runs of it need no arguments.

    Args:
        prepared: the run; ``upload`` stores its code.
        submission: the other options of the run, of which only ``cache`` applies to a file.

    Raises:
        HostSettingsError: a setting is malformed.
    """
    pipeline = prepared.pipeline
    spec, platform = submitted_documents(pipeline, settings, cache=submission.cache)
    if given := {name: prepared.values[name] for name in prepared.arguments if name in prepared.values}:
        root = dict(spec["root"])
        parameters = dict(root["inputDefinitions"]["parameters"])
        for name, value in given.items():
            parameters[name] = {**parameters[name], "defaultValue": value, "isOptional": True}
        root["inputDefinitions"] = {**root["inputDefinitions"], "parameters": parameters}
        spec = {**spec, "root": root}
    if (spec, platform) == pipeline.documents:
        return pipeline.text
    return pipeline_from_documents([spec, platform] if platform else [spec], pipeline.name).text


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=5)  # at the user's call of submit


def attach(run: str, host: Host | str | None = None) -> HostRun:
    """Return a run on a KFP host.

    Args:
        run: its id, at least 4 characters of its beginning, its name in KFP's UI, the URL of its page there, or
            ``latest``.
        host: the host: see ``submit``.

    Raises:
        UnknownRunError: there is no such run.
        HostError: there is no host, or it does not answer.
    """
    host = _host(host)
    return HostRun(host.connection, host.find(run))


def connect(host: str | None = None, **settings: str | bool | None) -> Host:
    """Return a KFP host; nothing is requested yet.

    Args:
        host: its URL. Default: that of the environment or the settings file.
        settings: other settings of the connection, such as ``namespace="team"``.

    Raises:
        HostSettingsError: a setting is unknown or wrong.
    """
    return _host(host, **settings)


def _host(host: Host | str | None, **settings: str | bool | None) -> Host:
    if isinstance(host, Host):
        return host
    found = read_settings({"host": host, **settings})
    for sentence in found.warnings:
        warnings.warn(sentence, stacklevel=3)  # at the user's call of a function of this module
    return Host(Connection(found))


def version_of(connection: Connection) -> Version:
    """Return the version of KFP on a host; the newest if it is unknown.

    Raises:
        HostError: the host does not answer.
    """
    try:
        health = connection.get(f"{V2BETA1}/healthz")
    except HostNotFoundError:
        return NEWEST
    return parse_version(as_text(health.get("tag_name") or health.get("apiServerTagName"))) or NEWEST


def check_submission(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    settings: Settings,
    environ: Mapping[str, str] = os.environ,
    *,
    version: Version = NEWEST,
) -> list[Finding]:
    """Return all findings about a run on KFP.

    Args:
        arguments: the values of all its parameters.
    """
    storage = storage_of(settings)
    findings: list[Finding] = []
    with pipeline_errors(f"The pipeline {pipeline.name!r}"):
        findings += checks.of_run(pipeline, arguments, version)
        for base, stages in known_bases(known_stages(pipeline, arguments)).items():
            said = f"has the tracker base {shown(base)}, "
            for stage in stages:
                findings += [
                    Finding(kind, f"task {stage.path!r}", f"{said}{text}")
                    for kind, text in _of_base(base, stage, environ, storage, address_of_store(version))
                ]
    return merge(findings)


def refuse_submission(pipeline: Pipeline, findings: Iterable[Finding]) -> None:
    """Raise PipelineError if the run would surely fail."""
    failing = [finding for finding in findings if finding.kind in REJECTED_ON_KFP]
    refuse(pipeline.name, failing, "nothing was submitted")


def _of_base(
    base: str, stage: ScopedTask, environ: Mapping[str, str], storage: Storage, store: str
) -> Iterator[tuple[Kind, str]]:
    scheme = _PROTOCOL.match(base)
    protocol_name = scheme[1].lower() if scheme else ""
    if protocol_name in ("", "file", "local", "memory"):
        path = base[scheme.end() :] if scheme else re.sub(r"^(?:file|local):", "", base)
        lasts = _is_below(path, [storage.folder]) or _is_mounted(path, stage.component)
        if protocol_name == "memory" or not lasts:
            yield Kind.FAILS, f"which is lost with the pod, because it is not on a volume. {_WAY_OUT}"
    elif protocol_name in _S3:
        yield from _of_endpoint(stage, environ, storage, store)
    elif is_of_this_machine(base):
        yield (
            Kind.FAILS,
            f"which is the pod itself on KFP, not this machine. Give the server's address in the cluster, such as "
            f"{protocol_name}://service.namespace/...",
        )


def _of_endpoint(
    stage: ScopedTask, environ: Mapping[str, str], storage: Storage, store: str
) -> Iterator[tuple[Kind, str]]:
    """Yield problems with the S3 server of a stage; ``store`` is the address of KFP's own."""
    own = s3_endpoints({**storage.variables, **dict(stage.variables)}.items())
    for name, value in own.items():
        if is_of_this_machine(value):
            yield (
                Kind.FAILS,
                f"and its variable {name} is {shown(value)}, which is the pod itself on KFP, not this machine. Give "
                f"the server's address in the cluster, such as {store}",
            )
    # A pod may have variables that the pipeline does not name.
    if own or s3_endpoints(storage.keys.items()) or entries(stage.component.platform, VARIABLES):
        return
    for name, value in s3_endpoints(environ.items()).items():
        if is_of_this_machine(value):
            yield (
                Kind.MAY_FAIL,
                f"and on this machine, {name}={value}; without such a variable, the stage looks for the bucket at AWS. "
                "Set the server's address in the cluster, such as "
                f"{variable('storage_variables')}={name}={store}",
            )
            return


def _is_mounted(path: str, component: Component) -> bool:
    """Return whether a stage, or each of its replicas, mounts a volume claim at or above a path."""
    mounts = [mount.get("mountPath", "") for mount in component.platform.get("pvcMount") or ()]
    if roles := component.decoded.replica_roles:
        return all(_is_below(path, [*mounts, *role.mounts]) for role in roles)
    return _is_below(path, mounts)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    whole = posixpath.normpath(path)
    return any(f"{whole}/".startswith(f"{posixpath.normpath(folder).rstrip('/')}/") for folder in folders if folder)
