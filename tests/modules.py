"""Modules that few tests need and that are slow to load."""

from __future__ import annotations

from importlib.util import find_spec

import pytest


def needs(module: str, reason: str) -> pytest.MarkDecorator:
    """Return a mark that skips tests where this module is not installed."""
    return pytest.mark.skipif(find_spec(module) is None, reason=reason)
