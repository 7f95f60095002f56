"""Cases under KFP's own Docker runner, and as processes of this machine: the same results, outputs and artifacts."""

# No annotations from __future__: KFP reads those of pipelines as objects.

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kfp import compiler

from tests.cases import FAMILIES, Case, load_cases
from tests.containers.images import BUSYBOX_IMAGE, HOST_IMAGE, REPOSITORY
from tests.containers.runner import KfpDockerRunner
from torchx_kfp import local
from torchx_kfp.local import Watch
from torchx_kfp.tracking import FsspecResultTracker

#: The images to use in these tests, by those of the pipelines.
IMAGES = {
    "busybox": BUSYBOX_IMAGE,
    "busybox:1.36": BUSYBOX_IMAGE,
    "python:3.11": HOST_IMAGE,
    "torchx-kfp-examples:1": HOST_IMAGE,
    "torchx-kfp-publisher:1": HOST_IMAGE,
}
#: Stages that KFP's runner may skip: up to 2.16, it takes conditions on outputs of container components for false.
CONDITIONAL = {"examples.digits": {"deploy"}}
CASES = [case for family in FAMILIES for case in load_cases(family).values() if case.containers]


def recorded(folder: Path, varying: frozenset[str]) -> list[tuple[str, dict[str, Any]]]:
    """Return the name and results of each stage that recorded any, without results that differ from run to run.

    Without a backend, containers do not know their common pipeline run: each stage's run id has a different one.
    """
    tracker = FsspecResultTracker(str(folder / "tracker"))
    results = {run_id: tracker[run_id] for run_id in tracker.keys()}  # noqa: SIM118 (not a dict)
    names = {str(folder): "<folder>"}
    for run_id, values in results.items():
        pipeline_run, stage, execution = run_id.split("/")
        hyperparameters = [values[name] for name in ("C", "gamma") if name in values]
        names |= {run_id: f"<{stage} {hyperparameters}>", pipeline_run: "<pipeline run>", execution: "<execution>"}

    def plain(value: Any) -> Any:
        for name in sorted(names, key=len, reverse=True) if isinstance(value, str) else ():
            value = value.replace(name, names[name])
        return value

    found = [
        (run_id.split("/")[1], {name: plain(value) for name, value in values.items() if name not in varying})
        for run_id, values in results.items()
    ]
    return sorted(found, key=str)


def reports(folder: Path) -> list[dict[str, Any]]:
    """Return each stage's report in ``executor_output.json``, without locations and without text that varies."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key not in ("name", "fit_seconds")}
        if isinstance(value, list):
            return [plain(item) for item in value]
        return "<local>" if isinstance(value, str) and value.startswith("/") else value

    files = folder.rglob("executor_output.json")
    return sorted((plain(json.loads(file.read_text())) for file in files), key=partial(json.dumps, sort_keys=True))


@pytest.mark.versions
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_containers_record_what_processes_record(
    case: Case, kfp_docker_runner: KfpDockerRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in case.packages:
        pytest.importorskip(package, reason="the extra `examples` has what the examples import")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    compiled = tmp_path / "pipeline.yaml"
    compiler.Compiler().compile(case.pipeline, str(compiled))
    folders = tmp_path / "containers", tmp_path / "processes"
    arguments = []
    for folder in folders:
        folder.mkdir()
        arguments.append({"tracker_base": str(folder / "tracker"), **case.arguments})
    try:
        outputs = kfp_docker_runner.run(
            compiled, arguments[0], writable=folders[:1], images=IMAGES, environment={"PYTHONPATH": str(REPOSITORY)}
        )
    except NotImplementedError as error:  # kfp 2.14 does not run loops
        pytest.skip(f"KFP's runner says: {error}")
    done = local.run(compiled, arguments[1], output_dir=folders[1] / "runs", watch=Watch(), directory=str(tmp_path))
    done.raise_for_failure()
    ours, theirs = (recorded(folder, frozenset(case.varying - {"model", "data"})) for folder in reversed(folders))
    skipped = CONDITIONAL.get(case.name, set()) - {stage for stage, _ in theirs}
    assert ours
    assert theirs == [record for record in ours if record[0] not in skipped]
    assert outputs == dict(done.outputs)
    if not skipped:
        assert done.folder is not None
        assert reports(kfp_docker_runner.pipeline_root) == reports(done.folder)
