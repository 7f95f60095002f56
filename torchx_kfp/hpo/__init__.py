"""Searches: rounds of trials in a pipeline, whose parameters a stage chooses before each round.

    from torchx_kfp import hpo

    best = hpo.search(
        lambda p: dist.ddp("--lr", f"{p.lr}", script="train.py", j="1x2"),
        {"lr": hpo.log(1e-4, 1.0)},
        minimize="loss",
        rounds=3,
        trials=4,
        tracker_base=tracker_base,
    )

``spaces`` has the spaces of parameters, ``definition`` checks the arguments, and ``rounds`` makes the stages. ``ask``
is the program between the rounds: it loads an optimizer, one of ``optimizers`` or of the image, such as ``ax``.
Importing this package does not load kfp.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchx_kfp.hpo.spaces import choice, float, int, log

if TYPE_CHECKING:
    from torchx_kfp.hpo.rounds import Parameters as Parameters
    from torchx_kfp.hpo.rounds import search as search

__all__ = ["Parameters", "choice", "float", "int", "log", "search"]


def __getattr__(name: str) -> object:
    if name not in ("Parameters", "search"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from torchx_kfp.common.extras import require

    require("pipelines", f"{__name__}.{name}")
    import importlib

    return getattr(importlib.import_module("torchx_kfp.hpo.rounds"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
