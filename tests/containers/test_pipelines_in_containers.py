"""The example pipelines under KFP's own Docker runner, and as processes of this machine: the same results."""

# No annotations from __future__: KFP reads those of pipelines as objects.

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from tests.authoring.apps import HOSTILE, PLAIN
from tests.containers.images import BUSYBOX_IMAGE, HOST_IMAGE, REPOSITORY
from tests.containers.runner import KfpDockerRunner
from tests.pipelines import regenerate
from torchx_kfp import Stages, local, task_from_app
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.recorder import Recorder

#: The images to use in these tests, by those of the pipelines.
IMAGES = {
    "busybox:1.36": BUSYBOX_IMAGE,
    "torchx-kfp-examples:1": HOST_IMAGE,
    "torchx-kfp-publisher:1": HOST_IMAGE,
}
#: Stages that KFP's runner may skip: up to 2.16, it takes conditions on outputs of container components for false.
CONDITIONAL = {"digits": {"deploy"}}
#: Results that may differ from run to run.
VOLATILE = {"fit_seconds"}

#: Records the bytes of its arguments in hexadecimal digits.
RECORD = r"""
hex=$(for word; do printf '%s' "$word" | od -An -v -tx1; echo ,; done | tr -d ' \n')
mkdir -p "$TORCHX_TRACKER_BASE/${TORCHX_JOB_ID%/*}"
printf '{"words": "%s"}' "$hex" >"$TORCHX_TRACKER_BASE/$TORCHX_JOB_ID"
"""

#: Runs a compiled pipeline with these arguments, with its tracker base in a separate folder.
Run = Callable[[Path, dict[str, Any], Path], None]


@pytest.fixture
def in_containers(kfp_docker_runner: KfpDockerRunner) -> Run:
    def run(pipeline: Path, arguments: dict[str, Any], folder: Path) -> None:
        try:
            kfp_docker_runner.run(
                pipeline,
                {"tracker_base": str(folder / "tracker"), **arguments},
                writable=(folder,),
                images=IMAGES,
                environment={"PYTHONPATH": str(REPOSITORY)},
            )
        except NotImplementedError as error:  # kfp 2.14 does not run loops
            pytest.skip(f"KFP's runner says: {error}")

    return run


def as_processes(pipeline: Path, arguments: dict[str, Any], folder: Path) -> None:
    done = local.run(
        pipeline, {"tracker_base": str(folder / "tracker"), **arguments}, output_dir=folder / "logs", watch=Watch()
    )
    done.raise_for_failure()


def recorded(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and results of each stage that recorded any, without results that differ from run to run.

    Without a backend, containers do not know their common pipeline run: each stage's run id has a different one.
    """
    tracker = FsspecResultTracker(str(folder / "tracker"))
    run_ids = tracker.keys()
    results = {run_id: tracker[run_id] for run_id in run_ids}
    names = {str(folder): "<folder>"}
    for run_id, values in results.items():
        pipeline_run, stage, execution = run_id.split("/")
        hyperparameters = [values[name] for name in ("C", "gamma") if name in values]
        names |= {run_id: f"<{stage} {hyperparameters}>", pipeline_run: "<pipeline run>", execution: "<execution>"}

    def plain(value: Any) -> Any:
        for name in sorted(names, key=len, reverse=True) if isinstance(value, str) else ():
            value = value.replace(name, names[name])
        return value

    return sorted(
        (
            (
                run_id.split("/")[1],
                {name: plain(value) for name, value in values.items() if name not in VOLATILE},
            )
            for run_id, values in results.items()
        ),
        key=str,
    )


@pytest.fixture
def compiled(tmp_path: Path) -> Callable[[str], Path]:
    def compile_(name: str) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(regenerate.compile_text(REPOSITORY / "pipelines" / f"{name}.py"), encoding="utf-8")
        return path

    return compile_


@pytest.mark.parametrize(
    ("name", "arguments", "stages"),
    [
        pytest.param("hello", {}, ["first", "second"], marks=pytest.mark.versions),
        pytest.param(
            "hello",
            {"message": "'\"`id` $(id) $$HOME \\n %s {{x}} ${HOME}\n\tGrüße ☃"},
            ["first", "second"],
            marks=pytest.mark.versions,
        ),
        ("digits", {"seed": 1}, ["deploy", "evaluate", "prepare", "select", "train", "train", "train", "train"]),
    ],
    ids=["hello", "hello, a hostile message", "digits"],
)
def test_containers_record_what_processes_record(
    name: str,
    arguments: dict[str, Any],
    stages: list[str],
    compiled: Callable[[str], Path],
    in_containers: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pipeline = compiled(name)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    runs: dict[str, Run] = {"containers": in_containers, "processes": as_processes}
    for how, run in runs.items():
        (tmp_path / how).mkdir()
        run(pipeline, arguments, tmp_path / how)
    ours = recorded(tmp_path / "processes")
    assert [stage for stage, _ in ours] == stages
    assert all(results for _, results in ours)
    theirs = recorded(tmp_path / "containers")
    skipped = CONDITIONAL.get(name, set()) - {stage for stage, _ in theirs}
    assert theirs == [record for record in ours if record[0] not in skipped]


@dsl.pipeline(name="hostile")
def hostile(tracker_base: str):
    role = Role("words", image="busybox:1.36", entrypoint="sh", args=["-c", RECORD, "sh", *HOSTILE, *PLAIN])
    task_from_app(AppDef("words", roles=[role]), tracker_base=tracker_base)


@pytest.mark.versions
def test_hostile_arguments_reach_an_application_in_a_container(in_containers: Run, tmp_path: Path) -> None:
    compiler.Compiler().compile(hostile, str(tmp_path / "hostile.yaml"))
    (tmp_path / "run").mkdir()
    in_containers(tmp_path / "hostile.yaml", {}, tmp_path / "run")
    [(_, results)] = recorded(tmp_path / "run")
    assert [bytes.fromhex(word).decode() for word in results["words"].split(",")] == [*HOSTILE, *PLAIN, ""]


def test_code_travels_under_kfps_runner(kfp_docker_runner: KfpDockerRunner, tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "app.py").write_text(
        "import os, sys\nfrom torchx_kfp.tracking import current_run\n"
        "current_run().put(files=' '.join(os.listdir()), words=sys.argv[1])\n"
    )
    base = tmp_path / "base"
    packed = Recorder.open(str(base)).pack_workspace(tmp_path / "code")
    packed.upload()

    def app(name: str) -> AppDef:
        return AppDef(name, [Role(name, image=HOST_IMAGE, entrypoint="python3", args=["-m", "app", "$$ {{x}}"])])

    @dsl.pipeline(name="travels")
    def pipeline(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        plain = stages.task(app("plain"))
        published = stages.task(app("published"), reads=plain, results={"words": str})
        stages.task(app("installed"), reads=published, results={"words": str}, inline=False)

    compiler.Compiler().compile(pipeline, str(tmp_path / "p.yaml"))
    kfp_docker_runner.run(
        tmp_path / "p.yaml",
        {"tracker_base": str(base), "workspace": packed.url},
        writable=(base,),
        environment={"PYTHONPATH": str(REPOSITORY)},
    )
    tracker = FsspecResultTracker(str(base))
    run_ids = tracker.keys()
    found = {run_id.split("/")[1]: tracker[run_id] for run_id in run_ids}
    results = {"files": "app.py", "words": "$$ {{x}}"}
    assert found == {"plain": results, "published": results, "installed": results}
