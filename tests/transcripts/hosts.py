"""A KFP host that transcripts find, with runs that have ended."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.execution.host.calling import ended, wait_until
from tests.execution.host.commands import write_pipelines
from tests.fake_kfp import KfpHost
from tests.pages_host import Around
from tests.programs import PROGRAM, Program
from torchx_kfp.host import submit


@functools.cache
def _running_host() -> Around:
    """Start a host with runs that have ended, for as long as this process goes on.

    The newest is ``a long run``, which was canceled; ``twice`` is the name of two.
    """
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="host-")))
    base = folder / "base"
    base.mkdir()
    write_pipelines(folder, base)
    host = stack.enter_context(KfpHost(folder / "runs"))

    def start(pipeline: str, name: str, **arguments: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # two have the same name
            run = submit(str(folder / f"{pipeline}.yaml"), arguments, name=name, host=host.url)
        if pipeline == "long":
            wait_until(lambda: run.read().run.attempts_at("script") and run.fetch(["script"]))
            wait_until(
                lambda: run.fetch(["script"]) and run.read().run.attempts_at("script")[0].log_file.stat().st_size
            )
            run.terminate()
        ended(host, run.run_id)

    start("good", "a good run", tracker_base=str(base))
    start("good", "a cached run", tracker_base=str(base))
    start("bad", "a bad run")
    start("plain", "twice")
    start("plain", "twice")
    start("long", "a long run", go=str(folder / "never"))
    for minutes, made in enumerate(reversed(host.runs.values())):
        # A host knows whole seconds; those that begin in one have no order.
        made.record.created -= 60 * minutes
    environ = {"TORCHX_KFP_HOST": host.url, "TORCHX_KFP_TRACKER_BASE": str(base)}
    return Around(environ, {"http://kfp": host.url, "/mnt/base": str(base)})


def a_host(folder: Path) -> AbstractContextManager[Around]:
    """Give the user a host with runs that have ended, the tracker base of their stages, and their pipelines."""
    around = _running_host()
    write_pipelines(folder, Path(around.environ["TORCHX_KFP_TRACKER_BASE"]))
    return contextlib.nullcontext(replace(around, environ={**around.environ, "HOME": str(folder / "home")}))


@contextlib.contextmanager
def a_dev_host(folder: Path) -> Iterator[Around]:
    """Start ``torchx-kfp dev-host`` in the folder, and end it like Ctrl-C does."""
    command = [PROGRAM, "dev-host", "--port", "0"]
    environ = Program("", folder).environ()
    streams: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=environ, text=True, **streams) as process:
        try:
            assert process.stdout is not None
            exported = dict(re.findall(r"(TORCHX_\w+)=(\S+)", process.stdout.readline()))
            yield Around({**exported, "HOME": environ["HOME"]}, {"http://dev-host": exported["TORCHX_KFP_HOST"]})
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert not [pid for pid in filter(str.isdigit, os.listdir("/proc")) if _is_in(folder, pid)]


def _is_in(folder: Path, pid: str) -> bool:
    """Return whether a process has been started in a folder."""
    try:
        return Path(os.readlink(f"/proc/{pid}/cwd")).is_relative_to(folder)
    except OSError:  # it has ended, or is another user's
        return False
