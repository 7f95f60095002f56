"""Report the results of a search's trials to its optimizer, and ask it for the next ones.

The stages of a search between its loops run this module, in an image with torchx-kfp: ``ask-1``, ``ask-2`` and so on,
and ``best`` at the end. Their argument is JSON, ``{"name": ..., "definition": ...}``: see
``torchx_kfp.tracking.searches``. A stage reads the previous one as ``search``, and the trials for which that one asked
as ``trials``. It records the search with all trials so far, which the next stage reads. In addition,

- ``ask`` records the list ``trials``, which drives the next loop: the parameters of each trial by name;
- ``best`` records the parameters and objectives of the best trial, its execution id ``trial`` and, with several
  objectives, the list ``front`` of the trials that no other trial dominates.

Optimizers are named: see ``optimizers``.
"""

from __future__ import annotations

import copy
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from torchx_kfp.authoring.naming import output_name
from torchx_kfp.common.text import shown
from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried.storage import PATIENCE
from torchx_kfp.hpo.optimizers import OPTIMIZERS, ask_random
from torchx_kfp.tracking.record_tracker import RecordTracker
from torchx_kfp.tracking.run import current_run
from torchx_kfp.tracking.searches import Search, parse_search


def find_optimizer(name: str) -> Callable[..., tuple[list[dict[str, Any]], Any]]:
    """Load an optimizer's function: ``random``, ``grid``, ``ax``, or ``module:function`` of the image."""
    module, _, function = OPTIMIZERS.get(name, name).partition(":")
    try:
        return getattr(importlib.import_module(module), function)  # type: ignore[no-any-return]  # of any module
    except (ImportError, AttributeError) as error:
        sys.exit(
            f"torchx-kfp: optimizer={name!r} cannot be loaded: {error}. The image needs it, in a package or a "
            "folder in PYTHONPATH; the working directory does not count."
        )


def ask_for(definition: Any, told: Sequence[Any], state: Any, number: int) -> tuple[list[Any], Any]:
    """Ask the definition's optimizer for trials: see ``optimizers``."""
    # Copies, because an optimizer may change its arguments.
    given = copy.deepcopy((definition, told, state))
    asked, state = find_optimizer(definition["optimizer"])(*given, number)
    for trial in asked:
        if trial.keys() != definition["parameters"].keys():
            names = ", ".join(definition["parameters"])
            sys.exit(f"torchx-kfp: {definition['optimizer']} asks for {shown(trial)}, but the parameters are {names}.")
    # On KFP, collecting a loop without iterations fails.
    return asked[:number] or ask_random(definition, told, None, 1)[0], state


def tell(definition: Any, recorded: Any) -> tuple[dict[str, Any], str]:
    """Return a trial for the optimizer (objectives, exit code, whether it failed), and the reason of a failure."""
    objectives = {
        name: float(recorded[name])
        for name in definition["objectives"]
        # False for NaN, and for integers beyond the range of floats.
        if type(recorded.get(name)) in (int, float) and abs(recorded[name]) <= sys.float_info.max
    }
    code = recorded.get("exit_code", 0)
    if type(code) is not int:  # a result of the application with this name
        code = 0
    missing = [name for name in definition["objectives"] if name not in objectives]
    reason = f"exit code {code}" if code else ""
    if missing and not code:
        there = ", ".join(name for name in [*recorded][:20] if name != "exit_code")
        value = repr(recorded[missing[0]]) if missing[0] in recorded else f"missing, recorded {there or 'nothing'}"
        reason = f"{missing[0]} is {value}"
    return {"results": objectives, "exit_code": code, "failed": bool(reason)}, reason


def main(text: str) -> None:
    """Report results of trials to the optimizer, if any, and ask for the next ones or record the best one."""
    given = json.loads(text)
    definition = given["definition"]
    run = current_run()
    tracker = RecordTracker(os.environ[protocol.TRACKER_BASE], patience=PATIENCE)
    reads = protocol.decode_context(os.environ).parents
    stated = {"name": given["name"], "round": 1, "definition": definition, "trials": [], "asked": [], "state": None}
    reasons: list[str] = []
    ended: protocol.RunIds = ()
    if reads:
        before, ended = str(reads["search"]), reads.get("trials", ())
        known = tracker.record(before, "search").search
        if known is None:
            sys.exit(f"torchx-kfp: {before} has recorded no search")
        told, reasons = tell_all(known, ended, tracker)
        stated |= {"round": known.round + 1, "trials": told, "state": known.state, "before": before}
    search = parse_search(stated)
    best = search.best()
    if reasons and best is None:
        tracker.add(run.id, {"search": stated})
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
                run.add_metadata(front=front(search))
    if search.round <= search.rounds:
        asked, state = ask_for(definition, stated["trials"], search.state, definition["trials"])
        stated |= {"asked": asked, "state": state}
        run.add_metadata(trials=asked)
        results = {"round": search.round, **results}
        say(f"round {search.round} of {search.rounds}:", *asked)
    tracker.add(run.id, {"search": stated})
    run.put(results)


def front(search: Search) -> list[dict[str, Any]]:
    """Return the Pareto front as the list ``front``, with KFP's names of objectives."""
    return [
        {**it.parameters, **{output_name(name): it.results[name] for name in search.objectives}, "trial": it.run_id}
        for it in sorted(search.best_trials(), key=search.cost_of)
    ]


def tell_all(before: Search, ended: Sequence[str], tracker: RecordTracker) -> tuple[list[Any], list[str]]:
    """Return all trials so far, and the reasons of failures in the last round, whose trials have just ``ended``."""
    if len(ended) != len(before.asked):
        sys.exit(f"torchx-kfp: {len(before.asked)} trials were requested, but {len(ended)} ended")
    recorded = tracker.get_many(ended)
    told, reasons = [asdict(trial) for trial in before.trials], []
    for index, (trial, parameters) in enumerate(zip(ended, before.asked, strict=True)):
        result, reason = tell(before.definition, recorded.get(trial, {}))
        told.append({"round": before.round, "index": index, "run_id": trial, "parameters": parameters, **result})
        if reason:
            reasons.append(f"{trial}: {reason}")
    return told, reasons


def say(*words: object) -> None:
    """Write a line to the stage's log."""
    print("torchx-kfp:", *words, file=sys.stderr, flush=True)


def report(search: Search, ended: Sequence[str], reasons: Sequence[str]) -> None:
    """Report the failed trials of a round; exit if no trial has succeeded so far."""
    failed = "\n  ".join([f"{len(reasons)} of {len(ended)} trials of round {search.round - 1} failed:", *reasons])
    if search.best() is not None:
        say(failed)
        return
    run, *_, execution = ended[0].split("/")
    sys.exit(
        f"torchx-kfp: {failed}\nTheir logs: torchx-kfp logs {run}/{execution}\nTo try again, run "
        "the pipeline again; on KFP, with --no-cache, because its cache has these trials."
    )
