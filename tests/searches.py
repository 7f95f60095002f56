"""Runs with a search, made up: its stages, and what they state."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.execution.report.runs import play
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.entries import add_entry

LR = {"type": "float", "bounds": [1e-4, 1.0], "log": True}
LAYERS = {"type": "int", "bounds": [1, 8], "log": False}
ACT = {"type": "choice", "values": ["relu", "gelu", "tanh"]}
PARAMETERS: Mapping[str, Mapping[str, Any]] = {"lr": LR, "layers": LAYERS, "act": ACT}
Values = Mapping[str, Any]


def draw(parameter: Mapping[str, Any], chance: random.Random) -> Any:
    """Return a value of the parameter."""
    if parameter["type"] == "choice":
        return chance.choice(parameter["values"])
    low, high = parameter["bounds"]
    value = math.exp(chance.uniform(math.log(low), math.log(high))) if parameter["log"] else chance.uniform(low, high)
    return round(value) if parameter["type"] == "int" else value


def loss(values: Values) -> dict[str, Any]:
    """Return the results of a trial with the parameters of ``PARAMETERS``."""
    found = 0.1 + (math.log10(values["lr"]) + 2) ** 2 / 10 + abs(values["layers"] - 4) / 20 + len(values["act"]) / 100
    return {"loss": found, "seconds": values["layers"] * 1.5}


def tell(
    name: str,
    trials: Sequence[tuple[Values, Values | None]],
    asked: Sequence[Values] = (),
    *,
    each: int = 4,
    rounds: int = 1,
    parameters: Mapping[str, Any] = PARAMETERS,
    objectives: Mapping[str, str] = {"loss": "minimize"},
    run_id: str = "run/trial-{round}/trial-{round}-{index}_1",
    seed: int | None = None,
) -> dict[str, Any]:
    """Return the statement of a search: the parameters and results of its trials, and what it asks for."""
    told = [
        {
            "round": number // each + 1,
            "index": number % each,
            "run_id": run_id.format(round=number // each + 1, index=number % each),
            "parameters": values,
            "results": results or {},
            "exit_code": 0 if results else 3,
            "failed": not results,
        }
        for number, (values, results) in enumerate(trials)
    ]
    definition = {"parameters": parameters, "objectives": objectives, "rounds": rounds, "trials": each}
    definition |= {"optimizer": "random", "seed": seed}
    number = math.ceil(len(trials) / each) + 1
    return {"name": name, "round": number, "definition": definition, "trials": told, "asked": asked, "state": None}


def stated(
    done: int,
    *,
    name: str = "search",
    run: str = "run",
    rounds: int = 3,
    each: int = 4,
    parameters: Mapping[str, Mapping[str, Any]] = PARAMETERS,
    objectives: Mapping[str, str] = {"loss": "minimize"},
    results: Callable[[Values], Values] = loss,
    failing: Sequence[int] = (),
) -> dict[str, Any]:
    """Return the statement of a search of which this number of rounds has ended. Trials are numbered from 0."""
    chance = random.Random(1)
    points = [{key: draw(it, chance) for key, it in parameters.items()} for _ in range(rounds * each)]
    return tell(
        name,
        [
            (values, None if place in failing else {key: results(values)[key] for key in objectives})
            for place, values in enumerate(points[: done * each])
        ],
        points[done * each : (done + 1) * each],
        each=each,
        rounds=rounds,
        parameters=parameters,
        objectives=objectives,
        run_id=f"{run}/trial-{{round}}/trial-{{round}}-{{index}}_1",
        seed=1,
    )


def play_search(folder: Path, *, ended: int | None = None, **options: Any) -> None:
    """Write the run of a search: each of its stages states it as it was then.

    Args:
        folder: the run's.
        ended: the number of rounds that have ended. Default: all.
        options: see ``stated``.
    """
    rounds, each = options.setdefault("rounds", 3), options.setdefault("each", 4)
    options["run"] = folder.name
    asking = [f"ask-{number}" for number in range(1, rounds + 1)] + ["best"]
    statements = [stated(done, **options) for done in range((rounds if ended is None else ended) + 1)]
    measure = options.get("results", loss)
    results = {
        trial["run_id"]: {**measure(trial["parameters"]), "exit_code": 0} if trial["results"] else {"exit_code": 3}
        for trial in statements[-1]["trials"]
    }
    names: list[str] = []
    base = folder.parent / "results"
    store = FsspecResultTracker(str(base)).store
    before = None
    for name, statement in zip(asking, statements, strict=False):
        run_id = f"{folder.name}/{name}/{name}_1"
        add_entry(store, run_id, {"search": {**statement, "before": before}})
        before = run_id
        number = statement["round"]
        names += [name, *(f"trial-{number}[{index}]" for index in range(each) if number < len(statements))]

    def result(number: int) -> Any:
        task, _, index = names[number].partition("[")
        return results.get(f"{folder.name}/{task}/{task}-{index[:-1]}_1", {})

    play(folder, names, result=result, pipeline="searching", tracker_base=str(base), parallel=each)
