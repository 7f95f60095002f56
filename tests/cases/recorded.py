"""How the corpus ended on KFP's backend: ``recorded.json`` has the state of each run and of its stages.

A stage is ``[state, outputs]``, or ``[state, outputs, starts]`` where only the starts differ: on KFP's stock manifests,
``set_retry`` does not start a failed application again. Numbers are doubles, and long texts are cut. Stages that are
not listed did not run. The runs shared a cache, so a stage that was cached had succeeded in another pipeline of the
corpus.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchx_kfp.local import RunResult

_RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
CASES: dict[str, dict[str, Any]] = _RECORDED["cases"]


def differences(result: RunResult, name: str) -> list[str]:
    """Return the parts of a run that ended differently than on the backend."""
    recorded = CASES[name]
    ours = {
        stage.name: ("failed" if stage.state == "failed" else "succeeded", dict(stage.outputs), stage.starts)
        for stage in result.stages
        if stage.state in ("succeeded", "failed (allowed)", "failed") and stage.attempts
    }
    theirs = {
        stage: ("succeeded" if state == "cached" else state, outputs, *starts)
        for stage, (state, outputs, *starts) in recorded["stages"].items()
    }
    found = [] if result.state == recorded["state"] else [f"the run: {result.state}, there {recorded['state']}"]
    for stage in sorted({*ours, *theirs}):
        here, there = ours.get(stage), theirs.get(stage)
        if here is None or there is None or not _same([*here[: len(there)]], [*there]):
            found.append(f"{stage}: {here}, there {there}")
    return found


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    if isinstance(ours, (int, float)) and isinstance(theirs, float):
        return float(ours) == theirs
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_same, ours, theirs))
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return ours.keys() == theirs.keys() and all(_same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, str) and len(ours) > 1000:
        ours = f"{ours[:8]}... ({len(ours)} characters)"
    return bool(ours == theirs)
