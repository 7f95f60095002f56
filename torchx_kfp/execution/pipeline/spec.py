"""The compiled pipeline as plain data: the parts of KFP's PipelineSpec that are needed to run it.

Everything that KFP nests (a nested pipeline, a branch of ``dsl.If``, a loop) is a component with a DAG, so one kind of
scope is enough for all of them. It includes parts that cannot run locally; ``local.preflight`` rejects them.
"""

from __future__ import annotations

import functools
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

from torchx_kfp.contract.command import DecodedCommand, decode_command

#: Begins the name of an input that KFP's compiler makes for a channel.
CHANNEL = "pipelinechannel--"
# KFP's names for the groups around the branches of a dsl.If, and around the tasks of a dsl.ExitHandler.
_GROUPS = re.compile(r"(condition-branches|exit-handler)-\d+")


@dataclass(frozen=True)
class Parameter:
    """An input parameter of a component. ``type`` is KFP's name: STRING, NUMBER_INTEGER, ..."""

    name: str
    type: str
    optional: bool = False
    has_default: bool = False
    default: Any = None
    literals: tuple[Any, ...] = ()


@dataclass(frozen=True)
class ArtifactType:
    """The type of an artifact, such as ``system.Model``, or of each artifact in a list."""

    title: str
    version: str = ""


@dataclass(frozen=True)
class Constant:
    """An input that is fixed in the pipeline; its text may contain placeholders for the task's other inputs."""

    value: Any


@dataclass(frozen=True)
class FromInput:
    """An input that is taken from an input of the task's scope."""

    name: str
    selector: str = ""


@dataclass(frozen=True)
class FromTask:
    """An input that is taken from the output of another task in the scope."""

    task: str
    output: str
    selector: str = ""


@dataclass(frozen=True)
class FinalStatus:
    """An input with the final status of another task in the scope (``dsl.PipelineTaskFinalStatus``)."""

    task: str


@dataclass(frozen=True)
class Other:
    """An input of an unsupported kind; ``kind`` is its key in the file."""

    kind: str


Origin: TypeAlias = Constant | FromInput | FromTask | FinalStatus | Other


@dataclass(frozen=True)
class Loop:
    """``dsl.ParallelFor``: the items are ``raw`` (JSON text), or the task's input with the name ``from_input``.

    That input is a parameter, or a list of artifacts.
    """

    item_input: str
    raw: str | None
    from_input: str | None
    parallelism: int = 0


@dataclass(frozen=True)
class Retry:
    """The retry policy of a task: the number of retries, the seconds between them, and those in which they begin."""

    count: int
    backoff: float = 0.0
    factor: float = 2.0
    backoff_max: float = 3600.0

    def delay(self, retry: int, passed: float = 0.0) -> float | None:
        """Return the seconds before retry number ``retry``, counted from 1; None if there is no such retry.

        As with Argo, a retry begins at most ``backoff_max`` seconds after the first attempt: ``passed`` are over.
        """
        try:
            delay = self.backoff * self.factor ** (retry - 1)
        except OverflowError:
            return None
        return delay if retry <= self.count and passed + delay <= self.backoff_max else None


@dataclass(frozen=True)
class Task:
    """One node of a DAG."""

    name: str
    display_name: str
    component: str
    #: Where its input parameters come from.
    parameters: Mapping[str, Origin] = field(default_factory=dict)
    depends_on: tuple[str, ...] = ()
    condition: str | None = None
    #: Whether it ignores upstream failures, as exit tasks and tasks with ``ignore_upstream_failure`` do.
    ignores_failures: bool = False
    loop: Loop | None = None
    retry: Retry | None = None
    #: Where its input artifacts come from.
    artifacts: Mapping[str, Origin] = field(default_factory=dict)
    #: Whether outputs of an earlier run may be reused, and the key that the author has chosen for them, if any.
    caches: bool = False
    cache_key: str = ""

    @property
    def is_group(self) -> bool:
        """Whether KFP's compiler added the task for a loop, a condition or an exit handler."""
        return self.loop is not None or self.condition is not None or _GROUPS.fullmatch(self.name) is not None


@dataclass(frozen=True)
class Dag:
    """Tasks, and the outputs of their scope, parameters and artifacts.

    An output comes from the first (task, output) pair that ran.
    """

    tasks: Mapping[str, Task]
    outputs: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    @functools.cached_property
    def ordered(self) -> list[Task]:
        """The tasks, each after its dependencies."""
        graph = TopologicalSorter({task.name: task.depends_on for task in self.tasks.values()})
        return [self.tasks[name] for name in graph.static_order()]

    def hook_instead_of(self, task: Task) -> str | None:
        """Return the task that KFP runs instead of this one; None if it runs this one.

        A task that runs even if its upstream tasks have failed is an exit hook of each of them. Each task has only one
        hook: the one whose name sorts last.
        """
        if not task.ignores_failures or not task.depends_on:
            return None
        always = sorted(name for name, other in self.tasks.items() if other.ignores_failures)
        hooks = {upstream: name for name in always for upstream in self.tasks[name].depends_on}
        mine = [hooks[upstream] for upstream in task.depends_on]
        return None if task.name in mine else mine[0]


@dataclass(frozen=True)
class Container:
    """The command of a stage. The image is not used if the stage runs as a process."""

    image: str
    command: tuple[str, ...]
    args: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()
    #: Requests and limits, as in the file: see ``placeholders.read_limits``.
    resources: Mapping[str, Any] = field(default_factory=dict)

    @property
    def words(self) -> tuple[str, ...]:
        """The command and its arguments, with placeholders."""
        return (*self.command, *self.args)


@dataclass(frozen=True)
class Importer:
    """``dsl.importer``: an artifact that exists already, at a URI that is a constant or an input of the task."""

    uri: Constant | FromInput
    type: ArtifactType
    metadata: Mapping[str, Any] = field(default_factory=dict)
    to_workspace: bool = False


@dataclass(frozen=True)
class Component:
    """A template for tasks: a ``dag``, a ``container``, an ``importer``, or none if ``kind`` is something else."""

    name: str
    kind: str
    parameter_inputs: Mapping[str, Parameter] = field(default_factory=dict)
    parameter_outputs: Mapping[str, str] = field(default_factory=dict)
    artifact_inputs: Mapping[str, ArtifactType] = field(default_factory=dict)
    optional_artifacts: frozenset[str] = frozenset()
    artifact_outputs: Mapping[str, ArtifactType] = field(default_factory=dict)
    dag: Dag | None = None
    container: Container | None = None
    importer: Importer | None = None
    #: The kinds of settings on a task that the component gets instead of its pod (``dsl.TaskConfig``).
    handed_on: frozenset[str] = frozenset()
    #: The executor's part of the Kubernetes platform spec, as in the file.
    platform: Mapping[str, Any] = field(default_factory=dict)

    @functools.cached_property
    def decoded(self) -> DecodedCommand:
        """The decoded command of its container, without the inputs."""
        return decode_command(self.container.words if self.container is not None else ())

    def as_dag(self) -> Dag:
        """Return the component's DAG.

        Raises:
            TypeError: it does not have one.
        """
        if self.dag is None:
            raise TypeError(f"the component {self.name} has no tasks")
        return self.dag


@dataclass(frozen=True)
class Pipeline:
    """A compiled pipeline. ``platform`` is the pipeline's own part of the Kubernetes platform spec."""

    name: str
    root: Component
    components: Mapping[str, Component]
    platform: Mapping[str, Any] = field(default_factory=dict)
    description: str = ""
    #: The text of the compiled file, and its PipelineSpec and platform spec (or {}), which nobody changes.
    text: str = field(default="", repr=False, compare=False)
    documents: tuple[Mapping[str, Any], Mapping[str, Any]] = field(default=({}, {}), repr=False, compare=False)
    #: Whether this process has compiled it from Python. A file from elsewhere must not name local folders.
    is_compiled_here: bool = field(default=False, compare=False)

    def copy_documents(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a copy of the documents that may be changed."""
        spec, platform = pickle.loads(pickle.dumps(self.documents))  # several times as fast as copy.deepcopy
        return spec, platform

    def component_of(self, task: Task) -> Component:
        return self.components[task.component]


def is_volume_task(component: Component) -> bool:
    """Return whether a task makes or deletes a volume claim instead of running: its image does not exist."""
    image = component.container.image if component.container is not None else ""
    return image.startswith(("argostub/createpvc", "argostub/deletepvc"))
