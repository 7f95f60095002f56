"""Results of stages on KFP: find the ids of their executions, and read their records.

The nodes of a run name pods, but neither their UIDs nor the attempts in them, so ids of executions must be looked up.
Results are optional, and never worth a long wait.

KFP's API does not name the run that a cached stage came from. But each stage that reads it was given its execution's
id: KFP's driver has resolved the inputs of each stage that runs. A cached reader recorded them at its start, under the
    id that its own readers were given.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from torchx_kfp.common.text import printable, shorten
from torchx_kfp.contract.command import decode_command
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.protocol import PodAttempt
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.host.connection import within
from torchx_kfp.execution.pipeline.inputs import UNKNOWN, inputs_of_iteration, inputs_of_stage, resolve
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command
from torchx_kfp.execution.pipeline.spec import FinalStatus, FromTask
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, without_indices
from torchx_kfp.execution.runs.record import missing, why_not_read
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.record_tracker import SHORT_PATIENCE, RecordTracker

#: The execution ids that stages were given, by their own execution ids, and by alias.
Parents: TypeAlias = Mapping[str, Mapping[str, Collection[str]]]


def cached_execution_ids(
    places: Collection[ScopedTask],
    ends: Mapping[str, StageResult],
    given: Mapping[str, Mapping[str, Any]],
    read: Callable[[Mapping[str, Collection[str]]], Parents],
) -> dict[str, str]:
    """Return the execution ids of the cached stages that other stages read, by name.

    Args:
        ends: the results of its stages, by name.
        given: the inputs of the stages that ran, by name.
        read: returns the recorded parents of executions, whose ids it gets by tracker base.
    """
    reads = _Reads(places, ends)
    known = {name: end.execution_id for name, end in ends.items() if end.execution_id and name in reads.tracked}
    wanted = {name for name, end in ends.items() if end.state is State.CACHED and name in reads.tracked} - known.keys()
    execution_ids: dict[str, str] = {}

    def take(names: Sequence[str], value: object) -> None:
        run_ids = value if isinstance(value, list) else [value]
        for name, run_id in zip(names, run_ids, strict=True) if len(names) == len(run_ids) else ():
            if name in wanted and str(run_id).split("/")[1:-1] == [reads.tracked[name].decoded.stage]:
                execution_ids[name] = str(run_id)

    for stage, inputs in given.items():
        for names, value in reads.of_inputs(stage, inputs):
            take(names, value)
    wanted -= execution_ids.keys()
    known |= execution_ids
    asked = {name for name in given if name in known}
    while wanted:
        new = {name: reads.of(name) for name in known.keys() - asked}
        new = {name: parents for name, parents in new.items() if wanted & {*itertools.chain(*parents.values())}}
        asked |= known.keys()
        by_base: dict[str, list[str]] = {}
        for name in new:
            by_base.setdefault(reads.tracked[name].tracker_base or "", []).append(known[name])
        recorded = read(by_base) if new else {}
        for reader, parents in new.items():
            for alias, names in parents.items():
                take(names, [*recorded.get(known[reader], {}).get(alias, ())])
        if not execution_ids.keys() & wanted:
            break
        wanted -= execution_ids.keys()
        known |= execution_ids
    return execution_ids


class _Reads:
    """Which stages received which other stages' execution ids; a stage's name stands for its execution id."""

    def __init__(self, places: Collection[ScopedTask], ends: Mapping[str, StageResult]) -> None:
        self._by_path = {place.path: place for place in places}
        self._stages = {place.name: place for place in places if place.is_stage}
        #: A stage's executions that others could read, by its name without indices, and their first indices.
        self._executions: dict[tuple[str, tuple[int, ...]], list[str]] = {}
        for name in sorted((name for name, end in ends.items() if end.state.is_success), key=indices_of):
            indices = indices_of(name)
            for length in range(len(indices) + 1):
                self._executions.setdefault((without_indices(name), indices[:length]), []).append(name)
        #: The tracked stages, by the names of their executions.
        self.tracked = {
            name: place
            for name in ends
            if (place := self._stages.get(without_indices(name))) is not None and place.is_tracked
        }

    def of_inputs(self, stage: str, inputs: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
        """Yield the names of the stages whose execution ids an input of a stage may have, and its value."""
        for name, value in self._inputs(self._stages[without_indices(stage)], indices_of(stage)).items():
            names = value if isinstance(value, list) else [value]
            if name in inputs and all(isinstance(each, str) for each in names):
                yield names, inputs[name]

    def of(self, stage: str) -> dict[str, list[str]]:
        """Return, by alias, the names of the stages whose execution ids an execution received."""
        place = self.tracked[stage]
        values = inputs_of_stage(place.task, place.component, self._inputs(place, indices_of(stage)))
        known = {name: value for name, value in values.items() if value is not UNKNOWN}
        words = place.component.container.words if place.component.container is not None else ()
        reads = decode_command(resolve_command(words, PlaceholderValues(parameters=known))).reads
        return {alias: [names] if isinstance(names, str) else list(names) for alias, names in reads.items()}

    def _inputs(self, place: ScopedTask, indices: tuple[int, ...]) -> Mapping[str, Any]:
        """Return the inputs of a task in this iteration, with names of stages instead of their execution ids."""
        around, scope = place.inside, place.scope_inputs
        if around is not None:
            scope = self._inputs(around, indices)
            scope = scope if around.task.loop is None else inputs_of_iteration(around.task, around.component, scope)

        def output(source: FromTask | FinalStatus) -> Any:
            producer = self._by_path[f"{around.path}/{source.task}" if around is not None else source.task]
            made = [*self._made_by(producer, source.output)] if isinstance(source, FromTask) else []
            common = indices[: producer.loops]
            names = [name for stage in made for name in self._executions.get((stage.name, common), ())]
            if any(stage.loops > producer.loops for stage in made):  # it is collected
                return sorted(names, key=indices_of)
            return names[0] if len(names) == 1 else UNKNOWN

        return resolve(place.task, place.component, scope, output).values

    def _made_by(self, place: ScopedTask, output: str) -> Iterator[ScopedTask]:
        """Yield the tracked stages whose execution id is an output of a task: one, or one per branch."""
        if place.component.dag is None:
            if output == RUN_ID and place.is_tracked:
                yield place
            return
        for task, name in place.component.dag.outputs.get(output, ()):
            yield from self._made_by(self._by_path[f"{place.path}/{task}"], name)


_Result = TypeVar("_Result")
_NONE: Mapping[str, Sequence[str]] = {}
#: The execution id of each execution, by its name, and its results.
_Found: TypeAlias = Mapping[str, tuple[str, Mapping[str, Any]]]
#: The most seconds for reading a base, and the seconds before an unreadable base is read again.
DEADLINE, AGAIN = 10.0, 60.0


def find_execution_ids(
    tracker: RecordTracker, names: Iterable[str], earlier: Mapping[str, Sequence[str]] = _NONE
) -> dict[str, str]:
    """Return the full id of each execution ``<run>/<stage>/<pod>``: the one with the latest record.

    That is the last attempt with records in the last pod of this name. An execution
    without records keeps its name. Each run is listed once.

    Args:
        earlier: earlier executions of the same stages, in order, by these names. If an execution has no records, the
            last of these with records counts: a new launcher adopts the replicas of a lost one.
    """
    names = list(names)
    everything = (*names, *(each for name in names for each in earlier.get(name, ())))
    latest: dict[str, tuple[tuple[float, int], str]] = {name: ((0.0, 0), name) for name in everything}
    for run in dict.fromkeys(name.partition("/")[0] for name in latest):
        for run_id, modified in tracker.written(run).items():
            stage, _, execution = run_id.rpartition("/")
            parsed = PodAttempt.parse(execution)
            if (name := f"{stage}/{parsed.pod}") in latest:
                latest[name] = max(latest[name], ((modified, parsed.attempt), run_id))
    run_ids = {name: run_id for name, (_, run_id) in latest.items()}

    def counts(name: str) -> str:
        recorded = (each for each in (name, *reversed(earlier.get(name, ()))) if latest[each][0] > (0.0, 0))
        return run_ids[next(recorded, name)]

    return {name: counts(name) for name in names}


class ResultReader:
    """Reads the results of stages from tracker bases; ``problems`` has a message about each unreadable base."""

    def __init__(self, named_bases: Collection[str] = (), *, execution_ids_only: bool = False) -> None:
        """Create a reader with the user's tracker bases.

        With ``execution_ids_only``, results are left to the caller.
        """
        self._named_bases, self._run_ids_only = named_bases, execution_ids_only
        #: The time of the failure and a sentence, by unreadable base.
        self._failed: dict[str, tuple[float, str]] = {}

    @property
    def problems(self) -> tuple[str, ...]:
        """Messages about the bases that could not be read."""
        return tuple(sentence for _, sentence in self._failed.values())

    def read(self, base: str, names: Collection[str], earlier: Mapping[str, Sequence[str]] = _NONE) -> _Found:
        """Return the full id and results of each readable execution, by its name.

        ``earlier`` are earlier executions: see ``find_execution_ids``.
        """
        return self._ask(base, lambda: self._read(base, names, earlier)) or {} if names else {}

    def parents(self, by_base: Mapping[str, Collection[str]]) -> Parents:
        """Return the parents' ids of executions: see ``RecordTracker.parents``."""
        found: dict[str, Mapping[str, Collection[str]]] = {}
        for base, run_ids in by_base.items():
            found |= self._ask(base, partial(_parents, base, run_ids)) or {}
        return found

    def _ask(self, base: str, ask: Callable[[], tuple[_Result, str]]) -> _Result | None:
        """Return the value of ``ask``, or None; the second item says what was unreadable."""
        failed_at = self._failed[base][0] if base in self._failed else -AGAIN
        if time.monotonic() - failed_at < AGAIN:
            return None
        found: _Result | None = None
        if not (why := why_not_read(base, self._named_bases)):
            try:
                found, why = within(DEADLINE, ask)
            except TimeoutError:
                why = f"it has not answered within {DEADLINE:g} s"
            except Exception as error:  # a driver of fsspec, or a library below it, raises its own
                why = str(error) if isinstance(error, TorchxKfpError) else f"{type(error).__name__}: {error}"
        self._failed.pop(base, None)
        if why:
            # The rest of a readable base can be read again at once.
            self._failed[base] = (
                time.monotonic() if found is None else -AGAIN,
                missing(base, shorten(printable(why), 400).rstrip(".")),
            )
        return found

    def _read(self, base: str, names: Collection[str], earlier: Mapping[str, Sequence[str]]) -> tuple[_Found, str]:
        tracker = RecordTracker(base, patience=SHORT_PATIENCE)
        run_ids = find_execution_ids(tracker, names, earlier)
        if self._run_ids_only:
            return {name: (run_id, {}) for name, run_id in run_ids.items()}, ""
        results = tracker.get_many(run_ids.values())
        found = {name: (run_id, results[run_id]) for name, run_id in run_ids.items() if run_id in results}
        return found, next(map(str, results.problems), "")


def _parents(base: str, run_ids: Collection[str]) -> tuple[Parents, str]:
    return RecordTracker(base, patience=SHORT_PATIENCE).parents(run_ids), ""
