"""The parts of a pipeline that a resumed run keeps or runs as a whole: their inputs, definitions and outputs.

A unit is a task of the pipeline itself: a stage, a loop, the branches of a condition, or a nested pipeline. The tasks
inside an exit handler count as the pipeline's own, because they also run once. Importers run nothing, so they are none.
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
from torchx_kfp.execution.pipeline.spec import Constant, FromInput, FromTask, Origin, Pipeline
from torchx_kfp.execution.pipeline.surgery import URI, can_be_constant
from torchx_kfp.execution.pipeline.values import from_output
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, task_name, walk, without_indices
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
        imports: the importers from which artifacts come, by its inputs; what these read counts among ``reads``.
        after: the paths of the units that must have ended before it begins.
        is_exit: whether it runs at the end of each run, whatever the others do.
    """

    place: ScopedTask
    stages: tuple[ScopedTask, ...]
    reads: tuple[UnitRead, ...]
    imports: Mapping[str, ScopedTask]
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

    def is_meant_by(self, stage: str) -> bool:
        """Tell whether a user means it by the name of a stage, of a nested pipeline or of the task."""
        task, path, *names = map(task_name, (self.place.task.name, self.path, *self.names))
        stage = task_name(stage)
        return stage in (task, path, *names) or any(name.startswith(f"{stage}/") for name in names)


class Units:
    """The units of a pipeline that gets certain arguments.

    Attributes:
        by_path: the units by their paths, in an order in which they could run.
        outputs: the outputs from which the pipeline's own come, by the names of those.
        importers: what the importers among the pipeline's tasks read, by their paths.
    """

    def __init__(self, pipeline: Pipeline, arguments: Mapping[str, Any]) -> None:
        """Find the units; ``arguments`` has the values of all parameters."""
        self._places = {place.path: place for place in walk(pipeline, arguments=arguments)}
        importers: list[ScopedTask] = []
        stages: dict[str, list[ScopedTask]] = {}
        for place in self._places.values():
            # The outermost task that is not an exit handler: None for an exit handler itself.
            whole = next((one for one in reversed([*place.around]) if not one.is_exit_handler), None)
            if whole is not None and whole.component.importer is not None:
                importers.append(whole)
            elif whole is not None:
                stages.setdefault(whole.path, []).extend([place] if place.is_stage else [])
        self._paths = stages.keys()
        self.importers = {
            place.path: [UnitRead(URI, *found) for found in self._sources(place.inside, place.task.inputs.get(URI))]
            for place in importers
        }
        self.by_path = {path: self._unit(self._places[path], inside) for path, inside in stages.items()}
        root = pipeline.root.as_dag()
        self.outputs = {
            name: UnitRead(name, *found)
            for name, sources in root.outputs.items()
            for task, output in sources[:1]
            for found in self._sources(None, FromTask(task, output))
        }

    @functools.cached_property
    def _stages(self) -> dict[str, ScopedTask]:
        return {place.name: place for place in self._places.values() if place.is_stage}

    @functools.cached_property
    def stage_names(self) -> frozenset[str]:
        """The names of all stages, without those for which nothing runs."""
        return frozenset(name for unit in self.by_path.values() for name in unit.names)

    def definition(self, unit: Unit) -> Iterator[tuple[tuple[str, str], Any]]:
        """Yield what defines a unit: the command, image, code and inputs of its stages.

        Each has the stage inside of the unit, if that is a group, and a name such as ``image``.
        """
        # If a condition reads an output of a stage that runs again, the unit runs again anyway.
        within = {one.path: one for place in unit.stages for one in place.around if one.path.startswith(unit.path)}
        conditions = [(one.task.condition, one.inputs) for one in within.values() if one.task.condition]
        if conditions:
            yield (
                ("", CONDITION),
                [
                    (text, [value for name, value in inputs.items() if f"'{name}'" in text])
                    for text, inputs in conditions
                ],
            )
        if (loop := unit.place.task.loop) is not None:
            items = loop.raw or unit.place.inputs.get(loop.from_input or "")
            if items is not None:
                yield ("", "items"), items
        for read in unit.reads:
            if read.input:
                yield ("", f"input {read.input}"), f"{self.by_path[read.producer].name}.{read.output}"
        for name, importer in unit.imports.items():
            if (uri := importer.inputs.get(URI)) is not None:
                yield ("", f"input {name}"), uri
        for place in unit.stages:
            for name, value in _of_stage(place):
                yield ("" if place.path == unit.path else place.name, name), value

    def origins(self, stage: str, name: str) -> list[tuple[Unit, str]]:
        """Return the units, and their outputs, whose value an input of a stage has."""
        place = self._stages[stage]
        source = place.task.inputs.get(name) or place.task.artifacts.get(name)
        found = self._sources(place.inside, source, is_unchanged=True)
        return [(self.by_path[path], output) for path, output in found if path in self._paths]

    def made_by(
        self, place: ScopedTask, output: str, *, inside_handlers: bool = False
    ) -> Iterator[tuple[ScopedTask, str]]:
        """Yield the tasks whose output an output of a task is: a stage, or one of each branch.

        Args:
            place: the task.
            output: the output.
            inside_handlers: whether to look only inside exit handlers.
        """
        dag = place.component.dag
        if dag is None or (inside_handlers and not place.is_exit_handler):
            yield place, output
            return
        for producer, name in dag.outputs.get(output, ()):
            inner = self._places[f"{place.path}/{producer}"]
            yield from self.made_by(inner, name, inside_handlers=inside_handlers)

    def _unit(self, place: ScopedTask, stages: list[ScopedTask]) -> Unit:
        scope, task = place.scope.as_dag(), place.task
        reads: list[UnitRead] = []
        imports: dict[str, ScopedTask] = {}
        for name, source in (*task.inputs.items(), *task.artifacts.items()):
            for found in self._sources(place.inside, source):
                if found[0] in self._paths:
                    reads.append(UnitRead(name, *found))
                else:
                    imports[name] = self._places[found[0]]
                    reads += [read._replace(input=name) for read in self.importers[found[0]]]
        settings = self._units_of(place.inside, _tasks_in_settings(stages))
        after = [path for around in place.around for path in self._units_of(around.inside, around.task.depends_on)]
        before = [self._places[_path(place.inside, name)] for name in task.depends_on if name in scope.tasks]
        return Unit(
            place,
            tuple(stages),
            (*reads, *(UnitRead("", path, "") for path in settings if path != place.path)),
            imports,
            tuple(dict.fromkeys(after)),
            task.runs_always and any(one.is_exit_handler for one in before),
        )

    def _units_of(self, around: ScopedTask | None, tasks: Iterable[str]) -> list[str]:
        """Return the paths of the units that tasks of a scope are, or contain."""
        found: list[str] = []
        for path in (_path(around, name) for name in tasks):
            found += [path] if path in self._paths else [one for one in self._paths if one.startswith(f"{path}/")]
        return found

    def _sources(
        self, around: ScopedTask | None, source: Origin | None, *, is_unchanged: bool = False
    ) -> Iterator[tuple[str, str]]:
        """Yield the tasks, by their paths, and the outputs from which an input of a scope's task comes.

        Args:
            around: the task around the scope.
            source: that of the input.
            is_unchanged: whether only those count whose value the input has, rather than an item or a field of it.
        """
        if is_unchanged and isinstance(source, (FromInput, FromTask)) and source.selector:
            return
        if isinstance(source, FromTask):
            place = self._places[_path(around, source.task)]
            found = self.made_by(place, source.output, inside_handlers=True)
            yield from ((one.path, output) for one, output in found)
        elif isinstance(source, FromInput) and around is not None:
            loop = around.task.loop
            if not (is_unchanged and loop is not None and loop.item_input == source.name):
                outer = around.task.inputs.get(source.name) or around.task.artifacts.get(source.name)
                yield from self._sources(around.inside, outer, is_unchanged=is_unchanged)


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


def _of_stage(stage: ScopedTask) -> Iterator[tuple[str, Any]]:
    container, facts = stage.component.container, stage.facts
    if container is None:
        return
    yield "image", container.image
    if facts.is_own:
        # The programs around the application change with versions of this package.
        workspaces = [*filter(None, workspaces_in(facts.words))]  # of its replicas as well
        yield "command", shlex.join(word for word in facts.application if word not in workspaces)
        for name, value in facts.variables.items():
            yield f"variable {name}", value
        if workspaces:
            yield CODE, workspace_digest(workspaces[0]) or workspaces[0]
        return
    yield "command", container.words
    for name, value in container.env:
        yield f"variable {name}", value
    for name, source in stage.task.inputs.items():
        if name in stage.inputs and isinstance(source, (Constant, FromInput)):
            yield f"input {name}", stage.inputs[name]


def differences(before: Mapping[tuple[str, str], Any], now: Mapping[tuple[str, str], Any]) -> list[tuple[str, str]]:
    """Return the stages and names of what has changed in a definition, but for stages that only one of them has."""
    both = {stage for stage, _ in before} & {stage for stage, _ in now} | {""}
    return [key for key in dict.fromkeys([*before, *now]) if key[0] in both and before.get(key) != now.get(key)]


class OutputNotKnownError(Exception):
    """An output is not known, or cannot be handed on; the message is a relative clause: "which ..."."""


class _NotProducedError(OutputNotKnownError):
    """The stage has not run, or has failed."""


class OutputLookup:
    """The outputs of units in an earlier run, as far as they are known.

    Args:
        units: the units of the new run.
        ends: how the stages of the earlier run ended, by their names.
        are_here: whether the earlier run and the new one are on this machine.
    """

    def __init__(
        self, units: Units, ends: Mapping[str, StageResult], *, are_here: tuple[bool, bool] = (False, False)
    ) -> None:
        self._units, self._ends, self._are_here = units, ends, are_here
        self._found: dict[tuple[str, str], Any] = {}
        #: The ends of all executions of a stage, by its name without indices, and by these.
        self.executions: dict[str, dict[tuple[int, ...], StageResult]] = {}
        for name, end in ends.items():
            self.executions.setdefault(without_indices(name), {})[indices_of(name)] = end

    def with_given(self, given: Mapping[str, Mapping[str, Any]]) -> dict[str, StageResult]:
        """Return the ends with outputs that other stages were given: a host does not tell those of a task.

        Args:
            given: the inputs of stages, by the stages' names.
        """
        found = dict(self._ends)
        for stage, inputs in given.items():
            for name, value in inputs.items():
                origins = self._units.origins(without_indices(stage), name)
                rounds, made = self._iterations(*origins[0]) if len(origins) == 1 else ([], [])
                values = value if rounds != [()] and isinstance(value, list) else [value]
                for indices, each in zip(rounds, values, strict=False) if len(values) == len(rounds) else ():
                    for place, output in made:
                        end = self.executions.get(place.name, {}).get(indices)
                        if end is not None and end.state.is_success:
                            found[end.name] = _with_output(found[end.name], place, output, each)
        return found

    def get(self, unit: Unit, output: str) -> Any:
        """Return the value of an output of a unit.

        Raises:
            OutputNotKnownError: it is not known, or a pipeline cannot contain it.
        """
        key = (unit.path, output)
        if key not in self._found:
            self._found[key] = self._usable(self._of_unit(unit, output))
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

    def _of_unit(self, unit: Unit, output: str) -> Any:
        rounds, made = self._iterations(unit, output)
        if rounds == [()]:
            return self._of_iteration(made, ())
        values = [self._of_iteration(made, indices) for indices in rounds]
        return ArtifactList(values) if values and isinstance(values[0], Artifact) else values

    def _iterations(self, unit: Unit, output: str) -> tuple[list[tuple[int, ...]], list[tuple[ScopedTask, str]]]:
        """Return the iterations of the loops around the stages that make an output of a unit, and these stages."""
        made = [*self._units.made_by(unit.place, output)]
        loop = next((one for place, _ in made for one in place.around if one.task.loop is not None), None)
        if loop is None:
            return [()], made
        inside = [place.name for place in unit.stages if place.path.startswith(f"{loop.path}/")]
        rounds = {indices[: loop.loops + 1] for name in inside for indices in self.executions.get(name, ())}
        return sorted(rounds), made

    def _of_iteration(self, made: Iterable[tuple[ScopedTask, str]], indices: tuple[int, ...]) -> Any:
        errors: list[OutputNotKnownError] = []
        for place, output in made:
            try:
                return self._of_stage(place, indices, output)
            except OutputNotKnownError as error:
                errors.append(error)
        # A branch that was not taken says nothing about the one that was.
        nothing = OutputNotKnownError("which it did not have")
        raise min(errors, key=lambda error: isinstance(error, _NotProducedError), default=nothing)

    def _of_stage(self, place: ScopedTask, indices: tuple[int, ...], output: str) -> Any:
        end = self.executions.get(place.name, {}).get(indices)
        if end is None or not end.state.is_success:
            raise _NotProducedError(f"which {end.name if end is not None else place.name} did not produce")
        for made in (end.outputs, end.artifacts):
            if output in made:
                return made[output]
        # On a host, outputs of tracked stages follow from their records.
        component = place.component
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


def _with_output(end: StageResult, place: ScopedTask, output: str, value: Any) -> StageResult:
    """Return the end with an output, whose artifact has the declared type, and not what KFP adds to its metadata."""
    if not isinstance(value, Artifact):
        return dataclasses.replace(end, outputs={**end.outputs, output: value})
    declared = place.component.artifact_outputs.get(output)
    metadata = {name: each for name, each in value.metadata.items() if name not in _OF_KFP}
    kind = declared if declared is not None and declared.title else value.type
    made = dataclasses.replace(value, type=kind, metadata=metadata)
    return dataclasses.replace(end, artifacts={**end.artifacts, output: made})
