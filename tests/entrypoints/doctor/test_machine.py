"""Checks of this machine and of a tracker base: packages, settings without secrets, a directory, S3 over HTTP."""

from __future__ import annotations

import re
import shutil
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests.entrypoints.doctor.conftest import Check, Doctor
from tests.execution.host.scripted import Reply, scripted
from tests.facts import says
from tests.programs import Program
from tests.s3 import S3Server
from torchx_kfp.common import extras
from torchx_kfp.entrypoints import doctor as entrypoint
from torchx_kfp.tracking import FsspecResultTracker


def test_this_machine_alone(call: Program) -> None:
    done = call("doctor")
    assert done.returncode == 0, done.stdout
    assert re.search(says("ok       Python: ", "kfp ", "skipped  host: None is given", "--tracker-base"), done.stdout)
    assert "0 things missing" in done.stderr


@pytest.mark.versions
def test_the_packages_of_this_environment(doctor: Doctor) -> None:
    found = doctor()["packages"]
    assert found.level == "ok", found
    assert re.search(says(*(f"{name} {metadata.version(name)}" for name in ("kfp", "urllib3", "fsspec"))), found.said)


def test_a_package_is_missing(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(extras.MODULES, "pipelines", ("kfp", "no_such_module"))
    found = doctor()["packages"]
    assert found.level == "missing"
    assert re.search(says("no_such_module", 'pip install "torchx-kfp[pipelines]"'), found.said)


@pytest.mark.parametrize(
    ("version", "level"), [((3, 9, 1), "warning"), ((3, 10, 0), "ok"), ((3, 13, 9), "ok"), ((3, 14, 0), "warning")]
)
def test_the_version_of_python(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], level: str
) -> None:
    monkeypatch.setattr(entrypoint.sys, "version_info", version)
    found = doctor()["Python"]
    assert found.level == level
    assert ("3.10 to 3.13" in found.said) == (level == "warning")


def test_packages_that_cannot_be_imported(call: Program, tmp_path: Path) -> None:
    """They are what the doctor is called for."""
    for name in ("kfp", "torchx"):
        (tmp_path / "broken" / name).mkdir(parents=True)
        (tmp_path / "broken" / name / "__init__.py").write_text(f"raise ImportError('{name} is broken')")
    words = ["--host", "http://127.0.0.1:1", "--tracker-base", str(tmp_path / "results")]
    done = call("doctor", *words, PYTHONPATH=str(tmp_path / "broken"))
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    facts = ("packages: ", "missing  host: ImportError: kfp is broken", "ok       tracker base")
    assert re.search(says(*facts), done.stdout)


@pytest.mark.lowest
def test_no_container_engine_is_not_needed(doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    if docker := shutil.which("docker"):
        (tmp_path / "docker").symlink_to(docker)
    monkeypatch.setenv("PATH", str(tmp_path))  # without Podman, which needs no server
    found = doctor()["container engine"]
    assert found.level == "warning"
    assert re.search(says("Neither Docker nor Podman answers", "DOCKER_HOST", "torchx-kfp run --docker"), found.said)


def test_settings_say_where_they_come_from_and_hide_secrets(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert re.search(says("None in flags"), doctor()["settings"].said)
    file = tmp_path / "config.ini"
    lines = ("host = http://127.0.0.1:1/pipeline/", "existing_token = of-the-file", "proxy = http://p:1")
    file.write_text("\n".join(["[kfp]", *lines, ""]))
    file.chmod(0o644)
    monkeypatch.setenv("TORCHX_KFP_CONFIG", str(file))
    monkeypatch.setenv("TORCHX_KFP_COOKIES", "of-the-environment")
    found = doctor("--namespace", "team", "--tracker-base", "sftp://me:word@store/results")
    assert (found["settings"].level, "chmod 600" in found["settings"].said) == ("warning", True)
    for fact in (
        f"host http://127.0.0.1:1/pipeline from host in {file}",
        "namespace team from --namespace",
        "cookies (not shown) from TORCHX_KFP_COOKIES",
        f"existing_token (not shown) from existing_token in {file}",
        "@store/results from --tracker-base",
    ):
        assert fact in found["settings"].said
    assert not [it for it in ("of-the-file", "of-the-environment", "word", "http://p:1") if it in str(found)]
    # The tracker base of the flag is looked at nevertheless.
    file.write_text("host = without a section")
    found = doctor("--tracker-base", str(tmp_path / "results"))
    assert (found["host"].level, found["tracker base"].level) == ("skipped", "ok")
    assert re.search(says(str(file), "[kfp]"), found["settings"].said)


def based(doctor: Doctor, base: object) -> Check:
    return doctor("--tracker-base", str(base))["tracker base"]


def test_a_tracker_base_is_a_directory_without_passwords(
    doctor: Doctor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert based(doctor, tmp_path / "results").level == "ok"
    assert not [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    (tmp_path / "file").write_text("")
    found = based(doctor, tmp_path / "file")
    assert (found.level, str(tmp_path / "file") in found.said) == ("missing", True)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    found = based(doctor, "gs://bucket/results")
    assert (found.level, 'pip install "torchx-kfp[gcs]"' in found.said) == ("missing", True)
    found = based(doctor, "unknown://key:word-1@bucket/results")
    assert re.search(says("unknown://...@bucket/results", "Protocol not known"), found.said)
    assert "word-1" not in found.said


@pytest.mark.s3
def test_a_bucket(doctor: Doctor, s3_server: S3Server, s3_base: str) -> None:
    levels: list[str] = []
    requests = s3_server.requests(lambda: levels.append(based(doctor, s3_base).level))
    assert levels == ["ok"]
    assert [request.split()[0] for request in requests] == ["PUT", "GET", "DELETE"]
    assert FsspecResultTracker(s3_base).store.list_files() == []
    missing = based(doctor, "s3://no-such-bucket/results")
    assert (missing.level, "no-such-bucket" in missing.said) == ("missing", True)


@pytest.mark.s3
@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (507, "XMinioStorageFull", "Storage backend has reached its minimum free drive threshold."),
        (403, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large."),
    ],
)
def test_a_store_that_refuses(
    doctor: Doctor, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, status: int, code: str, message: str
) -> None:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
    with scripted(lambda request: Reply(text, status, kind="application/xml")) as store:
        monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
        found = based(doctor, "s3://bucket/results")
    assert found.level == "missing"
    assert re.search(says("s3://bucket/results", message.rstrip(".")), found.said), found


@pytest.mark.parametrize(
    ("variables", "secret", "level", "facts"),
    [
        ("", "", "skipped", ["TORCHX_KFP_STORAGE_VARIABLES", "TORCHX_KFP_STORAGE_SECRET"]),
        ("A=http://store:9000", "s id=B", "ok", ["A=http://store:9000", "B", "'id'", "'s'", "Only a pod"]),
        ("A=http://localhost:9000", "", "warning", ["A=http://localhost:9000", "the pod itself", "in the cluster"]),
        ("A", "", "missing", ["STORAGE_VARIABLES", "'A'", "AWS_ENDPOINT_URL="]),
        ("A=http://me:word@[", "", "ok", ["A=http://"]),
    ],
)
def test_what_stages_get_to_reach_the_storage(
    doctor: Doctor, monkeypatch: pytest.MonkeyPatch, variables: str, secret: str, level: str, facts: list[str]
) -> None:
    monkeypatch.setenv("TORCHX_KFP_STORAGE_VARIABLES", variables)
    monkeypatch.setenv("TORCHX_KFP_STORAGE_SECRET", secret)
    found = doctor()["storage of stages"]
    assert found.level == level
    assert re.search(says(*facts), found.said), found
    assert "word" not in found.said
