"""Tests that this machine cannot run: they are skipped, or fail in the tier that is there to run them."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(tier: str, reason: str) -> NoReturn:
    """Skip, or fail if the tier is required: ``TORCHX_KFP_REQUIRE_CLUSTER=1``."""
    required = f"TORCHX_KFP_REQUIRE_{tier.upper()}"
    if os.environ.get(required) == "1":
        pytest.fail(f"{reason}. {required}=1 asks for these tests.", pytrace=False)
    pytest.skip(reason)
