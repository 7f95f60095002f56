"""The way of a container's command from the compiled pipeline to the process, and the process itself.

These are models of the changes that Argo, the kubelet and KFP's launcher make to text, by their documented rules: Argo
substitutes ``{{...}}``, and quotes unprintable characters in a way that is not JSON. The kubelet expands ``$(NAME)``,
turns ``$$`` into ``$``, and reads the byte after any other ``$`` as a character. KFP reads words that start with
``{"Concat"`` or ``{"IfPresent"`` as placeholders, and fills in ``{{$...}}``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.documents import documents


class EngineFailure(Exception):
    """An engine would fail the run on this text."""


def argo(word: str) -> str:
    """Return a word after Argo's templates and quoting."""
    if any(character == "\x7f" or (ord(character) > 0xFFFF and not character.isprintable()) for character in word):
        raise EngineFailure("unprintable characters are no JSON after Argo's quoting")

    def substitute(found: re.Match[str]) -> str:
        tag = found[1]
        if tag.startswith("$"):
            return found[0]
        if tag.startswith("="):
            return "<evaluated>"
        if tag.split(".")[0].strip() in ("workflow", "pod", "node", "inputs", "outputs", "tasks", "steps", "item"):
            return f"<{tag}>"
        raise EngineFailure(f"unresolved {{{{{tag}}}}}")

    return re.sub(r"\{\{(.*?)\}\}", substitute, word, flags=re.DOTALL)


def kubelet(word: str, environ: Mapping[str, str]) -> str:
    """Return a word after the kubelet's byte-by-byte expansion of variables; stray bytes are surrogates."""
    text, arrived, at = word.encode(), bytearray(), 0
    while at < len(text):
        if text[at : at + 1] != b"$" or at + 1 == len(text):
            arrived.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] == b"$":
            arrived += b"$"
            at += 2
        elif text[at + 1 : at + 2] == b"(" and b")" in text[at:]:
            end = text.index(b")", at)
            value = environ.get(text[at + 2 : end].decode())
            arrived += text[at : end + 1] if value is None else value.encode()
            at = end + 1
        else:
            arrived += b"$" + chr(text[at + 1]).encode()
            at += 2
    return os.fsdecode(bytes(arrived))


def launcher(
    word: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
    artifacts: Mapping[str, str] | None = None,
    root: str = "",
) -> str:
    """Return a word after KFP has filled in its placeholders."""
    if word == "{{$}}":
        return executor_input(inputs, outputs, artifacts or {}, root)
    for name, path in (artifacts or {}).items():
        word = word.replace(f"{{{{$.outputs.artifacts['{name}'].path}}}}", path)
    if re.match(r'\s*\{\s*"(Concat|IfPresent)"', word):
        raise EngineFailure("read as a placeholder")
    for name, value in inputs.items():
        word = word.replace(f"{{{{$.inputs.parameters['{name}']}}}}", value)
    for name, path in outputs.items():
        word = word.replace(f"{{{{$.outputs.parameters['{name}'].output_file}}}}", path)
    return word


def executor_input(
    inputs: Mapping[str, str], outputs: Mapping[str, str], artifacts: Mapping[str, str], root: str
) -> str:
    """Return KFP's ExecutorInput for a task with these inputs, and these files for its outputs."""
    folder = os.path.dirname(next(iter((*outputs.values(), *artifacts.values()))))
    return json.dumps(
        {
            "inputs": {"parameterValues": dict(inputs)},
            "outputs": {
                "parameters": {name: {"outputFile": path} for name, path in outputs.items()},
                "artifacts": {
                    name: {"artifacts": [{"name": name, "uri": f"{root}/{name}" if root else path, "metadata": {}}]}
                    for name, path in artifacts.items()
                },
                "outputFile": f"{folder}/executor_output.json",
            },
        }
    )


@dataclass(frozen=True)
class Container:
    """A container of a compiled pipeline, and the values that its engine knows when it starts.

    ``constants`` are inputs that the pipeline fixes. Their text is in the task, which is an argument of KFP's driver,
    and then in the executor input, which is an argument of its launcher. So it passes through Argo and the kubelet
    twice. ``root`` is where the engine stores artifacts.
    """

    command: Sequence[str]
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    artifacts: Mapping[str, str] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    root: str = ""

    def argv(self) -> list[str]:
        """Return the command as the process gets it."""
        environ = {"HOME": "/root", "PATH": "/bin", **self.environ}
        words = [kubelet(argo(word), environ) for word in self.command]
        constants = {
            name: kubelet(argo(kubelet(argo(text), environ)), environ) for name, text in self.constants.items()
        }
        inputs = {**constants, **self.inputs}
        return [words[0], *(launcher(word, inputs, self.outputs, self.artifacts, self.root) for word in words[1:])]

    def run(self, shells: Path | None = None, **options: object) -> subprocess.CompletedProcess[bytes]:
        """Run the process; ``shells`` is a folder with the ``sh`` to use."""
        path = f"{shells}:{os.environ['PATH']}" if shells else os.environ["PATH"]
        environ = {"PATH": path, "HOME": "/root", **self.environ}
        return subprocess.run(self.argv(), capture_output=True, env=environ, timeout=120, check=False, **options)

    def environment(self, shells: Path | None = None) -> dict[str, str]:
        """Run the process, whose application is ``env -0``, and return the variables that it has."""
        done = self.run(shells)
        assert done.returncode == 0, done.stderr
        return dict(entry.split("=", 1) for entry in os.fsdecode(done.stdout).split("\0") if entry)


def containers(compiled: str) -> dict[str, dict[str, object]]:
    """Return the containers of a compiled pipeline by the names of their executors."""
    spec = documents(compiled)[0]
    return {
        name.removeprefix("exec-"): executor["container"]
        for name, executor in spec["deploymentSpec"]["executors"].items()
    }


def container_of(compiled: str, name: str, **known: Mapping[str, str]) -> Container:
    """Return the container of a task of a compiled pipeline, which has the name of its component."""
    return Container(containers(compiled)[name]["command"], constants=constants(compiled).get(name, {}), **known)


def tracked_container(compiled: str, name: str, folder: Path, **inputs: str) -> Container:
    """Return the container of a tracked stage, which writes its execution id to ``folder / "run_id"``."""
    given = {"tracker_base": "/tmp/results", **inputs}
    return container_of(compiled, name, inputs=given, outputs={"run_id": str(folder / "run_id")})


def constants(compiled: str) -> dict[str, dict[str, str]]:
    """Return the inputs of each task of a compiled pipeline that are constant text."""
    spec = documents(compiled)[0]
    tasks = {
        name: task
        for component in (spec["root"], *spec["components"].values())
        for name, task in component.get("dag", {}).get("tasks", {}).items()
    }
    return {
        name: {
            key: source["runtimeValue"]["constant"]
            for key, source in task.get("inputs", {}).get("parameters", {}).items()
            if "runtimeValue" in source
        }
        for name, task in tasks.items()
    }
