"""Tests that this machine cannot run: they are skipped, by reason, or fail in the tier that is there to run them."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any, NoReturn

import pytest

#: What runs the tests with a mark.
WAYS = {
    "docker": "make test-containers",
    "cluster": "make test-cluster",
    "torch": "make test-torch",
    "ax": "make test-ax",
    "browser": "make test-browser",
}
#: How many characters of a reason are shown.
_LONGEST = 90


def missing(tier: str, reason: str) -> NoReturn:
    """Skip, or fail if the tier is required: ``TORCHX_KFP_REQUIRE_CLUSTER=1``."""
    required = f"TORCHX_KFP_REQUIRE_{tier.upper()}"
    if os.environ.get(required) == "1":
        pytest.fail(f"{reason}. {required}=1 asks for these tests.", pytrace=False)
    pytest.skip(reason)


def summary(reports: Iterable[Any]) -> list[str]:
    """Return lines about skipped tests, from pytest's reports, the most frequent reason first."""
    counts: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    for report in reports:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = " ".join(reason.removeprefix("Skipped: ").split())
        if len(reason) > _LONGEST:
            reason = f"{reason[:_LONGEST]}..."
        kind = next((mark for mark in WAYS if mark in report.keywords), reason)
        counts[kind] += 1
        reasons.setdefault(kind, reason)
    return [
        f"{count:5,}  {reasons[kind]}{f' (to run them: {WAYS[kind]})' if kind in WAYS else ''}"
        for kind, count in counts.most_common()
    ]
