"""The log of a stage's pod: the stage's output between the launcher's lines about its start and end."""

from __future__ import annotations

import time

from torchx_kfp.execution.host.outcomes import SIGNALS
from torchx_kfp.execution.runs.events import StageFinished
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp_dev_host.argo import Node


def pod_log(node: Node, finished: StageFinished | None) -> str:
    """Return the text of the log of a node's pod so far; ``finished`` is the end of its stage."""
    text, result = _line(node.started, "main.go:67] Setting log level to: '1'"), finished.result if finished else None
    if node.started_as is None:  # an importer
        if finished and finished.result.state is State.FAILED:
            text += _line(finished.time, f"client.go:1150] {finished.result.reason}", "F") + "goroutine 1 [running]:\n"
        return text
    if (said := node.started_as.log_file) is not None and said.exists():
        text += said.read_text(encoding="utf-8", errors="replace")
    if result is not None and result.attempts != node.started_as.attempt:
        result = None  # it is how a later attempt has ended
    # The launcher's line begins in a line of its own only if the stage ends its last one.
    if node.ended is None or (result is not None and result.state is State.CANCELED):
        return text
    if result is not None and result.state.is_success:
        return text + _line(node.ended, "launcher_v2.go:206] publish success.")
    code = (result.exit_code if result is not None else None) or 1
    how = f"exit status {code}" if code > 0 else f"signal: {SIGNALS[-code - 1]}"
    return text + _line(node.ended, f"main.go:59] failed to execute component: {how}", "F")


def _line(when: float, line: str, level: str = "I") -> str:
    """Return a line as klog writes it."""
    shown = time.strftime("%m%d %H:%M:%S", time.gmtime(when)) + f".{int(when % 1 * 1e6):06}"
    return f"{level}{shown}      16 {line}\n"
