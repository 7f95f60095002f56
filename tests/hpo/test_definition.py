"""The arguments of a search: what becomes of them, and what is wrong with others."""

from __future__ import annotations

import functools
import json
import math
from typing import Any

import pytest

from tests.authoring.apps import compile_pipeline
from tests.documents import documents
from tests.facts import says
from tests.hpo.apps import program_of, python, searching
from torchx_kfp import hpo
from torchx_kfp.errors import AppDefError

LR = {"lr": hpo.log(1e-4, 1.0)}
SMALL = {"layers": hpo.int(1, 3), "act": hpo.choice("relu", "gelu")}


def compiled(**arguments: Any) -> Any:
    """Compile a search, and return its pipeline."""
    parameters = arguments.pop("parameters", LR)
    pipeline = searching(lambda p: python("", *(f"{p[name]}" for name in p)), parameters, **arguments)
    return documents(compile_pipeline(pipeline))[0]


def definition(spec: Any) -> Any:
    """Return what the stages that ask are told of the search."""
    return json.loads(program_of(spec, "search-ask-1")[1])


def outputs(spec: Any) -> dict[str, str]:
    found = spec["components"]["comp-search-best"]["outputDefinitions"]["parameters"]
    return {name: output["parameterType"].removeprefix("NUMBER_") for name, output in found.items()}


def test_a_search_is_defined_by_its_arguments() -> None:
    parameters = {
        "lr": hpo.float(0, 1),
        "n": hpo.int(1, 8, log=True),
        "k": hpo.choice(1, 0.5),
        "on": hpo.choice(True, False),
    }
    spec = compiled(parameters=parameters, maximize=["test/accuracy"], seed=3)
    assert definition(spec)["definition"] == {
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
    own = {"lr": "DOUBLE", "n": "INTEGER", "k": "DOUBLE", "on": "BOOLEAN"}
    both = {"loss": "DOUBLE", "test_accuracy": "DOUBLE", "front": "LIST"}
    assert outputs(spec) == {**own, **both, "trial": "STRING", "run_id": "STRING"}
    assert "front" not in outputs(compiled())
    for optimizer in ("ax", "package.module:function"):
        spec = compiled(optimizer=optimizer, image="i")
        assert definition(spec)["definition"]["optimizer"] == optimizer


@pytest.mark.parametrize(
    ("rounds", "trials", "planned"),
    [(None, None, (1, 6)), (None, 4, (2, 4)), (2, None, (2, 3)), (4, None, (3, 2)), (9, 9, (1, 9)), (3, 2, (3, 2))],
)
def test_a_grid_takes_the_rounds_that_it_needs(rounds: Any, trials: Any, planned: tuple[int, int]) -> None:
    spec = compiled(parameters=SMALL, rounds=rounds, trials=trials, optimizer="grid")
    found = definition(spec)["definition"]
    assert (found["rounds"], found["trials"]) == planned
    tasks = spec["root"]["dag"]["tasks"]
    assert sum(name.startswith("search-ask-") for name in tasks) == planned[0]
    assert tasks["search-ask-1"]["cachingOptions"]["enableCache"]


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"parameters": {}}, ["parameters is {}", "hpo.log"]),
        ({"parameters": {"l r": hpo.int(1, 2)}}, ["'l r'", "identifier"]),
        ({"parameters": {"_lr": hpo.int(1, 2)}}, ["'_lr'", "identifier"]),
        ({"parameters": {1: hpo.int(1, 2)}}, ["name 1", "identifier"]),
        ({"parameters": {"lambda": hpo.int(1, 2)}}, ["'lambda'", "keyword"]),
        ({"parameters": {"name": hpo.int(1, 2)}}, ["'name'", "KFP", "'trial_name'"]),
        ({"parameters": {"items": hpo.int(1, 2)}}, ["'items'", "'trial_items'"]),
        ({"parameters": {"front": hpo.int(1, 2)}}, ["'front'", "output", "'trial_front'"]),
        ({"parameters": {"lr": 0.1}}, ["'lr'", "0.1", "hpo.log"]),
        ({"parameters": {"lr": {}}}, ["'lr'", "is {}", "hpo.log"]),
        ({"parameters": {"lr": {"low": 1, "high": 2}}}, ["'lr'", "{'low': 1, 'high': 2}", "hpo.log"]),
        ({"parameters": {"lr": {"type": "float", "bounds": [1, math.inf], "log": False}}}, ["inf", "hpo.log"]),
        ({"parameters": {"text": hpo.choice("a", "{{workflow.name}}")}}, ["'text'", "{{workflow.name}}", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "$(HOME)")}}, ["$(HOME)", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "\U0001f600")}}, ["\U0001f600", "look up"]),
        ({"parameters": {"text": hpo.choice("a", "\ud800")}}, ["ud800", "Unicode"]),
        ({"parameters": {"text": hpo.choice("a", "b" * 1025)}}, ["1,025", "1,024"]),
        ({"minimize": []}, ["no objective", "minimize='loss'"]),
        ({"minimize": ["loss", ""]}, ["minimize has ''", "minimize='loss'"]),
        ({"maximize": "loss"}, ["'loss'", "twice"]),
        ({"minimize": ["a/b", "a b"]}, ["'a/b'", "'a_b'", "another name"]),
        ({"minimize": "lr"}, ["'lr'", "parameter", "another name"]),
        ({"minimize": "trial"}, ["'trial'", "another name"]),
        ({"rounds": None}, ["no rounds", "rounds=3, trials=4"]),
        ({"trials": None}, ["no trials", "rounds=3, trials=4"]),
        ({"rounds": 0}, ["rounds is 0", "1 or more"]),
        ({"optimizer": "rndom"}, ["'rndom'", "'random'?", "module:function"]),
        ({"optimizer": "my module:function"}, ["'my module:function'", "module:function"]),
        (
            {"optimizer": "grid", "parameters": LR},
            ["is hpo.log(0.0001, 1.0),", ": hpo.log(0.0001, 1.0, points=5)"],
        ),
        ({"optimizer": "grid", "parameters": {"x": hpo.int(1, 9)}}, ["6 trials", "9 points", "Leave out"]),
        ({"parameters": {"x": hpo.float(0, 1)}, "trials": 10_000}, ["10000 trials", "65,536", "fewer"]),
    ],
)
def test_wrong_arguments(arguments: Any, facts: list[str]) -> None:
    with pytest.raises(AppDefError, match=says(*facts)):
        searching(**{"parameters": LR, **arguments})


@pytest.mark.parametrize(
    ("space", "arguments", "facts"),
    [
        (hpo.float, (1, 1), ["hpo.float(1, 1)", "below high"]),
        (hpo.float, ("a", 1), ["hpo.float('a', 1)", "not numbers"]),
        (hpo.float, (0, 10**400), ["0000)", "finite"]),
        (hpo.float, (0, math.nan), ["nan", "finite"]),
        (hpo.choice, (1, 10**400), ["0000)", "2**53"]),
        (hpo.float, (True, 2), ["not numbers"]),
        (hpo.float, (0, math.inf), ["inf", "finite"]),
        (hpo.float, (-1.7e308, 1.7e308), ["1.7e+308", "finite"]),
        (hpo.log, (1.0, 0.5), ["hpo.log(1.0, 0.5)", "below high"]),
        (functools.partial(hpo.int, points=1), (1, 8), ["hpo.int(1, 8, points=1)", "2 or more"]),
        (hpo.log, (0, 1), ["hpo.log(0, 1) begins at 0", "above 0", ": hpo.float(0, 1)."]),
        (hpo.float, (0, 1, True), ["begins at 0", "above 0", ": hpo.float(0, 1)."]),
        (hpo.int, (1, 2.5), ["2.5", "hpo.int(1, 8)"]),
        (hpo.int, (0, 2**53 + 1), ["2**53", "logarithm"]),
        (hpo.int, (0, 8, True), ["begins at 0", "above 0", ": hpo.int(0, 8)."]),
        (hpo.choice, (), ["hpo.choice()", 'hpo.choice("relu", "gelu")']),
        (hpo.choice, ("a", 1), ["hpo.choice('a', 1)", "mixes types", "as text"]),
        (hpo.choice, ("a", None), ["None", "text, numbers or booleans"]),
        (hpo.choice, ("a", "a"), ["twice", "once"]),
        (hpo.choice, (1, math.nan), ["nan", "text"]),
        (hpo.choice, (1, 2**53 + 1), ["2**53", "text"]),
    ],
)
def test_wrong_spaces(space: Any, arguments: Any, facts: list[str]) -> None:
    with pytest.raises(AppDefError, match=says(*facts)):
        space(*arguments)
