"""How a run is run, and what is said about wrong options."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx_kfp.errors import ArgumentError
from torchx_kfp.runs.history import RunRecord
from torchx_kfp.text import shown

#: Items that all loops of a run have at most, unless told otherwise: each is kept in memory.
MAX_ITEMS = 10_000


@dataclass(frozen=True)
class Options:
    """How a run is run; a resumed one has them again.

    ``grace``, ``timeout`` and ``condition_time`` are in seconds, ``directory`` is where stages run.
    """

    parallelism: int
    grace: float
    timeout: float | None
    fail_fast: bool
    max_items: int
    condition_time: float
    directory: str
    workspace: str
    python_path: str
    cache: bool
    docker: bool | Sequence[str]
    mounts: Sequence[str]
    #: Paths of this machine that arguments name.
    named: Sequence[str]


def default_parallelism() -> int:
    """How many stages run at once unless told otherwise: two for each CPU that this process may use, at least four.

    Stages wait for files and for each other's results much of the time; those that use every CPU by themselves
    (training) are best limited with ``parallelism``.
    """
    return max(4, 2 * len(os.sched_getaffinity(0)))


def options_of(record: RunRecord) -> Options:
    """The options that the run had."""
    try:
        return Options(**{item.name: record.options[item.name] for item in dataclasses.fields(Options)})
    except KeyError as error:
        raise ArgumentError(
            f"The run {record.run_id} cannot go on: {str(record.folder)!r} does not say with which {error.args[0]!r} "
            "it was run. Start a new run."
        ) from None


def verify_limits(max_items: Any, condition_time: Any) -> None:
    """Raises ArgumentError for limits that make no sense; None is none."""
    if max_items is not None and (not isinstance(max_items, int) or max_items < 1):
        raise ArgumentError(f"max_items must be an int, 1 or more, and is {shown(max_items)}.")
    is_time = isinstance(condition_time, (int, float)) and 0 < condition_time <= threading.TIMEOUT_MAX
    if condition_time is not None and not is_time:
        raise ArgumentError(f"condition_time must be a number of seconds, more than 0, and is {shown(condition_time)}.")


def verify_options(arguments: Any, output_dir: Any, parallelism: Any, grace: Any, timeout: Any) -> None:
    """Raises ArgumentError for a value of another type, or one that makes no sense."""
    if arguments is not None and not isinstance(arguments, Mapping):
        raise ArgumentError(
            f"arguments must be a dict of names and values, such as {{'lr': 0.1}}, and is {shown(arguments)}."
        )
    if output_dir is not None and not isinstance(output_dir, (str, os.PathLike)):
        raise ArgumentError(f"output_dir must be the path of a folder, and is {shown(output_dir)}.")
    if parallelism is not None and (not isinstance(parallelism, int) or parallelism < 1):
        raise ArgumentError(f"parallelism must be an int, 1 or more, and is {shown(parallelism)}.")
    if not isinstance(grace, (int, float)) or not 0 <= grace <= threading.TIMEOUT_MAX:
        raise ArgumentError(f"grace must be a number of seconds, 0 or more, and is {shown(grace)}.")
    if timeout is not None and (not isinstance(timeout, (int, float)) or not 0 < timeout <= threading.TIMEOUT_MAX):
        raise ArgumentError(f"timeout must be a number of seconds, more than 0, and is {shown(timeout)}.")
