"""The app of a trial, and its results.

It is submitted and watched through TorchX, which keeps the processes of local apps in this process. TorchX gives an app
its handle, ``<scheduler>://<session>/<app>``, in the variable that ``current_run()`` takes for the run id. On some
schedulers the handle that TorchX returns says more than that: a namespace, a queue or a project. On KFP the run id is
that of a stage, ``<run>/<stage>/<pod>``.
"""

from __future__ import annotations

import atexit
import copy
import functools
import gc
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchx import specs
from torchx.runner import Runner, get_runner

from torchx_kfp.common.text import describe_unknown, did_you_mean, joined, printable, shorten, shown
from torchx_kfp.contract import protocol
from torchx_kfp.errors import TrialError
from torchx_kfp.tracking.recorder import History, Recorder
from torchx_kfp.tracking.results import Result

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
    """Return the decoded metadata of a trial."""
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

    A cached run has no results under its id, and a trial that Ax repeats is to be measured again.
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


#: The suffixes of two results that are one outcome: the mean of several measurements, and its standard error.
MEAN, SEM = "/mean", "/sem"

Outcome = float | tuple[float, float]


def read_outcome(recorder: Recorder, name: str, handle: str, own_key: str = "") -> tuple[int, Outcome]:
    """Return how far a trial has come, and its outcome.

    The outcome is the result of this name, or the pair ``<name>/mean`` and ``<name>/sem``. Before the app has recorded
    either, it is the last value that the app has logged with ``current_run().log(step, ...)``.

    Args:
        recorder: the records under the trial's tracker base.
        name: the name of the metric.
        handle: the handle of the trial's app.
        own_key: see ``result_keys``.

    Returns:
        The last step of the metric (0 if it has no steps), and its value or the pair of mean and standard error.
    """
    keys = result_keys(recorder, handle, own_key)
    for key in keys:
        results, history = recorder.get(key), recorder.history(key)
        if results or history:
            return _outcome(f"The trial {handle}", name, results, history)
    looked = f"looked for {joined(keys)}" if keys else "its run on KFP has no results"
    raise TrialError(
        f"The trial {handle} has recorded nothing under the tracker base {recorder.tracker_base!r} ({looked}). "
        f"Record the metric in its application: current_run().put({name}=...). An application that records under its "
        "own key takes that key from its component's parameter trial_idx."
    )


def _outcome(trial: str, name: str, results: Mapping[str, Result], history: History) -> tuple[int, Outcome]:
    step = history[name].last.step if name in history else 0
    if name in results:
        return step, _number(trial, name, results[name])
    if name + MEAN in results:
        mean = _number(trial, name + MEAN, results[name + MEAN])
        return step, (mean, _number(trial, name + SEM, results[name + SEM])) if name + SEM in results else mean
    if name in history:
        return step, _number(trial, name, history[name].last.value)
    known = [*results, *(each for each in history if each not in results)]
    raise TrialError(
        f"{describe_unknown(trial, 'result', name, known)} Name the metric as the application records it, or "
        f"record it: current_run().put({name}=...)."
    )


def _number(trial: str, name: str, value: object) -> float:
    """Return a result as a float: Ax refuses an int."""
    if not isinstance(value, (int, float)):
        raise TrialError(f"{trial} has recorded {shown(value)} as {name!r}, but an outcome is a number.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise TrialError(
            f"{trial} has recorded {shown(value)} as {name!r}, from which Ax cannot learn. To tell Ax that the "
            "parameters are bad, record a large finite number."
        )
    return number


#: TorchX's scheduler whose apps are pipelines of one stage.
KFP = "kfp"

_HANDLE = re.compile(r"(?P<scheduler>.+)://(?P<session>.*)/(?P<app>.+)")
#: The port of Ray's dashboard, in front of the app: ``ray://torchx/127.0.0.1:8265-train-abc``.
_PORT = re.compile(r"^\d+-")


def result_keys(recorder: Recorder, handle: str, own_key: str = "") -> list[str]:
    """Return the keys that may have the results of an app, those to be read first at the beginning.

    Args:
        recorder: lists what an app on KFP has recorded.
        handle: the app's handle.
        own_key: the key under which the app records by itself, such as the index of its trial; empty if there is none.
    """
    own = [own_key] if own_key else []
    parts = _HANDLE.fullmatch(handle)
    if parts is None:
        return [handle, *own]
    if parts["scheduler"] == KFP:
        return _attempts(recorder, parts["app"]) + own
    # kubernetes: <namespace>:<app>, aws_batch: <queue>:<app>, gcp_batch: <project>:<location>:<app>
    app = parts["app"].rpartition(":")[2]
    if parts["scheduler"] == "ray":
        app = _PORT.sub("", app)
    return list(dict.fromkeys([f"{parts['scheduler']}://{parts['session']}/{app}", handle, *own]))


def _attempts(recorder: Recorder, run: str) -> list[str]:
    """Return the run ids of the stage of a run on KFP, the latest attempt first."""
    # An attempt that has only logged steps so far has no results.
    stated = [run_id for run_id in recorder.run_ids() if run_id.startswith(f"{run}/")]
    found = list(dict.fromkeys([*recorder.keys(run), *stated]))
    if len(found) < 2:
        return found
    starts = recorder.starts_of(found)
    return sorted(found, key=lambda run_id: starts[run_id].time if run_id in starts else 0.0, reverse=True)
