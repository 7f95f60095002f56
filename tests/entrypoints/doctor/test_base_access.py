"""Checks of a tracker base from here: a directory, S3 over HTTP, and what may be wrong with them."""

from __future__ import annotations

import re
import sys
import threading
from pathlib import Path

import pytest

from tests.execution.host.scripted import Reply, Request, scripted
from tests.facts import says
from tests.s3 import S3Server
from torchx_kfp.entrypoints.doctor import base_access
from torchx_kfp.entrypoints.doctor.base_access import check_base
from torchx_kfp.entrypoints.doctor.verdicts import Level, Verdict
from torchx_kfp.tracking.recorder import Recorder

_ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"


def one(base: str) -> Verdict:
    [verdict] = check_base(base)
    assert "\n" not in str(verdict)
    return verdict


def test_a_directory(tmp_path: Path) -> None:
    base = tmp_path / "results"
    assert one(str(base)).level is Level.OK
    assert not [path for path in base.rglob("*") if path.is_file()]
    (tmp_path / "file").write_text("")
    found = one(str(tmp_path / "file"))
    assert found.level is Level.MISSING
    assert str(tmp_path / "file") in found.found


@pytest.mark.s3
def test_a_bucket(s3_server: S3Server, s3_base: str) -> None:
    found: list[Verdict] = []
    requests = s3_server.requests(lambda: found.append(one(s3_base)))
    assert [verdict.level for verdict in found] == [Level.OK]
    assert [request.split()[0] for request in requests] == ["PUT", "GET", "DELETE"]
    assert Recorder.open(s3_base).store.files() == []
    missing = one("s3://no-such-bucket/results")
    assert missing.level is Level.MISSING
    assert re.search(says("no-such-bucket"), missing.found)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."),
        (403, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large."),
    ],
)
def test_a_store_that_refuses(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, status: int, code: str, message: str
) -> None:
    answer = Reply(_ERROR.format(code=code, message=message), status, kind="application/xml")
    with scripted(lambda request: answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        found = one("s3://bucket/results")
    assert found.level is Level.MISSING
    assert re.search(says("s3://bucket/results", message.rstrip(".")), found.found), found


@pytest.mark.s3
def test_no_credentials(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = one("s3://bucket/results")
    assert (found.level, found.subject) == (Level.MISSING, "credentials of the tracker base")
    assert re.search(says("AWS_ACCESS_KEY_ID", "AWS_ENDPOINT_URL"), found.found)


def test_a_missing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    found = one("gs://bucket/results")
    assert found.level is Level.MISSING
    assert 'pip install "torchx-kfp[gcs]"' in str(found)


@pytest.mark.s3
def test_a_store_that_does_not_answer(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base_access, "_SECONDS", 0.5)
    go = threading.Event()

    def answer(request: Request) -> Reply:
        go.wait(60)
        return Reply()

    with scripted(answer) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        found = one("s3://bucket/results")
        go.set()
    assert found.level is Level.MISSING
    assert re.search(says("s3://bucket/results", "no answer within 0.5 s", "your network"), str(found))
