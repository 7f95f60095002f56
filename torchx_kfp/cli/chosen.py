"""The run that a command line means: among those under a tracker base, and those on this machine that have used it.

A run whose stages were cached has recorded nothing itself: its folder tells whose results it was given.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from torchx_kfp.cli.display.output import print_message
from torchx_kfp.errors import ArgumentError, MissingResultsError, TorchxKfpError, UnknownRunError
from torchx_kfp.text import listed, nearest, printable

if TYPE_CHECKING:
    from torchx_kfp.tracking import FsspecResultTracker

#: Runs of this machine that a message, or the search for the newest one, looks at.
_LOOKED_AT = 20


@dataclass(frozen=True)
class Chosen:
    """What a command line means: ``name`` is the run, or a part of one, in full, and ``keys`` are its run ids.

    ``cached`` are those that an earlier run has recorded -> what they would be called in this one.
    """

    name: str
    keys: tuple[str, ...]
    cached: Mapping[str, str] = field(default_factory=dict)


def choose(run: str, known: Collection[str], tracker: FsspecResultTracker, output_dir: str) -> Chosen:
    """The run ids that the user means.

    Args:
        run: a pipeline run, a run id, or the beginning or end of one: each of its names may be cut short, where that
            leaves one that fits. ``latest`` is the newest pipeline run.
        known: all run ids under the tracker base, sorted.
        tracker: of the base.
        output_dir: where runs on this machine have their folders, if there are any.

    Raises:
        UnknownRunError: there is none, or several fit.
    """
    from torchx_kfp.pipeline.names import LATEST, fitting

    base = tracker.tracker_base
    here = RunsHere(output_dir, base, frozenset(known))
    words = (run.rstrip("/") or run).split("/")
    runs = dict.fromkeys(_next(key, "") or "" for key in known)
    if words[0] == LATEST and LATEST not in runs:
        words[0] = _newest(tracker, here) or LATEST
    found = {key: key for key in known}
    for folder in fitting(words[0], list(here.folders)):
        found.update(here.handed_on(folder))
    done = ""
    for word in words:
        names = fitting(word, list(dict.fromkeys(filter(None, (_next(key, done) for key in found)))))
        if not names and not word and any(_next(key, done) == "" for key in found):
            names = [""]  # between the two slashes of an app handle
        if not names:
            raise _unknown("/".join(words), known, here, base)
        if len(names) > 1:
            end = "beginning" if names[0].startswith(word) else "end"
            raise UnknownRunError(
                f"{run!r} is the {end} of {len(names):,} runs under {base!r}: "
                f"{listed(done + name for name in names)}. Give more of it."
            )
        found = {key: real for key, real in found.items() if _next(key, done) == names[0]}
        done += f"{names[0]}/"
    cached = {real: key for key, real in found.items() if key != real}
    return Chosen(done[:-1], tuple(dict.fromkeys(found[key] for key in sorted(found))), cached)


def say_cached(chosen: Chosen) -> None:
    """Say on stderr which of the run's stages were cached, and whose results are shown for them."""
    origins: dict[str, list[str]] = {}
    for real, key in chosen.cached.items():
        origins.setdefault(real.partition("/")[0], []).append(key.split("/")[1])
    for origin, stages in origins.items():
        names = listed(dict.fromkeys(stages), 20)
        print_message(f"Cached in {printable(chosen.name.partition('/')[0])}: {names}, from {printable(origin)}.")


class RunsHere:
    """The runs on this machine, and what of a tracker base they have used.

    Args:
        output_dir: where their folders are.
        base: the tracker base.
        known: all run ids under it.
    """

    def __init__(self, output_dir: str, base: str, known: Collection[str]) -> None:
        self._output_dir = output_dir
        self._place = _place(base)
        self._known = known

    @cached_property
    def folders(self) -> Mapping[str, Path]:
        """By their names, the newest first."""
        from torchx_kfp.runs.history import find_runs

        try:
            return {folder.name: folder for folder in find_runs(self._output_dir)}
        except ArgumentError:  # there is no such folder
            return {}

    def handed_on(self, name: str) -> dict[str, str]:
        """What the run id of each cached stage would be in this run -> what it is, if its results are still there."""
        from torchx_kfp.runs.history import read_run

        try:
            record = read_run(self.folders[name])
        except (TorchxKfpError, OSError):
            return {}
        found: dict[str, str] = {}
        for stage in record.run.ends.values():
            run_id = stage.run_id or ""
            run, _, rest = run_id.partition("/")
            if run == record.run_id or run_id not in self._known or _place(stage.tracker_base or "") != self._place:
                continue
            # An execution of this run, or of a second earlier one, may have this name too.
            key = f"{record.run_id}/{rest}"
            found[f"{key}-of-{run}" if key in found or key in self._known else key] = run_id
        return found


def nothing(base: str, run: str | None = None) -> TorchxKfpError:
    """The error for a base that has no results at all."""
    kind = MissingResultsError if run is None else UnknownRunError
    return kind(f"There are no results under {base!r}. Is it the tracker base that the pipeline ran with?")


def _place(base: str) -> str:
    """The base in one spelling."""
    if base.startswith("file://"):
        base = base.removeprefix("file://")
    return base.rstrip("/") if "://" in base else os.path.realpath(os.path.expanduser(base))


def _newest(tracker: FsspecResultTracker, here: RunsHere) -> str | None:
    """The pipeline run that was written last, or was started later on this machine."""
    from torchx_kfp.runs.history import created
    from torchx_kfp.tracking.statements.kinds import run_id_of
    from torchx_kfp.tracking.stores.keys import PRIVATE

    times: dict[str, float] = {}
    for file in tracker.store.files():
        names = file.key.split("/")
        if names[0] == PRIVATE and len(names) < 4:
            continue
        run = (run_id_of(file.key) if names[0] == PRIVATE else file.key).partition("/")[0]
        times[run] = max(times.get(run, 0.0), file.modified)
    newest = max(times, key=times.__getitem__, default=None)
    for name, folder in list(here.folders.items())[:_LOOKED_AT]:
        if newest is not None and created(folder) <= times[newest]:
            break
        if here.handed_on(name):
            return name
    return newest


def _next(key: str, done: str) -> str | None:
    """The name that follows in the key; None where it has no more, or begins otherwise."""
    return key[len(done) :].partition("/")[0] if key.startswith(done) and len(key) >= len(done) else None


def _unknown(run: str, known: Iterable[str], here: RunsHere, base: str) -> UnknownRunError:
    """The error for a run that is not there: it names those that are, the most similar first."""
    from torchx_kfp.cli.bases import pipeline_run

    # Of a pipeline run that is there, its own stages are of more use than other runs.
    folder = f"{run.partition('/')[0]}/"
    inside = [key for key in known if key.startswith(folder)] if "/" in run else []
    there = inside or list(dict.fromkeys(map(pipeline_run, known)))
    if not inside:
        there += [name for name in list(here.folders)[:_LOOKED_AT] if name not in there and here.handed_on(name)]
    return UnknownRunError(
        f"Nothing is recorded of {run!r} under {base!r}. {'Run ids' if inside else 'Runs'} that are there: "
        f"{listed(nearest(run, there))}."
    )
