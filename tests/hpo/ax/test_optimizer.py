"""The optimizer ``ax`` of searches in pipelines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.modules import needs

pytestmark = [
    needs("ax", "needs Ax, which `make test-ax` installs"),
    pytest.mark.ax,
    # Of Ax and the libraries below it.
    *(pytest.mark.filterwarnings(f"ignore::{name}") for name in ("DeprecationWarning", "FutureWarning", "UserWarning")),
]

DEFINITION = {
    "parameters": {
        "lr": {"type": "float", "bounds": [1e-4, 1.0], "log": True},
        "layers": {"type": "int", "bounds": [1, 8], "log": False},
        "act": {"type": "choice", "values": ["relu", "gelu"]},
        "share": {"type": "choice", "values": [1, 0.5]},
        "flag": {"type": "choice", "values": [True, False]},
        "fixed": {"type": "choice", "values": ["only"]},
    },
    "objectives": {"val/loss": "minimize", "accuracy": "maximize"},
    "rounds": 2,
    "trials": 3,
    "optimizer": "ax",
    "seed": 7,
}


def search(definition: Any, tell: Callable[[int, Mapping[str, Any]], Any], rounds: int) -> tuple[list[Any], Any]:
    """Return all trials of a search, and the last state, as the stages pass them on: as JSON."""
    from torchx_kfp.hpo.ask import ask_for

    told: list[Any] = []
    state = None
    for number in range(1, rounds + 1):
        asked, state = ask_for(definition, told, state, definition["trials"])
        asked, state = json.loads(json.dumps([asked, state]))
        for index, parameters in enumerate(asked):
            results = tell(len(told), parameters)
            result = {"results": results or {}, "exit_code": 0, "failed": results is None}
            told.append({"round": number, "index": index, "run_id": "x", "parameters": parameters, **result})
    return told, state


def test_rounds_tell_and_ask() -> None:
    """One of the trials fails. The second round would be Bayesian if it did not still belong to the first five."""
    told, state = search(
        DEFINITION, lambda number, its: None if number == 1 else {"val/loss": its["lr"], "accuracy": number}, 1
    )
    from torchx_kfp.hpo.ax import optimizer as ax

    again, _ = search(DEFINITION, lambda number, its: {"val/loss": 1, "accuracy": 2}, 1)
    assert [trial["parameters"] for trial in again] == [trial["parameters"] for trial in told], "the seed decides"
    spaces = DEFINITION["parameters"]
    for trial in told:
        assert list(trial["parameters"]) == list(spaces)
        for name, value in trial["parameters"].items():
            space = spaces[name]
            if "values" in space:
                assert any(type(value) is type(each) and value == each for each in space["values"])
            else:
                assert space["bounds"][0] <= value <= space["bounds"][1]
                assert type(value).__name__ == space["type"]
                assert len(repr(value)) <= 12
    # One that Ax has not asked for, as of a round for which it had none.
    own = {"lr": 0.5, "layers": 2, "act": "relu", "share": 1, "flag": True, "fixed": "only"}
    told.append({"parameters": own, "results": {"val/loss": 0.5, "accuracy": 1}, "failed": False})
    asked, state = ax.ask(DEFINITION, told, state, 1)
    trials = ax.Client._from_json_snapshot(state)._experiment.trials
    statuses = ["COMPLETED", "FAILED", *["COMPLETED"] * 2, "RUNNING"]
    assert {number: trial.status.name for number, trial in trials.items()} == dict(enumerate(statuses))
    assert trials[3].arm.parameters == {name: value for name, value in own.items() if name != "fixed"}
    assert len(asked) == 1


def test_any_whole_number_is_a_seed() -> None:
    spaces = {"x": {"type": "float", "bounds": [0.0, 1.0], "log": False}}
    for seed in (-1, 2**32 - 1, 2**70):
        definition = {**DEFINITION, "parameters": spaces, "objectives": {"loss": "minimize"}, "seed": seed}
        told, _ = search(definition, lambda number, its: {"loss": its["x"]}, 2)
        assert len({trial["parameters"]["x"] for trial in told}) == 6


def test_a_space_with_fewer_points_than_trials() -> None:
    """Ax asks for all of them, and the search repeats one in each round after that."""
    parameters = {"act": {"type": "choice", "values": ["relu", "gelu"]}, "layers": DEFINITION["parameters"]["layers"]}
    parameters["layers"] = {**parameters["layers"], "bounds": [1, 2]}
    definition = {**DEFINITION, "parameters": parameters, "objectives": {"loss": "minimize"}}
    told, _ = search(definition, lambda number, its: {"loss": its["layers"]}, 4)
    rounds = [[tuple(trial["parameters"].values()) for trial in told if trial["round"] == each] for each in range(1, 5)]
    everything = {(act, layers) for act in ("relu", "gelu") for layers in (1, 2)}
    assert [len(found) for found in rounds] == [3, 1, 1, 1]
    assert {*rounds[0], *rounds[1]} == everything
