"""What KFP's driver has decided about the pod of a stage: image, command and inputs, as the manifest has them.

The driver's output ``pod-spec-patch`` is a part of a pod's spec. Its container runs KFP's launcher: the option
``--executor_input`` has all inputs, and the stage's own command, with parameters filled in, follows ``--``. Seen on KFP
2.17.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.spec import ArtifactType, Component
from torchx_kfp.execution.pipeline.values import convert

_INPUT, _COMMAND = "--executor_input", "--"


@dataclass(frozen=True)
class PodSpec:
    """The parts of a pod's spec that describe the stage. The words have placeholders for the places of outputs."""

    image: str
    words: tuple[str, ...]
    executor_input: Mapping[str, Any]

    @classmethod
    def parse(cls, patch: str) -> PodSpec:
        """Return the content of a patch.

        Raises:
            ValueError: it has another form than KFP's driver gives it. The message is a clause.
        """
        try:
            container = json.loads(patch)["containers"][0]
            words = [*container["command"], *(container.get("args") or ())]
            given = json.loads(words[words.index(_INPUT) + 1])
            own = words[words.index(_COMMAND) + 1 :]
            "".join(own).encode()
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(
                f"the driver's pod-spec-patch has another form ({type(error).__name__}: {error})"
            ) from None
        image = as_text(container.get("image"))
        # Programs that start containers would take it for an option.
        if not isinstance(given, dict) or not own or image.startswith("-") or not image.isprintable():
            raise ValueError("the driver's pod-spec-patch has another form")
        return cls(image, tuple(own), given)

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
            parameter = component.inputs.get(name)
            values[name] = convert(value, parameter.type if parameter is not None else "")
        return {**values, **_artifacts(given, component.artifact_inputs)}

    def made(self, component: Component) -> dict[str, Artifact | ArtifactList]:
        """Return the artifacts that the stage makes, at the places that KFP's driver has given them."""
        return _artifacts(as_object(self.executor_input.get("outputs")), component.artifact_outputs)


def _artifacts(given: Mapping[str, Any], declared: Mapping[str, ArtifactType]) -> dict[str, Artifact | ArtifactList]:
    """Return the artifacts among inputs or outputs, as far as the component has them: names become parts of paths."""
    found: dict[str, Artifact | ArtifactList] = {}
    for name, value in as_object(given.get("artifacts")).items():
        if name in declared:
            listed = as_object(value).get("artifacts")
            items = map(as_object, listed if isinstance(listed, list) else ())
            artifacts = [_artifact(name, item, declared[name]) for item in items]
            found[name] = artifacts[0] if len(artifacts) == 1 else ArtifactList(artifacts)
    return found


def _artifact(name: str, message: Mapping[str, Any], declared: ArtifactType) -> Artifact:
    """Return an input artifact. KFP's driver leaves out its type, in place of which the input's own counts."""
    kind = as_object(message.get("type"))
    title = as_text(kind.get("schemaTitle"))
    return Artifact(
        as_text(message.get("name")) or name,
        ArtifactType(title, as_text(kind.get("schemaVersion"))) if title else declared,
        as_text(message.get("uri")),
        as_object(message.get("metadata")),
    )
