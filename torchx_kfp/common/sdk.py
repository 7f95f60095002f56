"""Import KFP's SDK without its client, and refuse Python's conditions and loops on pipeline channels.

- ``import kfp`` loads KFP's client with the whole Kubernetes client, which takes two thirds of the time and is not
  needed in a pipeline. Here, the client is loaded on first use.
- KFP's channels and comparisons are objects, so that ``if loss > 0.9:`` would always take the branch: their values are
  not known while a pipeline is compiled. Here, asking for the truth is an error, except in KFP's own code, which tests
  whether there is a channel. Python's messages about loops and elements do not name the way out; those here do.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, NoReturn

_CLIENT = "kfp.client"
_CHANNELS = "kfp.dsl.pipeline_channel"
#: A part of KFP's names of a loop's item.
_ITEM = "loop-item"
#: Operations of a channel, and what to do instead.
_WAYS_OUT = {
    "iter": "To run stages for each item of a list, write: `with dsl.ParallelFor(...) as item:`.",
    "contains": "To look for an item, do it in the application, or in a stage before it, whose output is a channel.",
    "len": "Count in the application, or in a stage before it, whose output is a channel.",
    "getitem": "A field of a loop's item is an attribute, item.lr. Else take the element in the application.",
}


def import_kfp() -> None:
    """Import kfp without its client, which is imported on first use, and refuse operations on its channels."""
    if "kfp" in sys.modules or importlib.util.find_spec("kfp") is None:
        refuse_operations()
        return
    # kfp/__init__.py ends with `from kfp.client import Client`.
    stand_in: Any = ModuleType(_CLIENT)
    stand_in.Client = None
    sys.modules[_CLIENT] = stand_in
    try:
        kfp: Any = importlib.import_module("kfp")
    finally:
        del sys.modules[_CLIENT]
    for name in ("Client", "client"):
        if vars(kfp).get(name) in (None, stand_in):
            vars(kfp).pop(name, None)

    def load(name: str) -> Any:
        if name not in ("Client", "client"):
            raise AttributeError(f"module 'kfp' has no attribute {name!r}")
        client = importlib.import_module(_CLIENT)
        kfp.Client = client.Client
        return getattr(kfp, name)

    kfp.__getattr__ = load
    refuse_operations()


# Conditions and loops on channels


def refuse_operations() -> None:
    """Refuse these operations from now on, if KFP is loaded.

    Modules that make or load pipelines call this when they are imported; applications do not import them.
    """
    module: Any = sys.modules.get(_CHANNELS)
    if module is None:
        return
    for kind in (module.PipelineChannel, module.ConditionOperation):
        kind.__bool__ = _truth
    for operation, way_out in _WAYS_OUT.items():
        setattr(module.PipelineChannel, f"__{operation}__", _refusal(way_out))


def _truth(self: Any) -> bool:
    caller = sys._getframe(1).f_globals.get("__name__") or ""
    if caller.partition(".")[0] == "kfp" or _is_itself(self):
        return True
    left = getattr(self, "left_operand", self)
    raise _error(
        left if hasattr(left, "channel_type") else self.right_operand,
        "so Python cannot decide a condition on it. Write `with dsl.If(...):`, with a comparison such as loss > 0.9 or "
        "debug == True, instead of if, a ternary or assert; dsl.Elif and dsl.Else for other branches, dsl.OneOf for "
        "what one of them returns, and one dsl.If inside another for `and`. If a function needs the value, pass a "
        "constant. To ask only whether a channel was passed, write `is not None`.",
    )


def _is_itself(condition: Any) -> bool:
    """Tell whether a channel is compared with itself: lists and dicts look for channels in this way."""
    left, right = (getattr(condition, f"{side}_operand", None) for side in ("left", "right"))
    return (
        getattr(condition, "operator", "") == "=="
        and hasattr(left, "channel_type")
        and type(left) is type(right)
        and str(left) == str(right)
    )


def _refusal(way_out: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *args: object) -> NoReturn:
        raise _error(self, f"so Python cannot look into it. {way_out}")

    return refuse


def _error(channel: Any, rest: str) -> Exception:
    from torchx_kfp.errors import ChannelError

    return ChannelError(f"{name_of(channel.task_name, channel.name)} has a value only when the pipeline runs, {rest}")


def name_of(task: str | None, name: str) -> str:
    """Return the name of a pipeline's parameter or of a task's output, for the beginning of a sentence."""
    if _ITEM in name:
        return "The item of a loop"
    return f"The output {name!r} of {task!r}" if task else f"The pipeline parameter {name!r}"
