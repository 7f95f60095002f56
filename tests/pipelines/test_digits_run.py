"""The digits pipeline as processes of this machine: the records of its stages are consistent.

It also runs in containers: see ``tests/containers/test_pipelines_in_containers.py``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipelines.trials import HYPERPARAMETERS
from tests.modules import needs
from tests.pipelines import regenerate
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = needs("sklearn", "the digits applications need the extra `examples`")

_RUN = """
import json, sys
from torchx_kfp.local import run

done = run(sys.argv[1], json.loads(sys.argv[2]), output_dir=sys.argv[3])
done.raise_for_failure()
shown = {
    stage.name: {name: [artifact.path, artifact.metadata] for name, artifact in stage.artifacts.items()}
    for stage in done.stages
}
print(json.dumps([{stage.name: [stage.state, stage.run_id] for stage in done.stages}, shown]))
"""


@dataclass(frozen=True)
class Story:
    """The records of each stage of a run, by the stage's name, and the run ids."""

    results: dict[str, dict[str, Any]]
    run_ids: dict[str, str]
    #: The paths and metadata of KFP's artifacts.
    artifacts: dict[str, dict[str, Any]]
    states: dict[str, str]
    folder: Path

    @property
    def trials(self) -> dict[str, dict[str, Any]]:
        return {self.run_ids[name]: results for name, results in self.results.items() if name.startswith("trials/")}


def _run(folder: Path, **arguments: object) -> Story:
    """Run the compiled pipeline in this folder."""
    path, tracker_base = regenerate.REPOSITORY / "pipelines" / "digits.py", folder / "tracker"
    compiled = folder / "compiled.yaml"
    compiled.write_text(regenerate.compile_text(path), encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            _RUN,
            str(compiled),
            json.dumps({"tracker_base": str(tracker_base), **arguments}),
            str(folder / "logs"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(regenerate.REPOSITORY)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    stages, artifacts = json.loads(done.stdout)
    run_ids = {name: run_id for name, (state, run_id) in stages.items() if state != "skipped"}
    results = FsspecResultTracker(str(tracker_base))
    return Story(
        {name: results[run_id] for name, run_id in run_ids.items() if run_id},
        run_ids,
        artifacts,
        {name: state for name, (state, _) in stages.items()},
        folder,
    )


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Story:
    return _run(tmp_path_factory.mktemp("digits"))


def test_every_stage_has_run(story: Story) -> None:
    trials = {f"trials/train[{index}]" for index in range(4)}
    assert set(story.results) == {"prepare", *trials, "select", "evaluate", "deploy"}
    assert len(set(story.run_ids.values())) == 8
    assert story.results["prepare"]["train_size"] > story.results["prepare"]["test_size"] > 300


def test_trials_have_the_hyperparameters_of_the_pipeline(story: Story) -> None:
    ran = [
        {"C": trial["C"], "gamma": trial["gamma"]}
        for _, trial in sorted(story.results.items())
        if "fit_seconds" in trial
    ]
    assert ran == HYPERPARAMETERS


def test_select_names_the_best_of_the_trials(story: Story) -> None:
    selected = story.results["select"]
    best = story.trials[selected["best"]]
    assert selected["accuracy"] == best["accuracy"] == max(trial["accuracy"] for trial in story.trials.values())
    assert selected["model"] == best["model"]
    assert selected["trials"] == 4
    # The trials differ, so the choice matters.
    assert len({trial["accuracy"] for trial in story.trials.values()}) > 1
    assert selected["accuracy"] > 0.9


def test_evaluate_measures_the_selected_model(story: Story) -> None:
    assert story.results["evaluate"]["model"] == story.results["select"]["model"]
    assert 0.9 < story.results["evaluate"]["test_accuracy"] <= 1


def test_kfp_shows_metrics_models_and_the_confusion_matrix(story: Story) -> None:
    for name in (f"trials/train[{index}]" for index in range(4)):
        artifacts, results = story.artifacts[name], story.results[name]
        numbers = {key: value for key, value in results.items() if isinstance(value, float)}
        assert artifacts["metrics"][1] == numbers
        # KFP stores a file of this machine: on a cluster, it would be gone with its pod.
        assert Path(artifacts["model"][0]).read_bytes() == Path(results["model"].removeprefix("file://")).read_bytes()
        assert artifacts["model"][1] == {"framework": "scikit-learn", "C": results["C"], "gamma": results["gamma"]}
    evaluated = story.artifacts["evaluate"]
    matrix = [row["row"] for row in evaluated["confusion"][1]["confusionMatrix"]["rows"]]
    accuracy = sum(matrix[digit][digit] for digit in range(10)) / sum(map(sum, matrix))
    assert accuracy == pytest.approx(story.results["evaluate"]["test_accuracy"])
    report = Path(evaluated["report"][0]).read_text()
    assert f"{accuracy:.2%} of the test data were recognized" in report
    assert report.count("\n| **") == 10


def test_deploys_what_is_good_enough(story: Story) -> None:
    assert story.results["deploy"] == {
        "deployed": True,
        "accuracy": story.results["select"]["accuracy"],
        "threshold": 0.95,
        "model": story.results["select"]["model"],
    }


def test_tracker_holds_results_and_nothing_else(story: Story, tmp_path_factory: pytest.TempPathFactory) -> None:
    model = Path(story.results["select"]["model"].removeprefix("file://"))
    tracker_base = Path(str(model).partition("-artifacts/")[0])
    assert model.is_file()
    files = {str(file.relative_to(tracker_base)) for file in tracker_base.rglob("*") if file.is_file()}
    assert {file for file in files if not file.startswith(".torchx_kfp/")} == set(story.run_ids.values())


def test_does_not_deploy_below_the_threshold(story: Story) -> None:
    again = _run(story.folder, threshold=1.01)
    assert again.states["deploy"] == "skipped"
    assert again.states.pop("keep") == "succeeded"
    # All the others have run with the same arguments.
    assert {state for name, state in again.states.items() if name != "deploy"} == {"cached"}
    assert again.results == {name: results for name, results in story.results.items() if name != "deploy"}
    (log,) = (story.folder / "logs").rglob("keep-0/log.txt")
    assert log.read_text() == "Not good enough to be deployed.\n"
