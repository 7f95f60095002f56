"""Tells an optimizer how the trials of a search ended, and asks it for the next ones.

The stages of a search between its loops run this program: ``ask-1``, ``ask-2`` and so on, and ``best`` at the end::

    python3 -c PROGRAM SEARCH

The optimizers here are ``random`` and ``grid``. For others, the image has torchx-kfp and runs ``torchx_kfp.hpo.ask``.

SEARCH is JSON: ``{"name": ..., "definition": ..., "fields": {objective: its name in the list front}}``, with the
definition that ``torchx_kfp.tracking.searches`` describes. A stage reads the stage before it as ``search``,
and the trials for which that one asked as ``trials``. It records a statement with all trials so far, which the next
stage reads, and

- ``ask`` the list ``trials``, which drives the next loop: the parameters of each trial by name;
- ``best`` the parameters and objectives of the best trial, its run id ``trial`` and, if there are several objectives,
  the list ``front`` of the trials that no other trial beats in every objective.

An optimizer is a function ``ask(definition, told, state, number)``, which returns the parameters of up to ``number``
trials and its next state. ``told`` are the trials so far, in the order in which it asked for them, and the states are
anything that JSON can represent, None at first.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from torchx_kfp.contract.carried.dominance import unbeaten
from torchx_kfp.contract.carried.shared import (
    RUNS,
    list_entries,
    read_json,
    read_results,
    say,
    write_record,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

#: The number of draws in which a random trial differs from all others, if the space has few points.
_DRAWS = 10_000


def number_of_digits(low: float, high: float, /) -> int:
    """Return the significant digits that a number between the bounds needs: six, more in a narrow range."""
    return min(17, 6 + max(0, int(math.log10(max(abs(low), abs(high)) / (high - low)))))


def place(space: Any, share: float, room: float = 0.0, /) -> Any:
    """Return the number at this share of the way from the lower bound to the upper one.

    Args:
        space: a parameter with bounds.
        share: 0 to 1.
        room: what the way has beyond the bounds. With 0.5, the first and the last whole number have as much of it as
            others.
    """
    if share in (0, 1):
        return space["bounds"][int(share)]
    low, high = space["bounds"][0] - room, space["bounds"][1] + room
    number = low ** (1 - share) * high**share if space["log"] else low * (1 - share) + high * share
    # Short numbers are the same text on each engine.
    number = round(number) if space["type"] == "int" else float(f"{number:.{number_of_digits(low, high)}g}")
    return max(space["bounds"][0], min(space["bounds"][1], number))


def points(space: Any, /) -> Any:
    """Return the values of a parameter in a grid."""
    if "values" in space:
        return space["values"]
    low, high = space["bounds"]
    if "points" not in space:
        return range(low, high + 1)
    shares = (index / (space["points"] - 1) for index in range(space["points"]))
    # A whole number that is nearest to two points is there once.
    return list(dict.fromkeys(place(space, share) for share in shares))


def ask_random(definition: Any, told: Sequence[Any], state: None, number: int, /) -> tuple[list[Any], None]:
    """Draw trials at random, which differ from all others."""
    seed = definition["seed"]
    # A stage that runs again with the same trials told draws the same ones. The text is what makes it differ.
    source = random.SystemRandom() if seed is None else random.Random(f"{seed} {len(told)}")
    known = [trial["parameters"] for trial in told]
    asked: list[Any] = []
    for draw in range(_DRAWS):
        drawn = {
            name: source.choice(space["values"])
            if "values" in space
            else place(space, source.random(), 0.5 if space["type"] == "int" else 0.0)
            for name, space in definition["parameters"].items()
        }
        if drawn not in known or (draw + 1 == _DRAWS and not asked):
            known.append(drawn)
            asked.append(drawn)
        if len(asked) == number:
            break
    return asked, None


def ask_grid(definition: Any, told: Sequence[Any], state: None, number: int, /) -> tuple[list[Any], None]:
    """Return the next points of the grid, in which the last parameter changes first."""
    spaces = definition["parameters"]
    grid = itertools.product(*map(points, spaces.values()))
    return [dict(zip(spaces, point)) for point in itertools.islice(grid, len(told), len(told) + number)], None  # noqa: B905


#: The optimizers that need only the standard library.
OPTIMIZERS: dict[str, Any] = {"random": ask_random, "grid": ask_grid}


def ask_for(definition: Any, told: Sequence[Any], state: Any, number: int, /) -> tuple[list[Any], Any]:
    """Ask the definition's optimizer for trials."""
    return OPTIMIZERS[definition["optimizer"]](definition, told, state, number)  # type: ignore[no-any-return]


def losses(definition: Any, trial: Any, /) -> list[float]:
    """Return a trial's objectives as numbers to be minimized."""
    return [
        trial["results"][name] * (1 if direction == "minimize" else -1)
        for name, direction in definition["objectives"].items()
    ]


def tell(definition: Any, recorded: Any, /) -> tuple[dict[str, Any], str]:
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


def front(definition: Any, trials: Sequence[Any], fields: Any, /) -> list[Any]:
    """Return the trials that no other trial beats, as items of the list ``front``."""
    best = (trials[index] for index in unbeaten([losses(definition, trial) for trial in trials]))
    return [
        {**one["parameters"], **{fields[name]: value for name, value in one["results"].items()}, "trial": one["run_id"]}
        for one in best
    ]


def describe(definition: Any, trial: Any, /) -> str:
    """Return a trial's objectives and parameters in a line."""
    return " ".join(f"{name}={value}" for part in ("results", "parameters") for name, value in trial[part].items())


def main(text: str, /, ask: Any = ask_for) -> None:
    """Tell the results of the trials, if there are any, and ask for the next ones, or record the best one.

    Args:
        text: SEARCH.
        ask: calls the search's optimizer.
    """
    import fsspec

    search = json.loads(text)
    definition = search["definition"]
    run_id = os.environ["TORCHX_JOB_ID"]
    reads = json.loads(os.environ.get("TORCHX_PARENT_RUN_IDS", "{}"))
    store, root = fsspec.core.url_to_fs(os.environ["TORCHX_TRACKER_BASE"])

    def add(name: str = "", **fields: Any) -> None:
        name = ".".join([name or f"{time.time_ns():019}-{os.urandom(4).hex()}", *fields])
        write_record(store, root, f"{RUNS}/{run_id}/{name}", json.dumps(fields))

    sources = [
        {"run_id": source, "artifact": None, "alias": alias}
        for alias, ids in reads.items()
        for source in ([ids] if type(ids) is str else ids)
    ]
    started = {"time": time.time(), "host": os.uname().nodename, "image": os.environ.get("TORCHX_KFP_IMAGE")}
    add("0-start", **({"sources": sources} if sources else {}), started=started)

    before: Any = {"round": 0, "trials": [], "asked": [], "state": None}
    if reads:
        before = read_json(store, list_entries(store, root, reads["search"], "search")[-1])["search"]
    ended = reads.get("trials", [])
    reasons = tell_all(definition, before, ended, lambda trial: read_results(store, f"{root}/{trial}"))
    told = before["trials"]
    good = sorted((trial for trial in told if not trial["failed"]), key=lambda trial: losses(definition, trial))
    number = before["round"] + 1
    statement = {"name": search["name"], "round": number, "definition": definition, "trials": told}
    if reasons:
        if not good:
            add(search={**statement, "asked": [], "state": before["state"]})
        report(before["round"], ended, reasons, good)
    results = {}
    lists = {}
    if good:
        say(f"best of {len(told)} trials: {describe(definition, good[0])} ({good[0]['run_id']})")
        results = good[0]["results"]
    asked: list[Any] = []
    state = before["state"]
    if number > definition["rounds"]:
        results = {**good[0]["parameters"], **results, "trial": good[0]["run_id"]}
        if len(definition["objectives"]) > 1:
            lists["front"] = front(definition, good, search["fields"])
    else:
        asked, state = ask(definition, told, state, definition["trials"])
        lists["trials"] = asked
        results = {"round": number, **results}
        say(f"round {number} of {definition['rounds']}:", *asked)
    add(search={**statement, "asked": asked, "state": state})
    if lists:
        add(metadata=lists)
    write_record(store, root, run_id, json.dumps(results))


def tell_all(definition: Any, before: Any, ended: Sequence[str], read: Any, /) -> list[str]:
    """Add the trials that have ended to those before them; return the reasons of failures.

    Args:
        definition: the search's.
        before: the statement of the stage before this one.
        ended: the run ids of the trials for which it asked.
        read: returns the results of a run.
    """
    if len(ended) != len(before["asked"]):
        sys.exit(f"torchx-kfp: {len(before['asked'])} trials were asked for, but {len(ended)} ended")
    with ThreadPoolExecutor(16) as pool:
        recorded = list(pool.map(read, ended))
    reasons = []
    for index, (trial, parameters) in enumerate(zip(ended, before["asked"])):  # noqa: B905 (Python 3.8)
        result, reason = tell(definition, recorded[index])
        known = {"round": before["round"], "index": index, "run_id": trial, "parameters": parameters}
        before["trials"].append({**known, **result})
        if reason:
            reasons.append(f"{trial}: {reason}")
    return reasons


def report(number: int, ended: Sequence[str], reasons: Sequence[str], good: Sequence[Any], /) -> None:
    """Say which trials of a round failed; end the program if no trial so far is good."""
    failed = f"failed: {'; '.join(reasons)}"
    if len(reasons) == len(ended):
        failed = "\n  ".join([f"all {len(ended)} trials of round {number} failed:", *reasons])
    if good:
        say(failed)
        return
    run, *_, execution = ended[0].split("/")
    sys.exit(
        f"torchx-kfp: {failed}\nTheir logs: torchx-kfp logs {run} {execution}\nTo try again, start a new run: "
        "--resume keeps these trials, and so does KFP's cache, unless you give --no-cache."
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
