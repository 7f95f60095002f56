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
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command
from torchx_kfp.execution.pipeline.spec import FromInput, FromTask, Origin
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
    known = {name: end.run_id for name, end in ends.items() if end.run_id and name in reads.tracked}
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
        #: The ends of a stage's executions that others could read, by its name without indices.
        self._executions: dict[str, list[str]] = {}
        for name, end in ends.items():
            if end.state.is_success:
                self._executions.setdefault(without_indices(name), []).append(name)
        #: The tracked stages, by the names of their executions.
        self.tracked = {
            name: place
            for name in ends
            if (place := self._stages.get(without_indices(name))) is not None and place.is_tracked
        }

    def of_inputs(self, stage: str, inputs: Mapping[str, Any]) -> Iterator[tuple[list[str], Any]]:
        """Yield the names of the stages whose run ids an input of a stage has, and its value."""
        place = self._stages[without_indices(stage)]
        for name, origin in place.task.inputs.items():
            if name in inputs and (names := self._origin(place.inside, origin, indices_of(stage))):
                yield names, inputs[name]

    def of(self, stage: str) -> dict[str, list[str]]:
        """Return, by alias, the names of the stages whose run ids an execution of a stage was given."""
        place = self.tracked[stage]
        container = place.component.container
        values: dict[str, Any] = dict(place.inputs)
        for name, origin in place.task.inputs.items():
            if name not in values:
                names = self._origin(place.inside, origin, indices_of(stage))
                is_list = name in place.component.inputs and place.component.inputs[name].type == "LIST"
                if is_list:  # without it, nothing could be read of the command
                    values[name] = names or []
                elif len(names) == 1:
                    values[name] = names[0]
        reads = (
            decode(resolve_command(container.words, PlaceholderValues(parameters=values))).reads if container else {}
        )
        return {alias: [names] if isinstance(names, str) else list(names) for alias, names in reads.items()}

    def _origin(self, around: ScopedTask | None, origin: Origin | None, indices: tuple[int, ...]) -> list[str]:
        """Return the stages whose run ids an input of a task is, which is in this loop, branch or nested pipeline."""
        if isinstance(origin, FromTask) and not origin.selector:
            producer = self._by_path[f"{around.path}/{origin.task}" if around is not None else origin.task]
            common = indices[: producer.loops]
            return sorted(
                (
                    name
                    for made in self._made_by(producer, origin.output)
                    for name in self._executions.get(made.name, ())
                    if indices_of(name)[: len(common)] == common
                ),
                key=indices_of,
            )
        if isinstance(origin, FromInput) and not origin.selector and around is not None:
            loop = around.task.loop
            if loop is None or loop.item_input != origin.name:
                return self._origin(around.inside, around.task.inputs.get(origin.name), indices)
        return []

    def _made_by(self, place: ScopedTask, output: str) -> Iterator[ScopedTask]:
        """Yield the tracked stages whose run id an output of a task is: one, or one of each branch."""
        if place.component.dag is None:
            if output == RUN_ID and place.is_tracked:
                yield place
            return
        for task, name in place.component.dag.outputs.get(output, ()):
            yield from self._made_by(self._by_path[f"{place.path}/{task}"], name)
