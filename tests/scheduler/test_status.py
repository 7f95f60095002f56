"""States of the replicas of an app."""

from __future__ import annotations

from torchx import specs

from torchx_kfp.runs.result import RunResult, StageResult
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.scheduler.roles import StageRoles
from torchx_kfp.scheduler.status import role_statuses

ROLES = {
    "train": StageRoles([specs.Role("hello", "image", num_replicas=2)], is_distributed=True),
    "report": StageRoles([specs.Role("report", "image")]),
}


def statuses(train: State) -> dict[str, list[tuple[str, str, bool]]]:
    """Return state, host name and whether there is an error, of each replica of each role."""
    reason = "ended with exit code 1 (of KFP's launcher)" if train is State.FAILED else ""
    stages = (
        StageResult("train", "train", train, exit_code=1, reason=reason, pod_name="pod-1"),
        StageResult("report", "report", State.FAILED, exit_code=3, reason="ended with exit code 3", pod_name="pod-2"),
    )
    result = RunResult("app", "id", State.FAILED, None, 1.0, stages)
    return {
        role.role: [(str(one.state), one.hostname, one.structured_error_msg != specs.NONE) for one in role.replicas]
        for role in role_statuses(result, ROLES)
    }


def test_the_failure_of_a_distributed_stage_is_not_that_of_its_replicas() -> None:
    assert statuses(State.FAILED) == {
        "hello": [("UNKNOWN", "", False)] * 2,
        "train (all replicas)": [("FAILED", "pod-1", True)],
        "report": [("FAILED", "pod-2", True)],
    }


def test_replicas_of_a_stage_that_succeeded_have_succeeded() -> None:
    assert statuses(State.SUCCEEDED)["hello"] == [("SUCCEEDED", "", False)] * 2
