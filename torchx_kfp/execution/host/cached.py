"""Find the run ids of stages that KFP took from its cache, whose results an earlier run has recorded.

KFP's API does not say from which run a cached stage came. But whoever reads it was given its run id, and has recorded
it at its start. A reader that is cached as well has recorded it in its own run, which its own readers were given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeAlias

from torchx_kfp.contract.command import decode
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.protocol import RunIds
from torchx_kfp.execution.pipeline.placeholders import Facts, resolve_command
from torchx_kfp.execution.pipeline.spec import FromInput, FromTask, Origin
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The run ids that stages were given, by their own run ids, and by alias.
Parents: TypeAlias = Mapping[str, Mapping[str, Collection[str]]]


def cached_run_ids(
    places: Collection[ScopedTask],
    ends: Mapping[str, StageResult],
    read: Callable[[Mapping[str, Collection[str]]], Parents],
) -> dict[str, str]:
    """Return the run ids of cached stages, by the stages' names, as far as stages that read them have recorded them.

    Args:
        places: the tasks of the pipeline.
        ends: how its stages have ended, by their names.
        read: returns what stages were given, for their run ids by tracker base.
    """
    reads = _Reads(places, ends)
    known = {name: end.run_id for name, end in ends.items() if end.run_id and name in reads.tracked}
    wanted = {name for name, end in ends.items() if end.state is State.CACHED and name in reads.tracked} - known.keys()
    found: dict[str, str] = {}
    asked: set[str] = set()
    while wanted:
        new = {
            name: parents for name in known.keys() - asked if (parents := reads.of(name)) and _names(parents) & wanted
        }
        asked |= known.keys()
        by_base: dict[str, list[str]] = {}
        for name in new:
            by_base.setdefault(reads.tracked[name].tracker_base or "", []).append(known[name])
        given = read(by_base) if new else {}
        for reader, parents in new.items():
            for alias, each in parents.items():
                names, run_ids = _listed(each), list(given.get(known[reader], {}).get(alias, ()))
                if len(names) == len(run_ids):
                    found |= {
                        name: run_id
                        for name, run_id in zip(names, run_ids, strict=True)
                        if name in wanted and run_id.split("/")[1:-1] == [reads.tracked[name].facts.stage]
                    }
        if not found.keys() & wanted:
            break
        wanted -= found.keys()
        known |= found
    return found


def _names(parents: Mapping[str, RunIds]) -> set[str]:
    return {name for names in parents.values() for name in _listed(names)}


def _listed(names: RunIds) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


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

    def of(self, stage: str) -> Mapping[str, RunIds]:
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
        return decode(resolve_command(container.words, Facts(parameters=values))).reads if container else {}

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
