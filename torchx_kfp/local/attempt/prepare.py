"""The preparation of one attempt at a stage: its folder, its command and its environment."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.contract.command import decode
from torchx_kfp.contract.protocol import IMAGE, PIPELINE_RUN, POD_NAME
from torchx_kfp.local.attempt.packages import local_state
from torchx_kfp.local.attempt.transfer import with_copies
from torchx_kfp.local.cache.code import CodeFiles, TooManyFiles
from torchx_kfp.local.cache.keys import cache_key
from torchx_kfp.local.engines.containers import MADE, NO_CONTAINERS, Containers
from torchx_kfp.local.engines.engine import AttemptPlan, Engine
from torchx_kfp.local.engines.environment import RUN_MARK, stage_mark
from torchx_kfp.local.engines.process import Processes
from torchx_kfp.local.options import RunOptions
from torchx_kfp.local.platform.secrets import GivenKeys, given_files, given_values, variables
from torchx_kfp.local.platform.settings import field_values, time_limit
from torchx_kfp.local.scopes import Node, parameters_of, with_defaults
from torchx_kfp.pipeline.artifacts import Artifact, artifacts_in
from torchx_kfp.pipeline.commands import RUNTIME_MARK, parse_command
from torchx_kfp.pipeline.placeholders import WORKSPACE, Facts, resolve_command, resolve_text


@dataclass(frozen=True)
class RunContext:
    """The facts that all stages of a run share; ``constants`` are the values of placeholders."""

    run_id: str
    folder: Path
    environ: Mapping[str, str]
    constants: Mapping[str, str]
    options: RunOptions
    given: GivenKeys = field(default_factory=GivenKeys)
    #: The stages that run in containers, and the engine that runs them.
    containers: Containers = NO_CONTAINERS
    engine: Engine = field(default_factory=Processes)


class Preparation:
    """The facts about an attempt, derived once, for both its key in the cache and its start.

    Raises:
        ValueError: an input cannot be passed to the stage.
    """

    def __init__(self, node: Node, context: RunContext, pod_name: str) -> None:
        """Derive the facts, without writing to the disk."""
        component = node.component
        container = component.container
        assert container is not None
        self._node = node
        self._context = context
        self._pod_name = pod_name
        self._folder = context.folder / pod_name
        self._in_container = node.name in context.containers
        #: The values of all inputs, including artifacts.
        self.inputs = with_defaults(component, node.inputs)
        self._variables = variables(component.platform, context.environ)
        self._keys = given_values(component, context.given, node.scope.inputs)
        self._secret_files = given_files(component, context.given, node.scope.inputs)
        words = container.words
        takes_all = parse_command(words) is not None
        placed, self._copies = with_copies(self.inputs, words, self._folder / "inputs", takes_all=takes_all)
        made = self._folder / MADE
        self._facts = facts = Facts(
            parameters=placed,
            workspace=context.constants["workspace_path"],
            unset=frozenset((*component.inputs, *component.artifact_inputs)) - frozenset(placed),
            output_files={name: str(made / "outputs" / name) for name in component.outputs},
            output_artifacts={
                name: Artifact(name, kind, str(made / "artifacts" / name))
                for name, kind in component.artifact_outputs.items()
            },
            executor_output=str(made / "executor_output.json"),
        )
        self._image = resolve_text(container.image, facts)
        self._command, self._args = resolve_command(container.command, facts), resolve_command(container.args, facts)
        self._words = [*self._command, *self._args]
        self._python = parse_command(self._words)

    def cache_key(self, code: CodeFiles) -> str:
        """Return the stage's key in the cache (see ``keys``); empty if the stage must not be taken from the cache.

        It is empty if the task's author has turned caching off, for exit tasks (which clean up), if the stage uses the
        workspace (which differs in each run), and if there is more code than can be checked.
        """
        task, component = self._node.task, self._node.component
        container = component.container
        assert container is not None
        if not task.caches or task.runs_always or self._uses_workspace():
            return ""
        environ = {**self._variables, **dict(container.env), **self._keys}
        surroundings: list[Any]
        if self._in_container:
            image = self._context.engine.image_id(self._image)
            mounts = sorted(map(str, self._context.containers.mounts))
            surroundings = ["container", image, mounts, self._secret_files]
        else:
            installed = [local_state(install) for install in self._python.installs] if self._python is not None else []
            path = {**self._context.environ, **environ}.get("PYTHONPATH", "")
            try:
                files = code.of(decode(self._words).words, path)
            except TooManyFiles:
                return ""
            directory = self._context.options.directory
            surroundings = ["process", directory, sys.prefix, sys.version, files, installed]
        return cache_key(task, component, self.inputs, environ=environ, surroundings=surroundings)

    def attempt(self) -> AttemptPlan:
        """Return the attempt, ready to be started.

        Raises:
            ValueError: the stage needs something that a container cannot be given.
        """
        component, context, facts = self._node.component, self._context, self._facts
        container = component.container
        assert container is not None
        fields = field_values(component, context.run_id, self._pod_name, str(uuid.uuid4()))
        run = {PIPELINE_RUN: context.run_id, POD_NAME: self._pod_name}
        pod = {**dict(container.env), **self._keys, **fields, **run}
        own = {RUN_MARK: stage_mark(context.environ, context.run_id, self._pod_name)}
        plan, command, source = None, self._words, None
        installs: Sequence[Sequence[str]] = ()
        if self._in_container:
            # In an image, KFP's own command of a Python component works as it is.
            plan = context.containers.plan(
                component,
                self._image,
                (self._command, self._args),
                facts,
                self._folder,
                {**self._variables, IMAGE: self._image, **pod},
                self._secret_files,
                self._copies,
            )
        elif self._python is not None:
            own[RUNTIME_MARK] = "true"
            # The file is not in a temporary folder, so that the path in a traceback exists, and debuggers find it.
            source_file = str(self._folder / "program" / "ephemeral_component.py")
            command = self._python.command(source_file, self._copies)
            source = None if self._python.source is None else (source_file, self._python.source)
            installs = self._python.installs
        return AttemptPlan(
            stage=self._node.name,
            pod_name=self._pod_name,
            folder=self._folder,
            directory=Path(context.options.directory),
            command=command,
            environ={**context.environ, **pod, **own},
            output_types=component.outputs,
            output_files=facts.output_files,
            artifacts=facts.output_artifacts,
            report=facts.executor_output,
            inputs=parameters_of(self.inputs),
            function=self._python.function if self._python is not None else "",
            source=source,
            copies=self._copies,
            workspace=facts.workspace,
            installs=installs,
            container=plan,
            time_limit=time_limit(component.platform),
            is_distributed=bool(component.facts.replica_roles),
        )

    def _uses_workspace(self) -> bool:
        container = self._node.component.container
        assert container is not None
        paths = [item.path for value in self._facts.input_artifacts.values() for item in artifacts_in(value)]
        texts = (*container.words, *map(str, parameters_of(self.inputs).values()), *paths)
        return any(path in text for path in (WORKSPACE, self._facts.workspace) for text in texts)
