"""The optimizer ``ax`` of searches in pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.modules import needs
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.records import read_record

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
    trials = ax.Client._from_json_snapshot(state["client"])._experiment.trials
    assert [trials[number].status.name for number in state["numbers"]] == [
        "COMPLETED",
        "FAILED",
        *["COMPLETED"] * 2,
        "RUNNING",
    ]
    assert trials[3].arm.parameters == {name: value for name, value in own.items() if name != "fixed"}
    assert state["told"] == 4
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


#: The first trial, in the center of the space, fails.
PIPELINE = """
from kfp import dsl
from torchx.specs import AppDef, Role
from torchx_kfp import hpo

CODE = '''
import sys
from torchx_kfp.tracking import current_run
x = float(sys.argv[1])
sys.exit(3) if x == 5 else current_run().put(loss=(x - 7.3) ** 2)
'''

def train(p):
    return AppDef("train", [Role("train", image="i", entrypoint="python", args=["-c", CODE, f"{p.x}"])])

@dsl.pipeline(name="search")
def search(tracker_base: str):
    space = {"x": hpo.float(0, 10)}
    options = {"rounds": 2, "trials": 2, "optimizer": "ax", "seed": 1, "image": "repo/ask:1"}
    hpo.search(train, space, minimize="loss", tracker_base=tracker_base, **options)
"""


@pytest.mark.slow
def test_ax_chooses_the_trials_of_a_pipeline(tmp_path: Path) -> None:
    """The stages that ask import Ax, which is what takes long."""
    (tmp_path / "search.py").write_text(PIPELINE)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-m", "torchx_kfp", "run", "search.py", "--tracker-base", "results", "--output-dir", "runs"],
        cwd=tmp_path,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    tracker = FsspecResultTracker(tmp_path / "results")
    [(best, results)] = [(key, results) for key, results in tracker.items() if "/search-best/" in key]
    found = read_record(tracker.store, best, "search").search
    assert found is not None
    assert [trial.failed for trial in found.trials] == [True, False, False, False]
    assert results["loss"] == min(trial.results["loss"] for trial in found.trials[1:])
