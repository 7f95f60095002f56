"""The pipeline experiments as shown in docs/guides/mlflow.md, with a real MLflow server."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.events import finished_stages
from tests.modules import needs
from tests.pipelines import regenerate

pytestmark = [
    needs("sklearn", "the digits applications need the extra `examples`"),
    needs("mlflow", "the extra `dev` has MLflow"),
]

DOCUMENTATION = regenerate.REPOSITORY / "docs" / "guides" / "mlflow.md"


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    """The documentation's command and program, and the program's output."""
    text = DOCUMENTATION.read_text(encoding="utf-8")
    (command,) = re.findall(r"^\$ (torchx-kfp run .*)", text, re.MULTILINE)
    (program,) = re.findall(r"^```python\n(from mlflow .*?)^```", text, re.DOTALL | re.MULTILINE)
    (output,) = re.findall(r"^```text\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return {"command": command, "program": program, "output": output}


def test_results_are_metrics_of_runs(mlflow_server: str, shown: dict[str, str], tmp_path: Path) -> None:
    url = "http://127.0.0.1:5000"
    words = shlex.split(shown["command"].replace(url, mlflow_server))
    assert words[:3] == ["torchx-kfp", "run", "pipelines/experiments.py"]
    words[:3] = [str(Path(sys.executable).parent / words[0]), "run", str(regenerate.REPOSITORY / words[2])]
    done = subprocess.run([*words, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    stages = finished_stages(done.stdout)
    results = {stage["run_id"]: stage["results"] for stage in stages}

    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=mlflow_server)
    experiment = client.get_experiment_by_name("digits")
    runs = {run.data.tags["torchx.run_id"]: run for run in client.search_runs([experiment.experiment_id])}
    assert set(runs) == {run_id for run_id in results if run_id.split("/")[1] != "prepare"}
    assert [run_id.split("/")[1] for run_id in sorted(runs)] == ["select", "train", "train", "train"]
    for run_id, run in runs.items():
        numbers = {name: value for name, value in results[run_id].items() if not isinstance(value, str)}
        assert run.data.metrics == pytest.approx(numbers)
        assert run.info.status == "FINISHED"
        assert set(run.data.params) == ({"C", "gamma"} if "/train/" in run_id else set())
        assert run.data.tags["model"] == results[run_id]["model"]

    # In MLflow's UI, a user asks which of the trials is the best.
    trials = "tags.`torchx.stage` = 'train'"
    best = client.search_runs([experiment.experiment_id], trials, order_by=["metrics.accuracy DESC"])[0]
    (selected,) = [run for run_id, run in results.items() if "/select/" in run_id]
    assert best.data.tags["torchx.run_id"] == selected["best"]
    assert best.data.metrics["accuracy"] > 0.9
    # The model itself was uploaded.
    assert [file.path for file in client.list_artifacts(best.info.run_id, "model")] == ["model/model.joblib"]

    program = shown["program"].replace(url, mlflow_server)
    printed = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True
    )
    # Compare everything except the accuracies, which other versions of scikit-learn may change.
    names = [line.rpartition(" ")[0] for line in printed.stdout.splitlines()]
    assert names == [line.rpartition(" ")[0] for line in shown["output"].splitlines()]


def test_every_file_that_the_documentation_names_exists() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", DOCUMENTATION.read_text(encoding="utf-8"))
    assert links
    assert [link for link in links if not (DOCUMENTATION.parent / link).exists()] == []
