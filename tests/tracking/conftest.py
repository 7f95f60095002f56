"""The command line in this process, whose stores a test of ``gc`` can break, and an S3 server that fails."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import finish_requests
from tests.entrypoints.cli.conftest import Call, invoke
from tests.proxy import Proxy
from tests.s3 import S3Server

#: What ``~`` stands for in tests of ``gc``: the end of the names that runs get.
MADE = "-20260101-120000-0a1b2c"
Gc = Callable[..., Any]


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


@pytest.fixture
def gc(inside: Call) -> Gc:
    """Run gc on a base, and return what it says: short names, without sizes and times."""

    def run(base: str | Path, *words: str, older: str = "30d") -> Any:
        done = inside("gc", "--tracker-base", str(base), "--yes", "--older-than", older, "--json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.replace(MADE, "~"))

    return run
