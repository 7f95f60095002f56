"""Logs of pods that Argo has archived in an object store: KFP does not give all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from torchx_kfp.errors import HostError
from torchx_kfp.execution.host.connection import MOST_BYTES
from torchx_kfp.execution.pipeline.artifacts import S3_ENDPOINT, is_object_store


@dataclass(frozen=True)
class ArchivedLog:
    """A log in S3. ``endpoint`` is the server's address for the pods."""

    endpoint: str
    bucket: str
    key: str

    def read(self, environ: Mapping[str, str] = os.environ) -> bytes:
        """Return the log, from the server that the user has named, or Amazon's.

        Raises:
            HostError: the user has named no server, or the log cannot be read there. The message is a part of a
                sentence about the log.
        """
        url = f"s3://{self.bucket}/{self.key}"
        if not is_object_store(url):  # the host may name anything
            raise HostError(f"its archive, {url!r}, is not the URL of an object")
        is_named = any(value and S3_ENDPOINT.fullmatch(name) for name, value in environ.items())
        host = urlsplit(f"//{self.endpoint}").hostname or ""
        if not is_named and not host.endswith(".amazonaws.com"):
            raise HostError(
                f"Argo has archived it as {url} at {self.endpoint}: with AWS_ENDPOINT_URL and the credentials for that "
                "store, it is read from there"
            )
        try:
            import fsspec

            with fsspec.open(url, "rb") as file:
                return bytes(file.read(MOST_BYTES))
        except Exception as error:  # each store's client raises its own errors
            raise HostError(f"nor can {url} be read: {type(error).__name__}: {error}") from error
