"""How the corpus ended on KFP's backend: ``recorded.json`` has the state of each run and of its stages.

A stage is ``[state, outputs]``; numbers are doubles, and long texts are cut. Stages that are not listed did not run.
The runs shared a cache, so a stage that was cached had succeeded in another pipeline of the corpus.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torchx_kfp.local import RunResult

_RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text(encoding="utf-8"))
BACKEND: str = _RECORDED["backend"]
CASES: dict[str, dict[str, Any]] = _RECORDED["cases"]

#: Cases that need something that the cluster did not have, and the reasons.
NOT_RUN = {
    "containers.what_the_image_starts": "an image from a registry",
    "importers.a_file": "a file of this machine",
    "importers.a_url_in_a_command": "a bucket of Google's",
    "importers.a_url_with_metadata": "a bucket of Google's",
    "importers.artifact_from_a_parameter": "credentials for a bucket",
    "importers.artifact_from_an_output": "credentials for a bucket",
    "importers.artifact_of_a_constant": "credentials for a bucket",
    "importers.artifacts_in_a_loop": "credentials for a bucket",
    "importers.as_output": "a file of this machine",
    "importers.from_an_output": "a file of this machine",
    "importers.from_parameters": "credentials for a bucket",
    "importers.in_a_loop": "a bucket of Google's",
    "python_components.settings_that_are_for_clusters": "a GPU",
    "settings.settings_without_effect": "a node with a label",
    "settings.volumes": "storage for volume claims",
    "settings.workspace": "storage for volume claims",
    "settings.workspace_in_containers": "storage for volume claims",
}

#: Cases that end differently here, and the reasons: each is in the table of ``docs/why/differences.md``.
CHOICES = {
    "artifacts.optional": "an optional artifact that is given works here; the check warns",
    "failures.retries": "a retry policy is followed here, whatever the cluster's controller is set to; the check warns",
    "failures.retries_of_a_pipeline": "as for one stage",
    "python_components.placeholders_of_names": "the job's name is the run id here, and what the user wrote there",
}


def differences(result: RunResult, name: str) -> list[str]:
    """Return the parts of a run that ended differently than on the backend."""
    recorded = CASES[name]
    ours = {
        stage.name: ("failed" if stage.state == "failed" else "succeeded", dict(stage.outputs))
        for stage in result.stages
        if stage.state in ("succeeded", "failed") and stage.attempts
    }
    theirs = {
        stage: ("succeeded" if state == "cached" else state, outputs)
        for stage, (state, outputs) in recorded["stages"].items()
    }
    found = [] if result.state == recorded["state"] else [f"the run: {result.state}, there {recorded['state']}"]
    for stage in sorted({*ours, *theirs}):
        here, there = ours.get(stage), theirs.get(stage)
        if here is None or there is None or here[0] != there[0] or not _same(here[1], there[1]):
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
