"""How a pod that has failed is described, with what KFP's launcher says in its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.execution.host.answers_of_kfp import answer
from torchx_kfp.execution.host.nodes import Node
from torchx_kfp.execution.host.outcomes import ends_with_launcher, exit_of, explained
from torchx_kfp.execution.host.pod_logs import clean_log
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State


def described(message: str, log: str) -> tuple[int | None, str]:
    """Return the exit code and the reason of a stage whose pod has ended with this message and log."""
    code, reason = exit_of(Node("W.train.executor", State.FAILED, message=message))
    result = StageResult("train", "train", State.FAILED, exit_code=code, reason=reason)
    assert ends_with_launcher(result)
    result = explained(result, clean_log(log.encode())[1])
    return result.exit_code, result.reason


@pytest.mark.parametrize(
    ("stage", "message", "code", "reason"),
    [
        ("killself", "main: Error (exit code 1)", -9, "was ended by signal 9 (SIGKILL)"),
        ("segv", "main: Error (exit code 1)", -11, "was ended by signal 11 (SIGSEGV)"),
        ("oom", "main: OOMKilled (exit code 1)", -9, "was ended by signal 9 (SIGKILL, OOMKilled)"),
    ],
)
def test_an_application_that_a_signal_ended(stage: str, message: str, code: int, reason: str) -> None:
    assert described(message, answer(f"signals-log-{stage}")) == (code, reason)


def test_the_last_lines_of_a_distributed_stage_name_the_replica(tmp_path: Path) -> None:
    """On a cluster, twenty lines of the replica follow."""
    named = "replicas/0 (pod train-0-x, node e2e) failed first, with exit code 143; its last lines:"
    lines = ["torchx-kfp: train-9758763504 failed", named, *(f"  replicas/0 | second {number}" for number in range(20))]
    log = tmp_path / "train.log"
    log.write_text("".join(f"{line}\n" for line in ["begun", *lines]))
    result = StageResult("train", "train", State.FAILED, log_file=log)
    assert result.last_lines() == [named, *lines[-9:]]
    assert result.last_lines(3) == lines[-3:]
    log.write_text("".join(f"{line}\n" for line in lines[:8]))
    assert result.last_lines() == lines[:8]


START = "I1122 02:56:37.549663      16 main.go:67] Setting log level to: '1'\n"
FATAL = "F1122 02:57:14.018185      16 main.go:59] failed to execute component: "


@pytest.mark.parametrize(
    ("message", "end", "code", "reason"),
    [
        ("main: Error (exit code 1)", f"{FATAL}exit status 3\n", 3, "ended with exit code 3"),
        (
            "main: Error (exit code 1)",
            f"{FATAL}exit status 143\n",
            143,
            "ended with exit code 143 (SIGTERM, as when a pod is deleted or its node is drained)",
        ),
        ("main: OOMKilled (exit code 1)", f"{FATAL}exit status 137\n", 137, "ended with exit code 137 (OOMKilled)"),
        ("main: Error (exit code 1)", f"{FATAL}signal: aborted (core dumped)\n", -6, "was ended by signal 6 (SIGABRT)"),
        ("main: Error (exit code 1)", f"{FATAL}signal: odd\n", 1, "failed in KFP's launcher: signal: odd"),
        (
            "main: Error (exit code 2)",
            f"{FATAL}no metadata store\ngoroutine 1 [running]:\nmain.main()\n",
            2,
            "failed in KFP's launcher: no metadata store",
        ),
        (
            "main: Error (exit code 2)",
            "panic: nil\n\ngoroutine 1 [running]:\nmain.main()\n",
            2,
            "failed in KFP's launcher: panic: nil",
        ),
        ("main: Error (exit code 1)", "", 1, "ended with exit code 1 (of KFP's launcher)"),
    ],
)
def test_what_the_launcher_says_about_a_failure(message: str, end: str, code: int, reason: str) -> None:
    assert described(message, START + end) == (code, reason)
