"""``torchx-kfp cancel``: end a local run, from any directory, or one on a KFP host."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import click

from torchx_kfp.common.text import listed
from torchx_kfp.entrypoints.cli.display.printing import print_message, this_command
from torchx_kfp.entrypoints.cli.lookup import Lookup, finds_runs, host_words
from torchx_kfp.errors import ArgumentError, TorchxKfpError
from torchx_kfp.execution.runs.history import RunReader
from torchx_kfp.execution.runs.journal import is_runner, is_running, read_pid
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.vocabulary import State

#: Seconds that a runner gets after its stages' grace period, to kill the remaining processes.
_BEYOND_GRACE = 30.0
#: Seconds to wait for the end of a run on a host.
ON_HOST = 120.0


@click.command("cancel")
@click.argument("run")
@finds_runs()
def cancel_command(run: str, lookup: Lookup) -> None:
    """End RUN like Ctrl-C: its stages get SIGTERM, and SIGKILL after their grace period.

    The command waits until the run has ended, on a host for up to two minutes. If the local runner was killed, the
    command ends its remaining stages.
    """
    source = lookup.find(run, changes="cancel", reads="none")
    record = source.read()
    if isinstance(source, RunReader) and record.run.state is State.INTERRUPTED:
        end_left_stages(source.folder, record)
        return
    if not record.is_running:
        raise ArgumentError(
            f"The run {record.run_id} has already ended ({record.run.state}): there is nothing to cancel."
        )
    waits_for, patience = listed(record.run.active), ON_HOST
    if isinstance(source, RunReader):
        grace = _grace_of(record)
        waits_for, patience = waits_for and f"{waits_for}, for up to {grace:g} s", grace + _BEYOND_GRACE
        is_asked = _terminate(source.folder, record)
    else:
        source.terminate()
        is_asked = True
    if is_asked:
        print_message(f"Canceling {record.run_id}: waiting for {waits_for or 'its end'}.")
    deadline = time.monotonic() + patience
    for record in source.follow(closely=True):
        if not record.is_running or time.monotonic() < deadline:
            continue
        if isinstance(source, RunReader):
            raise TorchxKfpError(
                f"The run {record.run_id} did not end within {patience:g} s of the request. Its process is "
                f"{read_pid(source.folder)}."
            )
        again = this_command("watch", record.run_id, *host_words(lookup.flags))
        print_message(f"The host is still ending the run. To see its state: {again}")
        return
    state = record.run.state
    is_canceled = state in (State.CANCELED, State.INTERRUPTED)
    how = "is canceled" if is_canceled else f"ended before it was canceled ({state})"
    print_message(f"The run {record.run_id} {how}.")
    for sentence in source.left_replicas():
        print_message(sentence)


def end_left_stages(folder: Path, record: RunRecord) -> None:
    """End the processes and containers of a run whose runner was killed."""
    from torchx_kfp.execution.local.executors.engine import remove_containers
    from torchx_kfp.execution.local.executors.process import kill_marked, run_mark

    mark = run_mark(folder)
    kill_marked(mark)
    if record.options.get("docker"):
        remove_containers(record.run_id, mark)
    print_message(f"The runner of {record.run_id} was killed earlier; its remaining processes have been ended.")


def _grace_of(record: RunRecord) -> float:
    from torchx_kfp.execution.local.run_options import GRACE

    grace = record.options.get("grace")
    return float(grace) if isinstance(grace, int | float) else GRACE


def _terminate(folder: Path, record: RunRecord) -> bool:
    """Send SIGTERM to the run's process only; return False if it has already ended.

    Raises:
        ArgumentError: the process runs on another machine, or cannot be signaled.
    """
    pid = read_pid(folder)
    with contextlib.suppress(ProcessLookupError):
        if pid is not None:
            # Check and signal the same process, even if its id is reused meanwhile.
            handle = os.pidfd_open(pid)
            try:
                if is_runner(pid, folder):
                    signal.pidfd_send_signal(handle, signal.SIGTERM)
                    return True
            finally:
                os.close(handle)
    if not is_running(folder):
        return False
    process = f"process {pid} is not its runner" if pid is not None else "its process is not recorded"
    raise ArgumentError(
        f"The run {record.run_id} is running, but its process cannot be found ({process}): it is on another machine, "
        "in another container, or another user's. Cancel it there."
    )
