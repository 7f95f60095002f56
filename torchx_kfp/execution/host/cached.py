"""Find the run ids of stages that KFP took from its cache, whose results an earlier run has recorded.

KFP's API does not say from which run a cached stage came. But whoever reads it was given its run id: KFP's driver has
resolved the inputs of each stage that runs. A reader that is cached as well has recorded what it was given at its own
start, under the run id that its own readers were given.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from torchx_kfp.contract.command import decode
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.execution.pipeline.inputs import UNKNOWN, inputs_of_iteration, inputs_of_stage, resolve
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command
from torchx_kfp.execution.pipeline.spec import FinalStatus, FromTask
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The run ids that stages were given, by their own run ids, and by alias.
Parents: TypeAlias = Mapping[str, Mapping[str, Collection[str]]]


def cached_run_ids(
    places: Collection[ScopedTask],
    ends: Mapping[str, StageResult],
    given: Mapping[str, Mapping[str, Any]],
    read: Callable[[Mapping[str, Collection[str]]], Parents],
) -> dict[str, str]:
    """Return the run ids of cached stages, by the stages' names, as far as stages read them.

    Args:
        places: the tasks of the pipeline.
        ends: how its stages have ended, by their names.
        given: the inputs of the stages that have run, by their names.
        read: returns what stages have recorded that they were given, for their run ids by tracker base.
    """
    reads = _Reads(places, ends)
    known = {name: end.execution_id for name, end in ends.items() if end.execution_id and name in reads.tracked}
    wanted = {name for name, end in ends.items() if end.state is State.CACHED and name in reads.tracked} - known.keys()
    found: dict[str, str] = {}

    def take(names: Sequence[str], value: object) -> None:
        run_ids = value if isinstance(value, list) else [value]
        for name, run_id in zip(names, run_ids, strict=True) if len(names) == len(run_ids) else ():
            if name in wanted and str(run_id).split("/")[1:-1] == [reads.tracked[name].decoded.stage]:
                found[name] = str(run_id)

    for stage, inputs in given.items():
        for names, value in reads.of_inputs(stage, inputs):
            take(names, value)
    wanted -= found.keys()
    known |= found
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
        if not found.keys() & wanted:
            break
        wanted -= found.keys()
        known |= found
    return found


class _Reads:
    """Which stages were given the run ids of which others, by the names of the stages in place of their run ids."""

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
        """Yield the names of the stages whose run ids an input of a stage may have, and its value."""
        for name, value in self._inputs(self._stages[without_indices(stage)], indices_of(stage)).items():
            names = value if isinstance(value, list) else [value]
            if name in inputs and all(isinstance(each, str) for each in names):
                yield names, inputs[name]

    def of(self, stage: str) -> dict[str, list[str]]:
        """Return, by alias, the names of the stages whose run ids an execution of a stage was given."""
        place = self.tracked[stage]
        values = inputs_of_stage(place.task, place.component, self._inputs(place, indices_of(stage)))
        known = {name: value for name, value in values.items() if value is not UNKNOWN}
        words = place.component.container.words if place.component.container is not None else ()
        reads = decode(resolve_command(words, PlaceholderValues(parameters=known))).reads
        return {alias: [names] if isinstance(names, str) else list(names) for alias, names in reads.items()}

    def _inputs(self, place: ScopedTask, indices: tuple[int, ...]) -> Mapping[str, Any]:
        """Return the inputs of a task in this iteration, with the names of stages in place of their run ids."""
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
        """Yield the tracked stages whose run id an output of a task is: one, or one of each branch."""
        if place.component.dag is None:
            if output == RUN_ID and place.is_tracked:
                yield place
            return
        for task, name in place.component.dag.outputs.get(output, ()):
            yield from self._made_by(self._by_path[f"{place.path}/{task}"], name)
