"""The pipelines in the folder ``pipelines``: what their stages record is consistent."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipelines.trials import HYPERPARAMETERS
from tests.cases import add

#: Places, and times.
VARYING = frozenset({"data", "artifacts", "model", "fit_seconds"})


def example(name: str, variant: str = "", **expected: Any) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """Decorate a check, to add the pipeline of this file."""

    def decorate(check: Callable[[Any], None]) -> Callable[[Any], None]:
        pipeline = getattr(importlib.import_module(f"pipelines.{name}"), name)
        add("examples", name + (variant and f".{variant}"), pipeline.pipeline_func, check=check, **expected)
        return check

    return decorate


@example("digits", packages=("sklearn", "torchx"), varying=VARYING)
def _digits(result: Any) -> None:
    found = {stage.name: stage.results for stage in result.stages if stage.results}
    trials = [found.pop(f"trials/train[{index}]") for index in range(4)]
    assert set(found) == {"prepare", "select", "evaluate", "deploy"}
    assert found["prepare"]["train_size"] > found["prepare"]["test_size"] > 300
    assert [{"C": trial["C"], "gamma": trial["gamma"]} for trial in trials] == HYPERPARAMETERS

    select = found["select"]
    (best,) = [trials[i] for i in range(4) if result[f"trials/train[{i}]"].execution_id == select["best"]]
    assert select["accuracy"] == best["accuracy"] == max(trial["accuracy"] for trial in trials)
    assert len({trial["accuracy"] for trial in trials}) > 1, "the choice matters"
    assert (select["model"], select["trials"]) == (best["model"], 4)
    assert found["evaluate"]["model"] == select["model"]
    assert found["deploy"] == {
        "deployed": True,
        "accuracy": select["accuracy"],
        "threshold": 0.95,
        "model": select["model"],
    }

    for index, trial in enumerate(trials):
        artifacts = result[f"trials/train[{index}]"].artifacts
        assert artifacts["metrics"].metadata == {key: it for key, it in trial.items() if isinstance(it, float)}
        # KFP stores a file of this machine: on a cluster, it would be gone with its pod.
        stored = Path(trial["model"].removeprefix("file://"))
        assert Path(artifacts["model"].path).read_bytes() == stored.read_bytes()
        assert artifacts["model"].metadata == {"framework": "scikit-learn", "C": trial["C"], "gamma": trial["gamma"]}
    evaluated = result["evaluate"].artifacts
    matrix = [row["row"] for row in evaluated["confusion"].metadata["confusionMatrix"]["rows"]]
    accuracy = sum(matrix[digit][digit] for digit in range(10)) / sum(map(sum, matrix))
    assert accuracy == pytest.approx(found["evaluate"]["test_accuracy"])
    assert 0.9 < accuracy <= 1
    report = Path(evaluated["report"].path).read_text()
    assert f"{accuracy:.2%} of the test data were recognized" in report
    assert report.count("\n| **") == 10


@example("search", packages=("sklearn",), varying=VARYING)
def _search(result: Any) -> None:
    """The figures of its docstring: it beats the grid, with fewer trials."""
    import numpy
    from sklearn.svm import SVC

    assert sum(stage.name.startswith("train") for stage in result.stages) < len(HYPERPARAMETERS)
    assert round(result["search-best"].outputs["accuracy"], 4) == 0.9972
    assert round(result["evaluate"].outputs["test_accuracy"], 4) == 0.9917
    data = numpy.load(result["prepare"].results["data"].removeprefix("file://"))
    models = [SVC(**values).fit(data["x_train"], data["y_train"]) for values in HYPERPARAMETERS]
    accuracies = [
        (it.score(data["x_valid"], data["y_valid"]), it.score(data["x_test"], data["y_test"])) for it in models
    ]
    assert [round(accuracy, 4) for accuracy in max(accuracies)] == [0.9916, 0.9806]


@example(
    "functions",
    arguments={"x1": 3.0, "x2": 1.0},
    packages=("sklearn",),
    missing="an image with the folder components: a component takes no workspace",
)
def _functions(result: Any) -> None:
    prepare = result["prepare"]
    booth = Path(prepare.tracker_base, "booth", "7")
    assert json.loads(booth.read_text()) == {"booth_eval": 8.0}
    assert prepare.results["train_size"] == prepare.outputs["train_size"] > 1000
    assert result["echo"].last_lines() == [f"{prepare.outputs['train_size']} images"]


#: Values that a careless shell script would change, in the argument of a pipeline.
TEXT = "-n '\"`id` $(id) $$HOME \\n %s {{x}} ${HOME}\n\tGrüße ☃"


@example("hello", missing="a volume at the tracker base")
@example("hello", "hostile", arguments={"message": TEXT}, missing="a volume at the tracker base")
def _hello(result: Any) -> None:
    first, second = result["first"], result["second"]
    assert first.results == {"bytes": len(first.log_file.read_bytes())}
    assert result["publish-first"].outputs == {**first.results, "run_id": first.execution_id}
    assert result["publish-first"].artifacts["metrics"].metadata == first.results
    said = f'{{"bytes": {first.results["bytes"]}}}\nSo much the first stage said.\n'
    assert second.log_file.read_text() == said
    assert second.results == {"bytes": len(said)}
    assert first.log_file.read_text() in (f"{TEXT}\n", "Hello, pipelines!\n")


def sized(memory: str, cpu: str, gpus: str, image: str) -> Callable[[Any], None]:
    def check(result: Any) -> None:
        decided, fit = result.stages
        outputs = {name: value for name, value in decided.outputs.items() if name != "run_id"}
        assert outputs == {"memory": memory, "cpu": cpu, "gpus": gpus, "image": image}
        assert fit.last_lines() == [f"Training with {memory}"]

    return check


example("sized", arguments={"rows": 1000, "image": "python:3.11"})(sized("257M", "1", "0", "python:3.11"))
example("sized", "large", arguments={"rows": 10**7, "image": "python:3.11"}, missing="a GPU")(
    sized("15616M", "4", "1", "python:3.11-gpu")
)
