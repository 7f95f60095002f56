"""Differences of KFP in the inputs, commands, images, limits, settings and imported artifacts of tasks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchx_kfp.common.text import joined
from torchx_kfp.contract.protocol import CODE_URL, STAGE_INPUTS
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.model.order import collected, loops_of
from torchx_kfp.execution.model.python_stages import annotation_of
from torchx_kfp.execution.model.texts import CHANNEL_TEXT, as_text, of_numbers, of_text, variables_of
from torchx_kfp.execution.pipeline.conditions import is_field_selector
from torchx_kfp.execution.pipeline.inputs import UNKNOWN, importer_uri
from torchx_kfp.execution.pipeline.placeholders import (
    WORKSPACE,
    is_conditional,
    parameter_of,
    parameters_in,
    placeholders_in,
    read_limits,
    uses_concat,
    with_names,
)
from torchx_kfp.execution.pipeline.pod_settings import POD_SETTINGS
from torchx_kfp.execution.pipeline.python_components import parse_command
from torchx_kfp.execution.pipeline.spec import CHANNEL, Constant, FromInput, FromTask, Pipeline
from torchx_kfp.execution.pipeline.values import TYPE_NAMES
from torchx_kfp.execution.pipeline.walk import ScopedTask

#: The part of a stage's memory limit that KFP's launcher needs, in bytes.
_LAUNCHER = 64 * 10**6
#: Facts about the run that KFP fills in as a task's constant input.
_FACT = re.compile(r"\{\{\$\.(?:pipeline_\w+)\}\}")
_UNKNOWN_FACT = "{{$.pipeline_root}}"
#: The stores that KFP's importer knows.
_STORES = re.compile(r"(?:gs|s3|minio|oci)://.")


def of_inputs(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Yield the findings about the inputs of a task: their sources, and their values in KFP's driver."""
    task, component, nested = place.task, place.component, place.component.dag is not None
    problems = dict(place.resolved.problems)
    for name, source in task.parameters.items():
        if isinstance(source, FromInput) and not place.has_input(source.name):
            problems.pop(name, None)
            yield (
                Kind.FAILS,
                f"takes {source.name!r}, which does not exist in the task's scope: KFP's compiler lost it, as it "
                "does with loop items and their fields inside text, lists and dicts. Pass the loop item as a separate "
                "argument, and build the text in the component",
            )
        elif isinstance(source, Constant):
            yield from _constant(name, source.value, nested)
    loop = place.inside.task.loop if place.inside is not None else None
    for name, source in (*task.parameters.items(), *task.artifacts.items()):
        if isinstance(source, FromInput) and loop is not None and source.name == loop.from_input:
            problems.pop(name, None)
            yield (
                Kind.FAILS,
                f"takes the list that its loop goes through ({_shown(source.name)}), which KFP's driver removes "
                "from the iterations. Have a stage return the list, loop over that output, and pass on the original",
            )
        if isinstance(source, FromTask):
            yield from collected(pipeline, place.scope, name, source.task, source.output)
    program = parse_command(component.container.words) if component.container is not None else None
    for name, source in {**task.parameters, **task.artifacts}.items():
        annotation = annotation_of(program, name) if program is not None else ""
        if name in task.artifacts and re.match(r"(typing\.)?Optional\[", annotation):
            yield (
                Kind.MAY_FAIL,
                f"is given an artifact for the optional input {name!r}, and a stage with such an input failed on "
                "KFP 2.17. Annotate it without Optional, which works: dsl.Input[...] = None",
            )
        loops = loops_of(pipeline, place.scope, source.task, source.output) if isinstance(source, FromTask) else 0
        if loops > 1 and re.match(r"((typing\.)?L|l)ist\[((typing\.)?L|l)ist\b", annotation):
            yield (
                Kind.CHANGED,
                f"takes {name!r} as {annotation}, and collects it from {loops} nested loops: KFP gives one flat list. "
                "Group the values in the component, such as by an index in each",
            )
    # A task that may be skipped need not fail.
    may_skip = any(around.task.condition for around in place.around)
    is_sure = not may_skip and not any(around.task.loop for around in place.around)
    in_items = _problems_of_items(place) if loop is not None else {}
    for name, why in {**in_items, **problems}.items():
        what = "artifact" if name in task.artifacts else "value"
        fails = is_sure or (name in in_items and place.loops == 1 and not may_skip)
        yield Kind.FAILS if fails else Kind.MAY_FAIL, f"has no {what} for its input {_shown(name)}: {why}"


def _problems_of_items(place: ScopedTask) -> dict[str, str]:
    """Return why inputs of a task lack a value in an iteration of its loops, for known items."""
    found = {name: why for inputs in place.iterations() for name, why in inputs.problems.items()}
    for name, source in place.task.parameters.items():
        if (selector := getattr(source, "selector", "")) and not is_field_selector(selector):
            found.pop(name, None)  # ``local.preflight`` refuses it
    return found


def _constant(name: str, value: Any, nested: bool) -> Iterator[tuple[Kind, str]]:
    text = as_text(value)
    if nested and (inputs := parameters_in(text)):
        yield (
            Kind.FAILS,
            f"passes a nested pipeline the input {name!r} as text that contains {_shown(inputs[0])}, which arrives as "
            f"{{{{$.inputs.parameters['{inputs[0]}']}}}}. Pass the value as a separate argument, and build the text in "
            "the nested pipeline",
        )
    if text != value or not _FACT.fullmatch(text):
        for fact in dict.fromkeys(_FACT.findall(text)):
            yield (
                Kind.CHANGED,
                f"has {fact} inside the text of its input {name!r}, where KFP does not fill it in. Pass it as a "
                "separate argument",
            )
    elif text == _UNKNOWN_FACT:
        yield Kind.CHANGED, f"has {text} as its input {name!r}, which KFP's backend does not fill in. Pass the location"
    if text != value and WORKSPACE in text:
        yield (
            Kind.CHANGED,
            f"has {WORKSPACE} inside a list or dict, its input {name!r}, where KFP does not fill it in. Pass the path "
            "as a separate argument",
        )
    yield from of_numbers(f"its input {name!r}", value)
    yield from of_text(f"its input {name!r}", text, {})


def _shown(name: str) -> str:
    """Return the name of an input without the prefix of KFP's compiler."""
    return repr(name.removeprefix(CHANNEL))


def of_importer(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Yield the findings about the URI and the metadata of an importer."""
    importer = place.component.importer
    assert importer is not None
    try:
        uri = importer_uri(importer, place.task, place.scope_inputs)
    except ValueError as error:
        yield Kind.FAILS, str(error)
    else:
        if uri is not UNKNOWN and not (match := CHANNEL_TEXT.search(uri)) and not _STORES.match(uri):
            yield (
                Kind.WORKS_LOCALLY,
                f"imports {uri!r}, and KFP's importer knows gs://, s3://, minio:// and, for models, oci:// "
                "only. Give such a URI, or pass the location to a stage as text",
            )
        elif uri is not UNKNOWN and match:
            yield from of_text("its URI", uri, {}, "Give the whole URI as one channel: artifact_uri=channel")
    metadata = as_text(dict(importer.metadata))
    if names := parameters_in(metadata):
        yield (
            Kind.CHANGED,
            f"has {_shown(names[0])} in the metadata of its artifact, which KFP keeps as the text of the placeholder. "
            "Have a stage record the value",
        )
    yield from of_text("the metadata of its artifact", metadata, {}, "Have a stage record the value")


def of_container(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Yield the findings about the command, the variables, the image and the limits of a stage."""
    component = place.component
    container = component.container
    assert container is not None
    variables = variables_of(component)
    for text in (*container.command, *container.args):
        if uses_concat(text):
            yield (
                Kind.WORKS_LOCALLY,
                "contains dsl.ConcatPlaceholder, which KFP's backend passes on as JSON. Write one text that contains "
                'the inputs, such as f"--name={name}"',
            )
        if is_conditional(text) and "$.outputs" in text:
            yield (
                Kind.CHANGED,
                "contains dsl.IfPresentPlaceholder with an output, which KFP's backend passes on as JSON. Put the "
                "output outside it",
            )
        for placeholder in placeholders_in(text):
            if not placeholder.is_known:
                yield (
                    Kind.CHANGED,
                    f"contains {placeholder.text}, which KFP's backend does not replace in a command. Facts about the "
                    "run and the workspace's path work as a task's argument; an artifact's metadata and the report's "
                    "path are in the executor input, {{$}}",
                )
        yield from of_text("its command", text, variables)
    for name, text in container.env:
        for placeholder in placeholders_in(text):
            yield (
                Kind.CHANGED,
                f"has {placeholder.text} in its variable {name}, where KFP does not fill it in. Pass the value as an "
                "argument (variables of an AppDef may be channels)",
            )
        yield from of_text(f"its variable {name}", text, variables)
    yield from _pod_texts(pipeline, place)
    try:
        memory = read_limits(container.resources, place.resolved.known).memory
    except ValueError:  # the limit is known only when the pipeline runs
        memory = None
    if memory is not None and memory < _LAUNCHER and "RESOURCES" not in component.handed_on:
        yield (
            Kind.MAY_FAIL,
            f"may use {memory / 10**6:g} MB of memory, including that of KFP's launcher: a stage with 32 MB was killed "
            f"before it started. Give it at least {_LAUNCHER // 10**6} MB",
        )


def _pod_texts(pipeline: Pipeline, place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find images and limits that KFP's driver changes: it takes one input of the type STRING."""
    container = place.component.container
    assert container is not None
    resources = container.resources
    texts = {
        "image": container.image,
        "cpu limit": resources.get("resourceCpuLimit"),
        "cpu request": resources.get("resourceCpuRequest"),
        "memory limit": resources.get("resourceMemoryLimit"),
        "memory request": resources.get("resourceMemoryRequest"),
        "accelerator limit": (resources.get("accelerator") or {}).get("resourceCount"),
        "accelerator type": (resources.get("accelerator") or {}).get("resourceType"),
    }
    for what, text in texts.items():
        name = next(iter(parameters_in(str(text or ""))), None)
        if name is None:
            continue
        whole = f"Pass the whole {what} as one parameter or output of the type str"
        value, type_ = place.resolved.values.get(name), _type_of(pipeline, place, name)
        if parameter_of(str(text)) is None:
            yield (
                Kind.FAILS,
                f"has the {what} {with_names(str(text))!r}, of which KFP takes only {_shown(name)}. {whole}",
            )
        elif type_ != "STRING":
            # It gets no accelerator, and an empty string elsewhere.
            yield (
                Kind.CHANGED if what.startswith("accelerator") else Kind.FAILS,
                f"has the {what} {_shown(name)} of the type {TYPE_NAMES.get(type_, type_)}, and KFP takes text only. "
                f"{whole}",
            )
        elif isinstance(value, str) and (inner := parameters_in(value)):
            yield (
                Kind.FAILS,
                f"has the {what} {with_names(value)!r}, a text with {_shown(inner[0])} inside, where KFP does not fill "
                f"it in. {whole}",
            )


def _type_of(pipeline: Pipeline, place: ScopedTask, name: str) -> str:
    """Return the type of an input, which KFP's compiler does not declare if only an image or a limit uses it."""
    source = place.task.parameters.get(name)
    declared = place.component.parameter_inputs.get(name)
    if declared is None and isinstance(source, FromInput) and not source.selector:
        declared = place.scope.parameter_inputs.get(source.name)
    if declared is None and isinstance(source, FromTask):
        made = pipeline.component_of(place.scope.as_dag().tasks[source.task])
        return made.parameter_outputs.get(source.output, "STRING")
    return declared.type if declared is not None else "STRING"


def of_settings(place: ScopedTask) -> Iterator[tuple[Kind, str]]:
    """Find differences in the settings of a task."""
    task, component = place.task, place.component
    for key, value in component.platform.items():
        setting = POD_SETTINGS.get(key)
        what = (setting.keys_of or setting.volume.removeprefix("the ") or setting.words) if setting else key
        way_out = "Give a constant, or a channel without text around it where the function of kfp.kubernetes takes one"
        for text in _texts_in(value):
            found = of_text(f"a setting of its pod ({what})", text, {}, way_out)
            yield from (each for each in found if each[0] is Kind.FAILS)
    yield from of_text("its display name", task.display_name, {}, "Give a constant")
    if task.retry is not None and not place.is_stage:
        yield Kind.MAY_FAIL, "is a nested pipeline, which is not retried. Call set_retry on the stages in it"
    if task.caches and task.cache_key:
        yield (
            Kind.CHANGED,
            f"is cached locally by its cache_key {_shown(task.cache_key)}, which backends up to KFP 2.17 ignore: they "
            "compare its command and inputs. Leave it out, or change an input of the task with it",
        )
    variables = component.container.env if component.container is not None else ()
    # The code of a stage is part of its command: see ``runs.stage_code``.
    names = [name for name, _ in variables if name not in (CODE_URL, STAGE_INPUTS)]
    if names and task.caches:
        yield (
            Kind.CHANGED,
            f"sets {joined(names)} on the task, which KFP's cache ignores: after a change, the stage returns its "
            "earlier outputs. Pass it as an argument (variables of an AppDef count), or turn off its cache",
        )
    taken = [name for name, parameter in component.parameter_inputs.items() if parameter.type == "TASK_CONFIG"]
    if taken and not component.decoded.replica_roles:
        yield (
            Kind.CHANGED,
            f"takes {joined(taken)} (dsl.TaskConfig), in which KFP puts the task's settings; locally, every field "
            "is None",
        )


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from _texts_in(item)
