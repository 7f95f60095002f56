"""KFP's placeholders (such as ``{{$.inputs.parameters['x']}}``) in commands and in constant inputs.

KFP fills them in in two places. Its driver resolves a task's constant inputs; it fills in facts about the run, such as
``{{$.pipeline_job_name}}``, only if the placeholder is the whole value. Its launcher fills in a container's words:
inputs, files of outputs, and the executor input. It leaves everything else as it is, including artifacts' metadata.

Text is scanned once, so a placeholder inside a value stays text. The executor input is an exception: KFP first writes
the values into that JSON, and then fills in the other placeholders.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import Artifact, artifacts_in, as_message, is_artifact
from torchx_kfp.execution.pipeline.values import to_json, to_text

WORKSPACE = "{{$.workspace_path}}"
_PLACEHOLDER = re.compile(r"\{\{\$(?:\.([^{}]*))?\}\}")
_INPUT = re.compile(r"inputs\.parameters\[(['\"])(.+)\1\]")
_OUTPUT = re.compile(r"outputs\.parameters\[(['\"])(.+)\1\]\.output_file")
_ARTIFACT = re.compile(r"(inputs|outputs)\.artifacts\[(['\"])(.+?)\2\]\.(uri|path)")
_WORKSPACE = WORKSPACE.removeprefix("{{$.").removesuffix("}}")
_STRUCT = '{"IfPresent": '


@dataclass(frozen=True)
class Facts:
    """The values for placeholders.

    ``output_files`` maps output parameters to paths; ``executor_output`` is the path for the executor's own report.
    """

    parameters: Mapping[str, Any] = field(default_factory=dict)
    #: The folder that all stages share, if there is one.
    workspace: str = ""
    #: The component's inputs that do not have a value: their text is empty.
    unset: frozenset[str] = frozenset()
    output_files: Mapping[str, str] = field(default_factory=dict)
    output_artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    executor_output: str = ""

    @property
    def input_artifacts(self) -> dict[str, Any]:
        return {name: value for name, value in self.parameters.items() if is_artifact(value)}


def resolve_text(text: str, facts: Facts) -> str:
    """Fill in the placeholders of a text; unknown ones stay."""
    if "{{$" not in text:
        return text
    return _PLACEHOLDER.sub(lambda match: _lookup(match, facts), text)


def resolve_constant(value: Any, facts: Facts, constants: Mapping[str, str]) -> Any:
    """Return the value of a task's constant input.

    Args:
        value: the constant, whose text may contain placeholders for the task's other inputs.
        facts: those inputs.
        constants: the values of placeholders for facts about the run, by the words after ``{{$.``.
    """
    if isinstance(value, str) and (match := _PLACEHOLDER.fullmatch(value)) and match.group(1) in constants:
        return constants[match.group(1)]
    return resolve_value(value, facts)


def resolve_value(value: Any, facts: Facts) -> Any:
    """Fill in the placeholders in a value's strings."""
    if isinstance(value, str):
        return resolve_text(value, facts)
    if isinstance(value, list):
        return [resolve_value(item, facts) for item in value]
    if isinstance(value, dict):
        return {resolve_text(key, facts): resolve_value(item, facts) for key, item in value.items()}
    return value


def unknown_placeholders(text: str) -> list[str]:
    """Return the placeholders in a word of a command that KFP's launcher does not know and leaves as they are."""
    known = (_INPUT, _OUTPUT, _ARTIFACT)
    return [
        match.group()
        for match in _PLACEHOLDER.finditer(text)
        if (body := match.group(1)) not in (None, _WORKSPACE) and not any(form.fullmatch(body) for form in known)
    ]


def resolve_command(words: Sequence[str], facts: Facts) -> list[str]:
    """Fill in a command, including ``dsl.IfPresentPlaceholder``. ``checks`` refuses ``dsl.ConcatPlaceholder``."""
    command: list[str] = []
    for word in words:
        try:
            # What KFP's compiler cannot have written is ordinary text, also an int with thousands of digits.
            command += _expand(json.loads(word, parse_int=float) if word.startswith(_STRUCT) else word, facts)
        except (_NoNodeError, json.JSONDecodeError, RecursionError):
            command.append(resolve_text(word, facts))
    return command


def _lookup(match: re.Match[str], facts: Facts) -> str:
    body = match.group(1)
    if body is None:
        # Placeholders in its values are filled in, too: KFP fills in the other placeholders afterwards.
        return _PLACEHOLDER.sub(
            lambda inner: inner.group() if inner.group(1) is None else _lookup(inner, facts), _executor_input(facts)
        )
    if body == _WORKSPACE and facts.workspace:
        return facts.workspace
    if found := _INPUT.fullmatch(body):
        name = found.group(2)
        if name in facts.parameters:
            return to_text(facts.parameters[name])
        return "" if name in facts.unset else match.group()
    if (found := _OUTPUT.fullmatch(body)) and found.group(2) in facts.output_files:
        return facts.output_files[found.group(2)]
    if found := _ARTIFACT.fullmatch(body):
        given: Mapping[str, Any] = facts.output_artifacts if found.group(1) == "outputs" else facts.input_artifacts
        # The backend uses the first of several artifacts.
        if artifacts := artifacts_in(given.get(found.group(3))):
            return _artifact_text(artifacts[0], found.group(4))
        return match.group() if found.group(1) == "outputs" or found.group(3) not in facts.unset else ""
    if body in ("outputs.output_file", "outputMetadataUri") and facts.executor_output:
        return facts.executor_output
    return match.group()


def _executor_input(facts: Facts) -> str:
    """Return KFP's ExecutorInput message as JSON, without empty parts."""
    inputs = {
        "parameterValues": {name: value for name, value in facts.parameters.items() if not is_artifact(value)},
        "artifacts": {name: as_message(value) for name, value in facts.input_artifacts.items()},
    }
    outputs = {
        "parameters": {name: {"outputFile": path} for name, path in facts.output_files.items()},
        "artifacts": {name: as_message(artifact) for name, artifact in facts.output_artifacts.items()},
        "outputFile": facts.executor_output,
    }
    message: dict[str, dict[str, Any]] = {"inputs": inputs, "outputs": outputs}
    return to_json({what: {key: value for key, value in part.items() if value} for what, part in message.items()})


def _artifact_text(artifact: Artifact, what: str) -> str:
    if what == "uri":
        return artifact.uri
    if not artifact.is_here:
        raise ValueError(
            f"takes the file of the artifact {artifact.name!r}, which is at {artifact.uri} and is not copied here. "
            "Take its URI (.uri), and open it in the application"
        )
    return artifact.path


class _NoNodeError(Exception):
    """Something is not a structured placeholder."""


def _expand(node: Any, facts: Facts) -> list[str]:
    """Return the words that a structured placeholder stands for: none, one or several."""
    match node:
        case str():
            return [resolve_text(node, facts)]
        case {"IfPresent": {"InputName": str(name), "Then": then, **others}, **rest}:
            if not rest and others.keys() <= {"Else"}:
                branches = [then, others.get("Else")]
                chosen = branches.pop(0 if facts.parameters.get(name) is not None else 1)
                _expand_branch(branches[0], Facts())  # it must have the form, too
                return _expand_branch(chosen, facts)
    raise _NoNodeError


def _expand_branch(branch: Any, facts: Facts) -> list[str]:
    nodes = branch if isinstance(branch, list) else [] if branch is None else [branch]
    return [word for node in nodes for word in _expand(node, facts)]


_QUANTITY = re.compile(r"([0-9.]+)([eE][+-]?[0-9]+|m|[kMGTPE]|[KMGTPE]i)?")
_BINARY = {f"{prefix}i": Decimal(1024) ** (power + 1) for power, prefix in enumerate("KMGTPE")}
_DECIMAL = {prefix: Decimal(1000) ** (power + 1) for power, prefix in enumerate("kMGTPE")}
_UNITS: dict[str, Decimal] = {**_BINARY, **_DECIMAL, "m": Decimal("0.001"), "": Decimal(1)}
#: The unit of KFP's older field.
_GIGABYTE = 10**9


@dataclass(frozen=True)
class Limits:
    """Limits of CPUs, memory in bytes, and accelerators. None means no limit; 0 means that none are requested."""

    cpus: float | None = None
    memory: int | None = None
    accelerators: int = 0


def read_limits(resources: Mapping[str, Any], facts: Facts) -> Limits:
    """Return the limits in a ResourceSpec, whose values may be placeholders. Requests are ignored.

    Raises:
        ValueError: a value is not a quantity.
    """
    count = _text(resources.get("accelerator") or {}, "resourceCount", "count", facts)
    cpus = _text(resources, "resourceCpuLimit", "cpuLimit", facts)
    memory = resolve_text(str(resources.get("resourceMemoryLimit") or ""), facts)
    gigabytes = float(resources.get("memoryLimit") or 0)
    return Limits(
        cpus=float(parse_quantity(cpus)) or None if cpus else None,
        memory=math.ceil(parse_quantity(memory)) or None if memory else round(gigabytes * _GIGABYTE) or None,
        accelerators=int(parse_quantity(count)) if count else 0,
    )


def parse_quantity(text: str) -> Decimal:
    """Return the number in a Kubernetes quantity: ``500m``, ``1.5``, ``64M``, ``2Gi``, ``1e3``.

    Raises:
        ValueError: the text is not a quantity.
    """
    match = _QUANTITY.fullmatch(text.strip())
    try:
        if match is None:
            raise ArithmeticError
        number, unit = match.group(1), match.group(2) or ""
        return Decimal(number) * _UNITS[unit] if unit in _UNITS else Decimal(number + unit)
    except ArithmeticError:
        raise ValueError(f"has the limit {text!r}, which is not a quantity such as 500m, 2 or 1.5Gi") from None


def _text(values: Mapping[str, Any], name: str, older: str, facts: Facts) -> str:
    """Return the value under the name that KFP writes today, or otherwise under its older name."""
    return resolve_text(str(values.get(name) or values.get(older) or ""), facts)
