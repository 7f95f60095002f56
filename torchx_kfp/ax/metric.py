"""Outcomes of trials, read through the tracker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchx_kfp.ax.apps import metadata_of
from torchx_kfp.ax.library import IMetric, make_storable
from torchx_kfp.ax.outcomes import Outcome, read_outcome
from torchx_kfp.tracking.tracker import FsspecResultTracker


class TorchXMetric(IMetric):  # type: ignore[misc]
    """A metric that the apps of ``TorchXRunner`` record.

    An app records it with ``current_run().put(loss=0.3)`` or, if it is the mean of several measurements, with
    ``current_run().put({"loss/mean": 0.3, "loss/sem": 0.01})``, of which the second is the standard error. An app that
    only logs it (``current_run().log(step, loss=0.3)``) has its last value for an outcome.

    Args:
        name: the name under which the app records it. It is the metric's name in Ax, too: ``objective="-loss"``.
    """

    def fetch(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> tuple[int, Outcome]:
        """Return the last step that the app has logged, or 0, and its outcome. The app may still be running.

        Raises:
            TrialError: the app has not recorded the metric, or its value is not a finite number.
            TrackerError: the store failed.
        """
        metadata = metadata_of(trial_index, trial_metadata)
        tracker = FsspecResultTracker(metadata.tracker_base)
        return read_outcome(tracker, self.name, metadata.handle, metadata.own_key)


make_storable(TorchXMetric, 77_001)
