"""Determine how stages and groups of tasks ended."""

from __future__ import annotations

import re
from dataclasses import replace

from torchx_kfp.common.text import clean
from torchx_kfp.execution.host.nodes import Node, Nodes
from torchx_kfp.execution.host.states import Progress
from torchx_kfp.execution.runs import reasons
from torchx_kfp.execution.runs.reasons import TaskOutcome
from torchx_kfp.execution.runs.result import StageResult, describe_exit
from torchx_kfp.execution.runs.vocabulary import State

#: The end of Argo's message about a failed container.
_EXIT = re.compile(r"(?:main: )?(?P<what>.*?) ?\(exit code (?P<code>\d{1,9})\)")
#: The kubelet's reason while it waits to pull an image again; the actual reason follows.
_BACK_OFF = re.compile(r'ImagePullBackOff: Back-off pulling image "[^"]*": (?=ErrImagePull: )')
#: KFP's launcher exits with 1 whatever the exit code of the stage's own process is, and with 2 if it panics.
_OF_LAUNCHER = "of KFP's launcher"
_LAUNCHER_CODES = (1, 2)
_NOTES = re.compile(rf"ended with exit code \d+ \({_OF_LAUNCHER}(?:, (.*))?\)")
#: A shell's exit code for SIGTERM, and what causes it without a cancel.
_TERMINATED, _TOLD_TO_END = 143, "SIGTERM, as when a pod is deleted or its node is drained"
#: The launcher's words for the end of the stage's own process, which are Go's.
_STATUS = re.compile(r"exit status (\d{1,3})|signal: ([a-z0-9/ ]+?)(?: \(core dumped\))?")
#: Go's names of the signals on Linux, from 1.
SIGNALS = (
    "hangup",
    "interrupt",
    "quit",
    "illegal instruction",
    "trace/breakpoint trap",
    "aborted",
    "bus error",
    "floating point exception",
    "killed",
    "user defined signal 1",
    "segmentation fault",
    "user defined signal 2",
    "broken pipe",
    "alarm clock",
    "terminated",
)
#: The reasons of stages whose end KFP has not reported.
CANCELED = reasons.not_run(reasons.RUN_WAS_ENDED)
_NO_END = "was running when KFP last reported it"
NO_START = reasons.not_run("the run had ended")


def end_of_stage(
    progress: Progress, node: Node | None, last: Node | None, *, is_cached: bool
) -> tuple[State | None, str, float | None]:
    """Return the state of a stage, and the reason and time of its end; no state before its end.

    Args:
        node: the node around the stage's pods.
        last: the last started one of them.
        is_cached: whether the stage needed no pod.
    """
    if last is not None and last.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", last.end or (node.end if node is not None else None)
    if is_cached:
        return State.CACHED, "", node.end or node.start if node is not None else None
    if node is not None and node.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", node.end
    if node is not None and node.state is State.FAILED:
        failed = last if last is not None and last.state is State.FAILED else node
        if progress.is_canceled(failed.end):
            return State.CANCELED, reasons.ended_with_the_run(), failed.end or node.end
        return State.FAILED, exit_of(failed)[1], failed.end or node.end
    return _end_with_run(progress, last) if progress.is_over else (None, "", None)


def _end_with_run(progress: Progress, last: Node | None) -> tuple[State, str, float | None]:
    """Return the unreported end of a stage in a finished run."""
    time, canceled = progress.last.ended_at, progress.last.canceled_at is not None
    if progress.last.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", time
    if last is not None and last.state is State.FAILED and not progress.is_canceled(last.end):
        if not canceled:
            return State.FAILED, exit_of(last)[1], last.end
        return State.CANCELED, reasons.canceled_while_waiting(reasons.RUN_WAS_ENDED, exit_of(last)[1]), time
    if canceled:
        if last is None:
            return State.NOT_RUN, CANCELED, time
        return State.CANCELED, reasons.ended_with_the_run(), last.end or time
    return (State.NOT_RUN, NO_START, time) if last is None else (State.INTERRUPTED, _NO_END, time)


def group_outcome(ends: list[TaskOutcome], failed: list[str], time: float) -> TaskOutcome:
    """Return the outcome of a finished group; ``failed`` are its failed stages."""
    time = max((end.time for end in ends), default=time)
    states = {end.state for end in ends}
    if not states & {State.FAILED, State.CANCELED, State.NOT_RUN, State.INTERRUPTED}:
        return TaskOutcome(state=State.SUCCEEDED, time=time)
    if any(end.state is State.FAILED and not end.is_canceled for end in ends):
        return TaskOutcome(state=State.FAILED, time=time, failed=failed)
    if any(end.is_canceled for end in ends):
        return TaskOutcome(state=State.FAILED, time=time, is_canceled=True)
    # It may have failed, or its end was not reported.
    return TaskOutcome(state=State.INTERRUPTED, time=time)


def exit_of(node: Node, *, is_driver: bool = False, is_import: bool = False) -> tuple[int | None, str]:
    """Return the exit code of a failed pod, if known, and the reason for the failure."""
    match = _EXIT.fullmatch(node.message)
    code = node.exit_code if node.exit_code is not None else int(match["code"]) if match else None
    if not code:
        return None, f"failed: {node.message}" if node.message else "failed"
    of = [_OF_LAUNCHER] if (code in _LAUNCHER_CODES and not is_driver) or is_import else []
    what = [match["what"]] if match and match["what"] not in ("", "Error") else []
    notes = f" ({', '.join(of + what)})" if of or what else ""
    return code, f"{describe_exit(code)}{notes}"


def reason_of_driver(nodes: Nodes, driver: Node) -> str:
    """Return why the driver of a task failed."""
    return f"KFP's driver {exit_of(nodes.failed_attempt(driver), is_driver=True)[1]}"


def reason_of_workflow(nodes: Nodes) -> str:
    """Return why a workflow without a failed stage failed: the reason of its first driver, or else Argo's."""
    for whole in reversed(nodes.attempts(nodes.workflow)):
        driver = nodes.get(f"{whole.name}.root-driver")
        if driver is not None and driver.state is State.FAILED:
            return reason_of_driver(nodes, driver)
    return nodes.message


def ends_with_launcher(result: StageResult) -> bool:
    """Return whether a failure is known only as one of KFP's launcher."""
    return result.state is State.FAILED and _NOTES.fullmatch(result.reason) is not None


def explained(result: StageResult, said: str) -> StageResult:
    """Return a result with the reason that KFP's launcher gives for its failure, if any."""
    if not said:
        return result
    notes = _NOTES.fullmatch(result.reason)
    note = notes[1] if notes else None  # such as OOMKilled
    status = _STATUS.fullmatch(said)
    if status and (status[1] or status[2] in SIGNALS):
        code = int(status[1]) if status[1] else -1 - SIGNALS.index(status[2])
        note = note or (_TOLD_TO_END if code == _TERMINATED else None)
        return replace(result, exit_code=code, reason=_with_note(describe_exit(code), note))
    return replace(result, reason=_with_note(f"failed in KFP's launcher: {said}", note))


def _with_note(reason: str, note: str | None) -> str:
    if not note:
        return reason
    return f"{reason[:-1]}, {note})" if reason.endswith(")") else f"{reason} ({note})"


def pending_reason(pod: Node) -> str:
    """Return why a pod cannot start yet; empty for the usual steps of a start."""
    reason = clean(_BACK_OFF.sub("", pod.message)).partition(". preemption: ")[0].rstrip(".")
    return reason if ": " in reason else ""
