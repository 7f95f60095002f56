"""The app of a trial: submitted and watched through TorchX, which keeps the processes of local apps in this process."""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx import specs
from torchx.runner import Runner, get_runner

from torchx_kfp.ax.keys import KFP
from torchx_kfp.contract import protocol
from torchx_kfp.errors import TrialError
from torchx_kfp.text import did_you_mean, printable, shorten, shown

#: The longest reason, in characters.
_REASON = 500


@dataclass(frozen=True)
class Metadata:
    """The data that Ax stores about a trial, to find its app and results again.

    Attributes:
        handle: the handle of the app.
        tracker_base: where the app records.
        own_key: the key of its results if it does not use ``TORCHX_JOB_ID``; empty if it does.
    """

    handle: str
    tracker_base: str
    own_key: str = ""

    def encode(self) -> dict[str, str]:
        """Return the metadata in the form that Ax stores. The names are those of Ax's own class."""
        own = {"torchx_tracker_key": self.own_key} if self.own_key else {}
        return {"torchx_app_handle": self.handle, "torchx_tracker_base": self.tracker_base, **own}


def metadata_of(trial: int, metadata: Mapping[str, Any]) -> Metadata:
    """Return the decoded metadata of a trial.

    Raises:
        TrialError: a ``TorchXRunner`` has not started the trial.
    """
    try:
        handle, base = metadata["torchx_app_handle"], metadata["torchx_tracker_base"]
    except KeyError:
        raise TrialError(
            f"Trial {trial} was not started by a TorchXRunner: its metadata is {shown(dict(metadata))}. Complete it by "
            "hand: client.complete_trial(...), or client.mark_trial_abandoned(...)."
        ) from None
    return Metadata(handle, base, metadata.get("torchx_tracker_key", ""))


@functools.cache
def torchx_runner() -> Runner:
    """Return TorchX's runner of this process, which alone knows the local apps that it has started."""
    atexit.register(_close_runner)
    return get_runner()


def _close_runner() -> None:
    """End local apps while Python's modules still exist: TorchX would do it later, and print an AttributeError."""
    torchx_runner().close()
    torchx_runner.cache_clear()
    gc.collect()


def submit(app: specs.AppDef, scheduler: str, cfg: Mapping[str, Any], tracker_base: str) -> str:
    """Start an app that records results below the tracker base, and return its handle.

    Args:
        app: the app. It is not changed.
        scheduler: the name of one of TorchX's schedulers.
        cfg: the scheduler's options.
        tracker_base: the tracker base.

    Raises:
        TrialError: there is no such scheduler, or its options give the app another tracker base.
    """
    runner = torchx_runner()
    known = runner.scheduler_backends()
    if scheduler not in known:
        hint = did_you_mean(scheduler, known)
        if scheduler == KFP:
            hint = " Install the distribution torchx-kfp-scheduler, which is in the repository's folder scheduler."
        elif scheduler == "local":  # the default of Ax's own class
            hint = " TorchX calls it local_cwd now."
        raise TrialError(f"TorchX has no scheduler {scheduler!r} here.{hint} It has: {', '.join(known)}.")
    if scheduler == KFP:
        return str(runner.run(app, scheduler, _options_of_kfp(cfg, tracker_base)))
    app = copy.copy(app)
    app.roles = [_recording(role, tracker_base) for role in app.roles]
    return str(runner.run(app, scheduler, dict(cfg)))


def state_of(handle: str) -> specs.AppState | None:
    """Return the state of an app; None if its scheduler does not know it."""
    status = torchx_runner().status(handle)
    return None if status is None else status.state


def why_failed(handle: str) -> str:
    """Return what the scheduler says of an app that has failed, and the last line that it has printed."""
    runner = torchx_runner()
    status = runner.status(handle)
    if status is None:
        return (
            f"{handle} is not known to its scheduler. A local app ends with the process that has started it; an app on "
            "a cluster may have been deleted."
        )
    words = [f"{handle} has ended as {status.state.name}"]
    try:
        message = json.loads(status.structured_error_msg)["message"]
        words.append(str(message["message"] if isinstance(message, dict) else message))
    except (KeyError, TypeError, ValueError):
        words += [status.msg] if status.msg and status.msg != specs.NONE else []
    last = _last_line(runner, handle)
    words += [f"its last line: {last}"] if last else []
    return shorten(printable(": ".join(words)), _REASON)


def stop(handle: str) -> None:
    """Stop an app. One that has ended, or is not known, is left alone."""
    torchx_runner().cancel(handle)


def _last_line(runner: Runner, handle: str) -> str:
    last = ""
    try:
        app = runner.describe(handle)
        for line in runner.log_lines(handle, app.roles[0].name) if app and app.roles else ():
            last = line.strip() or last
    except Exception:  # whatever a scheduler raises: a reason without a line is better than none
        return ""
    return last


def _recording(role: specs.Role, tracker_base: str) -> specs.Role:
    """Return the role with the variables by which an app finds its trackers. TorchX adds the job's id."""
    context = {
        protocol.TRACKER_BASE: tracker_base,
        protocol.TRACKERS: protocol.TRACKER_NAME,
        protocol.TRACKER_CONFIG: tracker_base,
    }
    role = copy.copy(role)
    role.env = {**context, **role.env}
    return role


def _options_of_kfp(cfg: Mapping[str, Any], tracker_base: str) -> dict[str, Any]:
    """Return the options of the scheduler ``kfp``. It sets the variables of a stage, and KFP's cache must not be used.

    A cached run has no results of its own, and a trial that Ax repeats is to be measured again.
    """
    if cfg.get("cache"):
        raise TrialError(
            "cfg has cache=True, but a trial that KFP takes from its cache has no results under its own run. Remove it."
        )
    if cfg.get("tracker_base") not in (None, tracker_base):
        raise TrialError(
            f"cfg has tracker_base={cfg['tracker_base']!r}, but the runner has {tracker_base!r}. Remove it from cfg."
        )
    return {**cfg, "cache": False, "tracker_base": tracker_base}
