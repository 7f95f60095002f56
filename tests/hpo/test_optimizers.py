"""How values are drawn, and grids are counted."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from torchx_kfp import hpo
from torchx_kfp.hpo import optimizers

PARAMETERS = {"lr": hpo.log(1e-4, 1.0), "layers": hpo.int(1, 3), "act": hpo.choice("relu", "gelu")}


def definition(parameters: Any = PARAMETERS, **changes: Any) -> dict[str, Any]:
    usual = {"objectives": {"loss": "minimize"}, "rounds": 2, "trials": 3, "seed": 7}
    return {"parameters": parameters, **usual, **changes}


BOUNDS = st.tuples(st.floats(-1e12, 1e12), st.floats(-1e12, 1e12)).map(sorted).filter(lambda it: it[0] < it[1])
WHOLE = (
    st.tuples(st.integers(-(2**53), 2**53), st.integers(-(2**53), 2**53)).map(sorted).filter(lambda it: it[0] < it[1])
)
SPACES = st.one_of(
    BOUNDS.map(lambda it: hpo.float(*it)),
    BOUNDS.filter(lambda it: it[0] > 0).map(lambda it: hpo.log(*it)),
    WHOLE.map(lambda it: hpo.int(*it)),
    WHOLE.filter(lambda it: it[0] > 0).map(lambda it: hpo.int(*it, log=True)),
    st.lists(st.one_of(st.text("abc", min_size=1), st.text("ä✓")), min_size=1, unique=True).map(
        lambda it: hpo.choice(*it)
    ),
)


@given(SPACES, st.integers(1, 9))
def test_asked_values_are_in_their_space(space: Any, number: int) -> None:
    its = json.loads(json.dumps(space))
    for points in ([], [{"parameters": {"x": 0}}]):
        asked, state = optimizers.ask_random({"parameters": {"x": its}, "seed": 1}, points, None, number)
        assert state is None
        for value in [trial["x"] for trial in json.loads(json.dumps(asked))]:
            if "values" in space:
                assert value in space["values"]
            else:
                assert space["bounds"][0] <= value <= space["bounds"][1]
                assert type(value) is (int if space["type"] == "int" else float)
        assert len({trial["x"] for trial in asked}) == len(asked)


@given(SPACES.filter(lambda it: "bounds" in it), st.integers(2, 20))
def test_a_grid_has_the_bounds_and_its_points_in_order(space: Any, number: int) -> None:
    points = optimizers.points({**space, "points": number})
    assert (points[0], points[-1]) == (*space["bounds"],)
    assert points == sorted(set(points))
    assert len(points) == number or space["type"] == "int" or number > 15


def test_a_grid_is_the_product_and_nothing_twice() -> None:
    grid = definition({"x": hpo.int(1, 2), "y": hpo.float(0, 1, points=3), "z": hpo.choice(True, False)})
    told: list[Any] = []
    for expected in (5, 5, 2, 0):
        asked, _ = optimizers.ask_grid(grid, told, None, 5)
        assert len(asked) == expected
        told += asked
    assert told == [{"x": x, "y": y, "z": z} for x in (1, 2) for y in (0.0, 0.5, 1.0) for z in (True, False)]
    assert optimizers.points(hpo.log(1e-4, 1.0, points=5)) == [0.0001, 0.001, 0.01, 0.1, 1.0]
    assert optimizers.points(hpo.int(1, 1024, log=True, points=6)) == [1, 4, 16, 64, 256, 1024]


def test_random_values_are_spread_evenly() -> None:
    """2,000 values with a fixed seed: each of ten parts of a range has 200 of them, give or take 50."""
    spaces = {
        "log": hpo.log(1e-5, 1e5),
        "float": hpo.float(0, 10),
        "int": hpo.int(1, 10),
        "layers": hpo.int(1, 100, log=True),
    }
    asked, _ = optimizers.ask_random(definition(spaces), [], None, 2000)
    parts = {
        "log": Counter(int(math.log10(trial["log"]) + 5) for trial in asked),
        "float": Counter(int(trial["float"]) for trial in asked),
        "int": Counter(trial["int"] - 1 for trial in asked),
    }
    for counts in parts.values():
        assert sorted(counts) == list(range(10))
        assert all(150 < count < 250 for count in counts.values())
    small = sum(trial["layers"] <= 10 for trial in asked)
    assert 1040 < small < 1260, "log(10.5 / 0.5) / log(100.5 / 0.5) of them: 57 %"


def test_the_same_seed_asks_for_the_same_trials() -> None:
    one, other = (optimizers.ask_random(definition(seed=seed), [], None, 3)[0] for seed in (1, 2))
    assert optimizers.ask_random(definition(seed=1), [], None, 3)[0] == one != other
    told = [{"parameters": trial} for trial in one]
    later = optimizers.ask_random(definition(seed=1), told, None, 3)[0]
    assert not any(trial in one for trial in later)
    without = [optimizers.ask_random(definition(seed=None), [], None, 3)[0] for _ in range(2)]
    assert without[0] != without[1]
    everything = optimizers.ask_random(definition({"x": hpo.int(1, 6)}), [], None, 6)[0]
    assert sorted(trial["x"] for trial in everything) == [1, 2, 3, 4, 5, 6]
