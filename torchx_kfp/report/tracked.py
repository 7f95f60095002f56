"""Read the records that only the tracker has: starts, metadata, metrics over steps, and searches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.errors import TrackerError
from torchx_kfp.report.model import RunView, StageView
from torchx_kfp.runs.bases import missing, why_not_read
from torchx_kfp.tracking import History
from torchx_kfp.tracking.statements.artifacts import METADATA
from torchx_kfp.tracking.statements.search import SEARCH, Search
from torchx_kfp.tracking.statements.sources import Start, read_starts
from torchx_kfp.tracking.statements.steps import STEPS
from torchx_kfp.tracking.stores.calls import SHORT_PATIENCE
from torchx_kfp.tracking.stores.store import open_store


@dataclass(frozen=True)
class Tracked:
    """The tracker's records, by tracker base and run id. ``problems`` are sentences about unreadable records."""

    histories: Mapping[tuple[str, str], History] = field(default_factory=dict)
    metadatas: Mapping[tuple[str, str], Mapping[str, Any]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    starts: Mapping[tuple[str, str], Start] = field(default_factory=dict)
    stated: Mapping[tuple[str, str], Search | None] = field(default_factory=dict)

    def start(self, stage: StageView) -> Start | None:
        """Return when and where the stage started; for a cached stage, when its results were made."""
        return self.starts.get(_key(stage))

    def history(self, stage: StageView) -> History:
        """Return the curves that the stage has logged."""
        return self.histories.get(_key(stage), History())

    def metadata(self, stage: StageView) -> Mapping[str, Any]:
        """Return the metadata that the stage has recorded."""
        return self.metadatas.get(_key(stage), {})

    def search(self, stage: StageView) -> Search | None:
        """Return what the stage has stated about the search that it belongs to."""
        return self.stated.get(_key(stage))


def read_tracked(run: RunView) -> Tracked:
    """Read the trackers of a run's stages. A store that is not read adds a sentence to ``problems``."""
    run_ids: dict[str, list[str]] = {}
    for stage in run.stages:
        base, run_id = _key(stage)
        if base and run_id:
            run_ids.setdefault(base, []).append(run_id)
    histories: dict[tuple[str, str], History] = {}
    metadatas: dict[tuple[str, str], Mapping[str, Any]] = {}
    starts: dict[tuple[str, str], Start] = {}
    searches: dict[tuple[str, str], Search | None] = {}
    problems: list[str] = []
    for base, wanted in run_ids.items():
        if why := why_not_read(base, run.named, ran_here=run.folder is not None):
            problems.append(missing(base, why))
            continue
        try:
            store = open_store(base, SHORT_PATIENCE)
            found = STEPS.read_many(store, wanted, lambda error: problems.append(str(error)))
            histories |= {(base, run_id): history for run_id, history in found.items()}
            stated = SEARCH.read_many(store, wanted, lambda error: problems.append(str(error)))
            searches |= {(base, run_id): search for run_id, search in stated.items()}
            metadatas |= {(base, run_id): said for run_id, said in METADATA.read_many(store, wanted).items()}
            starts |= {(base, run_id): start for run_id, start in read_starts(store, wanted).items()}
        except TrackerError as error:
            problems.append(f"Metrics of steps, searches and metadata could not be read: {error}")
    return Tracked(histories, metadatas, tuple(problems), starts, searches)


def _key(stage: StageView) -> tuple[str, str]:
    return stage.result.tracker_base or "", stage.result.run_id or ""
