"""Ask optimizers that need torchx-kfp in the image for trials: ``torchx_kfp.carried.asking`` with other optimizers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from torchx_kfp.carried import asking
from torchx_kfp.errors import SearchError
from torchx_kfp.hpo.others import ask_other


def ask_for(definition: Any, told: Sequence[Any], state: Any, number: int) -> tuple[list[Any], Any]:
    """Ask the definition's optimizer for trials."""
    if definition["optimizer"] in asking.OPTIMIZERS:
        return asking.ask_for(definition, told, state, number)
    try:
        asked, state = ask_other(definition, told, state, number)
    except SearchError as error:
        sys.exit(f"torchx-kfp: {error}")
    # KFP fails a loop without iterations whose runs are collected.
    return asked[:number] or asking.ask_random(definition, told, None, 1)[0], state


def main(text: str) -> None:
    """Ask for trials in a stage of a search."""
    asking.main(text, ask_for)
