"""The option ``--tracker-base`` of commands that start a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from torchx_kfp.cli.flags import Decorator
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER as TRACKER_BASE
from torchx_kfp.errors import ArgumentError

if TYPE_CHECKING:
    from torchx_kfp.pipeline.spec import Pipeline


def tracker_base_option(metavar: str) -> Decorator:
    """Add ``--tracker-base``."""
    option: Decorator = click.option(
        "--tracker-base",
        metavar=metavar,
        help=f"Where stages record their results: the value of the parameter {TRACKER_BASE}.",
    )
    return option


def tracker_base_of(pipeline: Pipeline, arguments: Mapping[str, Any], option: str | None, examples: str) -> Any:
    """Return the tracker base of a run: the option's, the argument, or the parameter's default; None if there is none.

    Args:
        pipeline: the pipeline.
        arguments: the run's arguments.
        option: the value of ``--tracker-base``.
        examples: values of the option, for messages.

    Raises:
        ArgumentError: the pipeline needs one that is not given, has no such parameter, or is given two.
    """
    parameter = pipeline.root.inputs.get(TRACKER_BASE)
    if option is None:
        base = arguments.get(TRACKER_BASE, parameter.default if parameter else None)
        if base is None and parameter is not None and not parameter.optional:
            raise ArgumentError(
                f"The pipeline {pipeline.name!r} needs a tracker base, where its stages record results: "
                f"--tracker-base {examples}."
            )
        return base
    if parameter is None:
        names = ", ".join(pipeline.root.inputs) or "none"
        raise ArgumentError(
            f"--tracker-base needs a pipeline with the parameter {TRACKER_BASE!r}; {pipeline.name!r} has: {names}. "
            "Name the right one with -p."
        )
    if TRACKER_BASE in arguments:
        raise ArgumentError(f"The tracker base is given twice: --tracker-base {option} and -p {TRACKER_BASE}=...")
    return option
