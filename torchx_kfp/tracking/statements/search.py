"""The progress of a search: its definition, the trials with their results, and what it asks for next.

Each stage of a search between its trials makes one statement (``torchx_kfp.hpo.ask``), and so does the last one::

    {"name": "search", "round": 2,
     "definition": {"parameters": {"lr": {"type": "float", "bounds": [0.0001, 1.0], "log": true},
                                   "layers": {"type": "int", "bounds": [1, 8], "log": false},
                                   "act": {"type": "choice", "values": ["relu", "gelu"]}},
                    "objectives": {"loss": "minimize"}, "rounds": 3, "trials": 4, "optimizer": "random", "seed": null},
     "trials": [{"round": 1, "index": 0, "run_id": "...", "parameters": {"lr": 0.1, "layers": 3, "act": "relu"},
                 "results": {"loss": 0.3}, "exit_code": 0, "failed": false}],
     "asked": [{"lr": 0.01, "layers": 2, "act": "gelu"}], "state": null}

A parameter with bounds may have ``points``, the number of its values in a grid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.tracking.statements.kinds import Kind


@dataclass(frozen=True)
class Trial:
    """A trial that has ended.

    Attributes:
        round: the round in which it ran, from 1 on.
        index: its place in the round, from 0 on.
        run_id: its run.
        parameters: the value of each parameter.
        results: its objectives. NaN and infinities are left out, as are those that it did not record.
        exit_code: the exit code of its application.
        failed: whether the optimizer was told that it failed: it did not exit with 0, or an objective is missing.
    """

    round: int
    index: int
    run_id: str
    parameters: Mapping[str, int | float | bool | str]
    results: Mapping[str, float]
    exit_code: int
    failed: bool


@dataclass(frozen=True)
class Search:
    """The progress of a search.

    Attributes:
        name: the name of the search.
        round: the round for which it asks; one more than there are rounds when the search has ended.
        parameters: the space of each parameter, as in the definition.
        objectives: ``"minimize"`` or ``"maximize"`` for each objective. The first one decides which trial is the best,
            the next one among equals.
        rounds: the number of rounds.
        trials: the trials of the rounds before this one, in the order in which they were asked for.
        asked: the parameters of each trial of this round. The last stage asks for none.
        definition: all that the search was asked to do.
    """

    name: str
    round: int
    parameters: Mapping[str, Mapping[str, Any]]
    objectives: Mapping[str, str]
    rounds: int
    trials: tuple[Trial, ...]
    asked: tuple[Mapping[str, int | float | bool | str], ...]
    definition: Mapping[str, Any] = field(default_factory=dict)


def _parse_trial(content: Mapping[str, Any]) -> Trial:
    return Trial(
        int(content["round"]),
        int(content["index"]),
        str(content["run_id"]),
        dict(content["parameters"]),
        {name: float(value) for name, value in content["results"].items()},
        int(content["exit_code"]),
        bool(content["failed"]),
    )


def _parse_space(content: Mapping[str, Any]) -> Mapping[str, Any]:
    space = dict(content)
    if "values" in space:
        space["values"] = list(space["values"])
    else:
        low, high = space["bounds"]
        space["bounds"] = [low + 0, high + 0]  # numbers; a TypeError otherwise
    return space


def _parse(content: Mapping[str, Any]) -> Search:
    definition = content["definition"]
    return Search(
        str(content["name"]),
        int(content["round"]),
        {name: _parse_space(space) for name, space in definition["parameters"].items()},
        {name: str(direction) for name, direction in definition["objectives"].items()},
        int(definition["rounds"]),
        tuple(_parse_trial(trial) for trial in content["trials"]),
        tuple(dict(asked) for asked in content["asked"]),
        dict(definition),
    )


#: What the search has done so far, for each run of one of its stages. The last statement of a stage counts.
SEARCH = Kind("search", _parse, lambda found: found[-1] if found else None)
