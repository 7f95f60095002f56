"""What a stage has recorded, beside what it declares."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from torchx_kfp.publisher import missing
from torchx_kfp.tracking import FsspecResultTracker
from torchx_kfp.tracking.statements.artifacts import read_artifacts
from torchx_kfp.tracking.values import Result

if TYPE_CHECKING:
    from torchx_kfp.local.stage.execution import Attempt

#: KFP's types of outputs by the names under which stages declare them.
_KINDS = {"NUMBER_DOUBLE": "float", "NUMBER_INTEGER": "int", "BOOLEAN": "bool", "STRING": "str"}


def describe_missing(attempt: Attempt, tracker: FsspecResultTracker, run_id: str, results: Mapping[str, Result]) -> str:
    """What is said of a stage whose application succeeded, and which failed since it has not recorded what it declares.

    Empty where that is not so: the stage's publisher reports what there is when the application is done.

    Args:
        attempt: the attempt, which has ended.
        tracker: of the stage's results.
        run_id: the stage's run id.
        results: what it has recorded.

    Raises:
        TrackerError: the store failed.
    """
    if not os.path.isfile(attempt.report):
        return ""
    text = ""
    for sentence in _missing(attempt, tracker, run_id, results):
        text += f"{' It ' if text.endswith('?') else '. It ' if text else ''}{sentence}"
    return text


def _missing(
    attempt: Attempt, tracker: FsspecResultTracker, run_id: str, results: Mapping[str, Result]
) -> Iterator[str]:
    for name, kind in attempt.output_types.items():
        if not os.path.exists(attempt.output_files[name]):
            yield missing("result", name, results, _KINDS.get(kind, kind))
    lost = [name for name, artifact in attempt.artifacts.items() if not os.path.exists(artifact.path)]
    registered = read_artifacts(tracker.store, run_id) if lost else {}
    for name in lost:
        yield missing("artifact", name, registered)
