"""What is to be started for one attempt at a stage: its folder, its command and its environment."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.local.artifacts import Artifact
from torchx_kfp.local.containers import NO_CONTAINERS, Containers
from torchx_kfp.local.engine import Engine
from torchx_kfp.local.environment import RUN_MARK, stage_mark
from torchx_kfp.local.execution import Attempt
from torchx_kfp.local.keys import CodeFiles, stage_key
from torchx_kfp.local.kubernetes import GivenKeys, field_values, given_files, given_values, variables
from torchx_kfp.local.placeholders import Facts, resolve_command
from torchx_kfp.local.python_components import RUNTIME_MARK, parse_command
from torchx_kfp.local.scopes import Node, parameters_of, with_defaults
from torchx_kfp.local.transfer import with_copies
from torchx_kfp.protocol import POD_NAME


@dataclass(frozen=True)
class Settings:
    """What all stages of a run have in common. ``constants`` are placeholders, ``grace`` is in seconds."""

    run_id: str
    folder: Path
    environ: Mapping[str, str]
    constants: Mapping[str, str]
    parallelism: int
    grace: float
    #: In which stages run.
    directory: Path
    given: GivenKeys = field(default_factory=GivenKeys)
    #: The stages that are containers, and what runs them.
    containers: Containers = NO_CONTAINERS
    engine: Engine | None = None


def key_of(node: Node, settings: Settings, code: CodeFiles) -> str:
    """The key of this stage: see ``keys``."""
    container = node.component.container
    assert container is not None
    in_container = node.name in settings.containers
    inputs = with_defaults(node.component, node.inputs)
    environ = {**dict(container.env), **given_values(node.component, settings.given, node.scope.inputs)}
    command = (*container.command, *container.args)
    placed, _ = with_copies(inputs, command, settings.folder, takes_all=False)
    words = resolve_command(command, Facts(parameters=placed))
    # A container's code is in its image.
    files, engine = ([], "docker") if in_container else (code.of(words), "process")
    return stage_key(node.task, node.component, inputs, environ=environ, code=files, engine=engine)


def prepare_attempt(node: Node, settings: Settings, pod_name: str) -> Attempt:
    """The attempt at this stage that has this pod name.

    Raises:
        ValueError: the stage cannot be given an input.
    """
    component = node.component
    container = component.container
    assert container is not None
    folder = settings.folder / pod_name
    output_files = {name: str(folder / "outputs" / name) for name in component.outputs}
    artifacts = {
        name: Artifact(name, kind, str(folder / "artifacts" / name))
        for name, kind in component.artifact_outputs.items()
    }
    in_container = node.name in settings.containers
    words = (*container.command, *container.args)
    takes_all = parse_command(words) is not None
    inputs, copies = with_copies(with_defaults(component, node.inputs), words, folder / "inputs", takes_all=takes_all)
    report = str(folder / "executor_output.json")
    facts = Facts(
        parameters=inputs,
        constants={**settings.constants, **node.constants},
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
            {**from_here, **pod},
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
        directory=settings.directory,
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
        installs=python.installs if python is not None and not in_container else (),
        container=plan,
    )
