"""The command line in this process, and an S3 server that fails."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import finish_requests
from tests.entrypoints.cli.conftest import Call, invoke
from tests.proxy import Proxy
from tests.s3 import S3Server


def clear_clients() -> None:
    """fsspec keeps clients by their arguments, which do not include the endpoint."""
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def proxy(s3_server: S3Server, s3_base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy, which fsspec's ``s3://`` uses from now on; the bucket of ``s3_base`` exists already."""
    with Proxy(s3_server.url) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        clear_clients()
        yield proxy
        finish_requests()
        clear_clients()


@pytest.fixture
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """The command line in this process, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return invoke
