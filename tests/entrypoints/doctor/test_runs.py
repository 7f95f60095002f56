"""The pipeline of ``doctor --run``, on the host of the tests, and what is said if something is wrong there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from tests.entrypoints.doctor.conftest import Doctor
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.s3 import S3Server, running
from torchx_kfp.host import attach

pytestmark = pytest.mark.s3


#: The address of the store in the cluster.
ENDPOINT = ("-p", "endpoint=http://seaweedfs.kubeflow:9000")


@pytest.fixture
def kfp_host(tmp_path: Path, s3_server: S3Server) -> Iterator[KfpHost]:
    """A host whose stages find the store that this machine finds."""
    with KfpHost(tmp_path / "host", store=s3_server.url) as running:
        yield running


@pytest.fixture
def words(kfp_host: KfpHost, s3_base: str) -> list[str]:
    return ["--host", kfp_host.url, "--tracker-base", s3_base, "--run", "-p", "image=app:1"]


def test_a_host_and_its_pods(doctor: Doctor, kfp_host: KfpHost, words: list[str]) -> None:
    found = doctor(*words, *ENDPOINT, "-p", "engine=job")
    levels = {name: check.level for name, check in found.items() if check.level != "ok"}
    assert set(levels) <= {"pipeline root", "container engine"}
    assert "so has this machine" in found["run"].said
    [run_id] = kfp_host.runs
    states = {stage.name: str(stage.state) for stage in attach(run_id, host=kfp_host.url).read().run.stages}
    engines = {"replicas-jobset": "skipped", "replicas-volcano": "skipped"}
    assert states == {"first": "succeeded", "second": "succeeded", "replicas-job": "succeeded", **engines}


def test_pods_that_do_not_reach_the_storage(doctor: Doctor, words: list[str], tmp_path: Path) -> None:
    """What failed is named as ``watch`` names it."""
    with KfpHost(tmp_path / "far") as host:
        found = doctor(*words, "-p", "endpoint=http://store.invalid:9000", "--host", host.url)["run"]
        [run_id] = host.runs
    assert found.level == "missing"
    facts = says(f"The run {run_id} failed", "first ended with exit code", "store.invalid", "Not run because of that")
    assert re.search(facts, found.said), found


def test_results_that_cannot_be_read_here(doctor: Doctor, words: list[str], s3_base: str, tmp_path: Path) -> None:
    """The store of the pods is another one than that of this machine."""
    with running(tmp_path / "other.log") as other, KfpHost(tmp_path / "far", store=other.url) as host:
        s3fs.S3FileSystem(endpoint_url=other.url).call_s3("create_bucket", Bucket=s3_base.split("/")[2])
        found = doctor(*words, *ENDPOINT, "--host", host.url)["run"]
    assert found.level == "missing"
    assert re.search(says("succeeded", "cannot read its results", "AWS_ENDPOINT_URL"), found.said)


def test_a_run_that_cannot_start(
    doctor: Doctor, kfp_host: KfpHost, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no tracker base, no image, a wrong token, or the host takes no run."""
    run = doctor("--host", kfp_host.url, "--run")["run"]
    assert (run.level, "--tracker-base s3://bucket/results" in run.said) == ("missing", True)
    for word, facts in {"imag=app:1": ["no parameter 'imag'", "'image'"], "image": ["NAME=VALUE"]}.items():
        run = doctor(*words[:-1], word)["run"]
        assert run.level == "missing"
        assert re.search(says(*facts), run.said)
    kfp_host.token = "right"
    monkeypatch.setenv("TORCHX_KFP_EXISTING_TOKEN", "wrong-one")
    found = doctor(*words)
    assert re.search(says("401", "Sent were: 'TORCHX_KFP_EXISTING_TOKEN'"), found["host"].said)
    assert (found["run"].level, "see above" in found["run"].said) == ("missing", True)
    assert "wrong-one" not in str(found)
    assert not kfp_host.runs
