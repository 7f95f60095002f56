"""Uploaded pipelines of the API, and their versions. They were not recorded: see the API's description."""

from __future__ import annotations

import email
import time
import uuid
from collections.abc import Mapping
from typing import Any

import yaml

from tests.fake_kfp.answers import shown_time
from tests.fake_kfp.errors import Refused
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.pipeline.load import pipeline_from_documents


def file_of(content_type: str, data: bytes) -> str:
    """Return the file in the form of an upload.

    Raises:
        ValueError: there is none.
    """
    message = email.message_from_bytes(f"Content-Type: {content_type}\r\n\r\n".encode() + data)
    for part in message.walk():
        if part.get_param("name", header="content-disposition") == "uploadfile" and part.get_filename():
            content = part.get_payload(decode=True)
            assert isinstance(content, bytes)
            return content.decode()
    raise ValueError("http: no such file")


class Pipelines:
    """The pipelines of a host, and their versions, by their ids."""

    def __init__(self) -> None:
        self.by_id: dict[str, dict[str, Any]] = {}
        self._versions: dict[str, dict[str, dict[str, Any]]] = {}

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a new pipeline without versions."""
        if too_long := _too_long("Pipeline", body["name"], 128):
            raise Refused(400, 3, f"Failed to create a pipeline: Invalid input error: {too_long}", too_long)
        if any(each["name"] == body["name"] for each in self.by_id.values()):
            cause = f"The name {body['name']} already exist. Please specify a new name"
            raise Refused(409, 6, f"Failed to create a pipeline: Already exist error: {cause}", cause)
        identity = str(uuid.uuid4())
        kept = {key: value for key, value in body.items() if value}
        self.by_id[identity] = {"pipeline_id": identity, "created_at": shown_time(time.time()), **kept}
        self._versions[identity] = {}
        return self.by_id[identity]

    def versions_of(self, pipeline: str) -> dict[str, dict[str, Any]]:
        """Return the versions of a pipeline."""
        if pipeline not in self._versions:
            raise Refused(404, 5, f"Failed to get a pipeline: ResourceNotFoundError: Pipeline {pipeline} not found")
        return self._versions[pipeline]

    def find_version(self, pipeline: str, version: str) -> dict[str, Any]:
        """Return a version of a pipeline."""
        if version not in self.versions_of(pipeline):
            cause = f"PipelineVersion {version} not found"
            raise Refused(404, 5, f"Failed to get a pipeline version: ResourceNotFoundError: {cause}", cause)
        return self._versions[pipeline][version]

    def upload(self, query: Mapping[str, str], text: str) -> dict[str, Any]:
        """Return a new version, which is in the text of a file."""
        versions = self.versions_of(query["pipelineid"])
        if too_long := _too_long("PipelineVersion", query["name"], 127):
            refused = Refused(400, 3, "")
            # Go's ``http.Error``: plain text.
            refused.answer = f"Invalid input error: {too_long}\n"
            raise refused
        documents = [each for each in yaml.safe_load_all(text) if each]
        try:
            pipeline_from_documents(documents, "pipeline_spec")
        except TorchxKfpError:
            raise _refused(500) from None
        if any(each["name"] == query["name"] for each in versions.values()):
            raise _refused(409)
        identity = str(uuid.uuid4())
        spec = documents[0] if len(documents) == 1 else {"pipeline_spec": documents[0], "platform_spec": documents[1]}
        versions[identity] = {
            "pipeline_id": query["pipelineid"],
            "pipeline_version_id": identity,
            **{key: query[key] for key in ("name", "display_name", "description") if key in query},
            # A list has the newest first; these may be of the same second.
            "created_at": shown_time(time.time() + len(versions)),
            "pipeline_spec": spec,
        }
        return versions[identity]


def _too_long(kind: str, name: str, most: int) -> str:
    """Return the error for a name of too many bytes (``validation/length.go``); empty for others."""
    return f"{kind}.Name length cannot exceed {most}" if len(name.encode()) > most else ""


def _refused(status: int) -> Refused:
    """Return the error of an upload, which has a form of its own."""
    refused = Refused(status, 0, "")
    message = "Failed to create a pipeline version"
    refused.answer = {"error_message": message, "error_details": message}
    return refused
