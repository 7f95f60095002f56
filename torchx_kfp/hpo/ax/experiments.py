"""``TorchXRunner`` and ``TorchXMetric``: trials of an Ax experiment as TorchX apps."""

from __future__ import annotations

import copy
import importlib
import inspect
import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from torchx import specs
from torchx.specs import AppState, finder

from torchx_kfp.common.text import did_you_mean, joined, shown
from torchx_kfp.errors import TrialError
from torchx_kfp.hpo.ax import apps
from torchx_kfp.hpo.ax.apps import Outcome, read_outcome
from torchx_kfp.hpo.ax.library import (
    IMetric,
    IRunner,
    TrialStatus,
    fetched_metrics,
    make_storable,
    objectives_without_metric,
)
from torchx_kfp.tracking.recorder import Recorder
from torchx_kfp.tracking.statements import absolute
from torchx_kfp.tracking.tracker import FsspecResultTracker

_logger = logging.getLogger(__name__)

#: Returns the app of a trial.
Component = Callable[..., specs.AppDef]

#: Parameters that every trial gives to a component that has them.
TRIAL_INDEX, TRACKER_BASE, EXPERIMENT_NAME = "trial_idx", "tracker_base", "experiment_name"
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
        own_key = str(trial_index) if TRIAL_INDEX in inspect.signature(component).parameters else ""
        if own_key and self._tracker.get(own_key):
            raise TrialError(
                f"The tracker base {self._tracker_base!r} has results under {own_key!r} already, which would be taken "
                f"for those of trial {trial_index}. Give each experiment its own tracker base, or remove them."
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
        apps.torchx_runner().cancel(apps.metadata_of(trial_index, trial_metadata).handle)
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
        metadata = apps.metadata_of(trial_index, trial_metadata)
        return read_outcome(Recorder(metadata.tracker_base), self.name, metadata.handle, metadata.own_key)


make_storable(TorchXMetric, 77_001)


def find_component(component: Component | str) -> Component:
    """Return a component, which may be given by name.

    Args:
        component: a function; or ``module:function``, or what ``torchx run`` takes: ``train.py:trainer``, ``dist.ddp``.

    Raises:
        TrialError: there is no component of this name, or the name is empty.
    """
    if not isinstance(component, str):
        return component
    if not component:
        raise TrialError(
            "The experiment was saved with a component that cannot be found by name, or constants that JSON cannot "
            "represent, so its trials can be read but no new one started. Give the client the runner again: "
            "client.configure_runner(TorchXRunner(component, ...))."
        )
    module, _, path = component.partition(":")
    try:
        if not path or module.endswith(".py"):
            found: Any = finder.get_component(component).fn
        else:
            found = importlib.import_module(module)
            for name in path.split("."):
                found = getattr(found, name)
    except (AttributeError, ImportError, OSError, finder.ComponentNotFoundException) as error:
        raise TrialError(
            f"There is no TorchX component {component!r}: {error}. Give the function itself: "
            "client.configure_runner(TorchXRunner(function, ...))."
        ) from error
    return found  # type: ignore[no-any-return]


def name_of(component: Component | str) -> str:
    """Return the name by which ``find_component`` finds the component; empty if there is none."""
    if isinstance(component, str):
        return component
    name = f"{getattr(component, '__module__', '')}:{getattr(component, '__qualname__', '')}"
    try:
        return name if find_component(name) is component else ""
    except (TrialError, ValueError):
        return ""


def call_component(
    component: Component, parameters: Mapping[str, Any], constants: Mapping[str, Any], of_trial: Mapping[str, Any]
) -> specs.AppDef:
    """Return the app of a trial.

    Args:
        component: the component.
        parameters: those that Ax has chosen.
        constants: the other arguments.
        of_trial: arguments that the component gets if it has parameters of these names.
    """
    known = inspect.signature(component).parameters
    label = getattr(component, "__name__", None) or shown(component)
    named = [name for name, it in known.items() if it.kind in (it.POSITIONAL_OR_KEYWORD, it.KEYWORD_ONLY)]
    takes_any = any(it.kind is it.VAR_KEYWORD for it in known.values())
    for name in (*parameters, *constants):
        if name not in named and not takes_any:
            where = "constants" if name in constants else "the experiment"
            raise TrialError(
                f"The component {label} has no parameter {name!r}, which {where} has.{did_you_mean(name, named)} Its "
                f"parameters: {joined(named) or 'none'}."
            )
    both = [name for name in parameters if name in constants]
    if both:
        raise TrialError(f"{joined(both)} is both a parameter of the experiment and one of the constants. Remove one.")
    given = {**{name: value for name, value in of_trial.items() if name in named}, **constants, **parameters}
    missing = [name for name in named if name not in given and known[name].default is inspect.Parameter.empty]
    if missing:
        raise TrialError(
            f"The component {label} needs {joined(missing)}, which the experiment does not vary. Give it to the "
            f"runner: TorchXRunner(..., constants={{{missing[0]!r}: ...}})."
        )
    app = component(**given)
    if not isinstance(app, specs.AppDef):
        raise TrialError(f"The component {label} has returned {shown(app)}. A component returns an AppDef.")
    return app
