"""Find Python conditions on pipeline channels while a pipeline file is loaded.

A channel is an object, and thus always true for Python: ``if loss > 0.9:`` always takes the branch. KFP compiles that,
and so do the commands, with a warning that names the line.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from torchx_kfp.execution.model.findings import Finding, Kind


@contextlib.contextmanager
def watch_conditions(is_users: Callable[[str], bool]) -> Iterator[list[Finding]]:
    """Collect a finding for each line that tests the truth of a channel or a comparison.

    KFP's classes do not define truth. Within this context, they define it with Python's default.
    """
    from kfp.dsl import pipeline_channel

    found: dict[tuple[str, int], Finding] = {}
    start = os.getcwd()  # the file may change it

    def truth(self: Any) -> bool:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and str(frame.f_globals.get("__name__")).startswith("torchx."):
            frame = frame.f_back  # a component of TorchX, called by a line of the user
        if frame is None:
            return True
        file, line = frame.f_code.co_filename, frame.f_lineno
        if is_users(file) and not _is_itself(self):
            place = f"{os.path.relpath(file, start)}, line {line}"
            # A search first calls a trial with placeholders.
            found[file, line] = Finding(Kind.ALWAYS_TRUE, place, _explain(self))
        return True

    kinds = [pipeline_channel.PipelineChannel, pipeline_channel.ConditionOperation]
    kinds = [kind for kind in kinds if "__bool__" not in vars(kind)]
    findings: list[Finding] = []
    for kind in kinds:
        kind.__bool__ = truth
    try:
        yield findings
    finally:
        for kind in kinds:
            del kind.__bool__
        findings.extend(found.values())


def _explain(condition: Any) -> str:
    from kfp.dsl import for_loop, pipeline_channel

    channel = condition
    if isinstance(condition, pipeline_channel.ConditionOperation):
        is_left = isinstance(condition.left_operand, pipeline_channel.PipelineChannel)
        channel = condition.left_operand if is_left else condition.right_operand
    if isinstance(channel, for_loop.LoopArgumentVariable | for_loop.LoopParameterArgument):
        what = "the item of a loop"  # whose attributes may be fields of its dict
    elif isinstance(channel, pipeline_channel.OneOfMixin):
        what = "what dsl.OneOf returns"
    elif channel.task_name:
        what = f"the output {channel.name!r} of {channel.task_name!r}"
    else:
        what = f"the pipeline parameter {channel.name!r}"
    return (
        f"tests {what} in Python, but its value is known only when the pipeline runs. Write "
        "`with dsl.If(...):`, with a comparison such as loss > 0.9 or debug == True; dsl.Elif and dsl.Else for other "
        "branches, and dsl.OneOf for their outputs. To test whether a channel was passed, write `is not None`"
    )


def _is_itself(condition: Any) -> bool:
    """Return whether a channel is compared with itself, as in a search of a list."""
    from kfp.dsl import pipeline_channel

    if not isinstance(condition, pipeline_channel.ConditionOperation) or condition.operator != "==":
        return False
    left, right = condition.left_operand, condition.right_operand
    return isinstance(left, pipeline_channel.PipelineChannel) and type(left) is type(right) and str(left) == str(right)
