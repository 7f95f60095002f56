"""What cannot run on this machine, found before anything is started."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torchx_kfp.errors import UnsupportedPipelineError
from torchx_kfp.local import kubernetes
from torchx_kfp.local.conditions import compares_types, is_field_selector, verify_condition
from torchx_kfp.local.containers import NO_CONTAINERS, Containers
from torchx_kfp.local.kubernetes import GivenKeys
from torchx_kfp.local.load import reading
from torchx_kfp.local.names import StageNames, join_names
from torchx_kfp.local.python_components import PythonComponent, find_containerized, names_executor, parse_command
from torchx_kfp.local.scopes import inner_names
from torchx_kfp.local.spec import Component, Constant, FromInput, FromTask, Other, Pipeline, Task
from torchx_kfp.local.values import TYPE_NAMES

_ON_KFP = "Run the pipeline on KFP"
# Inputs that KFP itself fills: how another task has ended, and how this one is run on Kubernetes.
_STRUCTS = ("TASK_FINAL_STATUS", "TASK_CONFIG")
_CHANNEL = re.compile(r"\{\{channel:task=([^;]*);name=([^;]*);type=.*?;\}\}")

# Of an input or output: a file's name may have 255 bytes.
_LONGEST_NAME = 100


def check_supported(pipeline: Pipeline, containers: Containers = NO_CONTAINERS) -> None:
    """Raises UnsupportedPipelineError with everything in the pipeline that cannot run on this machine.

    Args:
        pipeline: the pipeline.
        containers: the stages that run in containers; the others are processes.
    """
    with reading(f"The pipeline {pipeline.name!r}"):
        problems = list(_pipeline_problems(pipeline))
        for where, name, task, given in _walk(pipeline):
            in_container = name in containers
            problems += [f"task {where!r} {text}." for text in _task_problems(pipeline, task, given, in_container)]
    if problems:
        raise UnsupportedPipelineError(
            f"The pipeline {pipeline.name!r} cannot run on this machine, so nothing was started:\n"
            + "\n".join(f"- {problem}" for problem in dict.fromkeys(problems))
        )


def find_not_applied(
    pipeline: Pipeline,
    arguments: Mapping[str, Any] | None = None,
    given: GivenKeys | None = None,
    containers: Containers = NO_CONTAINERS,
    environ: Mapping[str, str] = os.environ,
) -> tuple[str, ...]:
    """What the pipeline asks of Kubernetes that has no effect on this machine, each kind named once."""
    with reading(f"The pipeline {pipeline.name!r}"):
        return tuple(sorted(_not_applied(pipeline, arguments or {}, given or GivenKeys(), containers, environ)))


def _not_applied(
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    given: GivenKeys,
    containers: Containers,
    environ: Mapping[str, str],
) -> set[str]:
    kinds = set(kubernetes.pipeline_not_applied(pipeline.platform))
    for _, name, task, _ in _walk(pipeline):
        component = pipeline.component_of(task)
        kinds.update(kubernetes.missing_variables(component, given, arguments, environ))
        if name in containers:
            mounted = [mount.target for mount in containers.mounts]
            kinds.update(kubernetes.not_applied_in_container(component, has_gpus=containers.has_gpus))
            kinds.update(kubernetes.missing_mounts(component, given, arguments, mounted))
        else:
            kinds.update(kubernetes.not_applied(component))
            kinds.update(kubernetes.missing_folders(component, arguments))
    return kinds


def _walk(pipeline: Pipeline) -> Iterator[tuple[str, str, Task, frozenset[str]]]:
    """Every task that the root leads to: its path, its name as a stage, itself, and its scope's inputs."""
    pending = [("", StageNames(), pipeline.root, frozenset(pipeline.root.inputs))]
    while pending:
        prefix, names, scope, given = pending.pop()
        assert scope.dag is not None
        for task in scope.dag.tasks.values():
            path = f"{prefix}{task.name}"
            yield path, names.of(task.name), task, given
            component = pipeline.component_of(task)
            if component.dag is not None:
                inputs = {*component.inputs, *task.inputs, *([task.loop.item_input] if task.loop else ())}
                pending.append((f"{path}/", inner_names(task, names), component, frozenset(inputs)))


def _pipeline_problems(pipeline: Pipeline) -> Iterator[str]:
    yield from kubernetes.pipeline_refusals(pipeline.platform)
    if names := [name for name in pipeline.root.artifact_inputs if name not in pipeline.root.optional_artifacts]:
        yield f"the pipeline takes an artifact ({join_names(names)}). {_ON_KFP}."


def _task_problems(pipeline: Pipeline, task: Task, given: frozenset[str], in_container: bool) -> Iterator[str]:
    component = pipeline.component_of(task)
    if component.kind not in ("dag", "container", "importer"):
        yield f"has an executor of the kind {component.kind!r}. {_ON_KFP}"
        return
    others = [name for name, source in task.artifacts.items() if isinstance(source, Other)]
    if others:
        yield f"takes an artifact from elsewhere than a task ({join_names(others)}). {_ON_KFP}"
    yield from _input_problems(task, component, given)
    if component.container is not None:
        yield from _container_problems(component, in_container)
        yield from kubernetes.refusals(component)


def _input_problems(task: Task, component: Component, given: frozenset[str]) -> Iterator[str]:
    for name, source in task.inputs.items():
        if isinstance(source, Other):
            yield f"takes {source.kind} as its input {name!r}. {_ON_KFP}"
        elif isinstance(source, FromInput) and source.name not in given:
            yield (
                f"takes {source.name!r}, which does not exist where the task stands: KFP has lost it in compiling, as "
                "it does with loop items and their fields inside of text, lists and dicts. Pass the loop item as an "
                "argument of its own, and put the text together in the component"
            )
        elif isinstance(source, (FromInput, FromTask)) and source.selector and not is_field_selector(source.selector):
            yield f"has the expression {source.selector!r} for its input {name!r}. {_ON_KFP}"
        elif isinstance(source, Constant):
            yield from _text_problems(json.dumps(source.value, ensure_ascii=False))
    for parameter in component.inputs.values():
        if parameter.type not in (*TYPE_NAMES, *_STRUCTS) and not isinstance(task.inputs.get(parameter.name), Other):
            yield f"has the input {parameter.name!r} of the type {parameter.type}. {_ON_KFP}"
    if task.condition is not None:
        yield from _condition_problems(task.condition)
    if task.loop is not None:
        yield from _loop_problems(task, component)


def _condition_problems(condition: str) -> Iterator[str]:
    try:
        verify_condition(condition)
    except ValueError as error:
        if compares_types(condition):
            yield (
                f"has the condition {condition!r}, which compares values of different types, so KFP has put one of "
                "them into quotes. Compare an int with an int (3 instead of '3'), a bool with True or False, a str "
                "with a str"
            )
        else:
            yield (
                f"has the condition {condition!r}, which {error}. KFP compiles a string with a quote or a "
                "backslash in it wrongly: compare with one that has none"
            )


def _loop_problems(task: Task, component: Component) -> Iterator[str]:
    loop = task.loop
    assert loop is not None
    if component.dag is None:
        yield f"is a loop without a pipeline inside. {_ON_KFP}"
    if loop.raw is not None:
        try:
            items = json.loads(loop.raw)
        except ValueError:
            items = None
        if not isinstance(items, list):
            yield f"loops over {loop.raw!r}, which is not a JSON list. Compile the pipeline again"
        yield from _text_problems(json.dumps(items, ensure_ascii=False))
    elif loop.from_input is None:
        yield f"loops over items that come from neither a constant nor an input. {_ON_KFP}"


def _container_problems(component: Component, in_container: bool) -> Iterator[str]:
    container = component.container
    assert container is not None
    words = (*container.command, *container.args)
    python = None if in_container else parse_command(words)
    if python is not None:
        yield from _python_problems(python, container.image)
    elif names_executor(words) and not in_container:
        yield (
            f"is a Python component (dsl.component) in a form that is not known here. {_ON_KFP}, or compile it with "
            "kfp 2.14 or newer"
        )
    elif not container.command and not in_container and not kubernetes.volume_task(component):
        yield (
            f"has no command, so it runs what the image {container.image!r} starts by itself, and images are not used "
            "here. Give the component a command, or run the stage in its image (--docker)"
        )
    for text in (*words, *(value for _, value in container.env)):
        yield from _text_problems(text)
    names = [("output", name) for name in (*component.outputs, *component.artifact_outputs)]
    for what, name in [*names, *(("input", name) for name in component.artifact_inputs)]:
        # It is the name of a file in the stage's folder.
        if name in ("", ".", "..") or "/" in name or not name.isprintable() or len(name) > _LONGEST_NAME:
            yield f"has the {what} {name!r}, whose name cannot be a file's. Rename the {what}"


def _python_problems(python: PythonComponent, image: str) -> Iterator[str]:
    if python.source is None and find_containerized(python.function, Path()) is None:
        yield (
            f"is a Python component whose code is in its image {image!r} (target_image), and not in this folder: "
            f"there is no kfp_config.ini that says where the function {python.function!r} is. Start the run in the "
            "folder for which 'kfp component build' has made the image, or run the task in the image (--docker)"
        )


def _text_problems(text: str) -> Iterator[str]:
    if match := _CHANNEL.search(text):
        producer, name = match.groups()
        channel = f"{producer}.{name}" if producer else name
        yield f"holds the channel {channel!r} as text that KFP has not filled in. Pass it as an argument of its own"
