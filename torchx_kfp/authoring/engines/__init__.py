"""Engines that run the replicas of a distributed stage on the cluster: ``Job``, ``JobSet`` and ``Volcano``.

A stage with several replicas or roles is more than the one pod of a KFP task. With ``engine=``, the stage's pod is a
launcher (``torchx_kfp.contract.carried.launcher``), which creates one object of the engine, follows it, and deletes
it::

    from torchx_kfp import engines

    stages.task(dist.ddp(script="train.py", j="4x8"), engine=engines.Job(queue="gpus"))

An engine is pure data: its options, and a function from roles to manifests.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchx_kfp.authoring.engines.engine import Engine
from torchx_kfp.authoring.engines.jobs import Job, JobSet
from torchx_kfp.authoring.engines.volcano import Volcano
from torchx_kfp.common.text import did_you_mean
from torchx_kfp.errors import AppDefError

__all__ = ["ENGINES", "Engine", "Job", "JobSet", "Volcano", "parse_engine"]

#: The engines by name. A name stands for the engine with its default options.
ENGINES: Mapping[str, type[Engine]] = {kind.NAME: kind for kind in (Job, JobSet, Volcano)}


def parse_engine(engine: object) -> Engine | None:
    """Return the engine that the option ``engine`` names; None if there is none.

    Raises:
        AppDefError: it is neither an engine nor the name of one.
    """
    if engine is None or isinstance(engine, Engine):
        return engine
    if isinstance(engine, str) and engine in ENGINES:
        return ENGINES[engine]()
    raise AppDefError(
        f"engine is {engine!r}.{did_you_mean(engine, ENGINES)} Give {', '.join(map(repr, ENGINES))}, or one of "
        "torchx_kfp.engines with options, such as Job(queue='gpus')."
    )
