"""Pipelines that a KFP host stores, with their versions, as its UI lists them: upload one, and find it by its name."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from torchx_kfp.common.text import did_you_mean, listed, printable
from torchx_kfp.errors import ArgumentError, HostError, PipelineFileError
from torchx_kfp.execution.host.answers import mapping, text
from torchx_kfp.execution.host.connection import V2BETA1, Connection
from torchx_kfp.execution.host.host_runs import Host
from torchx_kfp.execution.host.listing import PAGE, named, objects
from torchx_kfp.execution.pipeline.load import pipeline_from_documents, read_specs
from torchx_kfp.execution.pipeline.spec import Pipeline

_PIPELINES = f"{V2BETA1}/pipelines"


@dataclass(frozen=True)
class StoredPipeline:
    """A version of a pipeline that a host stores.

    Attributes:
        name: the pipeline's name in KFP's UI.
        version: the name of the version.
        pipeline_id: KFP's id of the pipeline.
        version_id: KFP's id of the version.
        link: its page in KFP's UI; empty if the UI's address is not known.
    """

    name: str
    version: str
    pipeline_id: str
    version_id: str
    link: str = ""

    @property
    def reference(self) -> dict[str, str]:
        """How a run names it, as JSON of v2beta1."""
        return {"pipeline_id": self.pipeline_id, "pipeline_version_id": self.version_id}


class StoredPipelines:
    """The pipelines that a host stores."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._connection = host.connection

    def upload(self, pipeline: Pipeline, name: str = "", version: str = "") -> StoredPipeline:
        """Store a version of a pipeline. The pipeline is created if the host has none with this name.

        Args:
            pipeline: the pipeline; its ``text`` is stored, with the descriptions from its docstring.
            name: its name in KFP's UI; by default, its own name.
            version: the name of the version; by default, the date and time.

        Raises:
            ArgumentError: the pipeline has a version with this name.
            HostError: the host does not answer or refuses the pipeline.
        """
        name, version = name or pipeline.name, version or time.strftime("%Y-%m-%d %H-%M-%S")
        description = text(mapping(read_specs(pipeline.text)[0].get("pipelineInfo")).get("description"))
        pipeline_id = self._pipeline_id(name)
        if not pipeline_id:
            made = {"name": name, "display_name": name, "description": description}
            if namespace := self._connection.namespace:
                made["namespace"] = namespace
            pipeline_id = text(self._connection.post(_PIPELINES, made).get("pipeline_id"))
        elif self._version(pipeline_id, version):
            raise ArgumentError(
                f"The pipeline {printable(name)!r} on {self._connection.name} has a version {printable(version)!r} "
                "already. Give another --version."
            )
        answer = self._connection.upload(
            f"{_PIPELINES}/upload_version",
            f"{pipeline.name}.yaml",
            pipeline.text.encode(),
            name=version,
            display_name=version,
            pipelineid=pipeline_id,
            description=description,
        )
        return self._stored(name, answer)

    def find(self, name: str) -> tuple[StoredPipeline, Pipeline]:
        """Return a stored pipeline by its name, ``NAME`` for its newest version or ``NAME@VERSION``.

        Raises:
            ArgumentError: the host has no such pipeline, or no such version of it.
            PipelineFileError: it is not a pipeline of KFP v2.
            HostError: the host does not answer.
        """
        pipeline, version, needs_version = name, "", False
        if not (found := self._pipeline_id(name, shared=True)) and "@" in name:
            pipeline, _, version = name.rpartition("@")
            found, needs_version = self._pipeline_id(pipeline, shared=True), True
        if not found:
            raise self._host.unknown("pipeline", pipeline, _names(self._host.objects(_PIPELINES, "pipelines")))
        answer = {} if needs_version and not version else self._version(found, version)
        if not answer:
            versions = _names(self._versions(found))
            which = f"version {version!r}" if needs_version else "version"
            raise ArgumentError(
                f"The pipeline {pipeline!r} on {self._connection.name} has no {which}."
                f"{did_you_mean(version, versions)} Versions: {listed(map(printable, versions)) or 'none'}."
            )
        spec = mapping(answer.get("pipeline_spec"))
        documents = [spec["pipeline_spec"], spec.get("platform_spec")] if "pipeline_spec" in spec else [spec]
        if not spec:
            raise PipelineFileError(f"{self._connection.name} does not tell what the pipeline {name!r} is.")
        stored = self._stored(pipeline, answer)
        return stored, pipeline_from_documents([each for each in documents if each], name, kind="stored pipeline")

    def _stored(self, name: str, answer: Mapping[str, Any]) -> StoredPipeline:
        pipeline_id, version_id = text(answer.get("pipeline_id")), text(answer.get("pipeline_version_id"))
        if not (pipeline_id and version_id):
            raise HostError(f"{self._connection.name} does not tell the id of the pipeline {printable(name)!r}.")
        version = text(answer.get("display_name")) or text(answer.get("name"))
        link = _link(self._connection, pipeline_id, version_id)
        return StoredPipeline(name, version, pipeline_id, version_id, link)

    def _pipeline_id(self, name: str, *, shared: bool = False) -> str:
        """Return the id of a pipeline in the user's namespace, or of one that all users share; empty without one."""
        namespaces = dict.fromkeys([self._connection.namespace, *([""] if shared else [])])
        for namespace in namespaces:
            found = objects(self._connection, _PIPELINES, "pipelines", named(name), namespace=namespace)
            if pipeline := _with_name(name, found):
                return text(pipeline.get("pipeline_id"))
        return ""

    def _version(self, pipeline_id: str, name: str) -> Mapping[str, Any]:
        """Return a version, the newest one for an empty name; nothing if there is none."""
        if not name:
            return next(self._versions(pipeline_id), {})
        return _with_name(name, self._versions(pipeline_id, named(name)))

    def _versions(self, pipeline_id: str, query: str = "") -> Iterator[Mapping[str, Any]]:
        path = f"{_PIPELINES}/{quote(pipeline_id, safe='')}/versions"
        return objects(self._connection, path, "pipeline_versions", query)


def _with_name(name: str, found: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    return next((each for each in found if name in (each.get("display_name"), each.get("name"))), {})


def _names(found: Iterable[Mapping[str, Any]]) -> list[str]:
    return [text(each.get("display_name")) for each in itertools.islice(found, PAGE)]


def _link(connection: Connection, pipeline_id: str, version_id: str) -> str:
    base = connection.settings.ui_host or connection.settings.host
    return f"{base}/#/pipelines/details/{quote(pipeline_id)}/version/{quote(version_id)}" if base else ""


def undescribed(pipeline: Pipeline) -> list[str]:
    """Return the parameters of a pipeline that have no description for those who fill them in in KFP's UI."""
    root = mapping(read_specs(pipeline.text)[0].get("root"))
    parameters = mapping(mapping(root.get("inputDefinitions")).get("parameters"))
    return [name for name, parameter in parameters.items() if not mapping(parameter).get("description")]
