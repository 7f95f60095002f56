"""Artifacts, and stages' reports about them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.execution.pipeline.spec import ArtifactType

#: Fields of KFP's messages ExecutorOutput and RuntimeArtifact (kubeflow/pipelines, pipeline_spec.proto): KFP's launcher
#: rejects a report with any other field.
_REPORT = {"parameters", "artifacts", "parameterValues", "parameter_values"}
_CUSTOM_PATH = ("customPath", "custom_path")
#: The stores to which KFP's launcher uploads, and only below the pipeline root.
_STORES = ("gs://", "minio://", "s3://", "oci://")
_ARTIFACT = {"name", "type", "uri", "properties", "customProperties", "custom_properties", "metadata", *_CUSTOM_PATH}

#: URLs of object stores. They name a bucket, and neither a server nor, with ``::``, another URL.
_OBJECT_STORE = re.compile(
    r"(?:(?:s3a?|gs|gcs|minio|oss|hf|az|abfss?)://[\w.-]+|oci://[\w.-]+@[\w.-]+"
    r"|(?:az|abfss?)://[\w.$-]+@\w+\.(?:dfs|blob)\.core\.windows\.net)(?:/.*)?",
    re.ASCII,
)
#: The metadata entry in which ``publisher`` stores the location of content on other storage.
LOCATION = "location"
#: Six decimals change larger numbers by less than one part in a thousand.
_ROUNDED = 0.0005


@dataclass(frozen=True)
class Artifact:
    """An artifact as KFP passes it on. ``uri`` is a local path or a URL."""

    name: str
    type: ArtifactType
    uri: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    #: The local path of its file, if it differs from ``uri``: a path that a Python component has set
    #: (``set_path``), or the path of a copy of a file on other storage.
    custom_path: str = ""

    @property
    def path(self) -> str:
        """The local path of its file."""
        return self.custom_path or self.uri.removeprefix("file://")

    @property
    def is_local(self) -> bool:
        """Whether it is a local file rather than one on other storage."""
        return "://" not in self.path

    @property
    def location(self) -> str:
        """The URL of the content, if the artifact's file only names it (see ``publisher``); otherwise empty."""
        place = self.metadata.get(LOCATION)
        return place if isinstance(place, str) and "://" in place else ""

    @property
    def numeric_metadata(self) -> dict[str, Any]:
        """The metadata. Numbers that were stored as text, because KFP would round them, are numbers again."""
        return {name: _number(value) for name, value in self.metadata.items()}

    def as_message(self) -> dict[str, Any]:
        """Return KFP's RuntimeArtifact message."""
        message = {
            "name": self.name,
            "type": {"schemaTitle": self.type.title, "schemaVersion": self.type.version},
            # KFP's executor treats all URLs except those of its object stores as paths, including a file:// prefix.
            "uri": self.uri.removeprefix("file://"),
            "metadata": {key: _as_kept(value) for key, value in self.metadata.items()},
        }
        return {**message, "customPath": self.custom_path} if self.custom_path else message


def is_object_store(url: str) -> bool:
    """Return whether a URL is in an object store. Other URLs may name local files or servers."""
    return "::" not in url and _OBJECT_STORE.fullmatch(url) is not None


def _number(value: Any) -> Any:
    try:
        number = float(value) if isinstance(value, str) else math.nan
    except ValueError:
        return value
    # ``publisher`` writes such numbers in this form only, so other text stays as it is.
    return number if repr(number) == value and abs(number) < _ROUNDED else value


def _as_kept(value: Any) -> Any:
    """Return a value of an artifact's metadata as ML Metadata stores it, and consumers read it.

    Lists and objects are wrapped in an object, booleans become numbers, and numbers have six decimals.
    """
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return float(f"{value:f}")
    if isinstance(value, list):
        return {"list": value}
    return {"struct": value} if isinstance(value, dict) else value


class ArtifactList(list[Artifact]):
    """Several artifacts that are one input or output, such as those of a loop. (A parameter is a plain list.)"""


def is_artifact(value: object) -> bool:
    """Return whether the value of an input or output is one or more artifacts, rather than a parameter."""
    return isinstance(value, (Artifact, ArtifactList))


def artifacts_in(value: object) -> list[Artifact]:
    """Return the artifacts in the value of an input or output: one, several, or none if it is a parameter."""
    if isinstance(value, ArtifactList):
        return list(value)
    return [value] if isinstance(value, Artifact) else []


def parameters_of(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs without artifacts."""
    return {name: value for name, value in inputs.items() if not is_artifact(value)}


def as_message(value: object) -> dict[str, Any]:
    """Return KFP's ArtifactList message of an input or output."""
    return {"artifacts": [artifact.as_message() for artifact in artifacts_in(value)]}


def read_report(text: str, given: Mapping[str, Artifact]) -> tuple[dict[str, Any], dict[str, Artifact]]:
    """Read a stage's report (KFP's ExecutorOutput): its parameters, and all artifacts.

    Args:
        text: the report; empty if there is none.
        given: the output artifacts as described to the stage.

    Raises:
        ValueError: KFP's launcher would reject the report.
    """
    if not text.strip():
        return {}, dict(given)
    try:
        report = json.loads(text)
        _refuse_constants(report)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    _check_fields(report, _REPORT, "it")
    artifacts = dict(given)
    for name, entries in (report.get("artifacts") or {}).items():
        if name not in given:
            raise ValueError(f"has the artifact {name!r}, which the component does not declare")
        _check_fields(entries, {"artifacts"}, f"the artifact {name!r}")
        for entry in (entries.get("artifacts") or [])[:1]:
            _check_fields(entry, _ARTIFACT, f"the artifact {name!r}")
            metadata = entry.get("metadata") or {}
            if not isinstance(metadata, dict):
                raise ValueError(f"has metadata of the artifact {name!r} that is not an object: {shown(metadata)}")
            if missing := [key for key, value in metadata.items() if value is None]:
                raise ValueError(
                    f"has null as {missing[0]!r} in the metadata of the artifact {name!r}, which KFP cannot store. "
                    "Leave it out"
                )
            uri = str(entry.get("uri") or given[name].uri)
            if uri != given[name].uri and uri.startswith(_STORES):
                raise ValueError(
                    f"puts the artifact {name!r} at {uri}, outside the run's own folder: KFP's launcher makes such a "
                    "stage fail. Write the file to the artifact's path, or put the location into its metadata"
                )
            artifacts[name] = Artifact(
                name=given[name].name,
                type=given[name].type,
                uri=uri,
                metadata={**given[name].metadata, **metadata},
                custom_path=next((str(entry[key]) for key in _CUSTOM_PATH if entry.get(key)), ""),
            )
    return dict(report.get("parameterValues") or report.get("parameter_values") or {}), artifacts


def _check_fields(value: object, known: set[str], what: str) -> None:
    if not isinstance(value, dict):
        raise ValueError(f"would be rejected by KFP's launcher: {what} is {shown(value)}, which is not an object")
    if unknown := sorted(set(value) - known):
        raise ValueError(f"would be rejected by KFP's launcher: {what} has the unknown field {unknown[0]!r}")


def _refuse_constants(value: object, place: str = "") -> None:
    """Raise ValueError for NaN or an infinity, which Python writes although JSON lacks them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{place} is {json.dumps(value)}, which JSON does not have. Leave it out, or write text")
    for key, item in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        _refuse_constants(item, f"{place}.{key}".lstrip("."))
