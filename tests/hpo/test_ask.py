"""The program between the rounds of a search: what it tells, what it asks for, and what it records."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp import hpo
from torchx_kfp.contract.carried import asking
from torchx_kfp.contract.carried.programs import ASK
from torchx_kfp.hpo import ask
from torchx_kfp.tracking import FsspecResultTracker, Run
from torchx_kfp.tracking.searches import SEARCH, Search

PARAMETERS = {"lr": hpo.log(1e-4, 1.0), "layers": hpo.int(1, 3), "act": hpo.choice("relu", "gelu")}


def definition(parameters: Any = PARAMETERS, **changes: Any) -> dict[str, Any]:
    spaces = {name: space.definition for name, space in parameters.items()}
    usual = {"objectives": {"loss": "minimize"}, "rounds": 2, "trials": 3, "optimizer": "random", "seed": 7}
    return {"parameters": spaces, **usual, **changes}


class Pipeline:
    """The stages of a search, whose program runs here."""

    def __init__(self, base: str, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
        self.tracker = FsspecResultTracker(base)
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("TORCHX_TRACKER_BASE", base)
        fields = {name: name.replace("/", "_") for name in changes.get("objectives", {"loss": ""})}
        self.words = json.dumps({"name": "search", "definition": definition(**changes), "fields": fields})

    def ask(self, name: str, before: str = "", *trials: str) -> Run:
        run_id = f"run/{name}/1"
        self._monkeypatch.setenv("TORCHX_JOB_ID", run_id)
        reads = {"search": f"run/{before}/1", "trials": list(trials)} if before else {}
        self._monkeypatch.setenv("TORCHX_PARENT_RUN_IDS", json.dumps(reads))
        ask.main(self.words)
        return Run(run_id, self.tracker)

    def trial(self, number: int, **results: Any) -> str:
        run_id = f"run/train/{number}"
        if results:
            self.tracker[run_id] = results
        return run_id

    def said(self, run: Run) -> Search:
        found = SEARCH.read(self.tracker.store, run.id)
        assert found is not None
        return found


@pytest.fixture
def base(tmp_path: Path) -> str:
    return str(tmp_path / "results")


def test_rounds(base: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    it = Pipeline(base, monkeypatch)
    first = it.ask("ask-1")
    asked = first.metadata()["trials"]
    assert (it.said(first).round, it.said(first).trials, list(it.said(first).asked)) == (1, (), asked)
    assert first.results() == {"round": 1}
    assert first.sources() == []

    trials = [it.trial(0, loss=0.5, exit_code=0), it.trial(1, loss=0.1, exit_code=3), it.trial(2, loss=0.3, other="x")]
    second = it.ask("ask-2", "ask-1", *trials)
    told = it.said(second).trials
    assert [trial.parameters for trial in told] == asked
    assert [(trial.round, trial.index, trial.run_id) for trial in told] == [(1, i, trials[i]) for i in range(3)]
    assert [(trial.results, trial.exit_code, trial.failed) for trial in told] == [
        ({"loss": 0.5}, 0, False),
        ({"loss": 0.1}, 3, True),
        ({"loss": 0.3}, 0, False),
    ]
    assert second.results() == {"round": 2, "loss": 0.3}, "the best so far, for people who watch"
    assert [(source.run_id, source.alias) for source in second.sources()] == [
        ("run/ask-1/1", "search"),
        *((trial, "trials") for trial in trials),
    ]
    asked = [*asked, *second.metadata()["trials"]]
    assert len({json.dumps(trial) for trial in asked}) == 6

    more = [it.trial(3, loss=math.nan), it.trial(4, los=1), it.trial(5, loss=2)]
    best = it.ask("best", "ask-2", *more)
    assert best.results() == {**asked[2], "loss": 0.3, "trial": "run/train/2"}
    assert [trial.failed for trial in it.said(best).trials[3:]] == [True, True, False]
    assert (it.said(best).round, it.said(best).asked) == (3, ())
    assert it.said(best).trials[3].results == {}, "NaN is not JSON"
    assert best.metadata() == {}
    assert capfd.readouterr().err.splitlines()[1:] == [
        "torchx-kfp: failed: run/train/1: exit code 3",
        f"torchx-kfp: best of 3 trials: loss=0.3 {shown(asked[2])} (run/train/2)",
        f"torchx-kfp: round 2 of 2: {asked[3]} {asked[4]} {asked[5]}",
        "torchx-kfp: failed: run/train/3: loss is nan; run/train/4: loss is missing, recorded los",
        f"torchx-kfp: best of 6 trials: loss=0.3 {shown(asked[2])} (run/train/2)",
    ]


def shown(parameters: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def test_all_trials_of_a_round_fail(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Pipeline(base, monkeypatch, trials=4)
    it.ask("ask-1")
    trials = [it.trial(0, exit_code=1), it.trial(1), it.trial(2, loss="low"), it.trial(3, loss=10**309)]
    with pytest.raises(SystemExit) as ended:
        it.ask("ask-2", "ask-1", *trials)
    assert str(ended.value.code).splitlines() == [
        "torchx-kfp: all 4 trials of round 1 failed:",
        "  run/train/0: exit code 1",
        "  run/train/1: loss is missing, recorded nothing",
        "  run/train/2: loss is 'low'",
        f"  run/train/3: loss is 1{309 * '0'}",
        "Their logs: torchx-kfp logs run 0",
        "To try again, start a new run: --resume keeps these trials, and so does KFP's cache, unless you give "
        "--no-cache.",
    ]
    assert [trial.exit_code for trial in it.said(Run("run/ask-2/1", it.tracker)).trials] == [1, 0, 0, 0], (
        "for the report"
    )


def test_a_round_that_fails_does_not_lose_the_trials_before_it(
    base: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    it = Pipeline(base, monkeypatch, trials=1, rounds=2)
    it.ask("ask-1")
    it.ask("ask-2", "ask-1", it.trial(0, loss=0.5, exit_code="mine"))
    best = it.ask("best", "ask-2", it.trial(1, exit_code=1))
    assert (best.results()["loss"], best.results()["trial"]) == (0.5, "run/train/0")
    assert [(trial.exit_code, trial.failed) for trial in it.said(best).trials] == [(0, False), (1, True)]
    said = capfd.readouterr().err.splitlines()
    assert said[-3:-1] == ["torchx-kfp: all 1 trials of round 2 failed:", "  run/train/1: exit code 1"]


def test_trials_that_were_not_asked_for_are_not_told(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Pipeline(base, monkeypatch)
    it.ask("ask-1")
    with pytest.raises(SystemExit, match="3 trials were asked for, but 1 ended"):
        it.ask("ask-2", "ask-1", it.trial(0, loss=1))


def test_several_objectives(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    objectives = {"test/loss": "minimize", "accuracy": "maximize"}
    it = Pipeline(base, monkeypatch, rounds=1, trials=4, objectives=objectives)
    asked = it.ask("ask-1").metadata()["trials"]
    values = [(0.5, 0.9), (0.1, 0.4), (0.5, 0.8), (0.1, 0.5)]
    trials = [it.trial(i, **{"test/loss": loss, "accuracy": accuracy}) for i, (loss, accuracy) in enumerate(values)]
    best = it.ask("best", "ask-1", *trials)
    assert best.results() == {**asked[3], "test/loss": 0.1, "accuracy": 0.5, "trial": "run/train/3"}
    assert best.metadata() == {
        "front": [{**asked[i], "test_loss": values[i][0], "accuracy": values[i][1], "trial": trials[i]} for i in (3, 0)]
    }


@given(st.lists(st.tuples(*[st.integers(0, 5).map(float)] * 3), max_size=12))
def test_the_front_is_what_comparing_all_pairs_leaves(values: list[tuple[float, float, float]]) -> None:
    objectives = {"a": "minimize", "b": "maximize", "c": "minimize"}
    trials = [
        {"parameters": {}, "run_id": f"{number}", "results": dict(zip(objectives, value, strict=True))}
        for number, value in enumerate(values)
    ]

    def beats(other: tuple[float, float, float], own: tuple[float, float, float]) -> bool:
        as_good = other[0] <= own[0] and other[1] >= own[1] and other[2] <= own[2]
        return as_good and (other[0] < own[0] or other[1] > own[1] or other[2] < own[2])

    left = [number for number, own in enumerate(values) if not any(beats(other, own) for other in values)]
    front = asking.front({"objectives": objectives}, trials, {name: f"best_{name}" for name in objectives})
    assert front == [
        {**{f"best_{name}": value for name, value in trials[number]["results"].items()}, "trial": f"{number}"}
        for number in left
    ]


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
    its = json.loads(json.dumps(space.definition))
    for points in ([], [{"parameters": {"x": 0}}]):
        asked, state = asking.ask_random({"parameters": {"x": its}, "seed": 1}, points, None, number)
        assert state is None
        for value in [trial["x"] for trial in json.loads(json.dumps(asked))]:
            if isinstance(space, hpo.spaces.Choice):
                assert value in space.values
            else:
                assert space.low <= value <= space.high
                assert type(value) is (int if space.kind == "int" else float)
        assert len({trial["x"] for trial in asked}) == len(asked)


@given(SPACES.filter(lambda it: not isinstance(it, hpo.spaces.Choice)), st.integers(2, 20))
def test_a_grid_has_the_bounds_and_its_points_in_order(space: Any, number: int) -> None:
    points = asking.points({**space.definition, "points": number})
    assert (points[0], points[-1]) == (space.low, space.high)
    assert points == sorted(set(points))
    assert len(points) == number or space.kind == "int" or number > 15


def test_a_grid_is_the_product_and_nothing_twice() -> None:
    grid = definition({"x": hpo.int(1, 2), "y": hpo.float(0, 1, points=3), "z": hpo.choice(True, False)})
    told: list[Any] = []
    for expected in (5, 5, 2, 0):
        asked, _ = asking.ask_grid(grid, told, None, 5)
        assert len(asked) == expected
        told += asked
    assert told == [{"x": x, "y": y, "z": z} for x in (1, 2) for y in (0.0, 0.5, 1.0) for z in (True, False)]
    assert asking.points(hpo.log(1e-4, 1.0, points=5).definition) == [0.0001, 0.001, 0.01, 0.1, 1.0]
    assert asking.points(hpo.int(1, 1024, log=True, points=6).definition) == [1, 4, 16, 64, 256, 1024]


def test_random_values_are_spread_evenly() -> None:
    """2,000 values with a fixed seed: each of ten parts of a range has 200 of them, give or take 50."""
    spaces = {
        "log": hpo.log(1e-5, 1e5),
        "float": hpo.float(0, 10),
        "int": hpo.int(1, 10),
        "layers": hpo.int(1, 100, log=True),
    }
    asked, _ = asking.ask_random(definition(spaces), [], None, 2000)
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
    one, other = (asking.ask_random(definition(seed=seed), [], None, 3)[0] for seed in (1, 2))
    assert asking.ask_random(definition(seed=1), [], None, 3)[0] == one != other
    told = [{"parameters": trial} for trial in one]
    later = asking.ask_random(definition(seed=1), told, None, 3)[0]
    assert not any(trial in one for trial in later)
    without = [asking.ask_random(definition(seed=None), [], None, 3)[0] for _ in range(2)]
    assert without[0] != without[1]
    everything = asking.ask_random(definition({"x": hpo.int(1, 6)}), [], None, 6)[0]
    assert sorted(trial["x"] for trial in everything) == [1, 2, 3, 4, 5, 6]


def ask_mine(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer of this module, which has no more to ask for in the third round."""
    count = (state or {"count": 0})["count"] + 1
    return [{"lr": count / 10, "layers": 1, "act": "relu"}] * (9 if count < 3 else 0), {"count": count}


def test_an_optimizer_of_the_image(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Pipeline(base, monkeypatch, optimizer="tests.hpo.test_ask:ask_mine", rounds=3)
    asked = it.ask("ask-1").metadata()["trials"]
    assert asked == [{"lr": 0.1, "layers": 1, "act": "relu"}] * 3, "never more than it was asked for"
    trials = [it.trial(number, loss=1) for number in range(9)]
    assert it.ask("ask-2", "ask-1", *trials[:3]).metadata()["trials"][0]["lr"] == 0.2
    drawn = it.ask("ask-3", "ask-2", *trials[3:6]).metadata()["trials"]
    assert len(drawn) == 1, "KFP fails a loop without iterations"
    again = it.ask("again", "ask-2", *trials[3:6]).metadata()["trials"]
    assert again == drawn, "the seed decides"


def ask_carelessly(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer that changes what it was given, and its state, and asks for what it was told."""
    for trial in told:
        trial["results"] = {"loss": 301 - trial["results"]["loss"]}
        trial["parameters"].clear()
    told.reverse()
    definition["objectives"] = {"loss": "maximize"}
    definition["parameters"].clear()
    state = state if state is not None else []
    state.append(number)
    return [dict(GOOD) for _ in range(number)], state


def test_an_optimizer_cannot_change_the_search(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Pipeline(base, monkeypatch, optimizer="tests.hpo.test_ask:ask_carelessly", rounds=2, trials=2)
    it.ask("ask-1")
    second = it.ask("ask-2", "ask-1", it.trial(0, loss=300.0), it.trial(1, loss=1.0))
    assert [trial.results["loss"] for trial in it.said(second).trials] == [300, 1]
    best = it.ask("best", "ask-2", it.trial(2, loss=7.0), it.trial(3, loss=9.0))
    assert best.results() == {**GOOD, "loss": 1, "trial": "run/train/1"}


def test_the_carried_program_asks_for_the_same(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    it = Pipeline(base, monkeypatch)
    expected = it.ask("ask-1").metadata()
    monkeypatch.setenv("TORCHX_JOB_ID", "run/ask-1/2")
    done = subprocess.run([sys.executable, "-c", ASK, it.words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Run("run/ask-1/2", it.tracker).metadata() == expected


def answer(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer that returns what the search's seed says."""
    return ANSWERS[definition["seed"]]


GOOD = {"lr": 0.1, "layers": 1, "act": "relu"}
#: What an optimizer returns, and what is said about it; None if it is right.
ANSWERS: list[Any] = [([change], None) for change in ({**GOOD, "lr": 1}, {**GOOD, "lr": 1 + 1e-15})]
WRONG: list[tuple[Any, list[str]]] = [
    (([{"lr": 0.1}], None), ["asks for {'lr': 0.1}", "lr, layers, act"]),
    (([{**GOOD, "lr": 7.0}], None), ["lr=7.0", "lr is a number from 0.0001 to 1.0"]),
    (([GOOD, {**GOOD, "lr": math.nan}], None), ["lr=nan", "from 0.0001 to 1.0"]),
    (([{**GOOD, "lr": "0.1"}], None), ["lr='0.1'", "a number"]),
    (([{**GOOD, "layers": 4}], None), ["layers=4", "a whole number from 1 to 3"]),
    (([{**GOOD, "layers": 2.0}], None), ["layers=2.0", "a whole number"]),
    (([{**GOOD, "layers": True}], None), ["layers=True", "a whole number"]),
    (([{**GOOD, "act": "tanh"}], None), ["act='tanh'", "one of ['relu', 'gelu']"]),
    (([GOOD], {1, 2}), ["state", "JSON", "set"]),
    ([GOOD], ["returns [{'lr'", "return trials, state"]),
    ((GOOD, None), ["returns ({'lr'", "return trials, state"]),
]


def test_numbers_that_rounding_carries_beyond_a_bound(base: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in (0, 1):
        it = Pipeline(base, monkeypatch, optimizer="tests.hpo.test_ask:answer", seed=seed)
        assert it.ask(f"ask-{seed}").metadata()["trials"] == [{**GOOD, "lr": 1}]


@pytest.mark.parametrize(("returned", "facts"), WRONG)
def test_an_optimizer_that_asks_for_something_else(
    returned: Any, facts: list[str], base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.ANSWERS", [returned])
    with pytest.raises(SystemExit, match=says("torchx-kfp: tests.hpo.test_ask:answer ", *facts)):
        Pipeline(base, monkeypatch, optimizer="tests.hpo.test_ask:answer", seed=0).ask("ask-1")


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        ("tests.hpo.test_ask:anser", ["no function 'anser'", "Did you mean 'answer'?"]),
        ("tests.hpo.test_ask:WRONG", ["no function 'WRONG'"]),
        ("tests.hpo.test_aks:answer", ["no module 'tests.hpo.test_aks'", "'tests.hpo.test_ask'?", "PYTHONPATH"]),
        ("jsno:answer", ["no module 'jsno'", "Did you mean 'json'?", "PYTHONPATH"]),
        ("json.tool.x:answer", ["no module 'json.tool.x'"]),
        ("imports_nothing:answer", ["'imports_nothing:answer' cannot be imported", "No module named 'nothing_at_all'"]),
        ("imports_less:answer", ["'imports_less:answer' cannot be imported", "cannot import name 'loud'"]),
    ],
)
def test_an_optimizer_that_does_not_exist(
    optimizer: str, facts: list[str], base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_nothing.py").write_text("import nothing_at_all")
    (tmp_path / "imports_less.py").write_text("from json import loud")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit, match=says("torchx-kfp: optimizer=", *facts)):
        Pipeline(base, monkeypatch, optimizer=optimizer).ask("ask-1")


@pytest.mark.parametrize("store", ["memory", pytest.param("s3", marks=pytest.mark.s3)])
def test_the_program_on_a_store_without_folders(
    store: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    place = "memory://hpo-ask" if store == "memory" else str(request.getfixturevalue("s3_base"))
    it = Pipeline(place, monkeypatch, rounds=1)
    asked = it.ask("ask-1").metadata()["trials"]
    trials = [it.trial(number, loss=number) for number in range(3)]
    assert it.ask("best", "ask-1", *trials).results() == {**asked[0], "loss": 0.0, "trial": "run/train/0"}
