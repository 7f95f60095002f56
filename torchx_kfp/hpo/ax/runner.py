"""``TorchXRunner``: trials of an Ax experiment as TorchX apps."""

from __future__ import annotations

import atexit
import contextlib
import copy
import functools
import gc
import inspect
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from ax.api.protocols.runner import IRunner
from ax.core.trial_status import TrialStatus
from ax.storage.json_store import encoders, registry
from ax.storage.runner_registry import CORE_RUNNER_REGISTRY
from torchx import specs
from torchx.runner import Runner, get_runner
from torchx.specs import AppState
from urllib3.exceptions import HTTPError

from torchx_kfp.common.text import printable
from torchx_kfp.contract import protocol
from torchx_kfp.errors import AppDefError, HostUnreachableError
from torchx_kfp.tracking.artifacts import absolute

_logger = logging.getLogger(__name__)

#: A function that returns the app of a trial.
Component = Callable[..., specs.AppDef]

#: Apps in other states have not ended. ``UNKNOWN`` means that the scheduler currently cannot tell.
_ENDED = {
    AppState.SUCCEEDED: TrialStatus.COMPLETED,
    AppState.FAILED: TrialStatus.FAILED,
    AppState.CANCELLED: TrialStatus.ABANDONED,
}


class TorchXRunner(IRunner):  # type: ignore[misc]  # Ax is skipped by mypy
    """Runs each trial as a TorchX app.

    The component is called with the trial's parameters and the constants, and with ``trial_idx`` and ``tracker_base``
    if it has such parameters. The tracker base is set in the app's environment, so ``current_run().put(loss=...)``
    records a result of the trial.

    Ax does not store the component and its arguments: a loaded runner can read trials, but not start new ones.

    Args:
        component: a function that returns an AppDef.
        tracker_base: an fsspec URL or a local directory that all apps can reach.
        scheduler: one of TorchX's schedulers: ``local_cwd``, ``kubernetes``, ``kfp``.
        cfg: the scheduler's options, as of ``torchx run -cfg``.
        constants: arguments of the component that all trials share.
    """

    def __init__(
        self,
        component: Component | None = None,
        *,
        tracker_base: str | os.PathLike[str],
        scheduler: str,
        cfg: Mapping[str, Any] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._component = component
        self._tracker_base = absolute(os.fspath(tracker_base))
        self._scheduler = scheduler
        self._cfg = dict(cfg or {})
        self._constants = dict(constants or {})

    def run_trial(self, trial_index: int, parameterization: Mapping[str, Any]) -> dict[str, Any]:
        """Start the app of a trial, and return the metadata that identifies it.

        Raises:
            AppDefError: Ax has loaded this runner without its component.
        """
        component, base, cfg = self._component, self._tracker_base, self._cfg
        if component is None:
            raise AppDefError(
                "Ax has loaded this experiment without the component of its trials, so it cannot start new ones. Give "
                "the client the runner again: client.configure_runner(TorchXRunner(component, ...))."
            )
        own = {"trial_idx": trial_index, "tracker_base": base}
        own = {name: value for name, value in own.items() if name in inspect.signature(component).parameters}
        app = component(**own, **self._constants, **parameterization)
        if self._scheduler == "kfp":  # it sets the variables; a cached run does not have results under its id
            cfg = {**cfg, "cache": False, "tracker_base": base}
        else:
            trackers = {protocol.TRACKERS: protocol.TRACKER_NAME, protocol.TRACKER_CONFIG: base}
            for role in app.roles:
                role.env = {protocol.TRACKER_BASE: base, **trackers, **role.env}
        return {"torchx_app_handle": torchx_runner().run(app, self._scheduler, cfg), "torchx_tracker_base": base}

    def poll_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> TrialStatus:
        """Return the status of a trial. If its app no longer exists, it has failed."""
        handle = trial_metadata["torchx_app_handle"]
        try:
            status = torchx_runner().status(handle)
        except (HostUnreachableError, HTTPError, OSError) as error:  # Ax would abandon the running trial
            _logger.warning(
                "The state of trial %d (%s) is unknown. It is requested again. (%r)", trial_index, handle, error
            )
            return TrialStatus.RUNNING
        return TrialStatus.FAILED if status is None else _ENDED.get(status.state, TrialStatus.RUNNING)

    def poll_exception(self, trial: Any) -> str:
        """Return the reason of a failure, which Ax shows in ``client.summarize()``."""
        handle = trial.run_metadata["torchx_app_handle"]
        status = torchx_runner().status(handle)
        if status is None:
            return (
                f"{handle} is unknown to its scheduler. A local app ends with the process that started it; an app "
                "on a cluster may have been deleted."
            )
        said = status.msg if status.msg not in ("", specs.NONE) else status.structured_error_msg
        with contextlib.suppress(KeyError, TypeError, ValueError):  # TorchX's message in JSON
            said = json.loads(said)["message"]["message"]
        why = "" if said in ("", specs.NONE) else f": {printable(said)}"
        return f"{handle} ended as {status.state.name}{why} (torchx log {handle})"

    def stop_trial(self, trial_index: int, trial_metadata: Mapping[str, Any]) -> dict[str, Any]:
        """Stop the app of a trial, unless it has ended."""
        torchx_runner().cancel(trial_metadata["torchx_app_handle"])
        return {}

    @property
    def run_metadata_report_keys(self) -> list[str]:
        """The metadata that Ax shows in ``client.summarize()``."""
        return ["torchx_app_handle"]

    @classmethod
    def serialize_init_args(cls, obj: Any) -> dict[str, Any]:
        """Return the arguments that Ax stores."""
        return {"tracker_base": obj._tracker_base, "scheduler": obj._scheduler}

    def clone(self) -> TorchXRunner:
        """Return a copy with the component, which Ax's default would lose."""
        return copy.copy(self)


@functools.cache
def torchx_runner() -> Runner:
    """Return this process's TorchX runner: only it knows the local apps that it started."""
    atexit.register(_close_runner)
    return get_runner()


def _close_runner() -> None:
    """Stop local apps before Python unloads modules: TorchX does so later, and prints an AttributeError."""
    torchx_runner().close()
    torchx_runner.cache_clear()
    gc.collect()


# Otherwise, users would have to pass registries to each client that saves or loads.
CORE_RUNNER_REGISTRY[TorchXRunner] = 77_001
registry.CORE_ENCODER_REGISTRY[TorchXRunner] = encoders.runner_to_dict
registry.CORE_DECODER_REGISTRY[TorchXRunner.__name__] = TorchXRunner
