"""The options of a run: their types and their checks.

To add an option, add it with its type to ``RunKeywords``, and with its default to ``RunOptions``.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from torchx_kfp.common.text import did_you_mean, did_you_mean_path, shown
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.local.executors.mounts import Mount, parse_mount
from torchx_kfp.execution.pipeline.python_components import PROJECT

#: Seconds from asking a stage to end (SIGTERM) to killing it (SIGKILL).
GRACE = 10.0
#: The number of items that all loops of a run may have together: each is kept in memory.
MAX_ITEMS = 10_000


def default_parallelism() -> int:
    """Return the default number of concurrent stages: two for each CPU that this process may use, at least four.

    Stages wait for files and for each other's results much of the time. Limit stages that use all CPUs, such as
    training, with ``parallelism``.
    """
    return max(4, 2 * len(os.sched_getaffinity(0)))


class RunKeywords(TypedDict, total=False):
    """The options of a run: see ``RunOptions``. None means the default."""

    parallelism: int | None
    cache: bool | None
    grace: float | None
    timeout: float | None
    fail_fast: bool | None
    max_items: int | None
    docker: bool | None
    mounts: Sequence[str | Mount] | None
    copy_from: Sequence[str] | None
    directory: str | os.PathLike[str] | None
    kfp_workspace: str | os.PathLike[str] | None


@dataclass(frozen=True)
class RunOptions:
    """The options of a run.

    Attributes:
        parallelism: the number of stages that run concurrently. By default, two for each CPU that this process
            may use, at least four.
        cache: whether tasks that KFP would cache reuse outputs of earlier runs in the same output folder (see
            ``cache``).
        grace: seconds between a signal to processes and SIGKILL.
        timeout: seconds after which the run is stopped and fails. Default: the pipeline's own limit, if any.
        fail_fast: whether the first failure of a stage ends the run; exit tasks and tasks that ignore failures still
            run.
        max_items: the maximum number of items in all loops together.
        docker: whether stages run in containers of their images, with Docker or Podman.
        mounts: local folders and files that those containers see, as ``SRC[:DST][:ro]``. They always see
            their own folder, with copies of the artifacts that they take, and a local tracker base.
        copy_from: URLs from which, or from below which, artifacts may be copied besides object stores.
        directory: the folder in which stages run and find their scripts. Default: the current directory.
        kfp_workspace: the folder that stages share as KFP's workspace. Default: ``workspace`` in the run's folder.
        python_path: PYTHONPATH at the start of the run; not a keyword.
        project: the folder in it that stands for the image, which stages with a workspace do not get; not a keyword.
    """

    parallelism: int = field(default_factory=default_parallelism)
    cache: bool = True
    grace: float = GRACE
    timeout: float | None = None
    fail_fast: bool = False
    max_items: int = MAX_ITEMS
    docker: bool = False
    mounts: tuple[Mount, ...] = ()
    copy_from: tuple[str, ...] = ()
    directory: str = field(default_factory=os.getcwd)
    kfp_workspace: str = ""
    python_path: str = field(default_factory=lambda: os.environ.get("PYTHONPATH", ""))
    project: str = field(default_factory=lambda: os.environ.get(PROJECT, ""))

    def __post_init__(self) -> None:
        """Raise ArgumentError for a value of the wrong type or out of range."""
        _verify_count("parallelism", self.parallelism)
        _verify_count("max_items", self.max_items)
        _verify_seconds("grace", self.grace, may_be_zero=True)
        if self.timeout is not None:
            _verify_seconds("timeout", self.timeout)
        if self.mounts and not self.docker:
            raise ArgumentError(
                "Mounts are for stages in containers, and there are none: processes see all local files. Add "
                "--docker (docker=True), or remove the mounts."
            )

    @classmethod
    def of(cls, keywords: RunKeywords) -> RunOptions:
        """Return the options for these keywords of ``run``.

        Raises:
            ArgumentError: an option has the wrong type, or is out of range.
            TypeError: there is no such option.
        """
        for name in keywords.keys() - RunKeywords.__annotations__.keys():
            raise TypeError(f"There is no option {name!r}.{did_you_mean(name, RunKeywords.__annotations__)}")
        given: dict[str, Any] = {name: value for name, value in keywords.items() if value is not None}
        directory = given.get("directory") or os.curdir
        if not os.path.isdir(directory):
            raise ArgumentError(
                f"directory must be a folder, in which stages run, but is {str(directory)!r}."
                f"{did_you_mean_path(directory)}"
            )
        for name in ("directory", "kfp_workspace"):
            if name in given:
                given[name] = os.path.abspath(given[name])
        if not isinstance(given.get("docker", False), bool):
            raise ArgumentError(f"docker must be True or False, but is {given['docker']!r}.")
        mounts = _listed("mounts", given.get("mounts", ()), "/data:/data:ro")
        given["mounts"] = tuple(mount if isinstance(mount, Mount) else parse_mount(mount) for mount in mounts)
        given["copy_from"] = tuple(_listed("copy_from", given.get("copy_from", ()), "https://example.com/data"))
        return cls(**given)

    def as_json(self) -> dict[str, Any]:
        """Return the options as ``run.json`` stores them."""
        return {**vars(self), "mounts": [str(mount) for mount in self.mounts]}

    def workspace_of(self, folder: str | os.PathLike[str]) -> str:
        """Return the workspace of the run in this folder."""
        return self.kfp_workspace or os.path.join(folder, "workspace")


def _listed(name: str, value: Any, example: str) -> Sequence[Any]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ArgumentError(f"{name} must be a list such as [{example!r}], but is {value!r}.")
    return value


def _verify_count(name: str, value: Any) -> None:
    if type(value) is not int or value < 1:  # True is an int, too
        raise ArgumentError(f"{name} must be an int, 1 or more, but is {shown(value)}.")


def _verify_seconds(name: str, value: Any, *, may_be_zero: bool = False) -> None:
    is_time = type(value) in (int, float) and 0 <= value <= threading.TIMEOUT_MAX
    if not is_time or (value == 0 and not may_be_zero):
        least = "0 or more" if may_be_zero else "more than 0"
        raise ArgumentError(f"{name} must be a number of seconds, {least}, but is {shown(value)}.")
