"""The events of a run, and their form as JSON objects, one on each line.

``torchx-kfp run --json`` prints this form and a run's folder keeps it (see ``journal``). ``encode_event`` and
``decode_event`` are inverses of each other. Readers must ignore fields and events that they do not know.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import time
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from torchx_kfp.common.text import shown
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.vocabulary import State

#: The version of the form. It increases by one with each change that readers of the old form would misread.
VERSION = 1
#: The reason of a ``RunEnding`` on a KFP host, where no second signal ends a run at once.
CANCELED_ON_KFP = "Canceled on KFP"
#: Seconds that an application has after SIGTERM there: 0.2-1.0 s were seen.
KFP_GRACE = 1.0


@dataclass(frozen=True)
class RunStarted:
    """The first event of a run, and of each retry on KFP.

    A local run has a ``folder``, and one on a KFP host a ``link`` to its page in KFP's UI. ``not_applied``
    lists settings of the pipeline that have no effect in local runs, ``arguments`` has the values of all parameters,
    and ``differs`` lists, as messages, the findings of a check, such as where KFP's backend would behave differently.
    ``time`` is in seconds since the epoch, here and below.
    """

    pipeline: str
    run_id: str
    folder: Path | None = None
    not_applied: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)
    retried: bool = False
    time: float = field(default_factory=time.time)
    differs: tuple[str, ...] = ()
    link: str = ""


@dataclass(frozen=True)
class LoopStarted:
    """A loop has started, with this number of iterations, each with these stages (named without indices)."""

    name: str
    iterations: int
    stages: tuple[str, ...]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StageWaiting:
    """A stage is queued: its inputs are known."""

    name: str
    task: str
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StagePending:
    """A stage cannot start yet, or the reason has changed; an empty reason means that it can start.

    On KFP, ``reason`` is Kubernetes' message about its pod: ``Unschedulable: 0/1 nodes are available: 1 Insufficient
    cpu``. In a local run, the stage waits for GPUs: ``waits for 1 of this machine's 2 GPUs``.
    """

    name: str
    task: str
    reason: str
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StageStarted:
    """A stage's process has started.

    ``attempt`` counts from 1, ``inputs`` are its parameters, and ``artifacts`` those that it takes.
    """

    name: str
    pod_name: str
    attempt: int
    task: str = ""
    log_file: Path | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StageReplicas:
    """The number of running replicas of a distributed stage has changed; ``total`` is how many it has."""

    name: str
    running: int
    total: int
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StageRetried:
    """An attempt has failed; the next one follows after ``delay`` seconds."""

    name: str
    attempt: int
    reason: str
    delay: float
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class PipelineRetried:
    """On KFP, a nested pipeline has failed; all of its stages run again after ``delay`` seconds."""

    name: str
    attempt: int
    reason: str
    delay: float
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class StageFinished:
    """A stage has finished or will not run.

    ``again`` marks a second event, with later results of a stage from KFP's cache.
    """

    result: StageResult
    time: float = field(default_factory=time.time)
    again: bool = False


@dataclass(frozen=True)
class RunEnding:
    """The run is being terminated; its running stages have ``grace`` seconds to stop.

    ``reason`` is the name of a signal, or a clause such as ``The time limit of 60 s was exceeded`` or ``train failed``.
    """

    reason: str
    grace: float
    time: float = field(default_factory=time.time)


@dataclass(frozen=True)
class RunFinished:
    """The last event of a run; killed runs lack it. ``duration`` is in seconds since the run was started or retried."""

    run_id: str
    state: State
    duration: float
    outputs: Mapping[str, Any] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact | list[Artifact]] = field(default_factory=dict)
    #: Why the run ended, unless a stage failed: the name of a signal, or a clause about the time limit.
    reason: str = ""
    time: float = field(default_factory=time.time)


Event: TypeAlias = (
    RunStarted
    | LoopStarted
    | StageWaiting
    | StagePending
    | StageStarted
    | StageReplicas
    | StageRetried
    | PipelineRetried
    | StageFinished
    | RunEnding
    | RunFinished
)
Listener: TypeAlias = Callable[[Event], None]

#: All events by their names in JSON: ``stage_started`` is StageStarted.
NAMES: dict[str, type[Any]] = {
    re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in get_args(Event)
}
_PATHS = {"folder", "log_file"}
#: Limits of times and durations in seconds, which dates have as well, and of counts, which JSON has exactly.
_MOST: dict[Any, float] = {float: 1e11, int: 2**53}
#: The types in JSON of values that are not dataclasses.
_IN_JSON: dict[Any, Any] = {kind: kind for kind in (str, int, bool, list, types.NoneType)}
_IN_JSON |= {Any: object, float: (int, float), tuple: list, Path: str, State: str}
#: The types of a dataclass's fields, and the parts of an annotation: runs have thousands of events.
_hints: Callable[[Any], dict[str, Any]] = functools.cache(get_type_hints)
_parts: Callable[[Any], tuple[Any, tuple[Any, ...]]] = functools.cache(lambda hint: (get_origin(hint), get_args(hint)))
_T = TypeVar("_T")


def encode_event(event: Event) -> dict[str, Any]:
    """Return the event as a JSON object: ``{"event": "stage_started", "time": ..., "name": "train[2]", ...}``."""
    name = next(name for name, kind in NAMES.items() if type(event) is kind)
    content = {item.name: getattr(event, item.name) for item in dataclasses.fields(event)}
    when = content.pop("time")
    if isinstance(event, StageFinished):
        content = {item.name: getattr(event.result, item.name) for item in dataclasses.fields(event.result)}
        content.update({"again": True} if event.again else {})
    if isinstance(event, RunStarted):
        content["version"] = VERSION
    return {"event": name, "time": when, **{key: _encode(key, value) for key, value in content.items()}}


def decode_event(content: Mapping[str, Any]) -> Event | None:
    """Return the event that ``encode_event`` made this object from; None if this version does not know it.

    Raises:
        ValueError: the object is not an event.
    """
    try:
        kind = NAMES.get(content["event"])
        # The result of a stage has no object of its own.
        return None if kind is None else read_fields(kind, {**content, "result": content})
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is not an event of a run ({type(error).__name__}: {error})") from None
    except ValueError as error:
        raise ValueError(f"it is not an event of a run: {error}") from None


def _encode(key: str, value: Any) -> Any:
    if key in _PATHS:
        return None if value is None else str(value)
    if key == "state":
        return str(value)
    if key == "artifacts":
        return {
            name: [_encode_artifact(item) for item in made] if isinstance(made, list) else _encode_artifact(made)
            for name, made in value.items()
        }
    return list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, Mapping) else value


def _encode_artifact(artifact: Artifact) -> dict[str, Any]:
    """Return an artifact as a JSON object."""
    kind = {"type": artifact.type.title, "version": artifact.type.version}
    content = {"name": artifact.name, **kind, "uri": artifact.uri, "metadata": dict(artifact.metadata)}
    return {**content, "custom_path": artifact.custom_path} if artifact.custom_path else content


def read_fields(kind: type[_T], content: Mapping[str, Any]) -> _T:
    """Return the dataclass with these values of its fields in JSON. Unknown fields are left out.

    Raises:
        ValueError: a value does not fit its field; the message continues a sentence that begins with the dataclass.
        TypeError: a field is missing.
    """
    return kind(**{name: _read(hint, content[name], name) for name, hint in _hints(kind).items() if name in content})


def _read(hint: Any, value: Any, name: str) -> Any:
    origin, args = _parts(hint)
    for kind in args if origin is types.UnionType else (hint,):
        if _fits(kind, value):
            break
    else:
        raise ValueError(f"its {name!r} is {shown(value)}")
    origin, args = _parts(kind)
    if origin is Mapping:
        return {key: _read(args[1], item, name) for key, item in value.items()}
    if origin is not None:
        return (tuple if origin is tuple else ArtifactList)(_read(args[0], item, name) for item in value)
    if kind is Artifact:
        of_type = {"title": value["type"], "version": value["version"]}
        return read_fields(Artifact, {**value, "type": of_type})
    if kind in (Path, State):
        return kind(value)
    return read_fields(kind, value) if _in_json(kind) is dict else value


def _fits(hint: Any, value: Any) -> bool:
    """Return whether a value in JSON fits an annotation that is not a union."""
    if not isinstance(value, _in_json(hint)):
        return False
    # NaN and True are not numbers of seconds.
    return hint not in _MOST or (not isinstance(value, bool) and abs(value) <= _MOST[hint])


@functools.cache
def _in_json(hint: Any) -> Any:
    """Return the types that values with an annotation have in JSON; those of dataclasses are objects."""
    return _IN_JSON.get(get_origin(hint) or hint, dict)
