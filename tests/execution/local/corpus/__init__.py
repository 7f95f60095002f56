"""Pipelines that exercise everything that the compiled IR can express, each with its expected end.

Every module except ``parts`` is a family. ``case`` adds a pipeline to the corpus; ``load_cases`` finds all of them.
kfp.local runs those whose ``local`` is empty, in ``kfp_local``; ``local`` says why it cannot run the others.
"""

# The families do not have postponed annotations, since kfp reads annotations as types.
from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import kfp
from kfp import dsl

FAMILIES = (
    "artifacts",
    "conditions",
    "containers",
    "exits",
    "failures",
    "importers",
    "loops",
    "nested",
    "parameters",
    "python_components",
    "settings",
)

#: Reasons that apply to several pipelines for not running them under kfp.local. One pipeline was tried for each reason.
CONTAINERS = "its SubprocessRunner does not accept container components"
OPTIONAL = "it wants a value for an optional input"
NUMBERS = "it hands on integers as floats"
NESTED = "it makes lists of lists of what nested loops collect"

VERSION = tuple(int(part) for part in kfp.__version__.split(".")[:2])


@dataclass(frozen=True)
class Case:
    """A pipeline and its expected end.

    ``stages`` maps names of some stages to their outputs, or to their states if they do not have outputs. ``artifacts``
    maps the pipeline's output artifacts to the text of their files. ``refused`` is a pattern for the message with which
    the pipeline is rejected before it starts. ``since`` is the first version of kfp that compiles it, and
    ``local_since`` is the first whose kfp.local runs it correctly. ``config`` is the pipeline's ``dsl.PipelineConfig``.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: str = "succeeded"
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    refused: str = ""
    local: str = ""
    since: tuple[int, int] = (2, 14)
    local_since: tuple[int, int] = (2, 15)
    config: Any = None

    @cached_property
    def pipeline(self) -> Any:
        """The compiled pipeline."""
        return dsl.pipeline(self.function, **({"pipeline_config": self.config} if self.config else {}))


_cases: dict[str, dict[str, Case]] = {}


def case(**expected: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a pipeline function, to add the pipeline to the corpus."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        family, name = function.__module__.rpartition(".")[2], function.__name__
        added = Case(f"{family}.{name}", function, **expected)
        if added.since <= VERSION:
            _cases.setdefault(family, {})[name] = added
        return function

    return decorate


def load_cases(family: str) -> dict[str, Case]:
    """Return the cases of a family, by the names of their functions."""
    importlib.import_module(f"{__name__}.{family}")
    return _cases.get(family, {})
