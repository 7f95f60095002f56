"""Results and artifacts as KFP outputs: the same under KFP's own Docker runner and as processes of this machine."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import json
from functools import partial
from pathlib import Path
from typing import Any, List, NamedTuple  # noqa: UP035 (what KFP 2.14 knows)

import pytest
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.containers.images import BUSYBOX_IMAGE, HOST_IMAGE, REPOSITORY
from tests.containers.runner import KfpDockerRunner
from torchx_kfp import local, publish_results, task_from_app
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = pytest.mark.versions

IMAGES = {"example.com/python:1": HOST_IMAGE, "example.com/shell:1": BUSYBOX_IMAGE}

TRAIN = """
import sys
from torchx_kfp.tracking import current_run

run, rate = current_run(), float(sys.argv[1])
run.put({"l2norm/mean": rate / 3}, accuracy=0.8 + rate, uri=f"s3://models/{rate}", epochs=3, good=True,
        loss=float("nan"), seed=2**60 + 1)
with open(f"{sys.argv[2]}/report-{rate}.html", "w") as file:
    file.write(f"<p>{rate}</p>")
run.add_artifact("model", f"s3://models/{rate}", framework="none", rates=[rate])
run.add_artifact("report", f"{sys.argv[2]}/report-{rate}.html")
"""
RESULTS = {"accuracy": float, "uri": str, "epochs": int, "good": bool, "l2norm/mean": float, "loss": float}

SHELL = r"""
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
printf '{"lines": %d}' "$1" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
"""


def python(name: str, code: str, *args: str) -> AppDef:
    return AppDef(name, roles=[Role(name, "example.com/python:1", entrypoint="python", args=["-c", code, *args])])


class Outputs(NamedTuple):
    accuracy: float
    uri: str
    epochs: int
    good: bool
    l2norm_mean: float
    loss: float


@dsl.pipeline(name="outputs")
def outputs(tracker_base: str, folder: str, rate: float = 0.125) -> Outputs:
    trained = task_from_app(
        python("train", TRAIN, f"{rate}", folder),
        tracker_base=tracker_base,
        results=RESULTS,
        artifacts={"model": dsl.Model, "report": dsl.HTML},
    )
    code = "import sys; from torchx_kfp.tracking import current_run as r; r().put(words=' '.join(sys.argv[1:]))"
    words = [f"--accuracy={trained.outputs['accuracy']}", f"{trained.outputs['uri']}", f"{trained.outputs['epochs']}"]
    task_from_app(python("use", code, *words), tracker_base=tracker_base, results={"words": str}, inline=False)
    counted = task_from_app(
        AppDef("count", roles=[Role("count", "example.com/shell:1", entrypoint="sh", args=["-c", SHELL, "sh", "4"])]),
        tracker_base=tracker_base,
    )
    publish_results(counted, {"lines": int}, image="example.com/python:1")
    return Outputs(**{name: trained.outputs[name] for name in Outputs._fields})


@dsl.pipeline(name="trials")
def trials(tracker_base: str, folder: str) -> List[float]:  # noqa: UP006 (what KFP 2.14 knows)
    with dsl.ParallelFor([0.125, 0.25, 0.5]) as rate:
        trained = task_from_app(
            python("train", TRAIN, f"{rate}", folder), tracker_base=tracker_base, results={"accuracy": float}
        )
    return dsl.Collected(trained.outputs["accuracy"])


FAILS_ONCE = """
import os, sys
from torchx_kfp.tracking import current_run
again = os.environ["TORCHX_JOB_ID"].endswith("_2")
current_run().put({"accuracy": 0.5} if again else {"stale": 1})
sys.exit(0 if again else 3)
"""
SHELL_FAILS_ONCE = SHELL + 'case "$TORCHX_JOB_ID" in *_2) ;; *) exit 3;; esac'


@dsl.pipeline(name="again")
def again(tracker_base: str, folder: str):
    trained = python("train", FAILS_ONCE)
    trained.roles[0].max_retries = 1
    task_from_app(trained, tracker_base=tracker_base, results={"accuracy": float})
    shell = Role(
        "count", "example.com/shell:1", entrypoint="sh", args=["-c", SHELL_FAILS_ONCE, "sh", "4"], max_retries=1
    )
    counted = task_from_app(AppDef("count", roles=[shell]), tracker_base=tracker_base)
    publish_results(counted, {"lines": int}, image="example.com/python:1")


def reports(folder: Path) -> list[dict[str, Any]]:
    """Return each stage's report in ``executor_output.json``, without locations."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "name"}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return "<local>" if isinstance(value, str) and value.startswith("/") else value

    files = folder.rglob("executor_output.json")
    return sorted((plain(json.loads(file.read_text())) for file in files), key=partial(json.dumps, sort_keys=True))


@pytest.mark.parametrize("pipeline", [outputs, trials], ids=["outputs", "trials"])
def test_both_runners_have_the_same_outputs(
    pipeline: Any, kfp_docker_runner: KfpDockerRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    compiled = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(pipeline, str(compiled))
    arguments = {}
    for how in ("containers", "processes"):
        (tmp_path / how / "files").mkdir(parents=True)
        arguments[how] = {"tracker_base": str(tmp_path / how / "results"), "folder": str(tmp_path / how / "files")}
    try:
        in_containers = kfp_docker_runner.run(
            compiled,
            arguments["containers"],
            writable=(tmp_path / "containers",),
            images=IMAGES,
            environment={"PYTHONPATH": str(REPOSITORY)},
        )
    except NotImplementedError as error:  # kfp 2.14 does not run loops
        pytest.skip(f"KFP's runner says: {error}")
    done = local.run(compiled, arguments["processes"], output_dir=tmp_path / "processes" / "runs", watch=Watch())
    done.raise_for_failure()
    assert in_containers == dict(done.outputs)
    assert reports(kfp_docker_runner.pipeline_root) == reports(done.folder)
    assert len(reports(done.folder)) == 3

    if pipeline is outputs:
        assert done.outputs == {
            "accuracy": 0.925,
            "uri": "s3://models/0.125",
            "epochs": 3,
            "good": True,
            "l2norm_mean": 0.125 / 3,
            "loss": 1.7976931348623157e308,
        }
        metrics = {"l2norm/mean": 0.125 / 3, "accuracy": 0.925, "epochs": 3}
        shown = [entry["artifacts"]["metrics"]["artifacts"][0]["metadata"] for entry in reports(done.folder)]
        assert sorted(shown, key=len) == [{}, {"lines": 4}, metrics]
        for how in arguments.values():
            tracker = FsspecResultTracker(how["tracker_base"])
            (words,) = [tracker[key]["words"] for key in list(tracker.keys()) if "/use/" in key]
            assert words == "--accuracy=0.925 s3://models/0.125 3"
        roots = (kfp_docker_runner.pipeline_root, done.folder)
        assert [[file.read_text() for file in root.rglob("report") if file.is_file()] for root in roots] == [
            ["<p>0.125</p>"],
            ["<p>0.125</p>"],
        ]
    else:
        assert done.outputs == {"Output": [0.925, 1.05, 1.3]}


def test_an_application_that_fails_is_started_again(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    """In an image with Python and in one with a shell only; what is published is what the last attempt recorded."""
    compiled, base = tmp_path / "pipeline.yaml", tmp_path / "results"
    compiler.Compiler().compile(again, str(compiled))
    base.mkdir()
    kfp_docker_runner.run(
        compiled,
        {"tracker_base": str(base), "folder": ""},
        writable=(base,),
        images=IMAGES,
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    made = reports(kfp_docker_runner.pipeline_root)
    shown = [report["artifacts"]["metrics"]["artifacts"][0]["metadata"] for report in made]
    assert sorted(shown, key=str) == [{"accuracy": 0.5}, {"lines": 4}]
    tracker = FsspecResultTracker(base)
    recorded = {(key.split("/")[1], key.endswith("_2")): tracker[key] for key in tracker.keys()}  # noqa: SIM118 (not a dict)
    assert recorded == {
        ("train", False): {"stale": 1},
        ("train", True): {"accuracy": 0.5},
        ("count", False): {"lines": 4},
        ("count", True): {"lines": 4},
    }
