"""Statements that a stage makes about itself automatically: its start, and the artifacts that it uses.

A process makes each statement once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torchx_kfp.contract import protocol
from torchx_kfp.errors import KeyRefusedError, TrackerError
from torchx_kfp.tracking.statements.sources import Source, add_source, is_first_rank, record_start, start_here
from torchx_kfp.tracking.tracker import FsspecResultTracker

_logger = logging.getLogger(__name__)

#: The statements that this process has made: tracker base, run id, and the source or "start".
_said: set[tuple[str, str, object]] = set()
_NO_LINEAGE = "The lineage of the run %r lacks a source: %s"


def announce_start(tracker: FsspecResultTracker, context: protocol.StageContext, environ: Mapping[str, str]) -> None:
    """Record the start of the stage and the runs that it reads. Of torchrun's ranks, only the first does so.

    Raises:
        TrackerError: the tracker base cannot be written, so results could not be recorded either.
    """
    saying = (tracker.tracker_base, context.run_id, "start")
    if saying in _said or not is_first_rank(environ):
        return
    try:
        record_start(tracker.store, context.run_id, context.parents, start_here(environ))
    except KeyRefusedError as error:  # results can still be recorded under such a name
        _logger.warning(_NO_LINEAGE, context.run_id, error)
    except TrackerError as error:
        raise type(error)(
            f"The stage {context.run_id!r} could not record results: its tracker base {tracker.tracker_base!r} cannot "
            f"be written. {error}"
        ) from error.__cause__
    _said.add(saying)


def announce_use(tracker: FsspecResultTracker, run_id: str, source: Source) -> None:
    """Record that a run uses a source. A stage that can read does not fail if this cannot be recorded."""
    saying = (tracker.tracker_base, run_id, source)
    if saying in _said:
        return
    try:
        add_source(tracker.store, run_id, source)
        _said.add(saying)
    except TrackerError as error:
        _logger.warning(_NO_LINEAGE, run_id, error)
