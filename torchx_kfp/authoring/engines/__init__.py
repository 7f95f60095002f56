"""Engines that run the replicas of a distributed stage on the cluster: ``Job``, ``JobSet`` and ``Volcano``.

A stage with several replicas or roles is more than the one pod of a KFP task. With ``engine=``, the stage's pod is a
launcher (``torchx_kfp.contract.carried.launcher``), which creates one object of the engine, follows it, and deletes
it::

    from torchx_kfp import engines

    stages.task(dist.ddp(script="train.py", j="4x8"), engine=engines.Job(queue="gpus"))

An engine is pure data: its options, and a function from roles to manifests.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchx_kfp.authoring.engines.engine import Engine
from torchx_kfp.authoring.engines.jobs import Job, JobSet
from torchx_kfp.authoring.engines.volcano import Volcano
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.errors import AppDefError

__all__ = ["ENGINES", "Engine", "Job", "JobSet", "Volcano", "parse_engine"]

#: The engines by name. A name stands for the engine with its default options.
ENGINES: Mapping[str, type[Engine]] = {kind.NAME: kind for kind in (Job, JobSet, Volcano)}

#: Other names that people may take for an engine.
_OTHERS = {
    "kueue": "Kueue is a queue: engine=engines.Job(queue='...').",
    "trainer": "Kubeflow Trainer brings the controller for 'jobset'.",
}


def parse_engine(engine: object) -> Engine | None:
    """Return the engine that the option ``engine`` names; None if there is none.

    Raises:
        AppDefError: it is neither an engine nor the name of one.
    """
    if engine is None or isinstance(engine, Engine):
        return engine
    if isinstance(engine, type) and issubclass(engine, Engine):
        return engine()
    if isinstance(engine, str) and engine in ENGINES:
        return ENGINES[engine]()
    hint = ""
    if isinstance(engine, str):
        other = _OTHERS.get(engine.lower())
        hint = f" {other}" if other else did_you_mean(engine, ENGINES)
    raise AppDefError(
        f"engine is {engine!r}.{hint} Give {', '.join(map(repr, ENGINES))}, or one of torchx_kfp.engines with options, "
        "such as Job(queue='gpus')."
    )


def option_hint(option: str) -> str:
    """Return a sentence, with a space before it, that says where an option of engines belongs; else nothing."""
    kinds = [kind for kind in ENGINES.values() if option in {field.name for field in dataclasses.fields(kind)}]
    return f" {option} is an option of the engine: engine=engines.{kinds[0].__name__}({option}=...)." if kinds else ""


if not TYPE_CHECKING:  # type checkers would accept any name

    def __getattr__(name: str) -> object:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.{did_you_mean(name, __all__)}")
