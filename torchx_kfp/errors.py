"""Every exception that torchx-kfp raises on purpose.

    TorchxKfpError
    ├── AppDefError          an AppDef that cannot become a KFP stage whole
    │   └── ChannelError     a pipeline channel where none can work
    ├── ReadsError           what a stage reads, or its tracker base, is unusable
    │   └── UnknownAliasError    an alias under which a stage reads nothing
    ├── OutputsError         results or artifacts that cannot be outputs of KFP
    │   └── UnknownOutputError   an output that a stage does not have
    ├── ProtocolError        the stage protocol's environment is malformed
    ├── NotInStageError      the process was not started as a stage
    ├── TrackerError         the tracker's store, its keys or its results
    │   ├── KeyRefusedError      a key that would leave the base or cannot be stored
    │   ├── ResultRefusedError   a result of a type or size that trackers do not take
    │   ├── CorruptResultError   what is stored under a key is not a result
    │   ├── MissingResultsError  a run that was read has recorded no results
    │   ├── MissingArtifactError a run has registered no artifact of that name
    │   └── MissingMetricError   a run has logged no metric of steps of that name
    ├── MissingExtraError    an extra of the installation is missing
    └── LocalRunError        running a compiled pipeline on this machine
        ├── UnsupportedPipelineError  the pipeline asks for what cannot run here
        ├── PipelineFileError         the file is not a compiled pipeline
        ├── ArgumentError             the pipeline's arguments are wrong
        │   └── UnknownRunError           there is no such run, or several fit
        ├── ContainerEngineError      no engine for containers answers
        ├── StageFailedError          a stage of the run failed
        └── StageNotFoundError        a run's result has no such stage

Errors that a caller can mend by changing an argument are ``ValueError`` too. ``exit_code`` is what the
command line returns for the error: 2 for a wrong call, 1 for everything else.
"""

from __future__ import annotations

import errno

__all__ = [
    "AppDefError",
    "ArgumentError",
    "ChannelError",
    "ContainerEngineError",
    "CorruptResultError",
    "KeyRefusedError",
    "LocalRunError",
    "MissingArtifactError",
    "MissingExtraError",
    "MissingMetricError",
    "MissingResultsError",
    "NotInStageError",
    "OutputsError",
    "PipelineFileError",
    "ProtocolError",
    "ReadsError",
    "ResultRefusedError",
    "StageFailedError",
    "StageNotFoundError",
    "TorchxKfpError",
    "TrackerError",
    "UnknownAliasError",
    "UnknownOutputError",
    "UnknownRunError",
    "UnsupportedPipelineError",
]


_NO_ROOM = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "the file is larger than a limit allows (ulimit -f)",
}


class TorchxKfpError(Exception):
    """The root of torchx-kfp's exceptions."""

    exit_code = 1


def explain(error: OSError) -> str:
    """What the system says, with the path; a disk without room is called that."""
    what = _NO_ROOM.get(error.errno or 0) or error.strerror or str(error)
    return f"{what}: {error.filename}" if error.filename else what


class AppDefError(TorchxKfpError, ValueError):
    """An AppDef cannot become a KFP stage without losing something."""


class ChannelError(AppDefError):
    """A pipeline channel stands where its value cannot be filled in."""


class ReadsError(TorchxKfpError, ValueError):
    """What a stage shall read, or its tracker base, cannot be used."""


class UnknownAliasError(ReadsError, KeyError):
    """A stage reads nothing under this alias."""

    __str__ = Exception.__str__  # KeyError's shows the message in quotes


class OutputsError(TorchxKfpError, ValueError):
    """What a stage shall publish, its results and artifacts, cannot be outputs of KFP."""


class UnknownOutputError(OutputsError, KeyError):
    """A stage has no output of this name."""

    __str__ = Exception.__str__


class ProtocolError(TorchxKfpError, ValueError):
    """The stage protocol's environment variables are malformed."""


class NotInStageError(TorchxKfpError, RuntimeError):
    """The process was not started as a tracked stage."""


class TrackerError(TorchxKfpError):
    """The tracker's store could not do what was asked."""


class KeyRefusedError(TrackerError, ValueError):
    """A key would leave the tracker base, or the store cannot hold it."""


class ResultRefusedError(TrackerError, ValueError):
    """A result has a type or a size that trackers do not take."""


class CorruptResultError(TrackerError, ValueError):
    """What is stored under a key is not a JSON object of results."""


class MissingResultsError(TrackerError, LookupError):
    """The run that was read has recorded no results."""


class MissingArtifactError(TrackerError, LookupError):
    """The run has registered no artifact of that name."""


class MissingMetricError(TrackerError, KeyError):
    """The run has logged no metric of steps under that name."""

    __str__ = TrackerError.__str__  # KeyError's has quotes around it


class MissingExtraError(TorchxKfpError, ImportError):
    """A feature needs an extra that is not installed."""

    exit_code = 2


class LocalRunError(TorchxKfpError):
    """A compiled pipeline could not be run on this machine."""


class UnsupportedPipelineError(LocalRunError, ValueError):
    """The pipeline asks for something that cannot run on this machine."""

    exit_code = 2


class PipelineFileError(LocalRunError, ValueError):
    """A file does not hold a pipeline."""

    exit_code = 2


class ArgumentError(LocalRunError, ValueError):
    """The arguments do not fit the pipeline's parameters."""

    exit_code = 2


class UnknownRunError(ArgumentError, LookupError):
    """There is no run of this name, or it fits several."""


class ContainerEngineError(LocalRunError):
    """Stages shall run in containers, and no engine that could do it answers."""


class StageFailedError(LocalRunError):
    """A stage of a run failed."""


class StageNotFoundError(LocalRunError, KeyError):
    """A run's result has no stage of that name, or several."""

    __str__ = LocalRunError.__str__  # KeyError's has quotes around it
