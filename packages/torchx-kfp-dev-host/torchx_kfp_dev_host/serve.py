"""The program: a host in the foreground, with settings for the commands in other terminals."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from torchx_kfp.common.safe_files import write_file
from torchx_kfp.entrypoints.cli.display.printing import print_message, print_text
from torchx_kfp.errors import ArgumentError, explain
from torchx_kfp_dev_host.host import DevHost

_ABOUT = """\
This is not KFP: it has KFP's API, and its runs are processes of this machine.
In other terminals, first:"""
_NEXT = """\
Then, for example, in a project that `torchx-kfp init DIR` has written:
  torchx-kfp submit pipeline.py --workspace . --watch
  torchx-kfp runs
  torchx run -s kfp utils.echo --msg hi    (with torchx-kfp-scheduler)
Ctrl-C ends this host and the runs in progress."""


def serve(port: int, directory: str) -> None:
    """Run a host until SIGINT, SIGTERM or SIGHUP ends it.

    Raises:
        ArgumentError: the port or the folder is in use, or the folder cannot be written.
    """
    folder, token = Path(directory).absolute(), secrets.token_urlsafe(32)
    with _own(folder):
        try:
            host = DevHost(folder / "runs", port=port, token=token)
        except OSError as error:
            why = "another program uses it" if error.errno == errno.EADDRINUSE else explain(error)
            raise ArgumentError(
                f"The port {port} cannot be used: {why}. Give another one, such as --port 0 for a free one."
            ) from None
        settings = folder / "config.ini"
        given = {"host": host.url, "token_file": "token", "tracker_base": folder / "results", "storage_folder": "/"}
        text = "\n".join(["[kfp]", *(f"{name} = {value}" for name, value in given.items()), ""])
        write_file(folder / "token", token.encode(), durable=False, permissions=0o600)
        write_file(settings, text.encode(), durable=False, permissions=0o600)
        is_over = threading.Event()
        # A handler that raises would interrupt the ends of runs.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, lambda *_: is_over.set())
        with host:
            print_message(_ABOUT)
            print_text(f"export TORCHX_KFP_HOST={host.url} TORCHX_KFP_CONFIG={shlex.quote(os.fspath(settings))}")
            print_message(_NEXT)
            sys.stdout.flush()
            is_over.wait()
            print_message("Ending the runs in progress.")


@contextlib.contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Make a host's folder, and lock it."""
    try:
        (folder / "results").mkdir(0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)  # for the user alone, as the token in it
        with open(os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
    except BlockingIOError:
        raise ArgumentError(
            f"Another dev host uses the folder {str(folder)!r}. End it, or use another: --directory DIR"
        ) from None
    except OSError as error:
        raise ArgumentError(
            f"The folder {str(folder)!r} cannot be used: {explain(error)}. Give another one: --directory DIR"
        ) from None
