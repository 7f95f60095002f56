"""The carried launcher, its object, and those of other attempts: only its own, or an earlier one's, is deleted.

Each row is a course of requests, with the answers of a recording or others. ``!`` stands for SIGTERM, which comes
before the request is answered. `tests.kubernetes.test_deaths` has a real control plane.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.contract.carried.recorded import Attempt, ended, start, states_of
from tests.recordings import Exchange, read

RECORDING = read("job.succeeds")
REQUESTS = [one for one in RECORDING.exchanges if not one.is_log]
OWNER, MISSING, NO_PODS, SERVICE, MAKE, *LOOKS = REQUESTS
#: The requests of an attempt that finds nothing and succeeds.
ALL = ["owner", "missing", "no pods", "service", "make", "looks"]
FAILED = {"conditions": [{"type": "Failed", "status": "True", "message": "the limit"}]}
#: What another attempt has made.
THEIRS = {"torchx-kfp/launcher": "workflow-train-9_00000000", "torchx-kfp/run-id": "run/train/nine"}


def found(*, status: Any = None, method: str = "GET", notes: Any = None, **metadata: str) -> Exchange:
    """Return an answer with the object: the attempt's own, with other annotations, or with another state."""
    own = MAKE.answer["metadata"]
    changed = {**own, **metadata, "annotations": {**own["annotations"], **(notes or {})}}
    answer = {**MAKE.answer, "metadata": changed, "status": status or {}}
    return replace(MAKE, method=method, path=MISSING.path, body=None, status=200, answer=answer)


def refused(one: Exchange, status: int) -> Exchange:
    return replace(one, status=status, answer="" if status in (0, 503) else {"message": "no"})


RUNNING = replace(NO_PODS, answer={**NO_PODS.answer, "items": [{"status": {"phase": "Running"}}]})
DELETE = replace(next(one for one in read("job.fails").exchanges if one.method == "DELETE"), path=MISSING.path)
STEPS: dict[str, list[Exchange]] = {
    "owner": [OWNER],
    "no owner": [replace(OWNER, answer={**OWNER.answer, "items": []})],
    "another owner": [
        replace(OWNER, answer={**OWNER.answer, "items": [{**OWNER.answer["items"][0], "metadata": {"uid": "another"}}]})
    ],
    "missing": [MISSING],
    "no pods": [NO_PODS],
    "pods run": [RUNNING],
    "make": [MAKE],
    "make, lost": [refused(MAKE, 0)],
    "make, busy": [refused(MAKE, 503)],
    "make, there is one": [refused(MAKE, 409)],
    "service": [SERVICE],
    "service, there is one": [refused(SERVICE, 409)],
    "looks": LOOKS,
    "mine": [found()],
    "mine has failed": [found(status=FAILED)],
    "theirs": [found(notes=THEIRS)],
    "a third one's": [found(notes={"torchx-kfp/launcher": "workflow-train-3_00000000"})],
    "theirs has failed": [found(notes=THEIRS, status=FAILED)],
    "theirs of another specification": [found(notes={**THEIRS, "torchx-kfp/spec": "other"})],
    "theirs is deleted": [found(notes=THEIRS, deletionTimestamp="t")],
    "adopt": [found(method="PATCH")],
    "adopt, failed": [found(method="PATCH", status=FAILED)],
    "adopt, changed": [refused(found(method="PATCH"), 409)],
    "adopt, gone": [refused(found(method="PATCH"), 404)],
    "delete": [DELETE],
    "delete, changed": [refused(DELETE, 409)],
    "failed pod": states_of(RECORDING, [ended(0, 7)]),
}


@dataclass(frozen=True)
class Row:
    """The course, the exit code, and what is said."""

    course: Sequence[str]
    code: int = 0
    says: Sequence[str] = ()
    never: Sequence[str] = ("is deleted",)


DELETED = "torchx-kfp: ended by signal 15; train-b5b828bd2d is deleted"
MISSING = "torchx-kfp: ended by signal 15; train-b5b828bd2d does not exist"
LEFT = "torchx-kfp: ended by signal 15\n"
WAITING = "train-b5b828bd2d of an earlier attempt {}; waiting until it and its pods are gone"
OUTLIVED = "the pod workflow-train-0 is gone"
GONE = "waiting until the pods of an earlier attempt are gone"
ROWS: dict[str, Row] = {
    "a signal before anything is seen deletes nothing": Row(["owner!", "theirs"], 143, [LEFT]),
    "a signal deletes what an earlier attempt has left": Row(
        ["owner", "theirs", "adopt!", "theirs", "delete, changed", "mine", "delete"], 143, [DELETED], []
    ),
    "a signal does not delete what another attempt takes over": Row(
        ["owner", "theirs", "adopt!", "theirs", "delete, changed", "a third one's"], 143, [LEFT]
    ),
    "a signal while another attempt follows the object": Row(
        [*ALL[:5], "no pods", "a third one's!", "a third one's"], 143, [LEFT]
    ),
    "a signal while the object is made": Row([*ALL[:4], "make!", "mine", "delete"], 143, [DELETED], []),
    "a signal while it is made, and the answer is lost": Row(
        [*ALL[:4], "make, lost!", "mine", "delete"], 143, [DELETED], []
    ),
    "a signal while it is not made": Row([*ALL[:4], "make, busy!", "missing"], 143, [MISSING]),
    "a signal after somebody has deleted it": Row([*ALL[:5], "no pods", "missing!", "missing"], 143, [MISSING]),
    "a signal while another attempt makes it": Row([*ALL[:4], "make, there is one!", "theirs"], 143, [LEFT]),
    "a process that has outlived its pod does nothing": Row(["no owner", "theirs"], 1, [OUTLIVED]),
    "nor does one whose pod has been made again": Row(["another owner", "theirs"], 1, [OUTLIVED]),
    "an object that is changed meanwhile is looked at again": Row(["owner", "theirs", "adopt, changed", *ALL]),
    "an object that is deleted meanwhile is not adopted": Row(["owner", "theirs", "adopt, gone", *ALL]),
    "an object that has failed is replaced": Row(
        ["owner", "theirs has failed", "delete", "owner", "missing", "pods run", *ALL],
        0,
        [WAITING.format("has failed"), GONE],
    ),
    "an object of another specification is replaced": Row(
        ["owner", "theirs of another specification", "delete", *ALL],
        0,
        [WAITING.format("was made from another specification")],
    ),
    "an object that is being deleted is waited for": Row(
        ["owner", "theirs is deleted", "owner", "theirs is deleted", *ALL], 0, [WAITING.format("is being deleted")]
    ),
    # Another object would have the same execution id, and would be a retry that nobody wants.
    "an object that fails before its launcher knows of it is not made again": Row(
        [
            *(*ALL[:4], "make, lost", "make, there is one", "owner", "mine has failed", "adopt, failed"),
            *("failed pod", "mine has failed", "delete"),
        ],
        7,
        ["train-b5b828bd2d failed: the limit"],
    ),
    "a service of an earlier attempt stays": Row([*ALL[:3], "service, there is one", "make", "looks"]),
}


@pytest.mark.parametrize("name", ROWS)
def test_an_attempt_treats_its_object_and_others(name: str, tmp_path: Path) -> None:
    row = ROWS[name]
    exchanges = [one for step in row.course for one in STEPS[step.rstrip("!")]]
    ends = [sum(len(STEPS[step.rstrip("!")]) for step in row.course[:n]) for n in range(len(row.course) + 1)]
    signals = [end for end, step in zip(ends, row.course, strict=False) if step.endswith("!")]

    def before(attempt: Attempt, request: str) -> None:
        if "/log?" not in request and len(attempt.replay.requests) in signals:
            signals.clear()
            asked = len(attempt.replay.requests)
            attempt.process.send_signal(signal.SIGTERM)
            if request == f"POST {MAKE.path}":
                time.sleep(0.5)
                hasty.extend(attempt.asked[asked:])

    hasty: list[str] = []  # what to delete is known only when the API server has answered
    environ = {**RECORDING.environ, **({"KFP_POD_UID": "mine"} if "another owner" in row.course else {})}
    logs = [one for one in RECORDING.exchanges if one.is_log]
    logs += [replace(one, path=one.path.replace(one.path.split("/")[5], "pod-0")) for one in logs[:1]]
    given = replace(RECORDING, exchanges=[*exchanges, *logs], environ=environ)
    with start(given, tmp_path, before=before) as attempt:
        assert attempt.ends() == row.code, attempt.log
    assert attempt.asked == [f"{one.method} {one.path}" for one in exchanges], attempt.log
    assert attempt.replay.repeated == []
    assert hasty == []
    assert all(f"{attempt.log}\n".count(fact) == 1 for fact in row.says), attempt.log
    assert not any(fact in attempt.log for fact in row.never), attempt.log
    for method, _, body in attempt.replay.requests:
        if method == "DELETE":
            assert body["propagationPolicy"] == "Foreground"
            assert set(body["preconditions"]) == {"uid", "resourceVersion"}
        if method == "PATCH" and "ownerReferences" in body["metadata"] and "annotations" in body["metadata"]:
            assert body["metadata"]["resourceVersion"] == MAKE.answer["metadata"]["resourceVersion"]
    if "adopt" in row.course and not row.code:
        assert attempt.run_id == THEIRS["torchx-kfp/run-id"]


def test_nobody_would_follow_the_object_after_an_error(tmp_path: Path) -> None:
    """Here, of the disk: the execution id of the earlier attempt cannot be written."""

    def before(attempt: Attempt, request: str) -> None:
        if request.startswith("PATCH"):
            (tmp_path / "run_id").unlink()
            (tmp_path / "run_id").mkdir()

    exchanges = [OWNER, *STEPS["theirs"], *STEPS["adopt"], *STEPS["mine"], DELETE]
    with start(replace(RECORDING, exchanges=exchanges), tmp_path, before=before) as attempt:
        assert attempt.ends() == 1
    assert attempt.asked == [f"{one.method} {one.path}" for one in exchanges]
    assert "train-b5b828bd2d is deleted" in attempt.log
    assert "IsADirectoryError" in attempt.log
