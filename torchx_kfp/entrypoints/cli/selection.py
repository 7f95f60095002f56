"""Choose the run ids under a tracker base that a word means.

Runs are looked up under the base, and among the runs on this machine that have used it. A run whose stages were cached
has not recorded anything itself: its folder has the run ids of the results that it was given.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_kfp.common.text import LISTED, UUID, counted, did_you_mean_path, listed, most_similar, nearest, printable
from torchx_kfp.contract.protocol import superseded
from torchx_kfp.entrypoints.cli.display.printing import print_message, say_left_out
from torchx_kfp.errors import (
    ArgumentError,
    CorruptResultError,
    MissingResultsError,
    TorchxKfpError,
    TrackerBaseError,
    UnknownRunError,
)

if TYPE_CHECKING:
    from torchx_kfp.entrypoints.cli.resolver import Located
    from torchx_kfp.tracking import Result
    from torchx_kfp.tracking.recorder import Recorder

#: The number of runs on this machine that a message, or the search for the newest run, considers.
_LOOKED_AT = 20


def open_recorder(base: str) -> Recorder:
    """Open this tracker base.

    Raises:
        TrackerBaseError: the base is malformed, or a local one does not exist.
    """
    from torchx_kfp.tracking.recorder import Recorder

    recorder = Recorder.open(base)
    verify_exists(
        recorder,
        "A tracker base is a directory, or a URL such as s3://bucket/results: the one that the pipeline ran with.",
    )
    return recorder


def verify_exists(recorder: Recorder, way_out: str) -> None:
    """Verify that a local store exists; reading itself would not fail.

    Args:
        recorder: any tracker base.
        way_out: the end of the message if no similar directory can be suggested.

    Raises:
        TrackerBaseError: its directory does not exist.
    """
    base, folder = recorder.tracker_base, recorder.folder
    if folder is None or os.path.isdir(folder):
        return
    wrong = f"{base!r} is not a directory" if os.path.lexists(folder) else f"There is no directory {base!r}"
    near = did_you_mean_path(base if os.path.abspath(base) == folder else folder)
    raise TrackerBaseError(f"{wrong}.{near or f' {way_out}'}")


def parts(key: str) -> dict[str, str]:
    """Return the ``run``, ``stage`` and ``execution`` in a run id; they are empty for another key."""
    from torchx_kfp.tracking.store import run_id_parts

    found = run_id_parts(key)
    return dict(zip(("run", "stage", "execution"), found, strict=True)) if found else {}


def read(recorder: Recorder, keys: Iterable[str]) -> dict[str, dict[str, Result]]:
    """Return the results of the keys. Files without results are named on stderr and left out."""
    corrupt: list[CorruptResultError] = []
    found = recorder.get_many(keys, corrupt=corrupt.append)
    for error in corrupt[:LISTED]:
        say_left_out(error)
    if len(corrupt) > LISTED:
        print_message(f"Also left out: {counted(len(corrupt) - LISTED, 'more file')} without results.")
    return found


def say_if_misplaced(base: str, keys: Collection[str]) -> None:
    """Say on stderr if a folder in the base, or the folder above it, is probably the base that was meant."""
    if any(parts(key) or ":/" in key for key in keys):
        return
    above, _, name = base.rstrip("/").rpartition("/")
    deep = {key.partition("/")[0] for key in keys if key.count("/") >= 3}
    if len(deep) == 1 and all(key.count("/") >= 3 for key in keys):
        folder = f"{base.rstrip('/')}/{deep.pop()}"
        print_message(f"There are no run ids of stages here. Did you mean the tracker base {printable(folder)}?")
    elif name and all(key.count("/") == 1 for key in keys):
        message = f"There are no run ids of stages here. If {name!r} is a pipeline run"
        print_message(f"{printable(message)}, the tracker base is {printable(above or '.')}.")


@dataclass(frozen=True)
class Chosen:
    """The run ids that a command line names.

    Attributes:
        name: the full name of the run, or of the part of a run.
        keys: its run ids.
        cached: the run ids that cached results would have in this run, by the run ids with which an earlier run has
            recorded them.
        labels: what is shown in place of run ids.
    """

    name: str
    keys: tuple[str, ...]
    cached: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def choose(located: Located, known: Collection[str], recorder: Recorder) -> Chosen:
    """Find the run ids of a run. Each part of its name may be cut short, as long as only one run matches.

    A run that was found and has recorded nothing has none.

    Args:
        located: a pipeline run, a run id, or the beginning or end of one. ``latest`` is the newest pipeline run.
        known: all run ids under the tracker base.
        recorder: the records under that base.

    Raises:
        UnknownRunError: no run matches, or several do.
    """
    from torchx_kfp.execution.pipeline.walk import LATEST, matching_names

    run, known = located.run or "", sorted(known)
    if not known and not located.is_found:
        raise nothing(located.base, run)
    base = recorder.tracker_base
    here = RunsHere(located.output_dir, base, frozenset(known))
    words = (run.rstrip("/") or run).split("/")
    runs = dict.fromkeys(_next(key, "") or "" for key in known)
    if words[0] == LATEST and LATEST not in runs:
        words[0] = _newest(recorder, here) or LATEST
    found = {key: key for key in known}
    found.update(_handed_on(words[0], located.taken_over, here.known))
    if not (located.is_found and located.run_ids):
        for folder in matching_names(words[0], list(here.folders)):
            found.update(here.handed_on(folder))
    if located.is_found and not any(key.startswith(f"{words[0]}/") for key in found):
        if len(words) > 1:
            raise UnknownRunError(nothing_recorded(located, words[0]))
        return Chosen(run, ())
    done = ""
    for word in words:
        names = matching_names(word, list(dict.fromkeys(filter(None, (_next(key, done) for key in found)))))
        if not names and not word and any(_next(key, done) == "" for key in found):
            names = [""]  # between the two slashes of an app handle
        if not names:
            raise _unknown("/".join(words), word, done, found, here, base)
        if len(names) > 1:
            end = "beginning" if names[0].startswith(word) else "end"
            raise UnknownRunError(
                f"{run!r} is the {end} of {len(names):,} runs under {base!r}: "
                f"{listed(done + name for name in names)}. Give a longer part of it."
            )
        found = {key: real for key, real in found.items() if _next(key, done) == names[0]}
        done += f"{names[0]}/"
    cached = {real: key for key, real in found.items() if key != real}
    keys = dict.fromkeys(found[key] for key in sorted(found))
    return Chosen(done[:-1], tuple(last_attempts(recorder, keys, done[:-1], located.run_ids)), cached)


def choose_run(located: Located, recorder: Recorder) -> str:
    """Find the pipeline run that a word means under a tracker base. The whole id on KFP may have recorded nothing yet.

    Raises:
        UnknownRunError: no run matches, or several do.
    """
    from torchx_kfp.execution.pipeline.walk import LATEST, matching_names
    from torchx_kfp.tracking.store import pipeline_run

    word, base = pipeline_run(located.run or ""), recorder.tracker_base
    if UUID.fullmatch(word):
        return word
    known = recorder.pipeline_runs()
    here = RunsHere(located.output_dir, base, frozenset(known))
    if word == LATEST and word not in known:
        word = _newest(recorder, here) or word
    names = matching_names(word, known)
    if len(names) == 1:
        return names[0]
    if names:
        raise UnknownRunError(
            f"{word!r} matches {len(names):,} runs under {base!r}: {listed(names)}. Give a longer part of it."
        )
    raise _unknown(word, word, "", known, here, base) if known else nothing(base, word)


def recorded(recorder: Recorder, located: Located | None = None) -> set[str]:
    """Return the run ids that have recorded anything.

    Args:
        recorder: the tracker base.
        located: the run that is looked for. If it was found, the rest of the base is not listed.
    """
    if located is None or not located.is_found:
        return {*recorder.keys(), *recorder.run_ids()}
    return {key for run in located.runs for key in (*recorder.keys(run), *recorder.run_ids(run))}


def nothing_recorded(located: Located, name: str, nothing: str = "nothing") -> str:
    """Return the sentence that a run has recorded nothing, or no results, and why.

    Args:
        located: the run, or a part of it.
        name: the run id of the run, or of the part.
        nothing: what it has recorded.
    """
    part = (located.run or "").removeprefix(name)
    run = titled(located.name.removesuffix(part), name)
    if located.cached:
        stages = printable(listed(located.cached, 20))
        return f"{run} has recorded {nothing}: {stages} came from KFP's cache, and KFP does not say from which run."
    return f"{run} has recorded {nothing} under {printable(located.base)}."


def say_nothing_recorded(located: Located, name: str, nothing: str = "nothing") -> None:
    """Say the same on stderr."""
    print_message(nothing_recorded(located, name, nothing))


def titled(name: str, run_id: str) -> str:
    """Return a run id for people, after the name that the run has on its host."""
    return printable(f"{name} ({run_id})" if name else run_id)


def say_cached(chosen: Chosen) -> None:
    """Say on stderr which stages of the run were cached, and which runs their results come from."""
    origins: dict[str, list[str]] = {}
    for real, key in chosen.cached.items():
        origins.setdefault(real.partition("/")[0], []).append(key.split("/")[1])
    for origin, stages in origins.items():
        names = listed(dict.fromkeys(stages), 20)
        print_message(f"Cached in {printable(chosen.name.partition('/')[0])}: {names}, from {printable(origin)}.")


class RunsHere:
    """The runs on this machine, and the results that they have reused from a tracker base.

    Args:
        output_dir: the directory with their folders.
        base: the tracker base.
        known: all run ids under it.
    """

    def __init__(self, output_dir: str, base: str, known: Collection[str]) -> None:
        self._output_dir = output_dir
        self._place = _place(base)
        self.known = known

    @cached_property
    def folders(self) -> Mapping[str, Path]:
        """The folders of runs by name, the newest first."""
        from torchx_kfp.execution.runs.history import find_runs

        try:
            return {folder.name: folder for folder in find_runs(self._output_dir)}
        except ArgumentError:  # there is no such directory
            return {}

    def handed_on(self, name: str) -> dict[str, str]:
        """Map the run id that each cached stage would have in this run to its real one, if that still has results."""
        from torchx_kfp.execution.runs.history import read_run

        try:
            record = read_run(self.folders[name])
        except (TorchxKfpError, OSError):
            return {}
        ends = record.run.ends.values()
        run_ids = [
            end.run_id or "" for end in ends if _place(record.absolute_base(end.tracker_base or "")) == self._place
        ]
        return _handed_on(record.run_id, run_ids, self.known)


def _handed_on(name: str, run_ids: Iterable[str], known: Collection[str]) -> dict[str, str]:
    """Map the run ids that stages of earlier runs would have in this run to those with which they have recorded."""
    found: dict[str, str] = {}
    for run_id in run_ids:
        run, _, rest = run_id.partition("/")
        if run == name or run_id not in known:
            continue
        # An execution of this run, or of a second earlier run, may have the same name.
        key = f"{name}/{rest}"
        found[f"{key}-of-{run}" if key in found or key in known else key] = run_id
    return found


def nothing(base: str, run: str | None = None) -> TorchxKfpError:
    """Return the error for a base without results."""
    kind = MissingResultsError if run is None else UnknownRunError
    return kind(f"There are no results under {base!r}. Is it the tracker base that the pipeline ran with?")


def _place(base: str) -> str:
    """Return the base in a form that can be compared."""
    if base.startswith("file://"):
        base = base.removeprefix("file://")
    return base.rstrip("/") if "://" in base else os.path.realpath(os.path.expanduser(base))


def _newest(recorder: Recorder, here: RunsHere) -> str | None:
    """Return the pipeline run that was written last, or one that was started later on this machine."""
    from torchx_kfp.execution.runs.history import created
    from torchx_kfp.tracking.recorder import REPLAY

    def is_replay(run: str) -> bool:
        # Only for these names, the records of the run are listed.
        return run.startswith(REPLAY) and bool(recorder.replays_among(recorder.run_ids(run)))

    times = recorder.last_written()
    # The times of S3 are whole seconds; the names of runs often have the time, too.
    ordered = sorted(times, key=lambda run: (times[run], run), reverse=True)
    newest = next((run for run in ordered if not is_replay(run)), None)
    for name, folder in list(here.folders.items())[:_LOOKED_AT]:
        if newest is not None and created(folder) <= times[newest]:
            break
        if here.handed_on(name):
            return name
    return newest


def _next(key: str, done: str) -> str | None:
    """Return the name in the key after ``done``; None if the key ends there or begins with something else."""
    return key[len(done) :].partition("/")[0] if key.startswith(done) and len(key) >= len(done) else None


def _unknown(run: str, word: str, done: str, found: Iterable[str], here: RunsHere, base: str) -> UnknownRunError:
    """Return the error for a missing run, which names the runs that exist, the most similar first.

    ``word`` is the part of ``run`` that does not exist, after the parts in ``done``, with which ``found`` begin.
    """
    from torchx_kfp.execution.pipeline.walk import LATEST, matching_names
    from torchx_kfp.tracking.store import pipeline_run

    executions: dict[str, str] = {}
    if done:
        # The pipeline run exists: its own stages help more than other runs.
        there = sorted(found)
        names = list(dict.fromkeys(filter(None, (_next(key, done) for key in there))))
        # The name of an execution without that of its stage.
        executions = {key.rpartition("/")[2]: key.removeprefix(done) for key in there}
    else:
        there = list(dict.fromkeys(map(pipeline_run, found)))
        there += [name for name in list(here.folders)[:_LOOKED_AT] if name not in there and here.handed_on(name)]
        names = [LATEST, *there]
    meant = matching_names(word, list(executions))
    # "latest" itself does not exist if there are only replays.
    near = executions[meant[0]] if len(meant) == 1 else most_similar(word, [name for name in names if name != word])
    return UnknownRunError(
        f"Nothing is recorded for {run!r} under {base!r}.{f' Did you mean {done + near!r}?' if near else ''} "
        f"{'Run ids' if done else 'Runs'} there: {listed(nearest(run, there))}."
    )


def last_attempts(recorder: Recorder, keys: Iterable[str], named: str, last: Collection[str] = ()) -> list[str]:
    """Return the run ids without those of earlier attempts, which are named on stderr.

    Args:
        recorder: the records under the tracker base.
        keys: the run ids.
        named: the part of run ids that the user has named, or the base; an attempt that is named itself is kept.
        last: see ``earlier_attempts``.

    Raises:
        MissingResultsError: only earlier attempts have recorded anything.
    """
    keys = list(keys)
    earlier = earlier_attempts(recorder, keys, last) & {*keys} - {named}
    if keys and earlier.issuperset(keys):
        raise MissingResultsError(
            f"The last attempts in {named!r} have recorded nothing. Earlier ones have: "
            f"{printable(listed(sorted(earlier)))}. Name one of them to see that."
        )
    if earlier:
        print_message(f"Left out, as those of earlier attempts: {printable(listed(sorted(earlier)))}.")
    return [key for key in keys if key not in earlier]


def earlier_attempts(recorder: Recorder, keys: Iterable[str], last: Collection[str] = ()) -> set[str]:
    """Return the run ids of attempts that other ones have followed: see ``superseded``.

    Args:
        recorder: the records under the tracker base.
        keys: run ids.
        last: the last attempts according to the run. They may have recorded nothing.
    """
    runs = {key.partition("/")[0] for key in keys}
    written = recorder.written(*runs) if len(runs) == 1 else recorder.written()
    return superseded({**written, **dict.fromkeys(last, math.inf)})
