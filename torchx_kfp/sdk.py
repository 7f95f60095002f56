"""Make KFP's SDK quicker while torchx-kfp calls it, and refuse conditions on channels (``channel_operations``).

- For each task of a pipeline, the SDK converts the names of all tasks to Kubernetes' form, which makes a million names
  for 1,000 tasks (``build_spec_by_group``). Here, each name is converted once.
- Each setter of a task requests the whole stack, with the source of every frame, only to name itself in an error
  (``_ensure_container_spec_exists``). This takes 20 ms. Here, it gets the stack without source.
- ``import kfp`` loads KFP's client with the whole Kubernetes client, which takes two thirds of the time and is not
  needed in a pipeline. Here, the client is loaded on first use.

The compiled files are the same, byte for byte, and for all other callers KFP's SDK is as quick as it was.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

from torchx_kfp.channel_operations import refuse_operations

# Whatever makes, loads or submits pipelines imports this module; applications do not.
refuse_operations()

_CLIENT = "kfp.client"
#: Functions of ``kfp.dsl.utils`` that convert a name.
_PURE = ("maybe_rename_for_k8s", "sanitize_component_name", "sanitize_task_name")


def _stack(context: int = 0) -> list[inspect.FrameInfo]:
    """Do what ``inspect.stack`` does, without source and without a search for each frame's file in all modules."""
    del context
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


_INSPECT = SimpleNamespace(**{**vars(inspect), "stack": _stack})


@contextlib.contextmanager
def quick_sdk() -> Iterator[None]:
    """Make KFP's SDK quicker inside this context, which can also be used as a decorator."""
    from kfp.dsl import pipeline_task, utils

    replaced: list[tuple[ModuleType, str, Any]] = []

    def replace(module: ModuleType, name: str, new: Any) -> None:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, new)

    for name in _PURE:
        if hasattr(utils, name):
            replace(utils, name, _remembered(getattr(utils, name)))
    if getattr(pipeline_task, "inspect", None) is inspect:
        replace(pipeline_task, "inspect", _INSPECT)
    try:
        yield
    finally:
        for module, name, old in reversed(replaced):
            setattr(module, name, old)


@functools.cache
def _remembered(function: Any) -> Any:
    return function if hasattr(function, "cache_info") else functools.lru_cache(maxsize=1 << 16)(function)


def import_kfp() -> None:
    """Import kfp without its client, which is imported on first use. Do nothing if kfp is already loaded."""
    found = None if "kfp" in sys.modules else importlib.util.find_spec("kfp")
    if found is None:
        return
    # kfp/__init__.py ends with `from kfp.client import Client`.
    sys.modules[_CLIENT] = stand_in = ModuleType(_CLIENT)
    stand_in.Client = None  # type: ignore[attr-defined]
    try:
        kfp = importlib.import_module("kfp")
    finally:
        del sys.modules[_CLIENT]
    for name in ("Client", "client"):
        if vars(kfp).get(name) in (None, stand_in):
            vars(kfp).pop(name, None)

    def load(name: str) -> Any:
        if name not in ("Client", "client"):
            raise AttributeError(f"module 'kfp' has no attribute {name!r}")
        client = importlib.import_module(_CLIENT)
        kfp.Client = client.Client  # type: ignore[attr-defined]
        return getattr(kfp, name)

    kfp.__getattr__ = load  # type: ignore[method-assign]
