"""The inputs of tasks that are known before a run: constants, parameters of the pipeline, and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torchx_kfp.contract.command import StageFacts, decode
from torchx_kfp.contract.protocol import TRACKER_BASE
from torchx_kfp.pipeline.placeholders import Facts, resolve_command, resolve_value
from torchx_kfp.pipeline.spec import Component, Constant, Container, FromInput, Pipeline, Task
from torchx_kfp.pipeline.walk import Place, walk


def known_inputs(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """Yield every task of the pipeline with its known inputs; ``arguments`` has the values of all parameters."""
    inputs: dict[str, Mapping[str, Any]] = {}
    for place in walk(pipeline):
        around = arguments if place.inside is None else inputs[place.inside.path]
        inputs[place.path] = _known_inputs(place.task, place.component, around)
        yield place, inputs[place.path]


@dataclass(frozen=True)
class KnownStage:
    """A task that runs a container, its known inputs, and what its command says with these filled in."""

    place: Place
    inputs: Mapping[str, Any]
    container: Container
    facts: StageFacts

    @property
    def tracker_base(self) -> str | None:
        """The tracker base of a tracked stage; None if it is not known."""
        base = self.facts.tracker_base
        return base if base and "{{$" not in base else None

    @property
    def variables(self) -> list[tuple[str, str]]:
        """The application's variables that the container and its command set."""
        of_command = self.facts.variables.items()
        return [*self.container.env, *((name, value) for name, value in of_command if name != TRACKER_BASE)]


def known_stages(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[KnownStage]:
    """Yield every task that runs a container; ``arguments`` has the values of all parameters."""
    for place, inputs in known_inputs(pipeline, arguments):
        container = place.component.container
        if container is not None:
            words = resolve_command(container.words, Facts(parameters=inputs))
            yield KnownStage(place, inputs, container, decode(words))


def known_bases(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, list[KnownStage]]:
    """Return the tracker bases that depend only on parameters and constants, with the stages that use them."""
    bases: dict[str, list[KnownStage]] = {}
    for stage in known_stages(pipeline, arguments):
        if stage.tracker_base is not None:
            bases.setdefault(stage.tracker_base, []).append(stage)
    return bases


def _known_inputs(task: Task, component: Component, scope: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs of a task that are known before the run; ``scope`` has the inputs of the pipeline around it."""
    known = {name: input.default for name, input in component.inputs.items() if input.has_default}
    constants = {}
    for name, source in task.inputs.items():
        known.pop(name, None)
        if isinstance(source, Constant):
            constants[name] = source.value
        elif isinstance(source, FromInput) and not source.selector and source.name in scope:
            known[name] = scope[source.name]
    # A constant's text may contain placeholders for the other inputs.
    facts = Facts(parameters=dict(known))
    return {**known, **{name: resolve_value(value, facts) for name, value in constants.items()}}
