"""The check of a run before it is submitted: what KFP's backend would refuse or change, and where results would go."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from torchx_kfp.backend.addresses import is_this_machine
from torchx_kfp.pipeline.findings import Finding, Kind, merge, refuse
from torchx_kfp.pipeline.known import KnownStage, known_bases
from torchx_kfp.pipeline.load import reading
from torchx_kfp.pipeline.spec import Component, Pipeline
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.semantics import checks
from torchx_kfp.text import shown

#: The mounts of stages whose files stay when the pod ends.
_LASTING = ("pvcMount",)
#: Settings of the platform spec through which a pod may get variables that the pipeline does not name.
_HIDDEN_VARIABLES = ("secretAsEnv", "configMapAsEnv")
#: Variables that name the server of S3: those of its clients, and fsspec's.
_ENDPOINT = re.compile(r"AWS_ENDPOINT_URL(?:_S3)?|FSSPEC_S3A?_ENDPOINT_URL", re.IGNORECASE)
_S3 = ("s3", "s3a")
_PROTOCOL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_WAY_OUT = (
    "Give a tracker base that pods and this machine reach, such as s3://bucket/results, or mount a volume claim at "
    "this path in each stage (kubernetes.mount_pvc)"
)


def check_submission(
    pipeline: Pipeline, arguments: Mapping[str, Any], environ: Mapping[str, str] = os.environ
) -> list[Finding]:
    """Return all findings about a run of the pipeline on KFP.

    Args:
        pipeline: the pipeline.
        arguments: the values of all its parameters.
        environ: the environment of this process.
    """
    found: list[Finding] = []
    with reading(f"The pipeline {pipeline.name!r}"):
        found += checks.of_pipeline(pipeline)
        for place in walk(pipeline):
            found += checks.of_task(pipeline, place)
        found += checks.of_arguments(arguments)
        found += checks.of_replicas(pipeline, arguments)
        found += _of_bases(pipeline, arguments, environ)
    return merge(found)


def refuse_submission(pipeline: Pipeline, findings: Iterable[Finding]) -> None:
    """Raise UnsupportedPipelineError if there are findings with which the run would surely fail."""
    failing = [finding for finding in findings if finding.kind is Kind.FAILS]
    refuse(pipeline.name, failing, "nothing was submitted")


def bases_of(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Collection[str]:
    """Return the tracker bases of a run; ``arguments`` has the values of all parameters."""
    return known_bases(pipeline, arguments)


def _of_bases(pipeline: Pipeline, arguments: Mapping[str, Any], environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about tracker bases that only this machine has."""
    for base, stages in known_bases(pipeline, arguments).items():
        for stage in stages:
            for kind, text in _of_base(base, stage, environ):
                yield Finding(kind, f"task {stage.place.path!r}", f"has the tracker base {shown(base)}, {text}")


def _of_base(base: str, stage: KnownStage, environ: Mapping[str, str]) -> Iterator[tuple[Kind, str]]:
    scheme = _PROTOCOL.match(base)
    protocol_name = scheme[1].lower() if scheme else ""
    if protocol_name in ("", "file", "local"):
        path = base[scheme.end() :] if scheme else re.sub(r"^(?:file|local):", "", base)
        if not path.startswith("/"):
            yield (
                Kind.FAILS,
                f"which is a path below the directory in which a pod's program starts, and is lost with the pod. "
                f"{_WAY_OUT}",
            )
        elif not _is_mounted(path, stage.place.component):
            yield Kind.FAILS, f"which is a directory of the pod, and is lost with it: no volume is there. {_WAY_OUT}"
    elif protocol_name == "memory":
        yield Kind.FAILS, f"which is in the memory of each process. {_WAY_OUT}"
    elif protocol_name in _S3:
        yield from _of_endpoint(stage, environ)
    elif is_this_machine(_host_of(base)):
        yield (
            Kind.FAILS,
            f"which means the pod itself there, not this machine. Give the address that the server has in the cluster, "
            f"such as {protocol_name}://service.namespace/...",
        )


def _of_endpoint(stage: KnownStage, environ: Mapping[str, str]) -> Iterator[tuple[Kind, str]]:
    """Yield what is wrong with the server of S3 that a stage uses."""
    own = [(name, value) for name, value in stage.variables if _ENDPOINT.fullmatch(name)]
    for name, value in own:
        if is_this_machine(_host_of(value)):
            yield (
                Kind.FAILS,
                f"and its variable {name} is {shown(value)}, which means the pod itself there, not this machine. Give "
                "the address that the server has in the cluster, such as http://minio-service.kubeflow:9000",
            )
    if own or any(stage.place.component.platform.get(setting) for setting in _HIDDEN_VARIABLES):
        return
    for name, value in environ.items():
        if _ENDPOINT.fullmatch(name) and is_this_machine(_host_of(value)):
            yield (
                Kind.MAY_FAIL,
                f"and {name}={value} here sends S3 to this machine; the stage has no such variable, and looks for the "
                "bucket at AWS. Give its AppDef the server's address in the cluster with env= or secrets=, such as "
                "http://minio-service.kubeflow:9000",
            )
            return


def _host_of(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_mounted(path: str, component: Component) -> bool:
    """Tell whether a stage has a volume at a path or above it that lasts; for a distributed one, each replica."""
    mounts = [mount.get("mountPath", "") for key in _LASTING for mount in component.platform.get(key) or ()]
    if roles := component.facts.replica_roles:
        return all(_is_below(path, [*mounts, *role.mounts]) for role in roles)
    return _is_below(path, mounts)


def _is_below(path: str, folders: Iterable[str]) -> bool:
    whole = posixpath.normpath(path)
    return any(f"{whole}/".startswith(f"{posixpath.normpath(folder).rstrip('/')}/") for folder in folders if folder)
