"""The results and artifacts that a stage declares, as KFP's outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kfp import dsl

from torchx_kfp.authoring.channels import contains_channel
from torchx_kfp.authoring.naming import output_name
from torchx_kfp.authoring.references import PYTHON_TYPES, check_word
from torchx_kfp.contract.command import METRICS, Outputs
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.errors import AppDefError

#: {a result's name: its type}.
Results = Mapping[str, type[int] | type[float] | type[bool] | type[str] | type[list[Any]] | type[dict[str, Any]]]
#: {an artifact's name: its class in ``kfp.dsl``}.
Artifacts = Mapping[str, type[dsl.Artifact]]

#: Artifacts whose content KFP's UI shows.
_SHOWN = (dsl.HTML, dsl.Markdown)


def parse_outputs(
    results: Results | None, artifacts: Artifacts | None, taken: Iterable[str] = (RUN_ID,)
) -> tuple[dict[str, type], Outputs]:
    """Return the types of the declared outputs and of ``METRICS``, by KFP's names, and what a publisher needs to know.

    Args:
        results: {name: int, float, bool, str, list or dict}.
        artifacts: {name: dsl.Model, dsl.HTML or another artifact class}.
        taken: names that the stage already uses for something else.
    """
    names: dict[str, str] = {}
    types: dict[str, type] = {}
    for what, declared, is_type, example in (
        (
            "results",
            results,
            _is_result_type,
            "{'accuracy': float}, with int, float, bool, str, list or dict",
        ),
        ("artifacts", artifacts, _is_artifact_type, "{'model': dsl.Model}, with classes of kfp.dsl's artifacts"),
    ):
        if not isinstance(declared or {}, Mapping):
            raise AppDefError(f"{what} is {declared!r}. Write {what}={example}.")
        for name, kind in (declared or {}).items():
            output = output_name(name) if isinstance(name, str) and not contains_channel(name) else ""
            if not output or not is_type(kind):
                raise AppDefError(f"{what} has {name!r}: {kind!r}. Write {what}={example}.")
            check_word(name, f"The name {name!r} in {what}")
            if output in (METRICS, "Output", *taken):
                raise AppDefError(
                    f"{what} has the name {name!r}, but the stage or KFP already has an input or output {output!r}. "
                    "Record it under another name."
                )
            if output in names:
                raise AppDefError(
                    f"{what} has the name {name!r}, but {names[output]!r} is declared as well. Both would be the "
                    f"output {output!r}: KFP's names have letters, digits and '_' only. Record one under another name."
                )
            names[output], types[output] = name, kind
    types[METRICS] = dsl.Metrics
    is_result = {output: _is_result_type(types[output]) for output in names}
    return types, Outputs(
        {output: (types[output].__name__, name) for output, name in names.items() if is_result[output]},
        {output: (name, issubclass(types[output], _SHOWN)) for output, name in names.items() if not is_result[output]},
    )


def _is_artifact_type(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, dsl.Artifact)


def _is_result_type(kind: object) -> bool:
    return kind in PYTHON_TYPES.values()
