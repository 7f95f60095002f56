"""The record of a stage's start, which reveals a tracker base that cannot be written before the work begins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.entrypoints.cli.conftest import Call
from tests.facts import says
from tests.proxy import Proxy
from tests.s3 import S3Server
from tests.tracking import stages
from torchx_kfp.tracking import FsspecResultTracker, Run, Source, current_run

#: An application that works before it records; the work is a file.
APPLICATION = """
from torchx_kfp.tracking import current_run
run = current_run()
open("worked", "w").close()
run.put(x=1)
"""
#: The same, with TorchX's own interface.
TORCHX = """
from torchx.tracker import AppRun
run = AppRun.run_from_env()
open("worked", "w").close()
"""


def environ(base: object, run_id: str = "p1/train/1", **parents: str) -> dict[str, str]:
    return stages.environ(base, run_id, parents)


def application(folder: Path, variables: dict[str, str], code: str = APPLICATION) -> subprocess.CompletedProcess[str]:
    return stages.application(code, variables, cwd=folder)


def sources_of(base: object, run_id: str) -> list[Source]:
    return Run(run_id, FsspecResultTracker(str(base))).sources()


@pytest.fixture
def start_of(inside: Call) -> Callable[[object, str], Any]:
    """Return what is said of the start of a stage."""

    def read(base: object, run_id: str) -> Any:
        done = inside("show", "--tracker-base", str(base), run_id, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["started"]

    return read


def test_says_when_where_and_what_is_read(base: str, start_of: Callable[[object, str], Any]) -> None:
    before = time.time()
    current_run(environ(base))
    current_run({**environ(base, "p1/use/1", train="p1/train/1"), "TORCHX_KFP_IMAGE": "repo/use:1"})
    train, use = (start_of(base, run_id) for run_id in ("p1/train/1", "p1/use/1"))
    assert before <= train["time"] <= use["time"] <= time.time()
    assert train["host"] == use["host"] == os.uname().nodename
    assert (train["image"], use["image"]) == (None, "repo/use:1")
    assert sources_of(base, "p1/train/1") == []
    assert sources_of(base, "p1/use/1") == [Source("p1/train/1", alias="train")]
    assert FsspecResultTracker(base).keys() == [], "it is no result"


def test_who_asks_about_a_run_takes_nothing_of_its_record_away(
    tmp_path: Path, start_of: Callable[[object, str], Any]
) -> None:
    current_run({**environ(tmp_path, "p1/use/1", train="p1/train/1"), "TORCHX_KFP_IMAGE": "repo/use:1"})
    before = start_of(tmp_path, "p1/use/1")
    code = "from torchx_kfp.tracking import current_run; current_run()"
    assert application(tmp_path, environ(tmp_path, "p1/use/1"), code).returncode == 0
    assert sources_of(tmp_path, "p1/use/1") == [Source("p1/train/1", alias="train")]
    assert start_of(tmp_path, "p1/use/1") == before


@pytest.mark.parametrize("content", ['{"started": 5}', '{"started": {"time": "x", "host": "a"}}'])
def test_a_start_that_is_none_is_left_out(tmp_path: Path, content: str, start_of: Callable[[object, str], Any]) -> None:
    current_run(environ(tmp_path)).put(x=1)
    (entry,) = tmp_path.glob(".torchx_kfp/runs/p1/train/1/*")
    entry.write_text(content)
    assert start_of(tmp_path, "p1/train/1") is None


class TestCannotBeWritten:
    @pytest.mark.parametrize(
        ("base", "code"),
        [("/proc/x", APPLICATION), ("file", APPLICATION), ("file/below", APPLICATION), ("file", TORCHX)],
    )
    def test_no_place_for_files(self, base: str, code: str, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        done = application(tmp_path, environ(tmp_path / base), code)
        assert done.returncode == 1
        assert f"The stage 'p1/train/1' could not record results: its tracker base '{tmp_path / base}' cannot" in (
            done.stderr
        )
        assert not (tmp_path / "worked").exists()

    def test_a_mount_that_is_read_only(self, tmp_path: Path) -> None:
        mount = f"mount -t tmpfs -o ro none {tmp_path}/base"
        (tmp_path / "base").mkdir()
        if not shutil.which("unshare") or subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False).returncode:
            pytest.skip("nothing can be mounted here")
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", f'{mount}; exec "$@"', "sh", sys.executable, "-c", APPLICATION],
            env={**os.environ, **environ(tmp_path / "base")},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "Read-only file system" in done.stderr
        assert not (tmp_path / "worked").exists()

    @pytest.mark.s3
    def test_credentials_that_may_only_read(self, proxy: Proxy, s3_base: str, tmp_path: Path) -> None:
        FsspecResultTracker(s3_base)["p1/train/1"] = {"x": 1}
        proxy.refused, before = {"PUT": 403}, len(proxy.requests)
        done = application(tmp_path, environ(s3_base, "p1/use/1", train="p1/train/1"))
        assert done.returncode == 1
        assert f"its tracker base '{s3_base}' cannot be written. No permission to write" in done.stderr
        assert not (tmp_path / "worked").exists()
        assert len(proxy.requests) == before + 1, "a request that is rejected permanently is not retried"


#: The variables of two processes that mpirun has started on one machine.
OF_TWO_HERE = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
#: Those of torchrun in the processes of a distributed training.
RANKS = [{"WORLD_SIZE": "4", "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(4)]


@pytest.mark.s3
def test_a_start_is_one_request_for_all_ranks(s3_server: S3Server, s3_base: str, tmp_path: Path) -> None:
    def requests(**parents: str) -> list[str]:
        run_id = f"p1/use/{len(parents)}"
        made = s3_server.requests(lambda: application(tmp_path, environ(s3_base, run_id, **parents)))
        return [request.partition(" ")[0] for request in made]

    # put reads the earlier results, and writes them again together with the new ones.
    assert requests() == ["PUT", "GET", "PUT"]
    assert requests(train="p1/train/1") == ["PUT", "GET", "PUT"]
    variables = environ(s3_base, "p1/ddp/1", train="p1/train/1")
    code = "from torchx_kfp.tracking import current_run; run = current_run(); current_run()"
    made = s3_server.requests(lambda: [application(tmp_path, {**variables, **rank}, code) for rank in RANKS])
    assert [request.partition(" ")[0] for request in made] == ["PUT"], "once for all ranks"


@pytest.mark.parametrize(
    ("variables", "first"),
    [
        ({}, True),
        ({"TORCHX_REPLICA_ID": "0"}, True),
        ({"TORCHX_REPLICA_ID": "3"}, False),
        *((rank, rank["RANK"] == "0") for rank in RANKS),
        # Rank 0 may be in any replica: nodes get their ranks in the order in which they meet.
        ({**RANKS[0], "TORCHX_REPLICA_ID": "3"}, True),
        ({**RANKS[1], "TORCHX_REPLICA_ID": "0"}, False),
        ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "TORCHX_REPLICA_ID": "1"}, True),
        ({"RANK": "1"}, True),
        # DeepSpeed and mpirun started several first ones, and results were lost without a warning.
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, False),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", **OF_TWO_HERE, "TORCHX_REPLICA_ID": "0"}, True),
        ({"OMPI_COMM_WORLD_RANK": "1", **OF_TWO_HERE, "TORCHX_REPLICA_ID": "0"}, False),
        ({"OMPI_COMM_WORLD_RANK": "0", **OF_TWO_HERE, "TORCHX_REPLICA_ID": "1"}, False),
    ],
)
def test_results_of_another_process_than_the_first(
    variables: dict[str, str], first: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = current_run({**environ(tmp_path), **variables})
    run.put(loss=1.0)
    run.put(loss=2.0)
    assert run.results() == {"loss": 2.0}, "they are recorded all the same"
    warnings = [record.getMessage() for record in caplog.records]
    assert len(warnings) == (0 if first else 1), "once"
    assert all(re.search(says(run.id, "RANK", "TORCHX_REPLICA_ID", "lost"), warning) for warning in warnings)
