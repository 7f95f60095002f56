"""The nodes of an Argo workflow, and the rules for their names.

A workflow of KFP 2.17 has ``templateDefaults`` with a retry strategy, so that every node but a task group is there
twice: as a Retry, ``train``, and as its attempt, ``train(0)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
    def entry(self) -> str:
        return self.attempt(self.workflow)

    @property
    def root(self) -> str:
        """The DAG in which the pipeline's tasks are."""
        return self.attempt(f"{self.entry}.root")

    def iteration(self, loop: str, index: int) -> str:
        """Return the DAG in which the tasks of one iteration are, given the name of the loop's task."""
        item = self.attempt(f"{self.attempt(loop)}.iteration-iterations({index}:{index})")
        return self.attempt(f"{item}.iteration-item")

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


@dataclass
class Node:
    """One node; ``history`` has its phases and their times, in seconds since the epoch."""

    name: str
    type: str
    template: str
    history: list[tuple[str, float]]
    ended: float | None = None
    message: str = ""
    outputs: dict[str, str] = field(default_factory=dict)
    exit_code: str = ""
    #: For the pod of a stage: the stage's name in the local run, and the number of the attempt, counted from 1.
    stage: str = ""
    attempt: int = 0

    @property
    def phase(self) -> str:
        return self.history[-1][0]

    @property
    def started(self) -> float:
        return self.history[0][1]


def pull_problem(image: str) -> str:
    """Return what the kubelet says about an image that cannot be pulled: one of a registry below ``.invalid``."""
    if not image.partition("/")[0].endswith(".invalid"):
        return ""
    return f'ErrImagePull: failed to pull and unpack image "{image}": no such host'
