"""Count the tests that were skipped by their reason, and name what runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

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
