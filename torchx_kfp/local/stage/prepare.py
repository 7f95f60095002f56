"""What is to be started for one attempt at a stage: its folder, its command and its environment."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.local.cache.code import CodeFiles, TooManyFiles
from torchx_kfp.local.cache.keys import cache_key
from torchx_kfp.local.engines.containers import MADE, NO_CONTAINERS, Containers
from torchx_kfp.local.engines.engine import Engine, Processes
from torchx_kfp.local.engines.environment import RUN_MARK, stage_mark
from torchx_kfp.local.options import RunOptions
from torchx_kfp.local.platform.kubernetes import (
    GivenKeys,
    field_values,
    given_files,
    given_values,
    time_limit,
    variables,
)
from torchx_kfp.local.scopes import Node, parameters_of, with_defaults
from torchx_kfp.local.stage.commands import fill_in
from torchx_kfp.local.stage.execution import Attempt
from torchx_kfp.local.stage.requirements import local_state
from torchx_kfp.local.stage.transfer import with_copies
from torchx_kfp.pipeline.artifacts import Artifact
from torchx_kfp.pipeline.placeholders import WORKSPACE, Facts, resolve_command, resolve_text
from torchx_kfp.pipeline.python_components import RUNTIME_MARK, parse_command
from torchx_kfp.protocol import IMAGE, POD_NAME


@dataclass(frozen=True)
class Settings:
    """What all stages of a run have in common; ``constants`` are placeholders."""

    run_id: str
    folder: Path
    environ: Mapping[str, str]
    constants: Mapping[str, str]
    options: RunOptions
    given: GivenKeys = field(default_factory=GivenKeys)
    #: The stages that are containers, and what runs them.
    containers: Containers = NO_CONTAINERS
    engine: Engine = field(default_factory=Processes)


def cache_key_of(node: Node, settings: Settings, code: CodeFiles) -> str:
    """The key of this stage in the cache (see ``keys``); empty where it may not be taken from there.

    That is where its author says so, for exit tasks (which clean up), where it uses the workspace, which is another in
    each run, and where there is more code than can be looked at.
    """
    component, container = node.component, node.component.container
    assert container is not None
    if not node.task.caches or node.task.runs_always:
        return ""
    inputs = with_defaults(component, node.inputs)
    given = given_values(component, settings.given, node.scope.inputs)
    environ = {**variables(component.platform, settings.environ), **dict(container.env), **given}
    command = (*container.command, *container.args)
    placed, _ = with_copies(inputs, command, settings.folder, takes_all=False)
    words = resolve_command(command, Facts(parameters=placed))
    workspace = (WORKSPACE, settings.constants["workspace_path"])
    if any(path in text for path in workspace for text in (*words, *map(str, parameters_of(inputs).values()))):
        return ""
    surroundings: list[Any]
    if node.name in settings.containers:
        image = settings.engine.image_id(resolve_text(container.image, Facts(parameters=placed)))
        secret_files = given_files(component, settings.given, node.scope.inputs)
        surroundings = ["container", image, sorted(map(str, settings.containers.mounts)), secret_files]
    else:
        python = parse_command(words)
        installed = [local_state(install) for install in python.installs] if python is not None else []
        path = {**settings.environ, **environ}.get("PYTHONPATH", "")
        try:
            files = code.of(fill_in(words), path)
        except TooManyFiles:
            return ""
        surroundings = ["process", settings.options.directory, sys.prefix, sys.version, files, installed]
    return cache_key(node.task, component, inputs, environ=environ, surroundings=surroundings)


def prepare_attempt(node: Node, settings: Settings, pod_name: str) -> Attempt:
    """The attempt at this stage that has this pod name.

    Raises:
        ValueError: the stage cannot be given an input.
    """
    component = node.component
    container = component.container
    assert container is not None
    folder = settings.folder / pod_name
    made = folder / MADE
    output_files = {name: str(made / "outputs" / name) for name in component.outputs}
    artifacts = {
        name: Artifact(name, kind, str(made / "artifacts" / name)) for name, kind in component.artifact_outputs.items()
    }
    in_container = node.name in settings.containers
    words = (*container.command, *container.args)
    takes_all = parse_command(words) is not None
    inputs, copies = with_copies(with_defaults(component, node.inputs), words, folder / "inputs", takes_all=takes_all)
    report = str(made / "executor_output.json")
    facts = Facts(
        parameters=inputs,
        workspace=settings.constants["workspace_path"],
        unset=frozenset((*component.inputs, *component.artifact_inputs)) - frozenset(inputs),
        output_files=output_files,
        output_artifacts=artifacts,
        executor_output=report,
    )
    fields = field_values(component, settings.run_id, pod_name, str(uuid.uuid4()))
    keys = given_values(component, settings.given, node.scope.inputs)
    pod = {**dict(container.env), **keys, **fields, POD_NAME: pod_name}
    plan = None
    if in_container:
        from_here = variables(component.platform, settings.environ)
        plan = settings.containers.plan(
            component,
            facts,
            folder,
            {**from_here, IMAGE: resolve_text(container.image, facts), **pod},
            given_files(component, settings.given, node.scope.inputs),
            copies,
        )
    own = {RUN_MARK: stage_mark(settings.environ, settings.run_id, pod_name)}
    command = resolve_command(words, facts)
    python, source = parse_command(command), None
    # In an image, KFP's own command does it all.
    if python is not None and not in_container:
        own[RUNTIME_MARK] = "true"
        # Not in a temporary folder: tracebacks name the file, and a debugger finds it.
        source_file = str(folder / "program" / "ephemeral_component.py")
        command = python.command(source_file, copies)
        source = None if python.source is None else (source_file, python.source)
    return Attempt(
        stage=node.name,
        pod_name=pod_name,
        folder=folder,
        directory=Path(settings.options.directory),
        command=command,
        environ={**settings.environ, **pod, **own},
        output_types=component.outputs,
        output_files=output_files,
        artifacts=artifacts,
        report=report,
        inputs=parameters_of(inputs),
        function=python.function if python is not None else "",
        source=source,
        copies=copies,
        workspace=settings.constants["workspace_path"],
        installs=python.installs if python is not None and not in_container else (),
        container=plan,
        time_limit=time_limit(component.platform),
    )
