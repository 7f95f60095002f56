"""The nodes of an Argo workflow, and the rules for their names.

A workflow of KFP 2.17 has ``templateDefaults`` with a retry strategy, so that every node but a task group is there
twice: as a Retry, ``train``, and as its attempt, ``train(0)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torchx_kfp.contract.protocol import POD_NAME, POD_UID
from torchx_kfp.execution.pipeline.spec import Pipeline, Task
from torchx_kfp.execution.pipeline.walk import PodNames, ScopedTask, indices_of, walk_tasks, without_indices
from torchx_kfp.execution.runs.events import StageStarted

#: Argo's limit of the length of a pod's name, and the part that its hash may take.
_LONGEST, _HASH = 253, 10
#: The characters with which Kubernetes completes the names of objects.
LETTERS = "bcdfghjklmnpqrstvwxz2456789"


@dataclass(frozen=True)
class Naming:
    """The names of one workflow's nodes."""

    workflow: str

    def attempt(self, name: str, number: int = 0) -> str:
        """Return the name of an attempt."""
        return f"{name}({number})"

    @property
    def root(self) -> str:
        """The DAG of the pipeline's tasks."""
        return self.attempt(f"{self.attempt(self.workflow)}.root")

    def iteration(self, loop: str, index: int) -> str:
        """Return the DAG of one iteration, given the name of the loop's task."""
        item = self.attempt(f"{self.attempt(loop)}.iteration-iterations({index}:{index})")
        return self.attempt(f"{item}.iteration-item")

    def task(self, dag: str, task: Task) -> str:
        """Return the node of a task in a DAG; an exit task is a hook of the task before it."""
        around = self.attempt(f"{dag}.{task.depends_on[0]}.onExit") if is_hook(task) else dag
        return f"{around}.{task.name}"

    def executor(self, task: str, number: int = 0) -> str:
        """Return the node of a stage's pod, given the name of its task."""
        return self.attempt(f"{self.attempt(task)}.executor", number)

    def id(self, name: str) -> str:
        """Return a node's id."""
        return name if name == self.workflow else f"{self.workflow}-{fnv1a32(name)}"

    def pod(self, name: str, template: str) -> str:
        """Return the name of a node's pod."""
        return f"{f'{self.workflow}-{template}'[: _LONGEST - _HASH - 1]}-{fnv1a32(name)}"


def fnv1a32(text: str) -> int:
    """Return the hash with which Argo makes a node's id from its name."""
    value = 0x811C9DC5
    for byte in text.encode():
        value = ((value ^ byte) * 0x01000193) & 0xFFFFFFFF
    return value


def executor_template(metadata: dict[str, dict[str, str]] | None, *, retries: bool) -> str:
    """Return the template of a stage's pod: it depends on the numbers of labels and annotations that the task sets."""
    name = "retry-system-container-impl" if retries else "system-container-impl"
    if metadata is None:
        return name
    return f"metadata-{len(metadata.get('annotations') or ())}-{len(metadata.get('labels') or ())}-{name}"


class ArgoPods(PodNames):
    """Gives the pods of a local run the names that Argo gives them, and UIDs: a retry of a run uses names again."""

    def __init__(self, pipeline: Pipeline, names: Naming) -> None:
        super().__init__()
        self._names = names
        self._places = {place.name: place for place in walk_tasks(pipeline)}

    def make(self, stage: str, attempt: int) -> str:
        """Make the name for an attempt at a stage."""
        place = self._places[without_indices(stage)]
        node = self._node(place, indices_of(stage))
        retries = place.task.retry is not None
        template = executor_template(place.component.platform.get("podMetadata"), retries=retries)
        return self._names.pod(self._names.executor(node, attempt - 1), template)

    def variables(self, pod_name: str, pod_uid: str) -> dict[str, str]:
        """Return the variables that KFP sets in a pod."""
        return {POD_NAME: pod_name, POD_UID: pod_uid}

    def _node(self, place: ScopedTask, indices: tuple[int, ...]) -> str:
        """Return the node of the task in one iteration of the loops around it."""
        around: list[ScopedTask] = []
        inside = place.inside
        while inside is not None:
            around.insert(0, inside)
            inside = inside.inside
        dag, left = self._names.root, list(indices)
        for each in around:
            node = self._names.task(dag, each.task)
            dag = self._names.iteration(node, left.pop(0)) if each.task.loop is not None else self._names.attempt(node)
        return self._names.task(dag, place.task)


@dataclass
class Node:
    """One node. Times are in seconds since the epoch."""

    name: str
    type: str
    template: str
    phase: str
    started: float
    ended: float | None = None
    message: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    exit_code: str = ""
    #: For the pod of a stage: the stage's name in the local run, and the start of this attempt.
    stage: str = ""
    started_as: StageStarted | None = None


def is_hook(task: Task) -> bool:
    """Return whether a task is an exit task, which Argo has as a hook of the task before it."""
    return task.ignores_failures and bool(task.depends_on)
