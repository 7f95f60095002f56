"""The exceptions that torchx-kfp raises; the tree is in docs/reference/python.md.

Errors that the caller can fix by changing an argument are also ``ValueError``. ``exit_code`` is the exit code of the
command line: 2 for invalid input, 1 for everything else.
"""

from __future__ import annotations

import errno

_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file is larger than a limit allows (ulimit -f)",
}


class TorchxKfpError(Exception):
    """The base class of all exceptions in torchx-kfp."""

    exit_code = 1


def explain(error: OSError) -> str:
    """Return the operating system's message with the path; a full disk is named as such."""
    what = _NO_ROOM.get(error.errno or 0) or error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what


class AppDefError(TorchxKfpError, ValueError):
    """An AppDef, function, option, channel or search cannot be translated completely."""


class UnknownNameError(TorchxKfpError, KeyError):
    """No stage, result, output, alias or metric has this name. The message lists the existing names."""

    __str__ = Exception.__str__  # KeyError would put the message in quotes


class NotInStageError(TorchxKfpError, RuntimeError):
    """The process was not started as a tracked stage."""


class TrackerError(TorchxKfpError):
    """The tracker cannot read or write: its storage fails, or its input is invalid, such as a variable of the stage."""


class TrackerBaseError(TrackerError, ValueError):
    """The tracker base cannot be used: it is malformed, is not a directory or bucket, or needs a missing package."""

    exit_code = 2


class MissingCredentialsError(TrackerError):
    """The storage of a tracker base needs credentials, and none were found."""


class RefusedError(TrackerError, ValueError):
    """The tracker does not accept a key, a result, metadata or an artifact. Nothing was written."""


class CorruptResultError(TrackerError, ValueError):
    """Stored records are corrupt: malformed results, or changed files of an artifact."""


class NotRecordedError(TrackerError, LookupError):
    """The run did not record this: any results, or an artifact with this name and its files."""


class MissingExtraError(TorchxKfpError, ImportError):
    """A feature needs an extra that is not installed."""

    exit_code = 2


class HostError(TorchxKfpError):
    """A request to a KFP host failed."""


class HostSettingsError(HostError, ValueError):
    """No KFP host is configured, or its connection settings are wrong."""

    exit_code = 2


class HostUnreachableError(HostError):
    """The KFP host does not answer, or the answer is not from KFP."""


class HostAnswerLostError(HostUnreachableError):
    """The response of a KFP host was lost; the request, such as starting a run, may have succeeded."""


class HostCredentialsError(HostError):
    """The KFP host rejected the credentials, or they lack permission."""


class HostNotFoundError(HostError, LookupError):
    """The KFP host does not have the requested object."""


class HostRefusedError(HostError, ValueError):
    """The KFP host rejected a request as invalid."""

    exit_code = 2


class PipelineError(TorchxKfpError, ValueError):
    """The pipeline cannot be read, or cannot run locally or on KFP."""

    exit_code = 2


class ArgumentError(TorchxKfpError, ValueError):
    """An argument, or a file or folder that it names, cannot be used."""

    exit_code = 2


class UnknownRunError(ArgumentError, LookupError):
    """No run has this name, or several match it."""


class StageFailedError(TorchxKfpError):
    """A stage of a run failed."""
