"""Lineage: what a run was made of, what was made of it, and the artifacts between them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from torchx_kfp.tracking.statements.artifacts import Artifact, read_artifacts_of
from torchx_kfp.tracking.statements.sources import Source, read_sources_of
from torchx_kfp.tracking.stores.store import Store

_logger = logging.getLogger(__name__)

ArtifactsOf = Callable[[Iterable[str]], Mapping[str, Mapping[str, Artifact]]]


@dataclass(frozen=True)
class Link:
    """One run uses another one.

    ``artifacts`` are those of the source that were used, where ``named`` says that this is known. Where the run has not
    named any artifact that it uses, they are all that the source has. ``alias`` is the name under which the pipeline
    declares the source, if it does.
    """

    source: str
    run_id: str
    alias: str | None = None
    artifacts: tuple[Artifact, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Lineage:
    """The lineage of runs.

    ``ancestors`` are the runs, and what else was named as a source, that they were made of, directly or through
    others, the nearest first; ``descendants`` the runs that were made of them, likewise. ``links`` are all links among
    these and the runs themselves, from the farthest ancestor on.
    """

    run_ids: tuple[str, ...]
    ancestors: tuple[str, ...] = ()
    descendants: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()


def read_lineage(store: Store, run_ids: Iterable[str]) -> Lineage:
    """The lineage of these runs, over all pipelines that use this tracker base.

    Every run's sources are read for it: who uses a run is written with the user, so that a stage with a thousand
    sources writes one file and not a thousand. A warning is logged for what are none.

    Raises:
        CorruptResultError: what is stored are no artifacts.
        TrackerError: the store failed.
    """
    sources = read_sources_of(store, corrupt=lambda error: _logger.warning("Left out of the lineage: %s", error))
    return trace(run_ids, sources, lambda wanted: read_artifacts_of(store, wanted))


def trace(run_ids: Iterable[str], sources: Mapping[str, list[Source]], artifacts_of: ArtifactsOf) -> Lineage:
    """The lineage of runs whose sources are known.

    Args:
        run_ids: the runs.
        sources: run id -> its sources, of all runs.
        artifacts_of: gives the artifacts of runs.
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
    # A run that names one artifact names all that it uses.
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
    """What can be reached from the starts, the nearest first; circles are left at what was seen."""
    seen = dict.fromkeys(starts)
    own = len(seen)
    waiting = list(seen)
    for run_id in waiting:  # grows on the way
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
