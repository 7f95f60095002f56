"""KFP's placeholders (such as ``{{$.inputs.parameters['x']}}``) in the words of a command and in the spec of a pod.

KFP's driver fills in a constant input that is a fact about the run, such as ``{{$.pipeline_job_name}}`` (see
``inputs``), input parameters in the words of a command, and an image or a limit that is one input. Its launcher then
fills in the rest of a command: files of outputs, artifacts, the executor input, and placeholders in the constants that
the driver has put there. Everything else stays as it is, such as variables and artifacts' metadata.

Text is scanned once, so a placeholder inside a value stays text. The executor input is an exception: KFP first writes
the values into that JSON, and then fills in the other placeholders.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from torchx_kfp.execution.pipeline.artifacts import Artifact, artifacts_in, as_message, is_artifact, parameters_of
from torchx_kfp.execution.pipeline.values import driver_text, to_json, to_text

#: The folder that all stages of a run share. KFP's driver fills it in in constant inputs only.
WORKSPACE = "{{$.workspace_path}}"
_PLACEHOLDER = re.compile(r"\{\{\$(?:\.([^{}]*))?\}\}")
_BODY = re.compile(
    r"(?:(?P<of>inputs|outputs)\.(?P<what>parameters|artifacts)\['(?P<name>.+)'\](?:\.(?P<field>output_file|uri|path))?)"
)
#: The forms that KFP fills in inside a command: inputs or outputs, parameters or artifacts, and the field.
_KNOWN = {
    ("inputs", "parameters", None),
    ("outputs", "parameters", "output_file"),
    *((of, "artifacts", field) for of in ("inputs", "outputs") for field in ("uri", "path")),
}
_OUTPUTS = "$.outputs"
_IF_PRESENT, _CONCAT = '{"IfPresent":', '{"Concat":'


@dataclass(frozen=True)
class Placeholder:
    """A placeholder in text.

    Attributes:
        text: the whole of it.
        body: the text after ``{{$.``; None for the executor input.
        of: the input or output, as ``inputs``, ``parameters``, its name, and its field; None for other placeholders.
    """

    text: str
    body: str | None
    of: tuple[str, str, str, str | None] | None = None

    @property
    def parameter(self) -> str | None:
        """The name of its input parameter, if any."""
        return self._name("inputs", "parameters", None)

    @property
    def file(self) -> str | None:
        """The name of the input artifact of its file, if any."""
        return self._name("inputs", "artifacts", "path")

    @property
    def is_known(self) -> bool:
        """Whether KFP fills it in within a command."""
        return self.body is None or self.of is not None

    def _name(self, of: str, what: str, part: str | None) -> str | None:
        return self.of[2] if self.of is not None and (*self.of[:2], self.of[3]) == (of, what, part) else None


def placeholders_in(text: str) -> Iterator[Placeholder]:
    """Yield the placeholders in a text."""
    if "{{$" in text:
        yield from map(_placeholder, _PLACEHOLDER.finditer(text))


def parameters_in(text: str) -> list[str]:
    """Return the names of the input parameters in a text's placeholders."""
    return [found.parameter for found in placeholders_in(text) if found.parameter is not None]


def parameter_of(text: str) -> str | None:
    """Return the name of the input parameter if the whole text is its placeholder, or None."""
    placeholder = next(placeholders_in(text), None)
    return placeholder.parameter if placeholder is not None and placeholder.text == text else None


def with_names(text: str) -> str:
    """Return a text for messages, with ``{name}`` instead of placeholders of inputs."""
    return _PLACEHOLDER.sub(lambda match: f"{{{_placeholder(match).parameter or match[0]}}}", text)


def _placeholder(match: re.Match[str]) -> Placeholder:
    body = match[1]
    found = _BODY.fullmatch(body) if body is not None else None
    is_known = found is not None and (found["of"], found["what"], found["field"]) in _KNOWN
    return Placeholder(
        match[0], body, (found["of"], found["what"], found["name"], found["field"]) if found and is_known else None
    )


@dataclass(frozen=True)
class PlaceholderValues:
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


def resolve_text(text: str, values: PlaceholderValues, write: Callable[[Any], str] = to_text) -> str:
    """Fill in the placeholders of a text; ``write`` returns the text of an input, and unknown ones stay."""
    if "{{$" not in text:
        return text
    return _PLACEHOLDER.sub(lambda match: _lookup(match, values, write), text)


def resolve_value(value: Any, values: PlaceholderValues) -> Any:
    """Fill in the placeholders in a value's strings."""
    if isinstance(value, str):
        return resolve_text(value, values)
    if isinstance(value, list):
        return [resolve_value(item, values) for item in value]
    if isinstance(value, dict):
        return {resolve_text(key, values): resolve_value(item, values) for key, item in value.items()}
    return value


def resolve_parameters(word: str, inputs: Mapping[str, Any]) -> str:
    """Fill in the input parameters of a command's word, as KFP's driver does: not if it names an output file."""
    if _OUTPUTS in word:
        return word
    parameters = {name: value for name, value in inputs.items() if not is_artifact(value)}
    return _PLACEHOLDER.sub(
        lambda match: (
            driver_text(parameters[name])
            if (name := _placeholder(match).parameter) is not None and name in parameters
            else match[0]
        ),
        word,
    )


def resolve_pod_text(text: str, inputs: Mapping[str, Any]) -> str:
    """Return an image or a limit as KFP's driver does: the text of the first input that it names, or the text itself.

    Text around the input is lost, a value that is not text counts as empty, and placeholders in the value stay.

    Raises:
        ValueError: the input has no value.
    """
    names = parameters_in(text)
    if not names:
        return text
    if names[0] not in inputs:
        raise ValueError(f"has {text!r} in its pod, and the input {names[0]!r} has no value")
    value = inputs[names[0]]
    return value if isinstance(value, str) else ""


def resolve_command(words: Sequence[str], values: PlaceholderValues) -> list[str]:
    """Fill in a command, including ``dsl.IfPresentPlaceholder`` and, unlike KFP, ``dsl.ConcatPlaceholder``."""
    command: list[str] = []
    for word in words:
        if _OUTPUTS in word:
            # KFP's driver leaves such a word to the launcher, which knows no structured placeholders.
            command.append(resolve_text(word, values))
            continue
        try:
            # Text that KFP's compiler cannot have written is ordinary text, even an int with thousands of digits.
            is_structured = word.startswith((_IF_PRESENT, _CONCAT))
            command += _expand(json.loads(word, parse_int=float) if is_structured else word, values)
        except (_NoNodeError, json.JSONDecodeError, RecursionError):
            command.append(resolve_text(word, values, driver_text))
    return command


def uses_concat(word: str) -> bool:
    """Return whether a word is a structured placeholder with a ``dsl.ConcatPlaceholder``."""
    return _CONCAT in word and word.startswith((_IF_PRESENT, _CONCAT))


def is_conditional(word: str) -> bool:
    """Return whether a word is a ``dsl.IfPresentPlaceholder``."""
    return word.startswith(_IF_PRESENT)


def _lookup(match: re.Match[str], values: PlaceholderValues, write: Callable[[Any], str]) -> str:
    body, of = match[1], _placeholder(match).of
    if body is None:
        # Placeholders in its values are filled in, too: KFP fills in the other placeholders afterwards.
        return _PLACEHOLDER.sub(
            lambda inner: inner.group() if inner[1] is None else _lookup(inner, values, to_text),
            _executor_input(values),
        )
    match of:
        case ("inputs", "parameters", name, _):
            if name in values.parameters:
                return write(values.parameters[name])
            return "" if name in values.unset else match[0]
        case ("outputs", "parameters", name, _):
            return values.output_files.get(name, match[0])
        case (side, "artifacts", name, what):
            given: Mapping[str, Any] = values.output_artifacts if side == "outputs" else values.input_artifacts
            # The backend uses the first of several artifacts.
            if artifacts := artifacts_in(given.get(name)):
                return _artifact_text(artifacts[0], str(what))
            return match[0] if side == "outputs" or name not in values.unset else ""
    if body in ("outputs.output_file", "outputMetadataUri") and values.executor_output:
        return values.executor_output
    return match[0]


def _executor_input(values: PlaceholderValues) -> str:
    """Return KFP's ExecutorInput message as JSON, without empty parts."""
    inputs = {
        "parameterValues": parameters_of(values.parameters),
        "artifacts": {name: as_message(value) for name, value in values.input_artifacts.items()},
    }
    outputs = {
        "parameters": {name: {"outputFile": path} for name, path in values.output_files.items()},
        "artifacts": {name: as_message(artifact) for name, artifact in values.output_artifacts.items()},
        "outputFile": values.executor_output,
    }
    message: dict[str, dict[str, Any]] = {"inputs": inputs, "outputs": outputs}
    return to_json({what: {key: value for key, value in part.items() if value} for what, part in message.items()})


def _artifact_text(artifact: Artifact, what: str) -> str:
    if what == "uri":
        return artifact.uri
    if not artifact.is_local:
        raise ValueError(
            f"takes the file of the artifact {artifact.name!r}, which is at {artifact.uri} and is not copied locally. "
            "Take its URI (.uri), and open it in the application"
        )
    return artifact.path


class _NoNodeError(Exception):
    """The value is not a structured placeholder."""


def _expand(node: Any, values: PlaceholderValues) -> list[str]:
    """Return the words of a structured placeholder: none, one or several."""
    match node:
        case str():
            return [resolve_text(node, values, driver_text)]
        case {"Concat": list(parts), **rest} if not rest:
            return ["".join(word for part in parts for word in _expand(part, values))]
        case {"IfPresent": {"InputName": str(name), "Then": then, **others}, **rest}:
            if not rest and others.keys() <= {"Else"}:
                branches = [then, others.get("Else")]
                # KFP looks at parameters only: an artifact is never present.
                chosen = branches.pop(0 if parameters_of(values.parameters).get(name) is not None else 1)
                _expand_branch(branches[0], PlaceholderValues())  # it must have the form, too
                return _expand_branch(chosen, values)
    raise _NoNodeError


def _expand_branch(branch: Any, values: PlaceholderValues) -> list[str]:
    nodes = branch if isinstance(branch, list) else [] if branch is None else [branch]
    return [word for node in nodes for word in _expand(node, values)]


_QUANTITY = re.compile(r"(\+?[0-9.]+)([eE][+-]?[0-9]+|[num]|[kMGTPE]|[KMGTPE]i)?")
_BINARY = {f"{prefix}i": Decimal(1024) ** (power + 1) for power, prefix in enumerate("KMGTPE")}
_DECIMAL = {prefix: Decimal(1000) ** (power + 1) for power, prefix in enumerate("kMGTPE")}
_SMALL = {prefix: Decimal(1000) ** -(power + 1) for power, prefix in enumerate("mun")}
_UNITS: dict[str, Decimal] = {**_BINARY, **_DECIMAL, **_SMALL, "": Decimal(1)}
#: The unit of KFP's older field.
_GIGABYTE = 10**9


@dataclass(frozen=True)
class Limits:
    """Limits of CPUs and of memory in bytes, None for no limit, and the number of NVIDIA GPUs."""

    cpus: float | None = None
    memory: int | None = None
    gpus: int = 0


def read_limits(resources: Mapping[str, Any], inputs: Mapping[str, Any]) -> Limits:
    """Return the limits in a ResourceSpec, whose values may be placeholders for inputs. Requests are ignored.

    Raises:
        ValueError: a value is not a quantity.
    """
    accelerator = resources.get("accelerator") or {}
    count = _pod_text(accelerator, "resourceCount", "count", inputs)
    kind = _pod_text(accelerator, "resourceType", "type", inputs)
    cpus = _pod_text(resources, "resourceCpuLimit", "cpuLimit", inputs)
    memory = _pod_text(resources, "resourceMemoryLimit", "", inputs)
    gigabytes = float(resources.get("memoryLimit") or 0)
    return Limits(
        cpus=None if cpus is None else float(parse_quantity(cpus)) or None,
        memory=round(gigabytes * _GIGABYTE) or None if memory is None else math.ceil(parse_quantity(memory)) or None,
        gpus=int(parse_quantity(count)) if count and kind and is_gpu(kind) else 0,
    )


#: Not network cards, ``nvidia.com/hostdev``, or the memory of GPUs, ``nvidia.com/gpumem``.
_GPU = re.compile(r"nvidia\.com/(?:gpu(?:\.shared)?|mig-.+)")


def is_gpu(kind: str) -> bool:
    """Return whether accelerators of this type are NVIDIA's GPUs, or parts of them: ``nvidia.com/mig-1g.5gb``."""
    return _GPU.fullmatch(kind) is not None


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


def _pod_text(values: Mapping[str, Any], name: str, older: str, inputs: Mapping[str, Any]) -> str | None:
    """Return the value under KFP's current name or its older one; None without a value."""
    if values.get(name):
        return resolve_pod_text(str(values[name]), inputs)
    return str(values[older]) if values.get(older) else None
