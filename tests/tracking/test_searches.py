"""The statements of searches that count, and the best trials."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from tests.searches import stated, tell
from torchx_kfp.tracking.record_tracker import RecordTracker
from torchx_kfp.tracking.searches import Search
from torchx_kfp.tracking.searches import parse_search as parse

VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, -1.5, 1e308, math.nan, math.inf])


@given(st.lists(st.tuples(VALUES, VALUES), max_size=12), st.sampled_from(["minimize", "maximize"]))
def test_a_front_has_all_trials_than_which_no_other_is_better(values: list[tuple[float, float]], aim: str) -> None:
    both = {"loss": "minimize", "other": aim}
    search = parse(tell("s", [({}, {"loss": x, "other": y}) for x, y in values], objectives=both))
    sign = 1 if aim == "minimize" else -1
    finite = {place: (x, sign * y) for place, (x, y) in enumerate(values) if math.isfinite(x) and math.isfinite(y)}
    front = [
        place
        for place, (x, y) in finite.items()
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b in finite.values())
    ]
    assert [search.trials.index(trial) for trial in search.best_trials()] == front
    single = replace(search, objectives={"other": aim})
    costs = [sign * y for _, y in values if math.isfinite(y)]
    best = single.best_in("other")
    assert single.best_trials() == ([] if best is None else [best])
    assert [sign * trial.results["other"] for trial in single.best_trials()] == ([min(costs)] if costs else [])


def test_a_failed_trial_is_not_the_best_whatever_it_recorded() -> None:
    content = tell("s", [({}, {"loss": 1.0}), ({}, {"loss": 0.5}), ({}, {"loss": 0.5})])
    content["trials"][1]["failed"] = True
    assert [trial.index for trial in parse(content).best_trials()] == [2]


def test_the_latest_statement_of_each_search_counts() -> None:
    def chain(run: str, count: int) -> dict[str, Search]:
        before = [None, *(f"{run}/ask/{number}" for number in range(count))]
        return {f"{run}/ask/{done}": parse({**stated(done), "before": before[done]}) for done in range(count)}

    rounds = chain("run", 4)
    assert list(Search.latest({"run/train/1": None, **rounds})) == ["run/ask/3"]
    assert list(Search.latest(dict([*rounds.items()][:2]))) == ["run/ask/1"]
    # Iterations of a loop, in which searches have one name, and those of one that share a cached stage.
    shared = {"run/ask/5": parse({**stated(1), "before": "run/ask/0"})}
    found = Search.latest({**rounds, **chain("other", 3), **shared})
    assert found == {it: ({**rounds, **chain("other", 3), **shared})[it] for it in found}
    assert list(found) == ["run/ask/3", "other/ask/2", "run/ask/5"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"definition": {}},
        {"definition": {**stated(1)["definition"], "objectives": {}}},
        {"definition": {**stated(1)["definition"], "parameters": {"lr": 1}}},
        {"definition": {**stated(1)["definition"], "parameters": {"lr": {"bounds": ["a", "b"]}}}},
        {"trials": [{}]},
        *({"trials": [{**stated(1)["trials"][0], "parameters": {"lr": value}}]} for value in (None, [1], {"a": 1})),
        {"asked": [1]},
        {"round": "x"},
    ],
)
def test_something_else_in_the_place_of_a_search(wrong: dict[str, Any], tmp_path: Path) -> None:
    tracker = RecordTracker(tmp_path, patience=0)
    tracker.add("run/ask/1", {"search": {**stated(1), **wrong}})
    records = tracker.records(["run/ask/1"])
    assert records["run/ask/1"].search is None
    assert re.search(says("run/ask/1/", ".search", "Remove it"), str(records.problems[0]))
