"""The parts of a pipeline that a resumed run keeps or runs as a whole: their inputs, definitions and outputs.

A unit is a task of the pipeline itself: a stage, a loop, the branches of a condition, or a nested pipeline. The tasks
inside an exit handler count as the pipeline's own, because they also run once.
"""

from __future__ import annotations

import dataclasses
import functools
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchx_kfp.common.text import listed
from torchx_kfp.contract.carried.publisher import output_text
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.spec import (
    ArtifactType,
    Component,
    Constant,
    FromInput,
    FromTask,
    Origin,
    Pipeline,
    Task,
    is_volume_task,
)
from torchx_kfp.execution.pipeline.surgery import can_be_constant, is_exit_handler
from torchx_kfp.execution.pipeline.values import from_output
from torchx_kfp.execution.pipeline.walk import (
    KnownStage,
    ScopedTask,
    StageNames,
    indices_of,
    known_inputs,
    stages_among,
    walk,
    without_indices,
)
from torchx_kfp.execution.runs.result import StageResult

#: The name of the digest of conditions, and of the code of a stage that starts in a workspace, among ``differences``.
CONDITION, CODE = "condition", "code"
#: What KFP adds to an artifact's metadata: the store in which it is, and a name for the UI.
_OF_KFP = ("store_session_info", "display_name")


class UnitRead(NamedTuple):
    """An output of another unit, named by its path, for an input; or, without one, for settings of a unit's pods."""

    input: str
    producer: str
    output: str


@dataclass(frozen=True)
class Unit:
    """A part of a pipeline that is kept or runs as a whole.

    Attributes:
        place: its task; the path is that of ``surgery``.
        stages: the stages inside, or the stage that it is.
        reads: what it reads of other units.
        after: the paths of the units that must have ended before it begins.
        is_exit: whether it runs at the end of each run, whatever the others do.
    """

    place: ScopedTask
    stages: tuple[ScopedTask, ...]
    reads: tuple[UnitRead, ...]
    after: tuple[str, ...]
    is_exit: bool

    @property
    def path(self) -> str:
        """The path of its task."""
        return self.place.path

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The names of its stages, without indices."""
        return tuple(stage.name for stage in self.stages)

    @property
    def key(self) -> str:
        """The name by which other versions of the pipeline have it: KFP numbers groups, so theirs is that of stages."""
        return "+".join(sorted(self.names)) if self.place.task.is_group else self.place.task.name

    @property
    def name(self) -> str:
        """The unit's name in sentences: a group is named by its stages."""
        return listed(self.names, 3) if self.place.task.is_group else self.place.task.name

    @property
    def is_import(self) -> bool:
        """Whether nothing runs for it: its artifact exists already."""
        return self.place.component.importer is not None

    @property
    def is_volume(self) -> bool:
        """Whether it makes or deletes a volume claim, which each run does anew."""
        return is_volume_task(self.place.component)

    def is_meant_by(self, stage: str) -> bool:
        """Tell whether a user means it by the name of a stage, of a nested pipeline or of the task."""
        known = (self.place.task.name, self.path, *self.names)
        return stage in known or any(name.startswith(f"{stage}/") for name in self.names)


class Units:
    """The units of a pipeline that gets certain arguments.

    Attributes:
        by_path: the units by their paths, in an order in which they could run.
        outputs: the outputs from which the pipeline's own come, by the names of those.
        inputs: the known inputs of all tasks, by their paths.
        stages: the stages that run a container, by their paths.
    """

    def __init__(self, pipeline: Pipeline, arguments: Mapping[str, Any]) -> None:
        """Find the units; ``arguments`` has the values of all parameters."""
        known = list(known_inputs(pipeline, arguments))
        self.inputs: dict[str, Mapping[str, Any]] = {place.path: inputs for place, inputs in known}
        self.stages = {stage.place.path: stage for stage in stages_among(known)}
        self._places = {place.path: place for place, _ in known}
        handlers: set[str] = set()
        stages: dict[str, list[ScopedTask]] = {}
        owner: dict[str, str] = {}
        for path, place in self._places.items():
            if place.inside is not None and place.inside.path not in handlers:
                owner[path] = owner[place.inside.path]
            elif is_exit_handler(place.task, place.component):
                handlers.add(path)
            else:
                owner[path], stages[path] = path, []
            if place.is_stage:
                stages[owner[path]].append(place)
        self._paths = stages.keys()
        self.by_path = {path: self._unit(self._places[path], inside) for path, inside in stages.items()}
        root = pipeline.root.as_dag()
        self.outputs = {
            name: UnitRead(name, *found)
            for name, selector in (*root.outputs.items(), *root.artifacts.items())
            for task, output in selector.sources[:1]
            for found in self._sources(None, FromTask(task, output))
        }

    @functools.cached_property
    def stage_names(self) -> frozenset[str]:
        """The names of all stages, without those for which nothing runs."""
        return frozenset(name for unit in self.by_path.values() if not unit.is_import for name in unit.names)

    def definition(self, unit: Unit) -> dict[str, Any]:
        """Return what defines a unit: the command, image, code and inputs of its stages, by their names."""
        return dict(self._definition(unit))

    def _definition(self, unit: Unit) -> Iterator[tuple[str, Any]]:
        # If a condition reads an output of a stage that runs again, the unit runs again anyway.
        within = {around.path: around.task.condition for place in unit.stages for around in _around(place, unit)}
        if conditions := {path: condition for path, condition in within.items() if condition}:
            yield (
                CONDITION,
                [
                    (condition, [value for name, value in self.inputs[path].items() if f"'{name}'" in condition])
                    for path, condition in conditions.items()
                ],
            )
        if (loop := unit.place.task.loop) is not None:
            items = loop.raw or self.inputs[unit.path].get(loop.from_input or "")
            if items is not None:
                yield "items", items
        for read in unit.reads:
            producer = self.by_path[read.producer]
            imported = self.inputs[producer.path].get("uri") if producer.is_import else None
            if read.input:
                yield f"input {read.input}", imported or f"{producer.name}.{read.output}"
        for place in unit.stages:
            prefix = "" if place.path == unit.path else f"{place.name}: "
            if place.path in self.stages:
                for name, value in _of_stage(self.stages[place.path]):
                    yield f"{prefix}{name}", value

    def _unit(self, place: ScopedTask, stages: list[ScopedTask]) -> Unit:
        scope, task = place.scope.as_dag(), place.task
        sources = [*task.inputs.items(), *task.artifacts.items()]
        reads = [UnitRead(name, *found) for name, one in sources for found in self._sources(place.inside, one)]
        settings = self._units_of(place.inside, _tasks_in_settings(stages))
        after, around = self._units_of(place.inside, task.depends_on), place.inside
        while around is not None:
            after += self._units_of(around.inside, around.task.depends_on)
            around = around.inside
        before = [self._places[_path(place.inside, name)] for name in task.depends_on if name in scope.tasks]
        return Unit(
            place,
            tuple(stages),
            (*reads, *(UnitRead("", path, "") for path in settings if path != place.path)),
            tuple(dict.fromkeys(after)),
            task.runs_always and any(is_exit_handler(one.task, one.component) for one in before),
        )

    def _units_of(self, around: ScopedTask | None, tasks: Iterable[str]) -> list[str]:
        """Return the paths of the units that tasks of a scope are, or contain."""
        found: list[str] = []
        for path in (_path(around, name) for name in tasks):
            found += [path] if path in self._paths else [one for one in self._paths if one.startswith(f"{path}/")]
        return found

    def _sources(self, around: ScopedTask | None, source: Origin | None) -> Iterator[tuple[str, str]]:
        """Yield the unit, and its output, from which an input of a scope's task comes; look through exit handlers."""
        if isinstance(source, FromTask):
            place = self._places[_path(around, source.task)]
            if place.path in self._paths:
                yield place.path, source.output
                return
            dag = place.component.as_dag()
            selector = dag.outputs.get(source.output) or dag.artifacts.get(source.output)
            for producer, output in selector.sources if selector else ():
                yield from self._sources(place, FromTask(producer, output))
        elif isinstance(source, FromInput) and around is not None:
            yield from self._sources(around.inside, {**around.task.inputs, **around.task.artifacts}.get(source.name))


def _path(around: ScopedTask | None, task: str) -> str:
    return task if around is None else f"{around.path}/{task}"


def _tasks_in_settings(places: list[ScopedTask]) -> list[str]:
    """Return the tasks to which settings of pods refer."""
    found: list[str] = []
    left: list[Any] = [dict(place.component.platform) for place in places]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            found += [str(name) for key, name in value.items() if key == "producerTask"]
            left += value.values()
        elif isinstance(value, list):
            left += value
    return found


def _around(place: ScopedTask, unit: Unit) -> Iterator[ScopedTask]:
    """Yield a stage and the tasks around it, up to the unit itself."""
    around: ScopedTask | None = place
    while around is not None:
        yield around
        around = None if around.path == unit.path else around.inside


def _of_stage(stage: KnownStage) -> Iterator[tuple[str, Any]]:
    facts = stage.facts
    yield "image", stage.container.image
    if facts.is_own:
        # The programs around the application change with versions of this package.
        workspaces = [*filter(None, workspaces_in(facts.words))]  # of its replicas as well
        yield "command", shlex.join(word for word in facts.application if word not in workspaces)
        for name, value in facts.variables.items():
            yield f"variable {name}", value
        if workspaces:
            yield CODE, workspace_digest(workspaces[0]) or workspaces[0]
        return
    yield "command", stage.container.words
    for name, value in stage.container.env:
        yield f"variable {name}", value
    for name, source in stage.place.task.inputs.items():
        if name in stage.inputs and isinstance(source, (Constant, FromInput)):
            yield f"input {name}", stage.inputs[name]


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of what has changed in a definition, but for stages that only one of them has."""
    both = {_stage_of(name) for name in before} & {_stage_of(name) for name in now} | {""}
    return tuple(
        name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name) and _stage_of(name) in both
    )


def _stage_of(name: str) -> str:
    return name.rpartition(": ")[0]


class OutputNotKnownError(Exception):
    """An output is not known, or cannot be handed on; the message is a relative clause: "which ..."."""


class _NotProducedError(OutputNotKnownError):
    """The stage has not run, or has failed."""


class OutputLookup:
    """The outputs of units in an earlier run, as far as they are known.

    A host does not tell the outputs of a task, but what each stage got, which includes what it read of others.

    Args:
        pipeline: the pipeline of the new run.
        ends: how the stages of the earlier run ended, by their names.
        values: what stages of it were given: outputs by the unit's key.
        are_here: whether the earlier run and the new one are on this machine.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        ends: Mapping[str, StageResult],
        values: Mapping[str, Mapping[str, Any]],
        *,
        are_here: tuple[bool, bool],
    ) -> None:
        self._pipeline, self._ends, self._values, self._are_here = pipeline, ends, values, are_here
        self._found: dict[tuple[str, str], Any] = {}
        #: The indices of all executions, by the stage's name without them.
        self._indices: dict[str, list[tuple[int, ...]]] = {}
        for name in ends:
            self._indices.setdefault(without_indices(name), []).append(indices_of(name))

    def get(self, unit: Unit, output: str) -> Any:
        """Return the value of an output of a unit.

        Raises:
            OutputNotKnownError: it is not known, or a pipeline cannot contain it.
        """
        key, given = (unit.path, output), self._values.get(unit.key, {})
        if key not in self._found:
            try:
                known = output in given
                value = given[output] if known else self._of_task(unit.place.task, StageNames(), output)[0]
                self._found[key] = self._usable(value)
            except OutputNotKnownError as error:
                self._found[key] = error
        if isinstance(self._found[key], OutputNotKnownError):
            raise self._found[key]
        return self._found[key]

    def _usable(self, value: Any) -> Any:
        if isinstance(value, ArtifactList):
            raise OutputNotKnownError("which is a list of artifacts, and KFP imports only single ones")
        if isinstance(value, Artifact):
            if value.is_here and self._are_here == (True, False):
                raise OutputNotKnownError(f"which is the file {value.path!r} of this machine, out of the host's reach")
            if value.is_here and self._are_here == (False, True):
                raise OutputNotKnownError(f"which is the file {value.path!r} of a pod, and not one of this machine")
            if not value.type.title:
                raise OutputNotKnownError("whose type is not known, and KFP imports no artifact without one")
        if can_be_constant([value.uri, dict(value.metadata)] if isinstance(value, Artifact) else value):
            return value
        raise OutputNotKnownError("which contains '{{', and KFP would take that for a placeholder")

    def _of_task(self, task: Task, names: StageNames, output: str) -> tuple[Any, bool]:
        """Return the value, and whether it is a list that a loop has collected."""
        component = self._pipeline.component_of(task)
        if component.dag is None:
            return self._of_stage(names.of(task.name), component, output), False
        if task.loop is None:
            return self._of_dag(component, names.inside(task), output)
        values: list[Any] = []
        for index in range(self._iterations(component, names)):
            value, is_list = self._of_dag(component, names.inside_iteration(index), output)
            values += value if is_list else [value]
        return (ArtifactList(values) if values and isinstance(values[0], Artifact) else values), True

    def _of_dag(self, component: Component, names: StageNames, output: str) -> tuple[Any, bool]:
        dag = component.as_dag()
        selector = dag.outputs.get(output) or dag.artifacts.get(output)
        errors: list[OutputNotKnownError] = []
        for producer, name in selector.sources if selector else ():
            try:
                return self._of_task(dag.tasks[producer], names, name)
            except OutputNotKnownError as error:
                errors.append(error)
        # A branch that was not taken says nothing about the one that was.
        nothing = OutputNotKnownError("which it did not have")
        raise min(errors, key=lambda error: isinstance(error, _NotProducedError), default=nothing)

    def _iterations(self, component: Component, names: StageNames) -> int:
        around = indices_of(names.of(""))
        inside = {without_indices(place.name) for place in walk(self._pipeline, component, names) if place.is_stage}
        found = [indices for name in inside for indices in self._indices.get(name, ())]
        own = [each for each in found if each[: len(around)] == around and len(each) > len(around)]
        return max((each[len(around)] + 1 for each in own), default=0)

    def _of_stage(self, name: str, component: Component, output: str) -> Any:
        end = self._ends.get(name)
        if end is None or not end.state.is_success:
            raise _NotProducedError(f"which {name} did not produce")
        for made in (end.outputs, end.artifacts):
            if output in made:
                return made[output]
        # On a host, outputs of tracked stages follow from their records.
        facts = component.facts
        if facts.stage and output == RUN_ID and end.run_id is not None and end.results is not None:
            return end.run_id
        if facts.outputs is not None and output in facts.outputs.results and end.results is not None:
            kind, result = facts.outputs.results[output]
            try:
                return from_output(output_text(kind, result, end.results), component.outputs[output])
            except (ValueError, KeyError):
                raise OutputNotKnownError("which its results do not have") from None
        what = "place" if output in component.artifact_outputs else "value"
        raise OutputNotKnownError(f"whose {what} is not known: no other stage was given it")


def values_given(units: Mapping[str, Unit], given: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return outputs of units, by the unit's key; ``given`` has the inputs of stages, by their names."""
    of_stage = {place.name: (unit, place) for unit in units.values() for place in unit.stages}
    values: dict[str, dict[str, Any]] = {}
    for stage, inputs in given.items():
        unit, place = of_stage[without_indices(stage)]
        for name, value in inputs.items():
            reads = [read for read in unit.reads if read.input and read.input == _outer_input(unit, place, name)]
            if len(reads) == 1:
                producer, output = units[reads[0].producer], reads[0].output
                declared = producer.place.component.artifact_outputs.get(output)
                values.setdefault(producer.key, {})[output] = _as_made(value, declared)
    return values


def _as_made(value: Any, declared: ArtifactType | None) -> Any:
    """Return an artifact with the type that its producer declares, and without what KFP adds to its metadata."""
    if not isinstance(value, Artifact):
        return value
    metadata = {name: each for name, each in value.metadata.items() if name not in _OF_KFP}
    return dataclasses.replace(value, type=declared if declared and declared.title else value.type, metadata=metadata)


def _outer_input(unit: Unit, place: ScopedTask, name: str) -> str | None:
    """Return the input of the unit that a stage inside gets as its own input, unchanged; None if it gets another."""
    while True:
        source = place.task.inputs.get(name) or place.task.artifacts.get(name)
        if getattr(source, "selector", ""):
            return None
        if place.path == unit.path:
            return name
        around = place.inside
        if not isinstance(source, FromInput) or around is None:
            return None
        if around.task.loop is not None and around.task.loop.item_input == source.name:
            return None
        place, name = around, source.name
