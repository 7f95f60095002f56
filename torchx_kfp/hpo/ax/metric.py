"""``TorchXMetric``: the outcome of a trial from the records of its app."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ax.api.protocols.metric import IMetric
from ax.storage.json_store import encoders, registry
from ax.storage.metric_registry import CORE_METRIC_REGISTRY
from torchx import specs

from torchx_kfp.common.text import describe_unknown, shown
from torchx_kfp.contract.carried.storage import PATIENCE
from torchx_kfp.errors import NotRecordedError
from torchx_kfp.tracking.record_tracker import RecordTracker

#: The suffixes of two results that make one outcome: the mean of several measurements, and its standard error.
MEAN, SEM = "/mean", "/sem"
#: The port of Ray's dashboard, in front of the app: ``ray://torchx/127.0.0.1:8265-train-abc``.
_PORT = re.compile(r"^\d+-")

Outcome = float | tuple[float, float]


class TorchXMetric(IMetric):  # type: ignore[misc]  # Ax is skipped by mypy
    """A metric that the apps of ``TorchXRunner`` record.

    An app records it with ``current_run().put(loss=0.3)``. The mean and standard error of several measurements are
    ``current_run().put({"loss/mean": 0.3, "loss/sem": 0.01})``. If an app only logs it (``current_run().log(step,
    loss=0.3)``), the last value is the outcome.

    Args:
        name: the recorded name, which is also the metric's name in Ax: ``objective="-loss"``.
    """

    def fetch(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> tuple[int, Outcome]:
        """Return the last logged step, or 0, and the outcome. The app may still be running.

        Raises:
            NotRecordedError: the app has not recorded the metric, or its value is not a finite number.
            TrackerError: the store failed.
        """
        handle, name = trial_metadata["torchx_app_handle"], self.name
        tracker = RecordTracker(trial_metadata["torchx_tracker_base"], patience=PATIENCE)
        results: Mapping[str, Any] = {}
        history: Mapping[str, Any] = {}
        for run_id in _run_ids(tracker, handle):
            results, history = tracker.get(run_id) or {}, tracker.record(run_id, "steps").steps
            if results or history:
                break
        step = history[name].last.step if name in history else 0
        if name in results:
            return step, _number(handle, name, results[name])
        if name + MEAN in results:
            mean = _number(handle, name + MEAN, results[name + MEAN])
            return step, (mean, _number(handle, name + SEM, results[name + SEM])) if name + SEM in results else mean
        if name in history:
            return step, _number(handle, name, history[name].last.value)
        raise NotRecordedError(
            f"{describe_unknown(f'The trial {handle}', 'result', name, dict.fromkeys([*results, *history]))} Record it "
            f"in its application, under the tracker base {tracker.tracker_base!r}: current_run().put({name}=...)."
        )


def _number(handle: str, name: str, value: object) -> float:
    """Return a result as a float, because Ax does not accept ints."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise NotRecordedError(
            f"The trial {handle} recorded {shown(value)} as {name!r}, but Ax needs a finite number. Record a large one "
            "for bad parameters."
        )
    return float(value)


def _run_ids(tracker: RecordTracker, handle: str) -> list[str]:
    """Return the possible execution ids of an app, most likely first.

    TorchX sets the variable with the execution id to the app handle, ``<scheduler>://<session>/<app>``. On some
    schedulers, the handle that TorchX returns also has a namespace, a queue or a project. On KFP, the execution id is
    that of a stage, ``<run>/<stage>/<pod>``, and the latest attempt counts.
    """
    scheduler, session, app = specs.parse_app_handle(handle)
    if scheduler == "kfp":
        written = tracker.written(app)
        stages = written.keys() - {app}  # the pipeline run itself may have recorded its code
        return sorted(stages, key=lambda run_id: (written[run_id], run_id), reverse=True)
    # kubernetes: <namespace>:<app>, aws_batch: <queue>:<app>, gcp_batch: <project>:<location>:<app>
    name = app.rpartition(":")[2]
    if scheduler == "ray":
        name = _PORT.sub("", name)
    return [f"{scheduler}://{session}/{name}", handle]


# Otherwise, users would have to pass registries to each client that saves or loads.
CORE_METRIC_REGISTRY[TorchXMetric] = 77_001
registry.CORE_ENCODER_REGISTRY[TorchXMetric] = encoders.metric_to_dict
registry.CORE_DECODER_REGISTRY[TorchXMetric.__name__] = TorchXMetric
