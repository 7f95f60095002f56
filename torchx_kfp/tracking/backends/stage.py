"""The backend of ``torchx.tracker.AppRun.run_from_env()`` in a tracked stage.

It stores artifacts, metadata and sources as ``current_run()`` does. TorchX loads it through the entry point
``torchx_kfp`` of the group ``torchx.tracker``.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping

from torchx.tracker import api

from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried.storage import PATIENCE
from torchx_kfp.errors import NotInStageError
from torchx_kfp.tracking.artifacts import add_artifact
from torchx_kfp.tracking.lineage import Lineage, read_lineage, record_start_once
from torchx_kfp.tracking.record_tracker import RecordTracker
from torchx_kfp.tracking.records import Source


class StageTracker(api.TrackerBase):  # type: ignore[misc]  # TorchX is skipped by mypy
    """TorchX's tracker interface on a tracker base.

    All processes of a run can write concurrently. Of several artifacts or metadata with one name, the last one counts.

    Args:
        tracker_base: an fsspec URL or a local directory.

    Raises:
        TrackerError: the base cannot be used. All methods raise it if the store fails.
    """

    def __init__(self, tracker_base: str | os.PathLike[str]) -> None:
        self._record_tracker = RecordTracker(tracker_base, patience=PATIENCE)
        self.store = self._record_tracker.store

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Register an artifact. A local path is made absolute, because readers may run in another folder."""
        add_artifact(self.store, run_id, name, path, metadata)

    def artifacts(self, run_id: str) -> Mapping[str, api.TrackerArtifact]:
        """Return the run's artifacts by name. Without metadata, an artifact's ``metadata`` is None."""
        found = self._record_tracker.record(run_id, "artifacts").artifacts
        return {name: api.TrackerArtifact(name, it.path, dict(it.metadata) or None) for name, it in found.items()}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record metadata of the run: JSON values."""
        self._record_tracker.add(run_id, {"metadata": kwargs})

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """Return the metadata of the run by name."""
        return self._record_tracker.record(run_id, "metadata").metadata

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run uses another run or an external source, and which of its artifacts."""
        self._record_tracker.add(run_id, {"sources": [vars(Source(source_id, artifact_name or None))]})

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[api.TrackerSource]:
        """Return the sources of the run, each once. With ``artifact_name``, return those with this artifact."""
        found = self._record_tracker.record(run_id, "sources").sources
        return [api.TrackerSource(it.run_id, it.artifact) for it in found if artifact_name in (None, "", it.artifact)]

    def lineage(self, run_id: str) -> Lineage:
        """Return the lineage of the run, over all pipelines that use the tracker base."""
        return read_lineage(self.store, [run_id])

    def run_ids(self, *, parent_run_id: str | None = None) -> Iterable[str]:
        """Return the runs with artifacts, metadata or sources, sorted. Runs with only results are left out.

        Args:
            parent_run_id: only runs that use this one.
        """
        if parent_run_id is None:
            return self._record_tracker.run_ids()
        records = self._record_tracker.records(None, "sources")
        return sorted(
            run_id
            for run_id, record in records.items()
            if any(source.run_id == parent_run_id for source in record.sources)
        )

    def __repr__(self) -> str:
        return f"StageTracker({self._record_tracker.tracker_base!r})"


def create(config: str | None = None) -> StageTracker:
    """Return the backend of this process. In a stage, record its start and its sources, as ``current_run()`` does.

    Args:
        config: the tracker base, by default ``TORCHX_TRACKER_BASE``.

    Raises:
        TrackerError: there is no tracker base, or it cannot be used or written.
    """
    base = config or os.environ.get(protocol.TRACKER_BASE, "")
    backend = StageTracker(base)
    with contextlib.suppress(NotInStageError):
        context = protocol.decode_context(os.environ)
        if context.tracker_base == base:
            record_start_once(backend.store, context, os.environ)
    return backend
