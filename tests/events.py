"""The events that ``torchx-kfp run --json`` prints."""

from __future__ import annotations

import json
from typing import Any


def finished_stages(output: str) -> list[dict[str, Any]]:
    """Return the stages that have ended, as in their events, sorted by name."""
    events = [json.loads(line) for line in output.splitlines()]
    return sorted((event for event in events if event["event"] == "stage_finished"), key=lambda event: event["name"])
