"""The records of a run under its tracker base, or those that match a word."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torchx_kfp.common.text import listed, most_similar, printable
from torchx_kfp.contract.protocol import PodAttempt, superseded
from torchx_kfp.entrypoints.cli.display.printing import print_message
from torchx_kfp.errors import NotRecordedError, RefusedError, TorchxKfpError, UnknownRunError
from torchx_kfp.execution.pipeline.walk import LATEST, is_execution, matching_names, task_name
from torchx_kfp.execution.runs.record import RunRecord, cached_by_kfp, untracked
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker, is_replay
from torchx_kfp.tracking.store import pipeline_run, run_id_parts
from torchx_kfp.tracking.tracker import verify_there


def open_record_tracker(base: str) -> RecordTracker:
    """Open this tracker base.

    Raises:
        TrackerBaseError: the base is malformed, or a local one does not exist, which reading would not notice.
    """
    tracker = RecordTracker(base, patience=SHORT_PATIENCE)
    verify_there(tracker)
    return tracker


def parts(key: str) -> dict[str, str]:
    """Return the ``run``, ``stage`` and ``execution`` of an execution id; empty for other keys."""
    found = run_id_parts(key)
    return dict(zip(("run", "stage", "execution"), found, strict=True)) if found else {}


@dataclass(frozen=True)
class Selection:
    """The executions that a command line names.

    Attributes:
        name: the full name of the run, or of the part of a run.
        cached: those of earlier runs, which the run took from the cache.
    """

    name: str
    keys: tuple[str, ...]
    cached: frozenset[str] = frozenset()

    def run_of(self, key: str) -> str:
        """Return the pipeline run of an execution; for a cached one, the run that took it from the cache."""
        return pipeline_run(self.name if key in self.cached else key)


@dataclass(frozen=True)
class RunRecords:
    """The records of a run, or part of one, under a tracker base.

    Attributes:
        word: the run or execution id, or its beginning; for a run that was found, it begins with the full id.
        run: the found run; None if only the base is searched.
    """

    tracker: RecordTracker
    word: str
    run: RunRecord | None = None

    @property
    def base(self) -> str:
        """The tracker base."""
        return self.tracker.tracker_base

    @property
    def name(self) -> str:
        """The run's name on its host, with the part, or ""."""
        part = self.word.partition("/")[2]
        return "" if self.run is None else "/".join(filter(None, [self.run.name, part])) if self.run.name else ""

    @property
    def arguments(self) -> Mapping[str, Any]:
        """The known arguments of the run."""
        return {} if self.run is None else self.run.arguments

    @cached_property
    def _ended(self) -> dict[str, str]:
        ends = [] if self.run is None else [stage.last_end for stage in self.run.run.stages]
        return {end.execution_id: end.name for end in ends if end is not None and end.execution_id}

    @property
    def stages(self) -> Mapping[str, str]:
        """Names of finished stages by execution id, in table order; empty for an incomplete record."""
        return {} if self.run is None or self.run.corrupt else self._ended

    @cached_property
    def earlier(self) -> frozenset[str]:
        """The pods of superseded attempts: the pod that follows a lost one has another name."""
        if self.run is None or self.run.corrupt:
            return frozenset()
        pods, last = set[str](), set[str]()
        for stage in self.run.run.by_name.values():
            names = [PodAttempt.parse(attempt.started.pod_name).pod for attempt in stage.attempts]
            recorded = stage.last_end.execution_id if stage.last_end is not None else None
            pods |= {*names}
            last |= {PodAttempt.parse(recorded).pod} if recorded else {*names[-1:]}
        return frozenset(pods - last)

    def shown(self, run_id: str) -> str:
        """Return the name of an execution in tables and commands: RUN/STAGE, if the stage is known."""
        stage = self.stages.get(run_id)
        return run_id if stage is None or self.run is None else f"{self.run.run_id}/{stage}"

    def recorded(self, *, results: bool = False) -> set[str]:
        """Return the executions of the run, including cached ones, that have records, or results.

        If the run was not found and has no records, return those under the whole base.
        """

        def below(run: str | None) -> set[str]:
            return {*self.tracker.keys(run), *([] if results else self.tracker.run_ids(run))}

        if self.run is not None:
            runs = {self.run.run_id, *(run_id.partition("/")[0] for run_id in self._ended)}
            return {key for run in runs for key in below(run)}
        with contextlib.suppress(RefusedError):  # a run cannot have this name, such as '..'
            if found := below(pipeline_run(self.word)):
                return found
        return below(None)

    def choose(self, known: Collection[str] | None = None) -> Selection:
        """Find the executions of the run, or of the part of it. A known run may have no records.

        A part is the beginning of the rest of an execution id, or the name of stages in tables. Cached stages are
        named on stderr.

        Args:
            known: the execution ids to choose from. Default: ``recorded()``.

        Raises:
            UnknownRunError: no run matches, or several do.
        """
        known = sorted(self.recorded() if known is None else known)
        if not known and self.run is None:
            raise nothing(self.base, self.word)
        name, part = self._split(known)
        whole = f"{name}/{part}" if part else name
        rests = {key: key[len(name) + 1 :] for key in known if f"{key}/".startswith(f"{name}/")}
        cached = {key: key.partition("/")[2] for key in known if key in self._ended and key not in rests}
        rests |= cached
        if self.run is not None and not rests:
            if part:
                raise UnknownRunError(self.nothing_recorded(name))
            return Selection(self.word, ())
        chosen = [key for key, rest in rests.items() if not part or self._is_part(part, rest, self._ended.get(key))]
        # The execution of another stage, or of another run, may have the same name.
        exact = [key for key in chosen if part and (part == self._ended.get(key) or key == whole)]
        if self.run is None:  # stages that differ only in _ and - have no other names
            exact = exact or [key for key in chosen if rests[key].startswith(f"{part}/")]
        chosen = exact or chosen
        if self.run is not None and not (part and chosen) and (sentence := cached_by_kfp(self.run)):
            print_message(sentence)
        if not chosen:
            there = [self.shown(key) if key in self.stages else f"{name}/{rest}" for key, rest in rests.items()]
            raise self._unknown(there, name, part)
        taken = frozenset(cached.keys() & chosen)
        _say_cached(name, [key for key in chosen if key in taken])
        return Selection(whole, tuple(last_attempts(self.tracker, chosen, whole, self.stages, self.earlier)), taken)

    @staticmethod
    def _is_part(part: str, rest: str, stage: str | None) -> bool:
        inside = task_name(f"{part}/")
        of_stage = stage is not None and (is_execution(stage, part) or task_name(stage).startswith(inside))
        return task_name(f"{rest}/").startswith(inside) or of_stage

    def _split(self, known: Sequence[str]) -> tuple[str, str]:
        """Return the id of the pipeline run, and the rest of the word."""
        word = self.word.rstrip("/") or self.word
        runs = [self.run.run_id] if self.run is not None else list(dict.fromkeys(map(pipeline_run, known)))
        if exact := [run for run in runs if f"{word}/".startswith(f"{run}/")]:
            name = max(exact, key=len)
            return name, word[len(name) + 1 :]
        begin, _, part = word.partition("/")
        names = matching_names((begin == LATEST and _newest(self.tracker)) or begin, runs)
        if not names:
            raise self._unknown(runs)
        if len(names) > 1:
            end = "beginning" if names[0].startswith(begin) else "end"
            raise UnknownRunError(
                f"{begin!r} is the {end} of {len(names):,} runs under {self.base!r}: {listed(names)}. Give more of it."
            )
        return names[0], part

    def nothing_recorded(self, name: str) -> str:
        """Return the message that the run, or this part, has no records, and why."""
        part = self.word.removeprefix(name)
        run = titled(self.name.removesuffix(part), name)
        why = "" if self.run is None else cached_by_kfp(self.run) or untracked(self.run)
        return f"{run} has recorded nothing under {printable(self.base)}. {why}".rstrip()

    def _unknown(self, there: Sequence[str], name: str = "", part: str = "") -> UnknownRunError:
        """Return the error for an unknown run, or an unknown part of one.

        Args:
            there: the known runs, or the stages of the run.
            name: the run, if it is known.
            part: its unknown part.
        """
        whole, rests = f"{name}/{part}" if name else self.word, [key[len(name) + 1 :] for key in there]
        names = [*(rest.partition("/")[0] for rest in rests), *rests] if name else [LATEST, *there]
        # "latest" itself does not exist if there are only replays.
        near = most_similar(part or whole, [each for each in names if each != whole])
        hint = f" Did you mean {'/'.join(filter(None, [name, near]))!r}?" if near else ""
        return UnknownRunError(
            f"Nothing is recorded for {whole!r} under {self.base!r}.{hint} {'Stages' if name else 'Runs'} there: "
            f"{listed(there)}."
        )


def _say_cached(run: str, cached: Iterable[str]) -> None:
    """Print on stderr the run's cached stages, and the runs that recorded their results."""
    origins: dict[str, list[str]] = {}
    for key in cached:
        origins.setdefault(key.partition("/")[0], []).append(task_name(key.split("/")[1]))
    for origin, stages in origins.items():
        print_message(f"Cached in {printable(run)}: {listed(dict.fromkeys(stages), 20)}, from {printable(origin)}.")


def titled(name: str, run_id: str) -> str:
    """Return a run id for people, after the run's name on its host."""
    return printable(f"{name} ({run_id})" if name else run_id)


def nothing(base: str, run: str | None = None) -> TorchxKfpError:
    """Return the error for a base without results."""
    kind = NotRecordedError if run is None else UnknownRunError
    return kind(f"There are no results under {base!r}. Is it the tracker base that the pipeline ran with?")


def _newest(tracker: RecordTracker) -> str | None:
    """Return the pipeline run with the newest records."""
    times = tracker.last_written()
    # The times of S3 are whole seconds; the names of runs often have the time, too.
    ordered = sorted(times, key=lambda run: (times[run], run), reverse=True)
    return next((run for run in ordered if not is_replay(run)), None)


def last_attempts(
    tracker: RecordTracker, keys: Iterable[str], named: str, last: Collection[str] = (), earlier: Collection[str] = ()
) -> list[str]:
    """Return the execution ids without earlier attempts, which are named on stderr.

    They are in the order of ``last``; otherwise, stages are in the order of their first records.

    Args:
        named: the part of ids on the command line, or the base; an attempt that is named itself is kept.
        last: see ``earlier_attempts``.
        earlier: likewise.

    Raises:
        NotRecordedError: only earlier attempts have records.
    """
    keys = list(keys)
    written = _written(tracker, keys)
    left_out = _earlier(keys, written, last, earlier) - {named}
    if keys and left_out.issuperset(keys):
        raise NotRecordedError(
            f"The last attempts in {named!r} have recorded nothing. Earlier ones have: "
            f"{printable(listed(sorted(left_out)))}. Name one of them to see it."
        )
    if left_out:
        print_message(f"Left out, from earlier attempts: {printable(listed(sorted(left_out)))}.")
    places, first = {key: place for place, key in enumerate(last)}, dict[str, float]()
    for key in keys:
        stage = key.rpartition("/")[0]
        first[stage] = min(written.get(key, math.inf), first.get(stage, math.inf))

    def place(key: str) -> tuple[int, str, float, str]:
        return places.get(key, len(places)), pipeline_run(key), first[key.rpartition("/")[0]], key

    return sorted((key for key in keys if key not in left_out), key=place)


def earlier_attempts(
    tracker: RecordTracker, keys: Collection[str], last: Collection[str] = (), earlier: Collection[str] = ()
) -> set[str]:
    """Return the ids of superseded attempts: see ``superseded``.

    Args:
        last: the last attempts according to the run, even without records.
        earlier: the pods of earlier attempts according to the run.
    """
    return _earlier(keys, _written(tracker, keys), last, earlier)


def _earlier(
    keys: Iterable[str], written: Mapping[str, float], last: Collection[str], pods: Collection[str]
) -> set[str]:
    followed = superseded({**written, **dict.fromkeys(last, math.inf)})
    return {key for key in keys if key in followed or PodAttempt.parse(key).pod in pods}


def _written(tracker: RecordTracker, keys: Iterable[str]) -> dict[str, float]:
    """Return the times of the newest records of all executions of these runs."""
    runs = {key.partition("/")[0] for key in keys}
    return tracker.written(*runs) if len(runs) == 1 else tracker.written()
