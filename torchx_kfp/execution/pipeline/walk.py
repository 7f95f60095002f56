"""Walk the tasks of a compiled pipeline, with the names of their stages and their known inputs."""

from __future__ import annotations

import functools
import hashlib
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import shown
from torchx_kfp.contract.command import DecodedCommand, decode_command
from torchx_kfp.contract.protocol import CODE_URL, POD_NAME, TRACKER_BASE, is_code_name
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.inputs import (
    UNKNOWN,
    TaskInputs,
    inputs_of_iteration,
    inputs_of_root,
    inputs_of_stage,
    loop_items,
    resolve,
)
from torchx_kfp.execution.pipeline.placeholders import PlaceholderValues, resolve_command
from torchx_kfp.execution.pipeline.spec import Component, Pipeline, Task

# A name is one part of a path and of a tracker's key. A part may have 255 bytes, and numbers are added to it later.
_LONGEST = 200
_INDICES = re.compile(r"\[[\d,]+\]")
#: The name that means the newest run.
LATEST = "latest"


@dataclass(frozen=True)
class StageNames:
    """Names of the stages in one scope: the nested pipelines around it, and the indices of the loops around it.

    Branches and exit handlers are not part of a name.
    """

    pipelines: tuple[str, ...] = ()
    indices: tuple[int, ...] = ()

    def of(self, task: str) -> str:
        """Return the name of a task's stage: ``inner/train[2,0]``."""
        return "/".join((*self.pipelines, self._indexed(task)))

    def inside(self, task: Task) -> StageNames:
        """Return the names inside a task of this scope; each iteration of a loop adds its index to them."""
        return self if task.is_group else StageNames((*self.pipelines, self._indexed(task.name)))

    def inside_iteration(self, index: int) -> StageNames:
        """Return the names inside one iteration of a loop."""
        return StageNames(self.pipelines, (*self.indices, index))

    def _indexed(self, task: str) -> str:
        return f"{task}[{','.join(map(str, self.indices))}]" if self.indices else task


@dataclass(frozen=True)
class ScopedTask:
    """A task with its path and scope in a pipeline, and the inputs known before it runs.

    Attributes:
        path: the names of the tasks that lead to it, including groups: ``condition-1/train``.
        name: the name of its stages, without the indices of the loops that the walk has entered.
        task: the task.
        component: the component that it runs.
        scope: the component whose DAG contains it.
        arguments: the values of the pipeline's parameters; None if they are not known.
        inside: the loop, branch or nested pipeline around it; None in the scope that the walk began with.
        looped: whether it is a loop, or in one that the walk has entered. Such a task may run several times, or never.
    """

    path: str
    name: str
    task: Task
    component: Component
    scope: Component
    arguments: Mapping[str, Any] | None = field(default=None, repr=False)
    inside: ScopedTask | None = None
    looped: bool = False

    @property
    def is_stage(self) -> bool:
        """Whether it is a single stage rather than a group of tasks."""
        return self.component.dag is None

    @property
    def around(self) -> Iterator[ScopedTask]:
        """The task itself, and its loops, branches and nested pipelines, innermost first."""
        place: ScopedTask | None = self
        while place is not None:
            yield place
            place = place.inside

    @property
    def loops(self) -> int:
        """The number of loops around it that the walk has entered."""
        return sum(place.task.loop is not None for place in self.around if place is not self)

    def has_input(self, name: str) -> bool:
        """Return whether the scope has an input with this name for the task."""
        around = self.inside
        if around is None:
            return name in self.scope.parameter_inputs
        loop = around.task.loop
        return (
            name in around.component.parameter_inputs
            or name in around.task.parameters
            or (loop and loop.item_input) == name
        )

    @functools.cached_property
    def scope_inputs(self) -> Mapping[str, Any]:
        """The inputs of the scope, which may name its secrets; ``UNKNOWN`` for those that only the run knows."""
        around = self.inside
        if around is None:
            return inputs_of_root(self.scope, self.arguments)
        values = around.resolved.values
        return values if around.task.loop is None else inputs_of_iteration(around.task, around.component, values)

    @functools.cached_property
    def resolved(self) -> TaskInputs:
        """The known inputs that KFP's driver passes to the task, and rejected ones."""
        return resolve(self.task, self.component, self.scope_inputs, lambda _: UNKNOWN)

    def iterations(self) -> Iterator[TaskInputs]:
        """Yield its inputs for each known item of each loop around it; the items of the other loops are unknown."""
        path: list[ScopedTask] = []
        for place in self.around:
            if path and (loop := place.task.loop) is not None:
                try:
                    items = loop_items(loop, place.resolved.known)
                except ValueError:  # they are not known
                    items = []
                for item in items:
                    scope: Mapping[str, Any]
                    scope = inputs_of_iteration(place.task, place.component, place.resolved.values, item)
                    for inner in reversed(path):
                        found = resolve(inner.task, inner.component, scope, lambda _: UNKNOWN)
                        is_loop = inner.task.loop is not None
                        scope = (
                            inputs_of_iteration(inner.task, inner.component, found.values) if is_loop else found.values
                        )
                    yield found
            path.append(place)

    @functools.cached_property
    def inputs(self) -> Mapping[str, Any]:
        """The known inputs, as the command of a stage has them."""
        values = inputs_of_stage(self.task, self.component, self.resolved.values)
        return {name: value for name, value in values.items() if value is not UNKNOWN}

    @functools.cached_property
    def decoded(self) -> DecodedCommand:
        """The decoded command of its container, with the known inputs filled in."""
        container = self.component.container
        return decode_command(
            resolve_command(container.words, PlaceholderValues(parameters=self.inputs)) if container is not None else ()
        )

    @property
    def is_tracked(self) -> bool:
        """Whether it is a tracked stage whose name is known."""
        return bool(self.decoded.stage) and "{{$" not in str(self.decoded.stage)

    @property
    def tracker_base(self) -> str | None:
        """The tracker base of a tracked stage; None if it is not known."""
        base = self.decoded.tracker_base
        return base if base is not None and "{{$" not in base else None

    @property
    def workspace(self) -> str:
        """The URL of its workspace or that of its replicas, or a placeholder; empty without one."""
        found = next(filter(None, workspaces_in(self.decoded.words)), "")
        return dict(self.env).get(CODE_URL, found) if is_code_name(found) else found

    @property
    def env(self) -> Sequence[tuple[str, str]]:
        """The variables of its container."""
        return self.component.container.env if self.component.container is not None else ()

    @property
    def variables(self) -> list[tuple[str, str]]:
        """The application's variables that the container and its command set."""
        of_command = self.decoded.variables.items()
        return [*self.env, *((name, value) for name, value in of_command if name != TRACKER_BASE)]


def walk_tasks(
    pipeline: Pipeline,
    scope: Component | None = None,
    names: StageNames | None = None,
    *,
    arguments: Mapping[str, Any] | None = None,
) -> Iterator[ScopedTask]:
    """Yield every task of the pipeline in an order in which they could run, each group before the tasks inside.

    Args:
        pipeline: the pipeline.
        scope: the component to begin with, if not the root.
        names: the names of the stages in that scope.
        arguments: the values of all parameters, if the known inputs of tasks are asked for.
    """
    return _walk_tasks(pipeline, scope or pipeline.root, names or StageNames(), arguments, None)


def _walk_tasks(
    pipeline: Pipeline,
    scope: Component,
    names: StageNames,
    arguments: Mapping[str, Any] | None,
    inside: ScopedTask | None,
) -> Iterator[ScopedTask]:
    for task in scope.as_dag().ordered:
        component = pipeline.component_of(task)
        path = f"{inside.path}/{task.name}" if inside is not None else task.name
        looped = task.loop is not None or (inside is not None and inside.looped)
        place = ScopedTask(path, names.of(task.name), task, component, scope, arguments, inside, looped)
        yield place
        if component.dag is not None:
            yield from _walk_tasks(pipeline, component, names.inside(task), arguments, place)


def known_stages(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[ScopedTask]:
    """Yield every task that runs a container; ``arguments`` has the values of all parameters."""
    return (place for place in walk_tasks(pipeline, arguments=arguments) if place.component.container is not None)


def known_bases(stages: Iterable[ScopedTask]) -> dict[str, list[ScopedTask]]:
    """Return the tracker bases that depend only on parameters and constants, with those of the stages that use them."""
    bases: dict[str, list[ScopedTask]] = {}
    for stage in stages:
        if stage.tracker_base is not None:
            bases.setdefault(stage.tracker_base, []).append(stage)
    return bases


def check_run_name(name: object) -> str:
    """Return the name that a user gives a run.

    Raises:
        ArgumentError: it cannot be the beginning of a run's id.
    """
    if not isinstance(name, str) or safe_name(name) != name or len(name) > _LONGEST or name == LATEST:
        raise ArgumentError(
            f"The name of a run is {shown(name)}. Use up to {_LONGEST} ASCII letters, digits, '-' and '.', from a "
            f"letter or digit to another, but not {LATEST!r}."
        )
    return name


def make_run_name(name: str) -> str:
    """Make a run id: ``<name>-<date>-<time>-<6 hexadecimal digits>``."""
    return f"{safe_name(name)[:_LONGEST]}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def safe_name(text: str) -> str:
    """Return the text with only characters allowed in all tracker keys and file names: A-Z a-z 0-9 . -"""
    return re.sub(r"[^A-Za-z0-9.-]+", "-", text).strip("-.") or "x"


def matching_names(name: str, known: Sequence[str]) -> list[str]:
    """Return the matching names: the name itself, else names with this prefix, else names with this suffix."""
    if name in known or not name:
        return [name] if name else []
    return [found for found in known if found.startswith(name)] or [found for found in known if found.endswith(name)]


def without_indices(stage: str) -> str:
    """Return the name without loop indices: ``inner/train`` for ``inner[2]/train[2,0]``."""
    return _INDICES.sub("", stage)


def indices_of(stage: str) -> tuple[int, ...]:
    """Return the loop indices in a name: 2, 0 for ``train[2,0]``."""
    return tuple(int(number) for group in _INDICES.findall(stage) for number in group[1:-1].split(","))


def task_name(name: str) -> str:
    """Return the name that KFP gives to the task of a function or application: ``make-data`` for ``make_data``."""
    return name.replace("_", "-")


def is_execution(name: str, stage: str) -> bool:
    """Return whether a name belongs to a stage, with or without indices: ``train[1,0]`` is an execution of ``train``.

    The stage may be written as the function or application is, ``make_data``: KFP names the task ``make-data``. In a
    file not written by KFP's compiler, tasks may have any names.
    """
    parts, of = task_name(name).split("/"), task_name(stage).split("/")
    return len(parts) == len(of) and all(
        without_indices(part) == without_indices(other)
        and indices_of(part)[: len(indices_of(other))] == indices_of(other)
        for part, other in zip(parts, of, strict=True)
    )


class PodNames:
    """Make readable names for the pods of a run (``KFP_POD_NAME``), unique within it.

    With the number of the attempt after ``_``, a name is an execution in the form of ``contract.protocol``.
    """

    def __init__(self) -> None:
        self._stages: dict[str, str] = {}

    def make(self, stage: str, attempt: int) -> str:
        """Make a name: ``train-2_1`` for the first attempt (counted from 1) at ``train[2]``."""
        return f"{self._stage_part(stage)}_{attempt}"

    def variables(self, pod_name: str, pod_uid: str) -> dict[str, str]:
        """Return the variables that name the pod of a stage."""
        del pod_uid  # names are unique
        return {POD_NAME: pod_name}

    def _stage_part(self, stage: str) -> str:
        name = safe_name(stage)
        # train[2] and train-2 would share a name: the second one gets a hash, as long names do.
        while len(name) > _LONGEST or self._stages.setdefault(name, stage) != stage:
            digest = hashlib.sha256(f"{stage} {name}".encode()).hexdigest()[:8]
            name = f"{safe_name(stage)[: _LONGEST - 9]}-{digest}"
        return name


def outline(pipeline: Pipeline) -> dict[str, bool]:
    """Return the names of all stages, in an order in which they could run, and whether each is in a loop."""
    return {place.name: place.looped for place in walk_tasks(pipeline) if place.is_stage}


def is_meant(stage: str, word: str) -> bool:
    """Return whether a word names a stage: by its name without indices, or a nested pipeline around it."""
    name, wanted = task_name(without_indices(stage)), task_name(word)
    return name == wanted or name.startswith(f"{wanted}/")
