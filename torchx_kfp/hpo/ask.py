"""Tell an optimizer how the trials of a search ended, and ask it for the next ones.

The stages of a search between its loops run this module, in an image with torchx-kfp: ``ask-1``, ``ask-2`` and so on,
and ``best`` at the end. Their argument is JSON: ``{"name": ..., "definition": ..., "fields": {objective: its name in
the list front}}``, with the definition that ``torchx_kfp.tracking.searches`` describes. A stage reads the stage before
it as ``search``, and the trials for which that one asked as ``trials``. It records the search with all trials so far,
which the next stage reads, and

- ``ask`` the list ``trials``, which drives the next loop: the parameters of each trial by name;
- ``best`` the parameters and objectives of the best trial, its run id ``trial`` and, if there are several objectives,
  the list ``front`` of the trials that no other trial beats in every objective.

Optimizers are found by name: see ``optimizers``. Answers of those that are not in this package are checked.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchx_kfp.common.text import describe_unknown, did_you_mean, shown
from torchx_kfp.contract import protocol
from torchx_kfp.errors import SearchError
from torchx_kfp.hpo.optimizers import OPTIMIZERS, ask_random
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.run import current_run
from torchx_kfp.tracking.searches import Search, parse_search

#: Of a range: how far beyond a bound rounding may carry a number, such as 10 ** math.log10(bound).
_ROUNDING = 1e-9

Optimizer = Callable[[Mapping[str, Any], Sequence[Any], Any, int], tuple[list[dict[str, Any]], Any]]


def ask_other(
    definition: Mapping[str, Any], told: Sequence[Any], state: Any, number: int
) -> tuple[list[dict[str, Any]], Any]:
    """Ask the definition's optimizer for trials: see ``optimizers``."""
    name = definition["optimizer"]
    # An optimizer may change what it is given: it gets copies, because what was recorded is the search's own.
    answer = find_optimizer(name)(*copy.deepcopy((definition, told, state)), number)
    if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[0], list):
        raise SearchError(
            f"{name} returns {shown(answer)}. Return a list with the parameters of each trial, and the next state: "
            "return trials, state."
        )
    asked, state = answer
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise SearchError(f"{name} returns a state that JSON cannot represent: {error}.") from None
    return [_check(name, definition["parameters"], trial) for trial in asked], state


def find_optimizer(name: str) -> Optimizer:
    """Return the function of an optimizer: ``ax``, or ``module:function``."""
    module, _, function = name.partition(":")
    if not function:
        module, function = f"torchx_kfp.hpo.{name}.optimizer", "ask"
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module}.".startswith(f"{missing}."):
            raise SearchError(f"optimizer={name!r} cannot be imported: {error}") from None
        raise SearchError(
            f"optimizer={name!r}: the image has no module {missing!r}.{_similar_module(missing)} Install it in the "
            "image, or name its folder in PYTHONPATH; the working directory does not count."
        ) from None
    except ImportError as error:
        raise SearchError(f"optimizer={name!r} cannot be imported: {error}") from None
    functions = [each for each, value in vars(found).items() if callable(value) and not each.startswith("_")]
    if not callable(getattr(found, function, None)):
        raise SearchError(
            f"optimizer={name!r}: {describe_unknown(f'The module {module!r}', 'function', function, functions)}"
        )
    return getattr(found, function)  # type: ignore[no-any-return]


def _similar_module(missing: str) -> str:
    """Return a sentence that suggests a module of the same package."""
    package, _, _name = missing.rpartition(".")
    path = getattr(importlib.import_module(package), "__path__", []) if package else None
    prefix = f"{package}." if package else ""
    return did_you_mean(missing, (f"{prefix}{each.name}" for each in pkgutil.iter_modules(path)))


def _check(name: str, spaces: Mapping[str, Any], trial: Any) -> dict[str, Any]:
    """Return a trial for which an optimizer asks, with all values in their space."""
    if not isinstance(trial, Mapping) or trial.keys() != spaces.keys():
        raise SearchError(f"{name} asks for {shown(trial)}, but the parameters are {', '.join(spaces)}.")
    values = {}
    for parameter, space in spaces.items():
        given = trial[parameter]
        if "values" in space:
            there = f"one of {shown(space['values'])}"
            same = [
                each for each in space["values"] if each == given and isinstance(each, bool) == isinstance(given, bool)
            ]
        else:
            low, high = space["bounds"]
            is_int = space["type"] == "int"
            there = f"a {'whole ' if is_int else ''}number from {low} to {high}"
            room = 0 if is_int else _ROUNDING * (high - low)
            is_number = isinstance(given, int if is_int else (int, float)) and not isinstance(given, bool)
            same = [max(low, min(high, given))] if is_number and low - room <= given <= high + room else []
        if not same:
            raise SearchError(f"{name} asks for {parameter}={shown(given)}, but {parameter} is {there}.")
        values[parameter] = same[0]
    return values


def ask_for(definition: Any, told: Sequence[Any], state: Any, number: int) -> tuple[list[Any], Any]:
    """Ask the definition's optimizer for trials."""
    if definition["optimizer"] in OPTIMIZERS:
        return OPTIMIZERS[definition["optimizer"]](definition, told, state, number)  # type: ignore[no-any-return]
    try:
        asked, state = ask_other(definition, told, state, number)
    except SearchError as error:
        sys.exit(f"torchx-kfp: {error}")
    # KFP fails a loop without iterations whose runs are collected.
    return asked[:number] or ask_random(definition, told, None, 1)[0], state


def tell(definition: Any, recorded: Any) -> tuple[dict[str, Any], str]:
    """Return a trial for the optimizer (objectives, exit code, whether it failed), and the reason of its failure.

    Args:
        definition: the search's.
        recorded: the trial's results.
    """
    objectives = {
        name: float(recorded[name])
        for name in definition["objectives"]
        # NaN compares as False, and whole numbers may be larger than any float.
        if type(recorded.get(name)) in (int, float) and abs(recorded[name]) <= sys.float_info.max
    }
    code = recorded.get("exit_code", 0)
    if type(code) is not int:  # an application's own result of this name
        code = 0
    missing = [name for name in definition["objectives"] if name not in objectives]
    reason = f"exit code {code}" if code else ""
    if missing and not code:
        there = ", ".join(name for name in [*recorded][:20] if name != "exit_code")
        value = repr(recorded[missing[0]]) if missing[0] in recorded else f"missing, recorded {there or 'nothing'}"
        reason = f"{missing[0]} is {value}"
    return {"results": objectives, "exit_code": code, "failed": bool(reason)}, reason


def main(text: str) -> None:
    """Tell the results of the trials, if there are any, and ask for the next ones, or record the best one.

    Args:
        text: see the module.
    """
    given = json.loads(text)
    definition = given["definition"]
    run = current_run()
    recorder = Recorder.open(os.environ[protocol.TRACKER_BASE])
    reads = protocol.decode(os.environ).parents
    stated = {"name": given["name"], "round": 1, "definition": definition, "trials": [], "asked": [], "state": None}
    reasons: list[str] = []
    ended: protocol.RunIds = ()
    if reads:
        before, ended = str(reads["search"]), reads.get("trials", ())
        known = recorder.record(before, "search").search
        if known is None:
            sys.exit(f"torchx-kfp: {before} has recorded no search")
        told, reasons = tell_all(known, ended, recorder)
        stated |= {"round": known.round + 1, "trials": told, "state": known.state, "before": before}
    search = parse_search(stated)
    best = search.best()
    if reasons and best is None:
        recorder.add(run.id, {"search": stated})
    if reasons:
        report(search, ended, reasons)
    results: dict[str, Any] = {}
    if best is not None:
        shown_best = " ".join(f"{name}={value}" for name, value in {**best.results, **best.parameters}.items())
        say(f"best of {len(search.trials)} trials: {shown_best} ({best.run_id})")
        results = dict(best.results)
        if search.round > search.rounds:
            results = {**best.parameters, **results, "trial": best.run_id}
            if len(search.objectives) > 1:
                run.add_metadata(front=front(search, given["fields"]))
    if search.round <= search.rounds:
        asked, state = ask_for(definition, stated["trials"], search.state, definition["trials"])
        stated |= {"asked": asked, "state": state}
        run.add_metadata(trials=asked)
        results = {"round": search.round, **results}
        say(f"round {search.round} of {search.rounds}:", *asked)
    recorder.add(run.id, {"search": stated})
    run.put(results)


def front(search: Search, fields: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the best trials of several objectives as items of the list ``front``."""
    return [
        {**it.parameters, **{fields[name]: it.results[name] for name in search.objectives}, "trial": it.run_id}
        for it in sorted(search.best_trials(), key=search.cost_of)
    ]


def tell_all(before: Search, ended: Sequence[str], recorder: Recorder) -> tuple[list[Any], list[str]]:
    """Return all trials so far, and why those of the last round have failed that did.

    Args:
        before: what the stage before this one recorded.
        ended: the run ids of the trials for which it asked.
        recorder: the records of all of them.
    """
    if len(ended) != len(before.asked):
        sys.exit(f"torchx-kfp: {len(before.asked)} trials were asked for, but {len(ended)} ended")
    recorded = recorder.get_many(ended)
    told, reasons = [asdict(trial) for trial in before.trials], []
    for index, (trial, parameters) in enumerate(zip(ended, before.asked, strict=True)):
        result, reason = tell(before.definition, recorded[trial])
        told.append({"round": before.round, "index": index, "run_id": trial, "parameters": parameters, **result})
        if reason:
            reasons.append(f"{trial}: {reason}")
    return told, reasons


def say(*words: object) -> None:
    """Write a line to the stage's log."""
    print("torchx-kfp:", *words, file=sys.stderr, flush=True)


def report(search: Search, ended: Sequence[str], reasons: Sequence[str]) -> None:
    """Say which trials of a round failed; end the program if no trial so far is good."""
    failed = f"failed: {'; '.join(reasons)}"
    if len(reasons) == len(ended):
        failed = "\n  ".join([f"all {len(ended)} trials of round {search.round - 1} failed:", *reasons])
    if search.best() is not None:
        say(failed)
        return
    run, *_, execution = ended[0].split("/")
    sys.exit(
        f"torchx-kfp: {failed}\nTheir logs: torchx-kfp logs {run}/{execution}\nTo try again, start a new run: "
        "--resume keeps these trials, and so does KFP's cache, unless you give --no-cache."
    )
