"""The backend that ``torchx.tracker.AppRun.run_from_env()`` finds in a tracked stage.

What it keeps is what ``current_run()`` of ``torchx_kfp.tracking`` keeps: artifacts, metadata and sources, below the
tracker base like the results. TorchX loads it through the entry point ``torchx_kfp`` of the group ``torchx.tracker``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from torchx.tracker import api

from torchx_kfp import protocol
from torchx_kfp.errors import NotInStageError
from torchx_kfp.tracking.lineage import Lineage, read_lineage
from torchx_kfp.tracking.run import announce
from torchx_kfp.tracking.statements import entries
from torchx_kfp.tracking.statements.artifacts import add_artifact, read_artifacts
from torchx_kfp.tracking.statements.metadata import add_metadata, read_metadata, read_metadata_of
from torchx_kfp.tracking.statements.sources import Source, add_source, read_sources, read_sources_of
from torchx_kfp.tracking.stores.keys import run_id_parts
from torchx_kfp.tracking.tracker import FsspecResultTracker


class AppLineage(Lineage, api.Lineage):  # type: ignore[misc]
    """A run's lineage, to TorchX as well."""


class StageTracker(api.TrackerBase):  # type: ignore[misc]
    """TorchX's tracker interface on a tracker base.

    All processes of a run can write at once. Of artifacts, and of metadata, the last one under a name counts.

    Args:
        tracker_base: fsspec URL or local directory.

    Raises:
        TrackerError: the base cannot be used; also by the methods, where the store fails.
    """

    def __init__(self, tracker_base: str | os.PathLike[str]) -> None:
        self._tracker = FsspecResultTracker(tracker_base)
        self._store = self._tracker.store

    @property
    def tracker(self) -> FsspecResultTracker:
        """The tracker of the results under the same base."""
        return self._tracker

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Register an artifact; a local path is made absolute: who reads it may be in another folder."""
        add_artifact(self._store, run_id, name, path, metadata)

    def artifacts(self, run_id: str) -> Mapping[str, api.TrackerArtifact]:
        """The run's artifacts by name; one without metadata has None there."""
        found = read_artifacts(self._store, run_id)
        return {name: api.TrackerArtifact(name, it.path, dict(it.metadata) or None) for name, it in found.items()}

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Say these of the run: whatever JSON can hold."""
        add_metadata(self._store, run_id, kwargs)

    def metadata(self, run_id: str) -> Mapping[str, object]:
        """What was said of the run, by name."""
        return read_metadata(self._store, run_id)

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Say that the run uses another one, or something outside, and which artifact of it."""
        add_source(self._store, run_id, Source(source_id, artifact_name or None))

    def sources(self, run_id: str, artifact_name: str | None = None) -> Iterable[api.TrackerSource]:
        """What the run uses, each once; with a name, that with this artifact alone."""
        found = read_sources(self._store, run_id)
        return [api.TrackerSource(it.run_id, it.artifact) for it in found if artifact_name in (None, "", it.artifact)]

    def lineage(self, run_id: str) -> AppLineage:
        """All that the run was made of and all that was made of it, also in other pipelines, with the artifacts."""
        return AppLineage(**vars(read_lineage(self._store, [run_id])))

    def run_ids(
        self, parent_run_id: str | None = None, run: str | None = None, stage: str | None = None, **metadata: object
    ) -> Iterable[str]:
        """The runs of which anything is said here, sorted; one that has recorded results alone is not among them.

        Args:
            parent_run_id: only those that use this run.
            run: only those of this pipeline run.
            stage: only those of this stage.
            metadata: only those with these values; numbers and others are compared by their text, too.
        """
        found: Iterable[str] = entries.run_ids(self._store)
        for value, place in ((run, 0), (stage, 1)):
            if value is not None:
                found = [run_id for run_id in found if (run_id_parts(run_id) or (None, None))[place] == value]
        if parent_run_id:
            sources = read_sources_of(self._store, found)
            found = [key for key in found if any(it.run_id == parent_run_id for it in sources.get(key, ()))]
        if metadata:
            known = read_metadata_of(self._store, found)
            found = [key for key in found if _has(known.get(key, {}), metadata)]
        return list(found)

    def __repr__(self) -> str:
        return f"StageTracker({self._tracker.tracker_base!r})"


def _has(known: Mapping[str, object], wanted: Mapping[str, object]) -> bool:
    return all(name in known and value in (known[name], str(known[name])) for name, value in wanted.items())


def create(config: str | None = None) -> StageTracker:
    """The backend of this process. In a stage, its start and all that it reads are recorded, as ``current_run()`` does.

    Args:
        config: the tracker base; ``TORCHX_TRACKER_BASE`` otherwise.

    Raises:
        TrackerError: there is no tracker base, or one that cannot be used or written.
    """
    base = config or os.environ.get(protocol.TRACKER_BASE, "")
    backend = StageTracker(base)
    try:
        context = protocol.decode(os.environ)
    except NotInStageError:
        return backend
    if context.tracker_base == base:
        announce(backend.tracker, context, os.environ)
    return backend
