"""The keys under which the app of a trial has recorded its results.

TorchX gives an app its handle, ``<scheduler>://<session>/<app>``, in the variable that ``current_run()`` takes for the
run id. On some schedulers the handle that TorchX returns says more than that: a namespace, a queue or a project. On
KFP the run id is that of a stage, ``<run>/<stage>/<pod>``.
"""

from __future__ import annotations

import re

from torchx_kfp.tracking.statements import kinds
from torchx_kfp.tracking.statements.sources import read_starts
from torchx_kfp.tracking.tracker import FsspecResultTracker

#: TorchX's scheduler whose apps are pipelines of one stage.
KFP = "kfp"

_HANDLE = re.compile(r"(?P<scheduler>.+)://(?P<session>.*)/(?P<app>.+)")
#: The port of Ray's dashboard, in front of the app: ``ray://torchx/127.0.0.1:8265-train-abc``.
_PORT = re.compile(r"^\d+-")


def result_keys(tracker: FsspecResultTracker, handle: str, own_key: str = "") -> list[str]:
    """Return the keys that may have the results of an app, those to be read first at the beginning.

    Args:
        tracker: lists what an app on KFP has recorded.
        handle: the app's handle.
        own_key: the key under which the app records by itself, such as the index of its trial; empty if there is none.

    Raises:
        TrackerError: the store failed.
    """
    own = [own_key] if own_key else []
    parts = _HANDLE.fullmatch(handle)
    if parts is None:
        return [handle, *own]
    if parts["scheduler"] == KFP:
        return _attempts(tracker, parts["app"]) + own
    # kubernetes: <namespace>:<app>, aws_batch: <queue>:<app>, gcp_batch: <project>:<location>:<app>
    app = parts["app"].rpartition(":")[2]
    if parts["scheduler"] == "ray":
        app = _PORT.sub("", app)
    return list(dict.fromkeys([f"{parts['scheduler']}://{parts['session']}/{app}", handle, *own]))


def _attempts(tracker: FsspecResultTracker, run: str) -> list[str]:
    """Return the run ids of the stage of a run on KFP, the latest attempt first."""
    # An attempt that has only logged steps so far has no results.
    stated = [run_id for run_id in kinds.run_ids(tracker.store) if run_id.startswith(f"{run}/")]
    found = list(dict.fromkeys([*tracker.keys(run), *stated]))
    if len(found) < 2:
        return found
    starts = read_starts(tracker.store, found)
    return sorted(found, key=lambda run_id: starts[run_id].time if run_id in starts else 0.0, reverse=True)
