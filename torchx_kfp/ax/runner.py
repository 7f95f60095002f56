"""Trials as TorchX apps."""

from __future__ import annotations

import copy
import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from torchx.specs import AppState

from torchx_kfp.ax import apps
from torchx_kfp.ax.components import (
    EXPERIMENT_NAME,
    TRACKER_BASE,
    TRIAL_INDEX,
    Component,
    call_component,
    find_component,
    name_of,
    takes,
)
from torchx_kfp.ax.library import IRunner, TrialStatus, fetched_metrics, make_storable, objectives_without_metric
from torchx_kfp.errors import TrialError
from torchx_kfp.text import did_you_mean, joined, shown
from torchx_kfp.tracking.statements.artifacts import absolute
from torchx_kfp.tracking.tracker import FsspecResultTracker

_logger = logging.getLogger(__name__)

#: Seconds for which a scheduler may not answer.
_PATIENCE = 600.0
#: Apps in other states have not ended. That includes ``UNKNOWN``: the scheduler cannot tell at the moment.
_ENDED = {
    AppState.SUCCEEDED: TrialStatus.COMPLETED,
    AppState.FAILED: TrialStatus.FAILED,
    AppState.CANCELLED: TrialStatus.ABANDONED,
}


class TorchXRunner(IRunner):  # type: ignore[misc]
    """Runs each trial as a TorchX app.

    The component is called with the trial's parameters and the constants. If it has parameters called ``trial_idx``,
    ``tracker_base`` or ``experiment_name``, it gets these as well. The app finds the tracker base in its environment,
    so ``current_run().put(loss=...)`` records a result of the trial. An app that records under the index of its trial,
    as those for Ax's own class do, has a component with ``trial_idx``; its results are found there.

    Args:
        component: a function that returns an AppDef; or its name: ``module:function``, ``train.py:trainer``,
            ``dist.ddp``.
        tracker_base: an fsspec URL or a local directory that all apps reach.
        scheduler: one of TorchX's schedulers: ``local_cwd``, ``kubernetes``, ``kfp``.
        cfg: the scheduler's options, as of ``torchx run -cfg``.
        constants: arguments of the component that all trials share.

    Raises:
        TrialError: an argument is not what it should be.
    """

    def __init__(
        self,
        component: Component | str,
        *,
        tracker_base: str | os.PathLike[str],
        scheduler: str,
        cfg: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if not callable(component) and not isinstance(component, str):
            raise TrialError(f"component is {shown(component)}. Give a function that returns an AppDef, or its name.")
        wrong = [name for name in (TRIAL_INDEX, TRACKER_BASE) if name in (constants or {})]
        if wrong:
            raise TrialError(f"constants has {joined(wrong)}, which each trial gives to the component. Remove it.")
        self._component = component
        self._tracker_base = absolute(os.fspath(tracker_base))
        self._tracker = FsspecResultTracker(self._tracker_base)
        self._scheduler = scheduler
        self._cfg = dict(cfg or {})
        self._constants = dict(constants or {})
        self._experiment_name: str | None = None
        #: When the scheduler has begun not to answer, by handle.
        self._silent_since: dict[str, float] = {}

    def run(self, trial: Any) -> dict[str, Any]:
        """Start a trial of an experiment, whose name the component may take.

        Raises:
            TrialError: a name in the objective has no metric; see ``run_trial``, too.
        """
        without = objectives_without_metric(trial.experiment)
        if without:
            metrics = ", ".join(f"TorchXMetric({name!r})" for name in without)
            raise TrialError(
                f"No metric is configured for {joined(without)}, which the objective or a constraint names, so the "
                f"trials would have no outcome.{did_you_mean(without[0], fetched_metrics(trial.experiment))} Correct "
                f"client.configure_optimization(...), or call client.configure_metrics([{metrics}])."
            )
        self._experiment_name = trial.experiment.name if trial.experiment.has_name else None
        return super().run(trial)  # type: ignore[no-any-return]

    def run_trial(self, trial_index: int, parameterization: Mapping[str, Any]) -> dict[str, Any]:
        """Start the app of a trial, and return the metadata by which the trial is found again: its handle, for example.

        Raises:
            TrialError: the component cannot be called, TorchX has no such scheduler, or the app would record under a
                key that has results already.
        """
        component = find_component(self._component)
        of_trial: dict[str, Any] = {TRIAL_INDEX: trial_index, TRACKER_BASE: self._tracker_base}
        if self._experiment_name is not None and EXPERIMENT_NAME not in self._constants:
            of_trial[EXPERIMENT_NAME] = self._experiment_name
        app = call_component(component, parameterization, self._constants, of_trial)
        own_key = str(trial_index) if takes(component, TRIAL_INDEX) else ""
        if own_key and self._tracker.get(own_key):
            raise TrialError(
                f"The tracker base {self._tracker_base!r} has results under {own_key!r} already, which would be taken "
                f"for those of trial {trial_index}. Give each experiment a tracker base of its own, or remove them."
            )
        handle = apps.submit(app, self._scheduler, self._cfg, self._tracker_base)
        return dict(apps.Metadata(handle, self._tracker_base, own_key).encode())

    def poll_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> TrialStatus:
        """Return the status of a trial. One whose app is gone has failed.

        If the scheduler does not answer, the trial is taken for running, for up to 10 minutes.
        """
        handle = apps.metadata_of(trial_index, trial_metadata).handle
        try:
            state = apps.state_of(handle)
        except (KeyError, TypeError, ValueError):  # it would be the same the next time
            raise
        except Exception as error:  # whatever a scheduler raises if its host does not answer
            # Ax would abandon the trial, although it is running.
            now = time.monotonic()
            if now - self._silent_since.setdefault(handle, now) > _PATIENCE:
                raise
            _logger.warning(
                "The state of trial %d (%s) is not known, so it is asked for again: %r", trial_index, handle, error
            )
            return TrialStatus.RUNNING
        self._silent_since.pop(handle, None)
        return TrialStatus.FAILED if state is None else _ENDED.get(state, TrialStatus.RUNNING)

    def poll_exception(self, trial: Any) -> str:
        """Return why a trial has failed, which Ax shows in ``client.summarize()``."""
        return apps.why_failed(apps.metadata_of(trial.index, trial.run_metadata).handle)

    def stop_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the app of a trial, unless it has ended."""
        apps.stop(apps.metadata_of(trial_index, trial_metadata).handle)
        return {}

    @property
    def run_metadata_report_keys(self) -> list[str]:
        """The metadata that Ax shows in ``client.summarize()``."""
        return ["torchx_app_handle"]

    @classmethod
    def serialize_init_args(cls, obj: Any) -> dict[str, Any]:
        """Return the arguments in the form in which Ax stores them.

        What has no such form is left out; then the loaded runner reads its trials, but starts no new ones.
        """
        stored = {"tracker_base": obj._tracker_base, "scheduler": obj._scheduler}
        stored.update(cfg=obj._cfg, constants=obj._constants, component=name_of(obj._component))
        if not _is_json(obj._constants) or not _is_json(obj._cfg):
            stored.update(cfg={}, constants={}, component="")
        return stored

    def clone(self) -> TorchXRunner:
        """Return a copy, with the component that this one has even if it has no name."""
        return copy.copy(self)


def _is_json(value: object) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) == value)
    except (TypeError, ValueError, RecursionError):
        return False


make_storable(TorchXRunner, 77_001)
