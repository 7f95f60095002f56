"""How stages, and groups of tasks, have ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from torchx_kfp.backend.nodes import Node
from torchx_kfp.runs import reasons
from torchx_kfp.runs.result import describe_exit
from torchx_kfp.runs.vocabulary import State

#: The end of Argo's message about a container that has failed.
_EXIT = re.compile(r"(?:main: )?(?P<what>.*?) ?\(exit code (?P<code>\d{1,9})\)")
#: The reasons of stages about whose end KFP says nothing.
_NO_END = "was running when KFP last reported it"
NO_START = "was not run, as far as KFP has reported it"


@dataclass(frozen=True)
class Progress:
    """How far a run is: its state, and when (in seconds since the epoch) it was canceled and has ended."""

    run_id: str
    state: State
    started_at: float
    canceled_at: float | None = None
    ended_at: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.state.is_over

    def is_canceled(self, node: Node) -> bool:
        """Tell whether a node failed because the run was canceled."""
        canceled = self.canceled_at
        return canceled is not None and (node.end is None or node.end >= canceled)


@dataclass
class End:
    """How a task has ended; ``state`` is None if it has not. ``name`` is for sentences."""

    state: State | None = None
    name: str = ""
    time: float = 0.0
    #: The failed stages in it, if it is a group.
    failed: list[str] = field(default_factory=list)
    #: Whether it ended, or did not run, because the run was canceled.
    is_canceled: bool = False


def end_of_stage(
    progress: Progress, node: Node | None, last: Node | None, *, is_cached: bool
) -> tuple[State | None, str, float | None]:
    """Return a stage's state, the reason and the time of its end; no state if it has not ended.

    Args:
        progress: how far the run is.
        node: the node around the stage's pods.
        last: the last of them that has begun.
        is_cached: whether none was needed.
    """
    if last is not None and last.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", last.end or (node.end if node is not None else None)
    if is_cached:
        return State.CACHED, "", node.end or node.start if node is not None else None
    if node is not None and node.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", node.end
    if node is not None and node.state is State.FAILED:
        failed = last if last is not None and last.state is State.FAILED else node
        if progress.is_canceled(failed):
            return State.CANCELED, reasons.ended_with_the_run(), failed.end or node.end
        return State.FAILED, exit_of(failed)[1], failed.end or node.end
    return _end_with_run(progress, last) if progress.is_over else (None, "", None)


def _end_with_run(progress: Progress, last: Node | None) -> tuple[State, str, float | None]:
    """Return the same for a stage of which KFP has not reported an end although the run is over."""
    time = progress.ended_at
    if progress.state is State.SUCCEEDED:
        return State.SUCCEEDED, "", time
    if last is not None and last.state is State.FAILED and not progress.is_canceled(last):
        if progress.canceled_at is None:
            return State.FAILED, exit_of(last)[1], last.end
        return State.CANCELED, reasons.canceled_while_waiting(reasons.RUN_WAS_ENDED, exit_of(last)[1]), time
    if progress.canceled_at is not None:
        if last is None:
            return State.NOT_RUN, reasons.not_run(reasons.RUN_WAS_ENDED), time
        return State.CANCELED, reasons.ended_with_the_run(), last.end or time
    return (State.NOT_RUN, NO_START, time) if last is None else (State.INTERRUPTED, _NO_END, time)


def together(ends: list[End], failed: list[str], time: float) -> End:
    """Return the end of a group of tasks that have all ended; ``failed`` are the failed stages in it."""
    time = max((end.time for end in ends), default=time)
    states = {end.state for end in ends}
    if not states & {State.FAILED, State.CANCELED, State.NOT_RUN, State.INTERRUPTED}:
        return End(State.SUCCEEDED, time=time)
    if any(end.state is State.FAILED and not end.is_canceled for end in ends):
        return End(State.FAILED, time=time, failed=failed)
    if any(end.is_canceled for end in ends):
        return End(State.FAILED, time=time, is_canceled=True)
    # It may have failed, or its end was not reported.
    return End(State.INTERRUPTED, time=time)


def exit_of(node: Node, *, is_driver: bool = False) -> tuple[int | None, str]:
    """Return the exit code of a failed pod, if it is known, and the reason of the failure."""
    found = _EXIT.fullmatch(node.message)
    code = node.exit_code if node.exit_code is not None else int(found["code"]) if found else None
    if not code:
        return None, f"failed: {node.message}" if node.message else "failed"
    # KFP's launcher ends with 1 whatever the exit code of the stage's own process is.
    of = ["of KFP's launcher"] if code == 1 and not is_driver else []
    what = [found["what"]] if found and found["what"] not in ("", "Error") else []
    notes = f" ({', '.join(of + what)})" if of or what else ""
    return code, f"{describe_exit(code)}{notes}"
