"""Modules: those that few tests need and that are slow to load, and the places in them that name something."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "torchx_kfp"


def needs(module: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where this module is not installed."""
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)


def places(name: str, package: str) -> list[str]:
    """Return the functions and classes of a package whose code has this name, in whichever module they are."""
    found = []
    for file in sorted((PACKAGE / package).rglob("*.py")):
        for statement in ast.parse(file.read_text(encoding="utf-8")).body:
            named = {
                value
                for node in ast.walk(statement)
                for field, value in ast.iter_fields(node)
                if isinstance(value, str)
            }
            if name in named:
                found.append(getattr(statement, "name", file.name))
    return sorted(found)
