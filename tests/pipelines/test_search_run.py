"""The search over the digits model as processes of this machine: it beats the grid, with fewer trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines.trials import HYPERPARAMETERS
from tests.modules import needs
from tests.pipelines import regenerate
from torchx_kfp import local

pytestmark = needs("sklearn", "the digits applications need the extra `examples`")


def test_the_figures_of_its_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(regenerate.REPOSITORY))
    pipeline = regenerate.load_pipeline(regenerate.REPOSITORY / "pipelines" / "search.py")
    done = local.run(
        pipeline, {"tracker_base": str(tmp_path / "tracker")}, output_dir=tmp_path / "runs", watch=local.Watch()
    )
    done.raise_for_failure()
    stages = {stage.name: stage for stage in done.stages}
    assert len([name for name in stages if name.startswith("train")]) < len(HYPERPARAMETERS)
    assert round(stages["search-best"].outputs["accuracy"], 4) == 0.9972
    assert round(stages["evaluate"].outputs["test_accuracy"], 4) == 0.9917

    import numpy
    from sklearn.svm import SVC

    data = numpy.load(stages["prepare"].results["data"].removeprefix("file://"))
    models = [SVC(**values).fit(data["x_train"], data["y_train"]) for values in HYPERPARAMETERS]
    accuracies = [
        (it.score(data["x_valid"], data["y_valid"]), it.score(data["x_test"], data["y_test"])) for it in models
    ]
    assert [round(accuracy, 4) for accuracy in max(accuracies)] == [0.9916, 0.9806]
