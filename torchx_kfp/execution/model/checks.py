"""Find what fails or differs on KFP's backend, according to KFP 2.17.0 and its source; ``versions`` has older ones.

The pipelines of ``tests/cases`` were run on that version; ``docs/why/differences.md`` has a table of the differences.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torchx_kfp.common.text import joined
from torchx_kfp.contract.inputs import large_character
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.execution.model.findings import Finding, Kind
from torchx_kfp.execution.model.order import of_condition, of_hook, of_loop
from torchx_kfp.execution.model.pods import of_launcher, of_pod
from torchx_kfp.execution.model.python_stages import of_program
from torchx_kfp.execution.model.tasks import of_container, of_importer, of_inputs, of_settings
from torchx_kfp.execution.model.texts import (
    DELETE,
    REJECTED_CHARACTER,
    REJECTED_DELETE,
    arrives,
    as_text,
    find_change,
    of_numbers,
)
from torchx_kfp.execution.model.versions import NEWEST, Checked, Version, of_version
from torchx_kfp.execution.pipeline.placeholders import parameter_of
from torchx_kfp.execution.pipeline.spec import FromInput, Pipeline
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk_tasks


def of_run(pipeline: Pipeline, arguments: Mapping[str, Any], version: Version = NEWEST) -> Iterator[Finding]:
    """Yield all findings about a run of the pipeline on KFP.

    Args:
        arguments: the values of its parameters. A check may omit some that a run needs.
    """
    yield from _of_pipeline(pipeline)
    places = list(walk_tasks(pipeline, arguments=arguments))
    for place in places:
        yield from _of_task(pipeline, place)
    yield from of_version(Checked(pipeline, arguments, places), version)
    yield from _of_arguments(arguments)
    yield from _of_replicas(pipeline, arguments)


def _of_pipeline(pipeline: Pipeline) -> Iterator[Finding]:
    """Yield the findings about the pipeline as a whole."""
    if names := [name for name in pipeline.root.artifact_inputs if name not in pipeline.root.optional_artifacts]:
        yield Finding(
            Kind.FAILS,
            "the pipeline",
            f"takes an artifact ({joined(names)}), which cannot be passed to a run. Import it by its URI "
            "(dsl.importer), or use the pipeline inside another one",
        )
    used = any(FromInput(TRACKER_BASE) in task.parameters.values() for task in pipeline.root.as_dag().tasks.values())
    if TRACKER_BASE in pipeline.root.parameter_inputs and not used:
        yield Finding(
            Kind.NOT_RECORDED,
            "the pipeline",
            f"has the parameter {TRACKER_BASE!r}, which no stage uses, so no results are recorded there. Give it to "
            f"the stages: Stages({TRACKER_BASE}={TRACKER_BASE})",
        )


def _of_arguments(arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield the findings about the arguments of a run."""
    for name, value in arguments.items():
        place, text = f"the argument {name!r}", as_text(value)
        if "\x7f" in text:
            yield Finding(Kind.WORKS_LOCALLY, place, f"contains {DELETE}, {REJECTED_DELETE}")
        if large := large_character(text):
            yield Finding(Kind.MAY_FAIL, place, f"contains {large}, {REJECTED_CHARACTER}")
        if change := find_change(text):
            yield Finding(Kind.CHANGED, place, f"contains {change[0]!r}, which {arrives(change[1])}")
        for kind, found in of_numbers("its value", value):
            yield Finding(kind, place, found)


def _of_replicas(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[Finding]:
    """Yield findings about numbers of replicas among the arguments, for stages that surely run."""
    for place in walk_tasks(pipeline):
        if place.inside is not None or place.task.condition or place.looped:
            continue
        for role in place.component.decoded.replica_roles:
            source = place.task.parameters.get(parameter_of(role.count or "") or "")
            if not isinstance(source, FromInput) or source.selector:
                continue
            value = arguments.get(source.name)
            if isinstance(value, int | float) and not role.fewest <= value <= role.most:
                text = (
                    f"has {value:g} replicas of the role {role.name!r}, but must have {role.fewest} to {role.most}. "
                    f"Give another {source.name!r}"
                )
                yield Finding(Kind.MAY_FAIL, f"task {place.path!r}", text)


def _of_task(pipeline: Pipeline, place: ScopedTask) -> Iterator[Finding]:
    """Yield the findings about a task."""
    task, component = place.task, place.component
    for kind, text in (
        *of_inputs(pipeline, place),
        *of_loop(place),
        *of_hook(pipeline, place),
        *(of_condition(task.condition) if task.condition else ()),
        *(of_importer(place) if component.importer else ()),
        *(of_container(pipeline, place) if component.container else ()),
        *of_launcher(component),
        *of_pod(component),
        *of_program(component),
        *of_settings(place),
    ):
        yield Finding(kind, f"task {place.path!r}", text)
