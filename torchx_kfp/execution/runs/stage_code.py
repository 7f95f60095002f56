"""Name the code of each stage that starts in a workspace, so that only stages whose code has changed run again.

The URL of a workspace changes with any file in it. So for the parameter ``workspace``, tasks get the name of the code
that they can use (``protocol.code_name``), and their containers get the URL in a variable. KFP's cache key ignores
variables: it has the image, command, arguments, inputs and outputs (KFP's ``cacheutils``). The whole workspace is sent
anyway.

A stage's code is found without running it: see ``pipeline.used_files``. All files count if its program
is not Python, or not in the workspace. Names from elsewhere, such as upstream results, are not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchx_kfp.contract.carried.workspace import content, members, unpack
from torchx_kfp.contract.command import DecodedCommand, decode_command
from torchx_kfp.contract.inputs import parameter_placeholder
from torchx_kfp.contract.protocol import CODE_URL, TRACKER_BASE, WORKSPACE_PARAMETER, code_name, is_code_name
from torchx_kfp.contract.scripts import workspaces_in
from torchx_kfp.execution.pipeline.reader import read_pipeline
from torchx_kfp.execution.pipeline.spec import Constant, Pipeline
from torchx_kfp.execution.pipeline.used_files import Code, CodeFile, UsedFiles
from torchx_kfp.execution.pipeline.walk import ScopedTask, known_stages
from torchx_kfp.execution.runs.stage_key import StageKey, parts_of


def name_code(
    pipeline: Pipeline, arguments: Mapping[str, Any], archive: bytes | None
) -> tuple[Pipeline, dict[str, Code]]:
    """Return the pipeline with names of code instead of the URL in its parameter ``workspace``.

    Also return the known code of its stages, by name.

    Args:
        pipeline: a compiled pipeline. A host run's pipeline already has names of code.
        arguments: the values of all parameters.
        archive: the workspace with that URL. Without it, stages that have a name for other code get the URL.
    """
    url = arguments.get(WORKSPACE_PARAMETER)
    codes: dict[str, Code] = {}
    if not url or not isinstance(url, str):
        return pipeline, codes
    #: The files of each task, and its input with the workspace, by its scope and name: a group may be used twice.
    found: dict[tuple[str, str], tuple[str, set[str]]] = {}
    executors: set[str] = set()
    with contextlib.nullcontext() if archive is None else _unpacked(archive) as workspace:
        for stage in known_stages(pipeline, arguments):
            if name := _input_to_name(stage, url, is_at_hand=workspace is not None):
                place = stage.scope.name, stage.task.name
                files = found.setdefault(place, (name, set()))[1]
                if workspace is not None:
                    codes[stage.name] = workspace.code_of(stage, arguments)
                    files.update(codes[stage.name].files)
                executors.add(stage.component.name)
    if not found:
        return pipeline, codes
    spec, platform = pipeline.copy_documents()
    components = {**spec["components"], "root": spec["root"]}
    for (scope, task), (name, files) in found.items():
        value = url if workspace is None else workspace.name_of(files)
        parameters = components[scope]["dag"]["tasks"][task]["inputs"]["parameters"]
        parameters[name] = {"runtimeValue": {"constant": value}}
    for component in executors:
        container = spec["deploymentSpec"]["executors"][components[component]["executorLabel"]]["container"]
        others = [one for one in container.get("env", ()) if one["name"] != CODE_URL]
        container["env"] = [*others, {"name": CODE_URL, "value": url}]
    return read_pipeline(spec, platform), codes


def keys_of(pipeline: Pipeline, values: Mapping[str, Any], codes: Mapping[str, Code]) -> dict[str, StageKey]:
    """Return the keys of all stages of a pipeline, with the inputs known before a run.

    Args:
        pipeline: the pipeline.
        values: the values of all parameters.
        codes: the code of stages, by their names.
    """
    keys: dict[str, StageKey] = {}
    for stage in known_stages(pipeline, values):
        inputs = {name: value for name, value in stage.inputs.items() if not is_code_name(value)}
        keys[stage.name] = StageKey(parts_of(stage.component, inputs), codes.get(stage.name))
    return keys


def programs_of(
    command: DecodedCommand, variables: Iterable[tuple[str, str]]
) -> tuple[Sequence[Sequence[str]], list[str]]:
    """Return the command lines of a stage's programs, and the values of variables, which may name files."""
    roles = command.replica_roles
    programs = [decode_command(role.command).application for role in roles] or [command.application]
    pairs = [*variables, *(pair for role in roles for pair in role.env.items())]
    return programs, [value for name, value in pairs if name not in (CODE_URL, TRACKER_BASE)]


def _input_to_name(stage: ScopedTask, url: str, *, is_at_hand: bool) -> str:
    """Return a stage's input with the workspace if its value must change; empty otherwise."""
    container = stage.component.container
    words = container.words if container is not None else ()
    name, inputs = "", stage.inputs
    for word in workspaces_in(words):
        name = next((one for one in inputs if word == parameter_placeholder(one)), "")
    text = " ".join(words)
    # The application may read it as well.
    if not name or text.count(parameter_placeholder(name)) != len(workspaces_in(words)):
        return ""
    is_other = is_code_name(inputs[name]) and dict(stage.env).get(CODE_URL) != url
    return name if is_other or (is_at_hand and (inputs[name] == url or is_code_name(inputs[name]))) else ""


@contextlib.contextmanager
def _unpacked(archive: bytes) -> Iterator[_Workspace]:
    with tempfile.TemporaryDirectory() as folder:
        yield _Workspace(archive, os.path.realpath(folder))


class _Workspace:
    """The unpacked files of a workspace."""

    def __init__(self, archive: bytes, folder: str) -> None:
        """Unpack the archive into an empty folder, whose path has no links."""
        self.files = unpack_files(archive, folder)
        self._used = UsedFiles(self.files, "the workspace")

    def code_of(self, stage: ScopedTask, arguments: Mapping[str, Any]) -> Code:
        """Return the code of a stage; the values of the pipeline's parameters may be items of loops."""
        programs, texts = programs_of(stage.decoded, stage.variables)
        return self._used.of(programs, [*texts, *_items(stage, arguments)])

    def name_of(self, files: Iterable[str]) -> str:
        """Return the name of the code in these files."""
        text = "\n".join(f"{name} {self.files[name].fingerprint}" for name in sorted(files))
        return code_name(hashlib.sha256(text.encode()).hexdigest())


def unpack_files(archive: bytes, folder: str) -> dict[str, CodeFile]:
    """Unpack a workspace into an empty folder, whose path has no links, and return its files by their names."""
    unpack(archive, folder)
    return {
        member.name: CodeFile(
            member.name, os.path.join(folder, member.name), _fingerprint(archive, member), member.linkname
        )
        for member in members(archive)
    }


def _items(place: ScopedTask, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield texts for all known items of the loops around a task."""
    loops = [around.task.loop for around in place.around if around.task.loop is not None]
    for loop in loops:
        with contextlib.suppress(ValueError):
            yield json.dumps(json.loads(loop.raw or '""'), ensure_ascii=False)
    if any(loop.raw is None for loop in loops):
        sources = [source for around in place.around for source in around.task.parameters.values()]
        constants = [source.value for source in sources if isinstance(source, Constant)]
        values = [*constants, *(value for name, value in arguments.items() if name != WORKSPACE_PARAMETER)]
        yield from (value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values)


def _fingerprint(archive: bytes, member: tarfile.TarInfo) -> str:
    if member.issym():
        return f"link {member.linkname}"
    return f"{member.mode:o} {hashlib.sha256(content(archive, member)).hexdigest()}"
