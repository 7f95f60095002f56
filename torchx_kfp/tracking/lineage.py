"""Lineage: the runs that a run was made from, the runs that were made from it, and the artifacts between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torchx_kfp.tracking.statements.artifacts import ARTIFACTS, Artifact
from torchx_kfp.tracking.statements.sources import SOURCES, Source
from torchx_kfp.tracking.stores.store import Store

_logger = logging.getLogger(__name__)

ArtifactsOf = Callable[[Iterable[str]], Mapping[str, Mapping[str, Artifact]]]


@dataclass(frozen=True)
class Link:
    """A link between a run and one of its sources.

    Attributes:
        source: the run id, or the name of an external source, that was used.
        run_id: the run that used it.
        alias: the name with which the pipeline declares the source, if it does.
        artifacts: the artifacts of the source that were used; if the run has not named any, all artifacts of the
            source.
        named: whether the run has named the artifacts that it used.
    """

    source: str
    run_id: str
    alias: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Lineage:
    """The lineage of runs.

    Attributes:
        run_ids: the runs themselves.
        ancestors: the runs and other sources that they were made from, directly or indirectly, the nearest first.
        descendants: the runs that were made from them, likewise.
        links: all links among these, beginning with the farthest ancestor.
    """

    run_ids: tuple[str, ...]
    ancestors: tuple[str, ...] = ()
    descendants: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()


def read_lineage(store: Store, run_ids: Iterable[str]) -> Lineage:
    """Return the lineage of these runs, over all pipelines that use the tracker base.

    This reads the sources of every run: a run records the runs that it uses, so that a stage with a thousand sources
    writes one file rather than a thousand. A warning is logged for each file that does not contain sources.

    Raises:
        CorruptResultError: a stored file does not contain artifacts.
        TrackerError: the store failed.
    """
    sources = SOURCES.read_many(store, corrupt=lambda error: _logger.warning("Left out of the lineage: %s", error))
    return trace(run_ids, sources, lambda wanted: ARTIFACTS.read_many(store, wanted))


def trace(run_ids: Iterable[str], sources: Mapping[str, list[Source]], artifacts_of: ArtifactsOf) -> Lineage:
    """Return the lineage of runs whose sources are known.

    Args:
        run_ids: the runs.
        sources: the sources of all runs, by run id.
        artifacts_of: returns the artifacts of runs.
    """
    starts = tuple(dict.fromkeys(run_ids))
    above: dict[str, dict[str, list[Source]]] = {}
    below: dict[str, list[str]] = {}
    for run_id, its in sources.items():
        for source in its:
            uses = above.setdefault(run_id, {})
            if source.run_id not in uses:
                below.setdefault(source.run_id, []).append(run_id)
            uses.setdefault(source.run_id, []).append(source)
    ancestors = _reachable(starts, above)
    descendants = _reachable(starts, below)
    inside = {*starts, *ancestors, *descendants}
    artifacts = artifacts_of(sorted({source for run_id in inside for source in above.get(run_id, ())} & inside))
    # A run that names one artifact names all artifacts that it uses.
    naming = {run_id for run_id in inside if any(source.artifact for source in sources.get(run_id, ()))}
    order = {run_id: place for place, run_id in enumerate([*reversed(ancestors), *starts, *descendants])}
    links = [
        _link(run_id, source, between, artifacts.get(source, {}), named=run_id in naming)
        for run_id in sorted(inside & above.keys(), key=order.__getitem__)
        for source, between in above[run_id].items()
        if source in inside
    ]
    return Lineage(starts, ancestors, descendants, tuple(links))


def _reachable(starts: Iterable[str], neighbours: Mapping[str, Iterable[str]]) -> tuple[str, ...]:
    """Return everything that can be reached from the starts, the nearest first. There may be cycles."""
    seen = dict.fromkeys(starts)
    own = len(seen)
    waiting = list(seen)
    for run_id in waiting:  # the list grows
        for found in neighbours.get(run_id, ()):
            if found not in seen:
                seen[found] = None
                waiting.append(found)
    return tuple(waiting[own:])


def _link(run_id: str, source: str, between: list[Source], artifacts: Mapping[str, Artifact], *, named: bool) -> Link:
    alias = next((found.alias for found in between if found.alias), None)
    if not named:
        return Link(source, run_id, alias, tuple(artifacts.values()))
    used = [artifacts.get(found.artifact, Artifact(found.artifact, "")) for found in between if found.artifact]
    return Link(source, run_id, alias, tuple(used), named=bool(used))
