"""Pipelines, each with its expected end: what a compiled pipeline can express, and what stages promise.

A module is a family. ``case`` adds a pipeline; ``load_cases`` finds those of a family. Each place runs the same cases:
this machine in ``test_here``, and a KFP host in ``tests/conformance``.
"""

# The families do not have postponed annotations, since kfp reads annotations as types.
from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import kfp
from kfp import dsl

#: Families of pipelines: those without stages of torchx-kfp first.
FAMILIES = (
    *("artifacts", "conditions", "containers", "exits", "failures", "importers", "inputs", "loops", "nested"),
    "parameters",
    *("python_components", "settings", "examples", "reads", "results", "values"),
)

VERSION = tuple(int(part) for part in kfp.__version__.split(".")[:2])


@dataclass(frozen=True)
class Case:
    """A pipeline and its expected end.

    Attributes:
        name: the names of its family and its function.
        function: the function of the pipeline. Where it has the parameters ``tracker_base`` and ``workspace``, each
            place gives its own.
        arguments: the other arguments.
        state: how the run ends.
        outputs: outputs of the pipeline.
        artifacts: the text of the pipeline's output artifacts.
        stages: the outputs of some stages, or their states.
        results: what some stages have recorded, in part.
        reasons: parts of the reasons of some stages.
        check: checks the rest of the result, here.
        refused: a pattern for the message with which the pipeline is rejected before it starts.
        since: the first version of kfp that compiles it.
        config: its ``dsl.PipelineConfig``.
        expected: why it ends in another way on KFP: the table of ``docs/why/differences.md`` has it.
        missing: what it needs that a cluster may not have.
        packages: packages that its image needs.
        varying: results that differ from run to run, such as times and places.
    """

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: str = "succeeded"
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Any] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, Any] | str] = field(default_factory=dict)
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    reasons: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    check: Callable[[Any], None] | None = None
    refused: str = ""
    since: tuple[int, int] = (2, 14)
    config: Any = None
    expected: str = ""
    missing: str = ""
    packages: tuple[str, ...] = ()
    varying: Set[str] = frozenset()

    @cached_property
    def pipeline(self) -> Any:
        """The compiled pipeline."""
        return dsl.pipeline(self.function, **({"pipeline_config": self.config} if self.config else {}))


_cases: dict[str, dict[str, Case]] = {}


def case(variant: str = "", **expected: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a pipeline function, to add the pipeline; ``variant`` names another case of the same one."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        family, name = function.__module__.rpartition(".")[2], function.__name__
        add(family, f"{name}.{variant}" if variant else name, function, **expected)
        return function

    return decorate


def add(family: str, name: str, function: Callable[..., Any], **expected: Any) -> None:
    """Add a pipeline to the cases of a family, unless this version of kfp cannot compile it."""
    added = Case(f"{family}.{name}", function, **expected)
    if added.since <= VERSION:
        _cases.setdefault(family, {})[name] = added


def load_cases(family: str) -> dict[str, Case]:
    """Return the cases of a family, by the names of their functions."""
    importlib.import_module(f"{__name__}.{family}")
    return _cases.get(family, {})
