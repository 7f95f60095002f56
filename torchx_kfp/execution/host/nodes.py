"""The nodes of a run's Argo workflow, from which ``stages`` derives events.

v1beta1 returns them with a run, in the workflow's manifest: the only response of KFP 2 with pods, exit codes, drivers'
decisions, and reasons why pods wait.

A node's name is the path to it: ``W(0).root(0).inner(0).sleeper(0).executor(0)`` in the workflow ``W``. The number in
parentheses counts attempts: a node that may be retried has one node below it for each attempt, with the same name and a
number, and everything else is below the attempts. KFP 2.17 lets Argo retry all nodes, earlier versions only some.

- A stage ``train`` is a pod ``train-driver`` and then a node ``train`` with the pod ``executor``, which is skipped if
  the driver found the outputs in the cache.
- A nested pipeline or a branch ``inner`` is a pod ``inner-driver`` and then a node ``inner`` around its tasks. It is
  skipped if the driver found that the condition is false.
- A loop ``loop`` is a node around the pod ``iteration-driver`` and a group ``iteration-iterations``; in this,
  ``iteration-iterations(2:2)`` has ``iteration-item-driver`` and ``iteration-item`` around the tasks.
- An exit task ``bye`` is inside ``task.onExit``, where ``task`` is a task before it.
- Importers, and tasks that make or delete volume claims, are one pod.

``PodSpec`` reads a driver's output ``pod-spec-patch``: the part of a stage's pod spec whose container runs KFP's
launcher. Its option ``--executor_input`` has all inputs and the places of outputs, and the stage's own command, with
parameters filled in, follows ``--``. Seen on KFP 2.17.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.host.states import seconds
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.spec import ArtifactType, Component
from torchx_kfp.execution.pipeline.values import convert
from torchx_kfp.execution.runs.vocabulary import State

#: Argo omits a node if those before it did not end as it needs.
_STATES = {
    "Pending": State.QUEUED,
    "Running": State.RUNNING,
    "Succeeded": State.SUCCEEDED,
    "Skipped": State.SKIPPED,
    "Omitted": State.NOT_RUN,
    "Failed": State.FAILED,
    "Error": State.FAILED,
}
#: The number of an attempt at the end of a node's name.
_ATTEMPT = re.compile(r"\(\d+\)$")
#: The most bytes of unpacked nodes. A workflow has 1 MiB, and packing shrinks its nodes to a 20th or less.
MOST_UNPACKED = 32 << 20
#: The longest name of a pod, without the hash at its end.
_LONGEST_PREFIX = 253 - 10 - 1
_POD_NAMES = "workflows.argoproj.io/pod-name-format"


@dataclass(slots=True)
class Node:
    """A node. Times are in seconds since the epoch, or None.

    A waiting pod is queued, and ``message`` has the reason. ``pod`` is the pod's name; ``outputs`` are in Argo's form.
    """

    name: str
    state: State
    start: float | None = None
    end: float | None = None
    message: str = ""
    exit_code: int | None = None
    pod: str = ""
    outputs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_begun(self) -> bool:
        """Whether it has started."""
        return self.state in (State.RUNNING, State.SUCCEEDED, State.FAILED)

    def decision(self, name: str) -> str:
        """Return an output of a driver, or "" if it is missing."""
        parameters = self.outputs.get("parameters")
        given = map(as_object, parameters) if isinstance(parameters, list) else ()
        return next((as_text(each.get("value")) for each in given if each.get("name") == name), "")


@dataclass(frozen=True, eq=False)
class Nodes:
    """The nodes of a workflow, as JSON by name. ``message`` is the reason for the workflow's failure, if known."""

    workflow: str
    records: Mapping[str, Mapping[str, Any]]
    #: The names of the nodes that were read so far.
    read: set[str] = field(default_factory=set, repr=False)
    #: Whether pods are named after the ids of their nodes, as old versions of Argo do.
    has_ids: bool = False
    message: str = ""

    def get(self, name: str) -> Node | None:
        """Return the node with this name, if there is one."""
        record = self.records.get(name)
        if record is None:
            return None
        self.read.add(name)
        return _node(self.workflow, self.has_ids, record)

    def node_of(self, pod: str) -> str:
        """Return the name of a pod's node, or "" if there is none."""
        return next((name for name in self.records if (node := self.get(name)) is not None and node.pod == pod), "")

    def unread_pods(self) -> list[str]:
        """Return the names of the pods that were not read, and whose retried node was not read either."""
        pods = (name for name, record in self.records.items() if record.get("type") == "Pod")
        return [name for name in pods if name not in self.read and _ATTEMPT.sub("", name) not in self.read]

    def attempts(self, name: str) -> list[Node]:
        """Return the attempts of a node, or the node itself if it cannot be retried."""
        found: list[Node] = []
        while (node := self.get(f"{name}({len(found)})")) is not None:
            found.append(node)
        whole = None if found else self.get(name)
        return found if whole is None else [whole]

    def failed_attempt(self, node: Node) -> Node:
        """Return the last failed attempt, which has the reason; the node only reports that no retries are left."""
        return next((each for each in reversed(self.attempts(node.name)) if each.state is State.FAILED), node)


def manifest_of(answer: Mapping[str, Any]) -> str:
    """Return the manifest in v1beta1's JSON of a run, or ""."""
    return as_text(as_object(answer, "pipeline_runtime").get("workflow_manifest"))


def read_manifest(manifest: str) -> Nodes:
    """Return the nodes of a workflow from its manifest, or none without a workflow.

    Raises:
        ValueError: the manifest is not JSON, or its compressed nodes cannot be read. The message is a clause.
    """
    workflow = as_object(_parsed(manifest))
    metadata, status = as_object(workflow.get("metadata")), as_object(workflow.get("status"))
    packed = as_text(status.get("compressedNodes"))
    nodes = as_object(_parsed(_decompressed(packed)) if packed else status.get("nodes"))
    name = as_text(metadata.get("name"))
    has_ids = as_object(metadata, "annotations").get(_POD_NAMES) == "v1"
    records = {as_text(record.get("name")): record for record in map(as_object, nodes.values())}
    return Nodes(name, records, has_ids=has_ids, message=as_text(status.get("message")))


def _parsed(content: str) -> Any:
    try:
        return json.loads(content or "{}")
    except (ValueError, RecursionError):
        raise ValueError("they are not JSON") from None


def _decompressed(packed: str) -> str:
    """Return the nodes of a large workflow, which Argo compresses."""
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(base64.b64decode(packed), MOST_UNPACKED)
        if reader.eof:
            return content.decode()
    except (ValueError, zlib.error) as error:
        raise ValueError(f"they are damaged ({error})") from None
    raise ValueError(f"they have more than {MOST_UNPACKED:,} bytes" if reader.unconsumed_tail else "they are cut off")


def _node(workflow: str, has_ids: bool, record: Mapping[str, Any]) -> Node:
    name, outputs = as_text(record.get("name")), as_object(record.get("outputs"))
    exit_code = as_text(outputs.get("exitCode"))
    # Argo names the pod of a node after the template and the hash at the end of the node's id.
    pod, template = as_text(record.get("id")), as_text(record.get("templateName"))
    if template and not has_ids and name != workflow:
        pod = f"{f'{workflow}-{template}'[:_LONGEST_PREFIX]}-{pod.rpartition('-')[2]}"
    return Node(
        name=name,
        # Unknown phases count as queued.
        state=_STATES.get(as_text(record.get("phase")), State.QUEUED),
        start=seconds(record.get("startedAt")),
        end=seconds(record.get("finishedAt")),
        message=as_text(record.get("message")),
        exit_code=int(exit_code) if exit_code and re.fullmatch(r"-?\d{1,9}", exit_code) else None,
        pod=pod if record.get("type") == "Pod" else "",
        outputs=outputs,
    )


_INPUT, _COMMAND = "--executor_input", "--"


@dataclass(frozen=True)
class PodSpec:
    """The parts of a pod's spec that describe the stage. Its words have placeholders for the paths of outputs."""

    image: str
    words: tuple[str, ...]
    executor_input: Mapping[str, Any]

    @classmethod
    def parse(cls, patch: str) -> PodSpec:
        """Return the content of a patch.

        Raises:
            ValueError: it is not from KFP's driver. The message is a clause.
        """
        try:
            container = json.loads(patch)["containers"][0]
            words = [*container["command"], *(container.get("args") or ())]
            executor_input = json.loads(words[words.index(_INPUT) + 1])
            own = words[words.index(_COMMAND) + 1 :]
            "".join(own).encode()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"the driver's pod-spec-patch has an unknown form ({type(error).__name__}: {error})"
            ) from None
        image = as_text(container.get("image"))
        # Container engines would take such an image for an option.
        if not isinstance(executor_input, dict) or not own or image.startswith("-") or not image.isprintable():
            raise ValueError("the driver's pod-spec-patch has an unknown form")
        return cls(image, tuple(own), executor_input)

    def component(self, component: Component) -> Component:
        """Return the component of the stage's task, with this image and command."""
        container = component.container
        assert container is not None
        # The launcher runs the whole command, and not the image's ENTRYPOINT.
        filled = dataclasses.replace(container, image=self.image or container.image, command=self.words, args=())
        return dataclasses.replace(component, container=filled)

    def inputs(self, component: Component) -> dict[str, Any]:
        """Return the values of the stage's inputs, including artifacts."""
        given = as_object(self.executor_input.get("inputs"))
        values: dict[str, Any] = {}
        for name, value in as_object(given.get("parameterValues")).items():
            parameter = component.parameter_inputs.get(name)
            values[name] = convert(value, parameter.type if parameter is not None else "")
        return {**values, **_artifacts(given, component.artifact_inputs)}

    def made(self, component: Component) -> dict[str, Artifact | ArtifactList]:
        """Return the output artifacts of the stage, with the URIs that KFP's driver has chosen."""
        return _artifacts(as_object(self.executor_input.get("outputs")), component.artifact_outputs)


def _artifacts(given: Mapping[str, Any], declared: Mapping[str, ArtifactType]) -> dict[str, Artifact | ArtifactList]:
    """Return the declared artifacts among inputs or outputs; unknown names must not become parts of paths."""
    found: dict[str, Artifact | ArtifactList] = {}
    for name, value in as_object(given.get("artifacts")).items():
        if name in declared:
            listed = as_object(value).get("artifacts")
            items = map(as_object, listed if isinstance(listed, list) else ())
            artifacts = [_artifact(name, item, declared[name]) for item in items]
            found[name] = artifacts[0] if len(artifacts) == 1 else ArtifactList(artifacts)
    return found


def _artifact(name: str, message: Mapping[str, Any], declared: ArtifactType) -> Artifact:
    """Return an artifact. KFP's driver omits the types of inputs, so the declared one is the default."""
    kind = as_object(message.get("type"))
    title = as_text(kind.get("schemaTitle"))
    return Artifact(
        as_text(message.get("name")) or name,
        ArtifactType(title, as_text(kind.get("schemaVersion"))) if title else declared,
        as_text(message.get("uri")),
        as_object(message.get("metadata")),
    )
