"""A KFP host that transcripts find, with runs that have ended."""

from __future__ import annotations

import atexit
import contextlib
import functools
import tempfile
import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tests.execution.host.calling import ended, wait_until
from tests.execution.host.commands import write_pipelines
from tests.fake_kfp import KfpHost
from tests.pages_host import Around
from torchx_kfp.host import connect, submit


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
            connect(host=host.url).terminate(run.run_id)
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
        made.forget()
    environ = {"TORCHX_KFP_HOST": host.url, "TORCHX_KFP_TRACKER_BASE": str(base)}
    return Around(environ, {"http://kfp": host.url, "/mnt/base": str(base)})


def a_host(folder: Path) -> AbstractContextManager[Around]:
    """Give the user a host with runs that have ended, the tracker base of their stages, and their pipelines."""
    around = _running_host()
    write_pipelines(folder, Path(around.environ["TORCHX_KFP_TRACKER_BASE"]))
    return contextlib.nullcontext(replace(around, environ={**around.environ, "HOME": str(folder / "home")}))
