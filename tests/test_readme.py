"""The README's example and commands, run as a reader would."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from tests.events import finished_stages
from torchx_kfp import artifact_from_uri, component_from_function, task_from_app
from torchx_kfp.errors import AppDefError
from torchx_kfp.tracking import FsspecResultTracker

README = Path(__file__).parent.parent / "README.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The files of the small example."""
    for block in blocks("python"):
        name = re.match(r"# (\w+\.py)\n", block)
        if name:
            (tmp_path / name[1]).write_text(block)
    names = ["choose.py", "evaluate.py", "gate.py", "pipeline.py", "train.py"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    return tmp_path


def call(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    words = shlex.split(command)
    assert words[0] == "torchx-kfp"
    return subprocess.run(
        [str(Path(sys.executable).parent / words[0]), *words[1:]],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_small_example(example: Path) -> None:
    commands = next(block for block in blocks("console") if "torchx-kfp run" in block).splitlines()
    outputs = {}
    for command in commands:
        done = call(example, command)
        assert done.returncode == 0, done.stderr
        outputs[command] = done.stdout
    stages = finished_stages(next(output for command, output in outputs.items() if "--json" in command))
    results = {stage["name"]: stage["results"] for stage in stages}
    best = min(("train[0]", "train[1]"), key=lambda name: results[name]["loss"])
    assert results["choose"]["loss"] == results[best]["loss"]
    assert results["choose"]["best"] == next(stage["run_id"] for stage in stages if stage["name"] == best)
    assert (example / "pipeline.yaml").exists()


@pytest.mark.parametrize(("threshold", "state"), [("0.9", "succeeded"), ("0.95", "skipped")])
def test_outputs_of_kfp(example: Path, threshold: str, state: str) -> None:
    done = call(example, f"torchx-kfp run gate.py --tracker-base results -p threshold={threshold} --json -q")
    assert done.returncode == 0, done.stderr
    deploy, evaluated = finished_stages(done.stdout)
    outputs = {name: value for name, value in evaluated["outputs"].items() if name != "run_id"}
    assert outputs == {"accuracy": 0.93, "model_uri": "s3://models/7"}
    artifacts = evaluated["artifacts"]
    assert artifacts["metrics"]["metadata"] == {"accuracy": 0.93}
    assert artifacts["model"]["metadata"] == {"framework": "torch", "location": "s3://models/7"}
    assert json.loads(Path(artifacts["model"]["uri"]).read_text())["path"] == "s3://models/7"
    assert Path(artifacts["report"]["uri"]).read_text().endswith("93 % were right.")
    assert deploy["state"] == state
    if state == "succeeded":
        assert "['-c', 's3://models/7']" in Path(deploy["log_file"]).read_text()


def test_components_of_functions() -> None:
    (block,) = [block for block in blocks("python") if "utils.booth" in block]
    code = f"{block}\nprint(*booth.component_spec.inputs, *echo.component_spec.inputs)"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "x1 x2 trial_idx tracker_base image msg image\n"


def test_the_constants_that_torchxs_components_need() -> None:
    """The table names what the error asks for."""
    rows = re.findall(r"^\| `(utils\.\w+|dist\.ddp)` \| (.*) \|$", README.read_text(encoding="utf-8"), re.MULTILINE)
    assert [name for name, _ in rows] == ["utils.echo", "utils.sh", "utils.python", "dist.ddp"]
    needed = {"utils.python": {"m": "app"}, "dist.ddp": {"script": "train.py", "j": "1x1"}}
    for name, constants in rows:
        module, function = name.split(".")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with pytest.raises(AppDefError) as error:
                component_from_function(
                    getattr(importlib.import_module(f"torchx.components.{module}"), function), **needed.get(name, {})
                )
        asked = set(re.findall(r"^- '(\w+)': ", str(error.value), re.MULTILINE))
        named = set(re.findall(r"`(\w+)", constants))
        assert asked - named <= {"metadata"}, name


def environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "TORCHX_TRACKER_BASE": str(folder),
        "TORCHX_JOB_ID": "run/this/1",
        "TORCHX_PARENT_RUN_ID": "run/prepare/1",
        "TORCHX_PARENT_RUN_IDS": '{"prepare": "run/prepare/1", "trials": ["run/train/1"]}',
    }


def record(folder: Path) -> None:
    for stage in ("prepare", "train"):
        (folder / "run" / stage).mkdir(parents=True)
        (folder / "run" / stage / "1").write_text('{"accuracy": 0.5}')


def test_reading_and_writing_with_torchx_kfp_and_with_plain_torchx(tmp_path: Path) -> None:
    record(tmp_path)
    ours, torchx = (block for block in blocks("python") if "run.put({" in block or "os.environ" in block)
    for block in (ours, torchx):
        subprocess.run([sys.executable, "-W", "ignore", "-c", block], env=environment(tmp_path), check=True, timeout=60)
        recorded = json.loads((tmp_path / "run" / "this" / "1").read_text())
        assert recorded["accuracy"] == (0.93 if block is ours else 0.51)
    assert "l2norm/mean" in ours


def test_reading_and_writing_from_a_shell_script(tmp_path: Path) -> None:
    record(tmp_path)
    (script,) = blocks("sh")
    done = subprocess.run(["sh", "-euc", script], env=environment(tmp_path), capture_output=True, text=True, check=True)
    assert done.stdout == '{"accuracy": 0.5}'
    assert json.loads((tmp_path / "run" / "this" / "1").read_text()) == {"message": "hello"}


def test_every_file_that_it_names_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (README.parent / link).exists()] == []


def test_metrics_of_steps(tmp_path: Path) -> None:
    (block,) = [block for block in blocks("python") if "run.log(" in block]
    code = f"""
from torchx_kfp.tracking import current_run
run = current_run()
{block}
print(run.history()["loss"].min[:2])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == "(999, 0.001)\n"
    assert FsspecResultTracker(tmp_path).history("run/this/1")["loss"].count == 1000


def test_metadata_artifacts_and_lineage(tmp_path: Path) -> None:
    record(tmp_path)
    (block,) = [block for block in blocks("python") if "run.lineage()" in block]
    code = f"""
from torchx_kfp.tracking import Run, FsspecResultTracker, current_run
run = current_run()
prepared = {{**__import__("os").environ, "TORCHX_JOB_ID": "run/prepare/1", "TORCHX_PARENT_RUN_IDS": ""}}
del prepared["TORCHX_PARENT_RUN_ID"]
current_run(prepared).add_artifact("model", "s3://models/6")
{block}
print(run.metadata(), run.artifacts()["model"].path, run.lineage().ancestors)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "{'config': {'rate': 0.3}, 'commit': '4f2a91c'} s3://models/7 ('run/prepare/1', 'run/train/1')\n"
    )


@pytest.mark.s3
def test_reading_from_anywhere(s3_base: str) -> None:
    (block,) = [block for block in blocks("python") if "tracker.to_frame" in block]
    code = block.replace("s3://bucket/results", s3_base) + '\nprint(tracker["run/train/1"], tracker.to_frame().shape)'
    FsspecResultTracker(s3_base)["run/train/1"] = {"accuracy": 0.5}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "{'accuracy': 0.5} (1, 4)\n"


def test_the_stage_of_the_storage_page() -> None:
    """The example of docs/storage.md compiles to what it says."""
    from kfp import compiler, dsl
    from torchx.specs import AppDef, Role

    def deploy(model):  # type: ignore[no-untyped-def]
        return dsl.ContainerSpec(image="busybox", command=["cat", model.path])

    deploy.__annotations__["model"] = dsl.Input[dsl.Model]

    page = (README.parent / "docs" / "storage.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    names = {
        **{value.__name__: value for value in (AppDef, Role, task_from_app, artifact_from_uri)},
        "deploy": dsl.container_component(deploy),
        "dsl": dsl,
        "tracker_base": "s3://mlpipeline/results",
        "train_app": AppDef("train", [Role("train", image="example.com/app:1", entrypoint="python")]),
    }

    @dsl.pipeline(name="storage")
    def pipeline():  # type: ignore[no-untyped-def]
        for example in examples:
            exec(example, names)  # noqa: S102 - the page's own

    with tempfile.TemporaryDirectory() as folder:
        compiler.Compiler().compile(pipeline, f"{folder}/pipeline.yaml")
        text = Path(folder, "pipeline.yaml").read_text()
    for word in (
        "AWS_ENDPOINT_URL=\n",
        "http://minio-service.kubeflow:9000",
        "mlpipeline-minio-artifact",
        "AWS_SECRET_ACCESS_KEY",
        "runtimeParameter: uri",
    ):
        assert word in text
