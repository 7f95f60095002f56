"""The parts of a pipeline that a resumed run keeps or runs as a whole, what they read, and what defines them.

A unit is a task of the pipeline itself: a stage, a loop, the branches of a condition, or a nested pipeline. The tasks
inside an exit handler count as the pipeline's own, because they also run once.
"""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchx_kfp.common.text import listed
from torchx_kfp.contract.protocol import workspace_digest
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.execution.pipeline.spec import (
    CHANNEL,
    Component,
    Constant,
    Dag,
    FromInput,
    FromTask,
    Origin,
    Pipeline,
    Task,
    is_volume_task,
)
from torchx_kfp.execution.pipeline.surgery import is_exit_handler
from torchx_kfp.execution.pipeline.values import to_text
from torchx_kfp.execution.pipeline.walk import KnownStage, ScopedTask, known_inputs, stages_among, walk


class UnitRead(NamedTuple):
    """An input of a unit that comes from an output of another one, named by its path."""

    input: str
    producer: str
    output: str


@dataclass(frozen=True)
class Unit:
    """A part of a pipeline that is kept or runs as a whole.

    Attributes:
        path: the path of its task, as ``surgery`` names it.
        key: what identifies it in other versions of the pipeline. KFP numbers groups by their order, so that of a group
            is made of the stages inside.
        task: its task.
        component: the component that it runs.
        stages: the stages inside, or the stage that it is.
        reads: what it reads of other units.
        settings: the units to which settings of its pods refer, such as a volume claim.
        after: the units that must have ended before it begins.
        is_exit: whether it runs at the end of each run, whatever the others do.
    """

    path: str
    key: str
    task: Task
    component: Component
    stages: tuple[ScopedTask, ...]
    reads: tuple[UnitRead, ...]
    settings: tuple[str, ...]
    after: tuple[str, ...]
    is_exit: bool

    @property
    def name(self) -> str:
        """The unit's name in sentences: a group is named by its stages."""
        return listed([stage.name for stage in self.stages], 3) if self.task.is_group else self.task.name

    @property
    def is_import(self) -> bool:
        """Whether nothing runs for it: its artifact exists already."""
        return self.component.importer is not None

    @property
    def is_volume(self) -> bool:
        """Whether it makes or deletes a volume claim, which each run does anew."""
        return is_volume_task(self.component)

    @property
    def may_be_cached(self) -> bool:
        """Whether a cache may answer for a stage of it."""
        return any(place.task.caches for place in self.stages)

    def names(self, stage: str) -> bool:
        """Tell whether a user means it by the name of a stage, of a nested pipeline or of the task."""
        here = [self.task.name, self.path]
        return stage in here or any(each.name == stage or each.name.startswith(f"{stage}/") for each in self.stages)


@dataclass(frozen=True)
class _Scope:
    """The tasks of the pipeline, or of an exit handler in it."""

    dag: Dag
    around: str = ""
    outer: _Scope | None = None
    owner: Task | None = None


def units_of(pipeline: Pipeline) -> dict[str, Unit]:
    """Return the units of a pipeline by their paths, in an order in which they could run."""
    graph = _Graph(pipeline)
    paths = {scope.around + task.name: (scope, task) for scope, task in graph.members(_Scope(pipeline.root.as_dag()))}
    stages: dict[str, list[ScopedTask]] = {path: [] for path in paths}
    for place in walk(pipeline):
        inside: ScopedTask | None = place
        while place.is_stage and inside is not None and inside.path not in paths:
            inside = inside.inside
        if place.is_stage and inside is not None:
            stages[inside.path].append(place)
    found = {}
    for path, (scope, task) in paths.items():
        component = pipeline.component_of(task)
        names = [place.name for place in stages[path]]
        after, settings = graph.paths(scope, task.depends_on), graph.paths(scope, _named_tasks(stages[path]))
        handler = [scope.dag.tasks[name] for name in task.depends_on if name in scope.dag.tasks]
        if scope.owner is not None and scope.outer is not None:
            after += graph.paths(scope.outer, scope.owner.depends_on)
        found[path] = Unit(
            path=path,
            key="+".join(sorted(names)) if task.is_group else task.name,
            task=task,
            component=component,
            stages=tuple(stages[path]),
            reads=tuple(graph.reads(scope, task)),
            settings=tuple(one for one in settings if one != path),
            after=tuple(dict.fromkeys(after)),
            is_exit=task.runs_always and any(is_exit_handler(one, pipeline.component_of(one)) for one in handler),
        )
    return found


def outputs_of(pipeline: Pipeline) -> dict[str, UnitRead]:
    """Return the units and outputs from which the pipeline's own outputs come, by their names."""
    graph, scope = _Graph(pipeline), _Scope(pipeline.root.as_dag())
    return {
        name: UnitRead(name, *source)
        for name, selector in (*scope.dag.outputs.items(), *scope.dag.artifacts.items())
        for task, output in selector.sources[:1]
        for source in graph.sources(scope, FromTask(task, output))
    }


class _Graph:
    """Looks through exit handlers."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def members(self, scope: _Scope) -> Iterator[tuple[_Scope, Task]]:
        for task in scope.dag.ordered:
            if (inner := self._inside(scope, task)) is not None:
                yield from self.members(inner)
            else:
                yield scope, task

    def paths(self, scope: _Scope, names: Any) -> list[str]:
        """Return the paths of the units that tasks of the scope are, or contain."""
        found = []
        for name in names:
            if (task := scope.dag.tasks.get(name)) is not None:
                inner = self._inside(scope, task)
                members = [(scope, task)] if inner is None else self.members(inner)
                found += [around.around + one.name for around, one in members]
        return found

    def reads(self, scope: _Scope, task: Task) -> Iterator[UnitRead]:
        for name, source in {**task.inputs, **task.artifacts}.items():
            for producer, output in self.sources(scope, source):
                yield UnitRead(name, producer, output)

    def sources(self, scope: _Scope, source: Origin | None) -> Iterator[tuple[str, str]]:
        """Yield the unit, and its output, from which an input of the scope's tasks comes."""
        if isinstance(source, FromTask):
            task = scope.dag.tasks[source.task]
            inner = self._inside(scope, task)
            if inner is None:
                yield scope.around + task.name, source.output
                return
            selector = inner.dag.outputs.get(source.output) or inner.dag.artifacts.get(source.output)
            for producer, output in selector.sources if selector else ():
                yield from self.sources(inner, FromTask(producer, output))
        elif isinstance(source, FromInput) and scope.owner is not None and scope.outer is not None:
            given = {**scope.owner.inputs, **scope.owner.artifacts}
            yield from self.sources(scope.outer, given.get(source.name))

    def _inside(self, scope: _Scope, task: Task) -> _Scope | None:
        component = self._pipeline.component_of(task)
        if not is_exit_handler(task, component):
            return None
        return _Scope(component.as_dag(), f"{scope.around}{task.name}/", scope, task)


def _named_tasks(places: list[ScopedTask]) -> list[str]:
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


#: How the names of digests of conditions begin, and of values that these read.
CONDITION = "condition"
#: The name of the code of a stage that starts in a workspace.
CODE = "code"
#: What defines a unit: digests of the command, image, code and inputs of its stages, by their names.
Definition = Mapping[str, str]


@dataclass(frozen=True)
class KnownUnits:
    """The units of a pipeline that gets certain arguments.

    Attributes:
        by_path: the units.
        inputs: the known inputs of all tasks, by their paths.
        stages: the stages that run a container, by their paths.
        definitions: what defines each unit, by its key.
    """

    by_path: Mapping[str, Unit]
    inputs: Mapping[str, Mapping[str, Any]]
    stages: Mapping[str, KnownStage]
    definitions: Mapping[str, Definition]

    @classmethod
    def of(cls, pipeline: Pipeline, arguments: Mapping[str, Any]) -> KnownUnits:
        """Find the units of a pipeline; ``arguments`` has the values of all parameters."""
        units, places = units_of(pipeline), list(known_inputs(pipeline, arguments))
        inputs = {place.path: known for place, known in places}
        stages = {stage.place.path: stage for stage in stages_among(places)}
        definitions = {
            unit.key: {name: _digest(value) for name, value in _definition(unit, units, inputs, stages)}
            for unit in units.values()
        }
        return cls(units, inputs, stages, definitions)


def _digest(value: Any) -> str:
    return hashlib.sha256(to_text(value).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _definition(
    unit: Unit,
    units: Mapping[str, Unit],
    inputs: Mapping[str, Mapping[str, Any]],
    stages: Mapping[str, KnownStage],
) -> Iterator[tuple[str, Any]]:
    # If a condition reads an output of a stage that runs again, the unit runs again anyway.
    within = {around.path: around.task.condition for place in unit.stages for around in _around(place, unit)}
    if conditions := {path: condition for path, condition in within.items() if condition}:
        yield CONDITION, [*conditions.values()]
    read_by: dict[str, list[Any]] = {}
    for path, condition in conditions.items():
        for name, value in inputs[path].items():
            if f"'{name}'" in condition:
                read_by.setdefault(f"{CONDITION} on {name.removeprefix(CHANNEL)}", []).append(value)
    yield from read_by.items()
    if unit.task.loop is not None:
        items = unit.task.loop.raw or inputs[unit.path].get(unit.task.loop.from_input or "")
        if items is not None:
            yield "items", items
    for read in unit.reads:
        producer = units[read.producer]
        imported = inputs[producer.path].get("uri") if producer.is_import else None
        yield f"input {read.input}", imported or f"{producer.name}.{read.output}"
    for place in unit.stages:
        prefix = "" if place.path == unit.path else f"{place.name}: "
        if place.path in stages:
            for name, value in _of_stage(stages[place.path]):
                yield f"{prefix}{name}", value


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
    component = stage.place.component.container
    yield "command", shlex.join(component.words if component else ())
    for name, value in stage.container.env:
        yield f"variable {name}", value
    for name, source in stage.place.task.inputs.items():
        if name in stage.inputs and isinstance(source, (Constant, FromInput)):
            yield f"input {name}", stage.inputs[name]


def differences(before: Definition, now: Definition) -> tuple[str, ...]:
    """Return the names of what has changed in a definition, but for stages that only one of them has."""
    both = {_stage_of(name) for name in before} & {_stage_of(name) for name in now} | {""}
    return tuple(
        name for name in dict.fromkeys([*before, *now]) if before.get(name) != now.get(name) and _stage_of(name) in both
    )


def _stage_of(name: str) -> str:
    return name.rpartition(": ")[0]
