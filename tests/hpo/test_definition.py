"""The arguments of a search: what becomes of them, and what is wrong with others."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.facts import says
from torchx_kfp import hpo
from torchx_kfp.errors import SearchError
from torchx_kfp.hpo.definition import Plan, plan_search

LR = {"lr": hpo.log(1e-4, 1.0)}
SMALL = {"layers": hpo.int(1, 3), "act": hpo.choice("relu", "gelu")}


def plan(parameters: Any = LR, **arguments: Any) -> Plan:
    usual = {"minimize": "loss", "maximize": [], "rounds": 2, "trials": 3, "optimizer": "random", "seed": None}
    return plan_search("search", parameters, **{**usual, **arguments})


def test_a_plan() -> None:
    parameters = {
        "lr": hpo.float(0, 1),
        "n": hpo.int(1, 8, log=True),
        "k": hpo.choice(1, 0.5),
        "on": hpo.choice(True, False),
    }
    it = plan(parameters, maximize=["test/accuracy"], seed=3)
    assert it.definition == {
        "parameters": {
            "lr": {"type": "float", "bounds": [0.0, 1.0], "log": False},
            "n": {"type": "int", "bounds": [1, 8], "log": True},
            "k": {"type": "choice", "values": [1, 0.5]},
            "on": {"type": "choice", "values": [True, False]},
        },
        "objectives": {"loss": "minimize", "test/accuracy": "maximize"},
        "rounds": 2,
        "trials": 3,
        "optimizer": "random",
        "seed": 3,
    }
    assert it.fields == {"loss": "loss", "test/accuracy": "test_accuracy"}
    own = {"lr": float, "n": int, "k": float, "on": bool}
    assert it.results == {**own, "loss": float, "test/accuracy": float, "trial": str, "front": list}
    assert it.cached
    assert "front" not in plan().results
    assert not plan().cached
    assert plan(optimizer="ax").definition["optimizer"] == "ax"
    assert plan(optimizer="package.module:function").definition["optimizer"] == "package.module:function"


@pytest.mark.parametrize(
    ("rounds", "trials", "planned"),
    [(None, None, (1, 6)), (None, 4, (2, 4)), (2, None, (2, 3)), (4, None, (3, 2)), (9, 9, (1, 9)), (3, 2, (3, 2))],
)
def test_a_grid_takes_the_rounds_that_it_needs(rounds: Any, trials: Any, planned: tuple[int, int]) -> None:
    it = plan(SMALL, rounds=rounds, trials=trials, optimizer="grid")
    assert (it.definition["rounds"], it.definition["trials"]) == planned
    assert it.cached


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"parameters": {}}, ["parameters is {}", "hpo.log"]),
        ({"parameters": ["lr"]}, ["['lr']", "hpo.log"]),
        ({"parameters": {"l r": hpo.int(1, 2)}}, ["'l r'", "identifier"]),
        ({"parameters": {"_lr": hpo.int(1, 2)}}, ["'_lr'", "identifier"]),
        ({"parameters": {"lambda": hpo.int(1, 2)}}, ["'lambda'", "keyword"]),
        ({"parameters": {"name": hpo.int(1, 2)}}, ["'name'", "KFP", "'trial_name'"]),
        ({"parameters": {"items": hpo.int(1, 2)}}, ["'items'", "'trial_items'"]),
        ({"parameters": {"front": hpo.int(1, 2)}}, ["'front'", "output", "'trial_front'"]),
        ({"parameters": {"lr": 0.1}}, ["'lr'", "0.1", "hpo.log"]),
        ({"parameters": {"text": hpo.choice("a", "{{workflow.name}}")}}, ["'text'", "{{workflow.name}}", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "$(HOME)")}}, ["$(HOME)", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "\U0001f600")}}, ["\U0001f600", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "\ud800")}}, ["ud800", "Unicode"]),
        ({"parameters": {"text": hpo.choice("a", "b" * 1025)}}, ["1,025", "1,024"]),
        ({"minimize": []}, ["no objective", "minimize='loss'"]),
        ({"minimize": 3}, ["minimize is 3", "minimize='loss'"]),
        ({"minimize": ["loss", ""]}, ["minimize has ''", "minimize='loss'"]),
        ({"maximize": "loss"}, ["'loss'", "twice"]),
        ({"minimize": ["a/b", "a b"]}, ["'a/b'", "'a_b'", "another name"]),
        ({"minimize": "lr"}, ["'lr'", "parameter", "another name"]),
        ({"minimize": "trial"}, ["'trial'", "another name"]),
        ({"rounds": None}, ["no rounds", "rounds=3, trials=4"]),
        ({"trials": None}, ["no trials", "rounds=3, trials=4"]),
        ({"rounds": 0}, ["rounds is 0", "1 or more"]),
        ({"trials": 2.0}, ["trials is 2.0", "whole number"]),
        ({"trials": True}, ["trials is True", "whole number"]),
        ({"seed": "x"}, ["seed is 'x'", "whole number"]),
        ({"optimizer": "rndom"}, ["'rndom'", "'random'?", "module:function"]),
        ({"optimizer": "my module:function"}, ["'my module:function'", "module:function"]),
        ({"optimizer": None}, ["optimizer is None", "'grid'"]),
        ({"optimizer": "grid", "parameters": LR}, ["'lr'", "hpo.log(0.0001, 1.0, points=5)"]),
        ({"optimizer": "grid", "parameters": SMALL, "seed": 1}, ["seed is 1", "Leave it out"]),
        ({"optimizer": "grid", "parameters": {"x": hpo.int(1, 9)}}, ["6 trials", "9 points", "Leave out"]),
        ({"parameters": {"x": hpo.int(1, 5)}}, ["6 trials", "only 5", "optimizer='grid'"]),
        ({"parameters": {"x": hpo.float(0, 1)}, "trials": 10_000}, ["10000 trials", "65,536", "fewer"]),
    ],
)
def test_wrong_arguments(arguments: Any, facts: list[str]) -> None:
    with pytest.raises(SearchError, match=says(*facts)):
        plan(**arguments)


@pytest.mark.parametrize(
    ("space", "arguments", "facts"),
    [
        (hpo.float, (1, 1), ["hpo.float(1, 1)", "below high"]),
        (hpo.float, (0, math.inf), ["inf", "finite"]),
        (hpo.float, (-1.7e308, 1.7e308), ["1.7e+308", "finite"]),
        (hpo.float, ("0", 1), ["'0'", "hpo.float(0.0, 0.5)"]),
        (hpo.float, (0, 1, 5), ["log=5", "hpo.float"]),
        (hpo.log, (0, 1), ["hpo.log(0, 1) begins at 0", "above 0", ": hpo.float(0, 1)."]),
        (hpo.float, (0, 1, True), ["hpo.log(0, 1) begins at 0", "above 0", ": hpo.float(0, 1)."]),
        (hpo.log, ("0", 1), ["hpo.log('0', 1)", "hpo.log(1e-4, 1.0)"]),
        (hpo.int, (1, 2.5), ["2.5", "hpo.int(1, 8)"]),
        (hpo.int, (0, 2**53 + 1), ["2**53", "logarithm"]),
        (hpo.int, (0, 8, True), ["hpo.int(0, 8, log=True) begins at 0", "above 0", ": hpo.int(0, 8)."]),
        (hpo.choice, (), ["no values", 'hpo.choice("relu", "gelu")']),
        (hpo.choice, ("a", 1), ["hpo.choice('a', 1)", "mixes types", "as text"]),
        (hpo.choice, ("a", None), ["None", "text, a number or a boolean"]),
        (hpo.choice, ("a", "a"), ["twice", "once"]),
        (hpo.choice, (1, math.nan), ["nan", "text"]),
        (hpo.choice, (1, 2**53 + 1), ["2**53", "text"]),
    ],
)
def test_wrong_spaces(space: Any, arguments: Any, facts: list[str]) -> None:
    with pytest.raises(SearchError, match=says(*facts)):
        space(*arguments)


@pytest.mark.parametrize("points", [1, 2.0, True])
def test_wrong_points(points: Any) -> None:
    with pytest.raises(SearchError, match=says(f"{points!r} points", "points=5")):
        hpo.float(0, 1, points=points)
