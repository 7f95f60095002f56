"""The results and artifacts that a stage declares, as KFP's outputs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kfp import dsl

from torchx_kfp.authoring.channels import contains_channel
from torchx_kfp.authoring.naming import output_name
from torchx_kfp.authoring.references import check_word
from torchx_kfp.contract.command import METRICS, UI_METADATA, Outputs
from torchx_kfp.contract.inputs import RUN_ID, escape
from torchx_kfp.errors import OutputsError

#: {a result's name: its type}.
Results = Mapping[str, type[int] | type[float] | type[bool] | type[str] | type[list[Any]] | type[dict[str, Any]]]
#: {an artifact's name: its class in ``kfp.dsl``}.
Artifacts = Mapping[str, type[dsl.Artifact]]
#: KFP v1's UI metadata, in a form that JSON can represent.
UiMetadata = Mapping[str, Any]

#: Artifacts whose content KFP's UI shows.
_SHOWN = (dsl.HTML, dsl.Markdown)
_RESULT_TYPES = (int, float, bool, str, list, dict)


@dataclass(frozen=True)
class Publication:
    """The declared outputs of a stage: by KFP's name, the type and the name with which the application records it.

    The artifact ``metrics`` is always among them.
    """

    results: Mapping[str, tuple[type, str]] = field(default_factory=dict)
    artifacts: Mapping[str, tuple[type[dsl.Artifact], str]] = field(default_factory=dict)

    @property
    def types(self) -> dict[str, type]:
        """The type of each output."""
        return {name: kind for name, (kind, _) in (*self.results.items(), *self.artifacts.items())}

    def outputs(self, fatal: Sequence[int] | None = None) -> Outputs:
        """Return the outputs for the program that publishes them.

        Args:
            fatal: the exit codes that fail the stage anyway; None if every exit code except 0 does.
        """
        return Outputs(
            {output: (kind.__name__, name) for output, (kind, name) in self.results.items()},
            {
                output: (name, issubclass(kind, _SHOWN))
                for output, (kind, name) in self.artifacts.items()
                if output != METRICS
            },
            None if fatal is None else tuple(fatal),
        )


def read_publication(
    results: Results | None,
    artifacts: Artifacts | None,
    *,
    taken: Iterable[str] = (RUN_ID,),
) -> Publication:
    """Read a stage's declarations. Empty results declare only the metrics.

    Args:
        results: {name: int, float, bool, str, list or dict}.
        artifacts: {name: dsl.Model, dsl.HTML or another artifact class}.
        taken: names that the stage already uses for something else.
    """
    outputs: dict[str, str] = {}
    for what, declared, is_type, example in (
        (
            "results",
            results,
            lambda kind: kind in _RESULT_TYPES,
            "{'accuracy': float}, with int, float, bool, str, list or dict",
        ),
        ("artifacts", artifacts, _is_artifact_type, "{'model': dsl.Model}, with classes of kfp.dsl's artifacts"),
    ):
        if declared is not None and not isinstance(declared, Mapping):
            raise OutputsError(f"{what} is {declared!r}. Write {what}={example}.")
        for name, kind in (declared or {}).items():
            if not isinstance(name, str) or contains_channel(name) or not output_name(name):
                raise OutputsError(f"{what} has the name {name!r}, which cannot be an output's. Write {example}.")
            check_word(name, f"The name {name!r} in {what}")
            if not is_type(kind):
                raise OutputsError(f"{what}[{name!r}] is {kind!r}. Write {what}={example}.")
            output = output_name(name)
            if output in (METRICS, UI_METADATA, "Output", *taken):
                raise OutputsError(
                    f"{what} has the name {name!r}, but the stage or KFP already has an input or output {output!r}. "
                    "Record it under another name."
                )
            if output in outputs:
                raise OutputsError(
                    f"{what} has the name {name!r}, but {outputs[output]!r} is declared as well. Both would be the "
                    f"output {output!r}: KFP's names have letters, digits and '_' only. Record one under another name."
                )
            outputs[output] = name
    return Publication(
        results={output_name(name): (kind, name) for name, kind in (results or {}).items()},
        artifacts={
            METRICS: (dsl.Metrics, METRICS),
            **{output_name(name): (kind, name) for name, kind in (artifacts or {}).items()},
        },
    )


def read_ui_metadata(ui_metadata: object) -> str | None:
    """Return the escaped JSON text of KFP v1's UI metadata; None if there is none."""
    if ui_metadata is None:
        return None
    if not isinstance(ui_metadata, Mapping) or contains_channel(dict(ui_metadata)):
        raise OutputsError(
            f"ui_metadata is {ui_metadata!r}. Give a constant dict, such as "
            "{'outputs': [{'type': 'markdown', ...}]}. For content that is known only at run time, declare an "
            "artifact: artifacts={'report': dsl.Markdown}."
        )
    try:
        text = json.dumps(dict(ui_metadata), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise OutputsError(f"ui_metadata cannot be written as JSON: {error}. Got: {ui_metadata!r}.") from None
    return check_word(escape(text), "ui_metadata, as it is passed on,")


def _is_artifact_type(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, dsl.Artifact)
