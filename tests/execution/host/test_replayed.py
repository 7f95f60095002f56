"""`replay` of stages of a run on a host: what they were given is in the manifest of v1beta1."""

# Annotations are not postponed: kfp reads them as types.

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
from kfp import compiler, dsl, kubernetes

from tests.cases.apps import python
from tests.execution.host.calling import ended, wait_until
from tests.execution.host.commands import write_pipelines
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.programs import Program
from torchx_kfp import Stages
from torchx_kfp.host import attach, connect
from torchx_kfp.local import replay
from torchx_kfp.tracking import FsspecResultTracker

TRAIN = """
import os, sys
from torchx_kfp.tracking import current_run
run = current_run()
before = {alias: parent.results() for alias, parent in run.parents.items()}
print("ran", sys.argv[1:], os.environ.get("COLOR"), before, flush=True)
run.put(loss=float(sys.argv[1]))
"""


@dsl.component(base_image="python:3.11")
def count(data: dsl.Input[dsl.Dataset], factor: int) -> int:
    with open(data.path) as file:
        return len(file.read()) * factor


@dsl.container_component
def waits(go: str):
    return dsl.ContainerSpec(image="app:1", command=["sh", "-c", 'echo begun; [ ! "$0" ] || cat "$0"; exit 3', go])


@dsl.pipeline(name="inner")
def inner(tracker_base: str, lr: float):
    stages = Stages(tracker_base=tracker_base)
    first = stages.task(python("first", TRAIN, f"{lr}"))
    with dsl.ParallelFor(["$(HOME)", "b"]) as color:
        stages.task(
            python("train", TRAIN, "2", env={"COLOR": f"{color}"}), reads={"before": first}, results={"loss": float}
        )


@dsl.pipeline(name="outer")
def outer(tracker_base: str, data: str, go: str = "", lr: float = 0.5):
    inner(tracker_base=tracker_base, lr=lr)
    imported = dsl.importer(artifact_uri=data, artifact_class=dsl.Dataset)
    count(data=imported.output, factor=2)
    waiting = waits(go=go)
    waiting.set_memory_limit("1G")
    kubernetes.mount_pvc(waiting, "claim", "/no/such/place")
    kubernetes.use_secret_as_env(waiting, "keys", {"token": "TOKEN"}, optional=False)


@pytest.fixture
def program(kfp_host: KfpHost, call: Program) -> Program:
    """The command line in a folder of its own."""
    return replace(call, variables={"TORCHX_KFP_HOST": kfp_host.url})


def test_stages_of_a_host_run_here_with_what_they_were_given(
    program: Program, kfp_host: KfpHost, tmp_path: Path, s3_base: str
) -> None:
    import s3fs

    data = f"{s3_base}/words.txt"
    s3fs.S3FileSystem().pipe(data, b"twelve bytes")
    compiler.Compiler().compile(outer, str(tmp_path / "outer.yaml"))
    done = program("submit", "outer.yaml", "-q", "--tracker-base", s3_base, "-p", f"data={data}", "-p", "go=")
    assert done.returncode == 0, done.stderr
    run_id = done.stdout.strip()
    assert ended(kfp_host, run_id)["state"] == "FAILED"
    before = _objects(s3_base)

    # The only one that has failed, by default.
    done = program("replay", run_id)
    assert (done.returncode, done.stdout) == (3, "begun\n"), done.stderr
    block = done.stderr.partition("replayed as")[0]
    assert re.search(says(f"{run_id}/waits", "image app:1", "your permissions", "service account", "memory"), block), (
        block
    )
    assert re.search(says("the secret 'keys'", "set TOKEN", "'claim'", "/no/such/place"), block), block
    # Tracked, in a nested pipeline and a loop, with its parent's results.
    done = program("replay", f"{run_id}/inner/train[0]")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran ['2'] $(HOME) {'before': {'loss': 0.5}}\n"
    assert "loss 2.0 (as before)" in done.stderr
    tracker = FsspecResultTracker(s3_base)
    [key] = [key for key in tracker.keys(None) if key.startswith("replay_outer-")]
    shown = json.loads(program("show", "--tracker-base", s3_base, key, "--json").stdout)
    original = shown["metadata"]["replays"]
    assert original.startswith(f"{run_id}/train/")
    assert tracker.get(original) == {"loss": 2.0}
    # Python components take their artifacts from the object store.
    done = program("replay", f"{run_id}/count")
    assert done.returncode == 0, done.stderr
    assert "Output 24" in done.stderr
    assert "The code is that" not in done.stderr
    # From Python.
    run = attach(run_id, host=kfp_host.url)
    result = replay(run, "waits", output_dir=tmp_path / "local_outputs", say=[].append)
    assert (result.exit_code, result.replayed) == (3, f"{run_id}/waits")
    # What the run has recorded is as it was.
    assert before.items() <= _objects(s3_base).items()

    # Without the credentials, the message names the artifact and what to set.
    nowhere = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    done = program("replay", f"{run_id}/count", **nowhere)
    assert re.search(says(data, "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), done.stderr), done.stderr
    # Without the manifest, it says what can still be done.
    kfp_host.fail(404, times=math.inf, path="v1beta1")
    done = program("replay", f"{run_id}/waits")
    assert done.returncode == 1
    assert re.search(says("v1beta1", "torchx-kfp run"), done.stderr), done.stderr


def _objects(base: str) -> dict[str, bytes]:
    import s3fs

    store = s3fs.S3FileSystem()
    store.invalidate_cache()
    found: dict[str, bytes] = {path: store.cat(path) for path in store.find(base)}
    return found


def test_a_tracker_base_of_pods_has_to_be_named(program: Program, kfp_host: KfpHost, tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    write_pipelines(tmp_path, base)
    run_id = program("submit", "good.yaml", "-q", "--tracker-base", str(base)).stdout.strip()
    assert ended(kfp_host, run_id)["state"] == "SUCCEEDED"
    done = program("replay", f"{run_id}/train")
    assert done.returncode != 0
    assert re.search(says(str(base), "--tracker-base"), done.stderr), done.stderr
    named = attach(run_id, host=connect(kfp_host.url, tracker_base=str(base)))
    assert replay(named, "train", output_dir=tmp_path / "here", directory=tmp_path).stage.results == {"loss": 0.5}
    done = program("replay", f"{run_id}/train", "--tracker-base", "elsewhere")
    assert done.returncode == 0, done.stderr
    assert "loss 0.5" in done.stderr
    [made] = (tmp_path / "elsewhere").glob("replay_good-*/train/*")
    assert json.loads(made.read_text()) == {"loss": 0.5}
    # A cached stage had no pod.
    again = program("submit", "good.yaml", "-q", "--tracker-base", str(base)).stdout.strip()
    ended(kfp_host, again)
    done = program("replay", f"{again}/train", TORCHX_KFP_TRACKER_BASE=str(base))
    assert done.returncode == 1
    assert re.search(says("from its cache", again), done.stderr), done.stderr


def test_a_stage_that_still_runs(program: Program, kfp_host: KfpHost, tmp_path: Path) -> None:
    write_pipelines(tmp_path, tmp_path)
    go = tmp_path / "go"
    run_id = program("submit", "long.yaml", "-q", "-p", f"go={go}").stdout.strip()
    wait_until(lambda: "begun" in program("logs", f"{run_id}/script").stdout)
    with program.start("replay", f"{run_id}/script") as replayed:
        wait_until(lambda: list((tmp_path / "local_outputs" / "replays").glob("*/script_1")))
        go.touch()
        out, err = replayed.communicate()
    assert (replayed.returncode, out) == (0, "begun\nover\n"), err
    ended(kfp_host, run_id)
