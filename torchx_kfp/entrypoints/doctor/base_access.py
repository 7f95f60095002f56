"""Checks of a tracker base from this machine: its driver, its credentials, and that it can be written and read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torchx_kfp.common.text import shown
from torchx_kfp.entrypoints.doctor.verdicts import Verdict, missing, ok, said, within
from torchx_kfp.errors import MissingCredentialsError, TrackerError
from torchx_kfp.execution.host.settings import without_password
from torchx_kfp.tracking.recorder import Recorder

#: Seconds that the storage may take.
_SECONDS = 45.0


def without_passwords(base: str, verdicts: Iterator[Verdict]) -> Iterator[Verdict]:
    """Yield the verdicts without what may be a user and a password in the tracker base, which errors of drivers repeat.

    Args:
        base: the tracker base.
        verdicts: what was found with it.
    """
    user = base.rpartition("@")[0].rpartition("//")[2]
    for verdict in verdicts:
        yield replace(verdict, found=verdict.found.replace(f"{user}@", "...@")) if user else verdict


def check_base(base: str) -> Iterator[Verdict]:
    """Yield verdicts about a tracker base. A small file is written, read and removed.

    Args:
        base: the tracker base.
    """
    subject = "tracker base"
    name = shown(without_password(base))
    try:
        within(_SECONDS, lambda: Recorder.open(base).verify_writable())
    except MissingCredentialsError as error:
        yield missing("credentials of the tracker base", said(error))
    except TrackerError as error:
        yield missing(subject, said(error))
    except TimeoutError as error:
        yield missing(subject, f"{name}: {error}.", "Check the address of the storage, and your network.")
    except Exception as error:  # of a driver of fsspec
        yield missing(subject, f"{name}: {said(error)}")
    else:
        yield ok(subject, f"{name} was written and read from here; the file is removed.")
