"""A tracker for ``torchx.tracker`` on MLflow: results become metrics of MLflow's runs, metadata becomes parameters.

It only writes, and only in the first process of a stage. MLflow gets copies of the records of ``current_run()`` and
TorchX's ``AppRun``, in the same calls, after they are stored under the tracker base. After a failure, a server gets no
more records, and a warning is logged. Each execution has one run in MLflow, with the tag ``torchx.run_id``. All calls
name the run, so an application that uses MLflow itself keeps its own active run.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import numbers
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from torchx_kfp.common.extras import install_line
from torchx_kfp.common.text import shown
from torchx_kfp.contract import protocol
from torchx_kfp.errors import NotInStageError, TrackerError
from torchx_kfp.tracking.curves import Point
from torchx_kfp.tracking.entries import warn_once
from torchx_kfp.tracking.lineage import declared_sources, rank

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
    from torchx.tracker.api import TrackerBase
except ImportError as error:
    raise TrackerError(
        f'The tracker "mlflow" needs MLflow and TorchX in the image ({error}): {install_line("mlflow")}. Or leave it '
        "out of trackers= of the stage."
    ) from None

#: MLflow's own environment variables.
_URI, _EXPERIMENT_NAME, _EXPERIMENT_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
#: Matches ``localhost:5000``, which MLflow would use as a folder.
_HOST = re.compile(r"[\w.-]+:\d+(/.*)?")
#: The default experiment. A stage does not know the name of its pipeline.
_DEFAULT_EXPERIMENT = "torchx-kfp"

#: The prefix of this project's tags. MLflow reserves its own in the same way.
_OWN = "torchx."
RUN_ID_TAG = f"{_OWN}run_id"
_REFUSED = re.compile(r"[^\w\-. /]")
#: The longest name in characters. MLflow accepts 250, but tags of artifacts have a prefix.
_LONGEST_NAME = 220

#: MLflow's settings for these calls, unless the user has set them. With the defaults, a server that hangs takes
#: minutes.
_SHORT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}

_logger = logging.getLogger(__name__)


@contextlib.contextmanager
def _short_timeouts() -> Iterator[None]:
    given = {name: text for name, text in _SHORT.items() if name not in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)


def _copies(record: Callable[..., None]) -> Callable[..., None]:
    """Decorate a recording method: its errors are only logged, because the record is already stored."""

    @functools.wraps(record)
    def call(self: MlflowTracker, run_id: str, /, *given: Any, **named: Any) -> None:
        with self._lock:
            if self._client is None:
                return
            try:
                with _short_timeouts():
                    record(self, run_id, *given, **named)
            except Exception as error:
                kind = type(error).__qualname__
                text = (
                    f"The tracker 'mlflow' failed: records of the execution {run_id!r} are missing in the experiment "
                    f"{self._experiment!r}. The results under the tracker base are complete."
                )
                # The server answered, and refused this record.
                if isinstance(error, MlflowException) and 400 <= error.get_http_status_code() < 500:
                    warn_once(f"{text} Further errors of this kind are not shown. {kind}: {error}", f"mlflow {kind}")
                else:
                    self._client = None
                    _logger.warning("%s MLflow gets no more records of this process. %s: %s", text, kind, error)

    return call


class MlflowTracker(TrackerBase):  # type: ignore[misc]  # TorchX is skipped by mypy
    """Runs in one experiment of an MLflow server.

    Args:
        tracking_uri: the URI of the server.
        experiment: the name of the experiment, which is created if it does not exist, or its id.
        is_id: whether ``experiment`` is the id.
        is_main: whether this is the first process of its stage; others do not record anything.
    """

    def __init__(self, tracking_uri: str, experiment: str, *, is_id: bool = False, is_main: bool = True) -> None:
        # A client of a database creates its tables, which several processes cannot do concurrently.
        self._client: Any = MlflowClient(tracking_uri=tracking_uri) if is_main else None
        self._experiment = experiment
        self._is_id = is_id
        self._open: dict[str, str] = {}  # by execution id
        self._parameters: dict[tuple[str, str], str] = {}
        self._last_time = 0
        self._last_steps: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, bool], object] = {}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # another thread may hold the old one
        self._pid = os.getpid()
        atexit.register(self._end)

    @_copies
    def add_metadata(self, run_id: str, /, **kwargs: object) -> None:
        """Record numbers as metrics and other values as tags, which can be set again, unlike parameters."""
        # MLflow's latest value of a metric is that with the latest time; of equal times, the largest value.
        self._last_time = now = max(int(time.time() * 1000), self._last_time + 1)
        metrics, tags = [], {}
        for name, value in kwargs.items():
            key = self._name(name)
            try:
                if isinstance(value, numbers.Real):
                    metrics.append(Metric(key, float(value), now, self._last_steps.get((run_id, key), 0)))
                    continue
            except OverflowError:  # too large for a double
                pass
            tags[key] = value if isinstance(value, str) else _to_json(value)
        self._client.log_batch(self._run(run_id), metrics=metrics, tags=[RunTag(*tag) for tag in tags.items()])

    @_copies
    def add_parameters(self, run_id: str, parameters: Mapping[str, object]) -> None:
        """Record hyperparameters; a dict becomes several. MLflow keeps the first value; new ones become tags."""
        mlflow_run = self._run(run_id)
        given: dict[str, str] = {}
        for path, text in _flat(parameters):
            given[self._name(".".join(path), path)] = text
        changed = {key: text for key, text in given.items() if self._parameters.setdefault((run_id, key), text) != text}
        if changed:
            warn_once(f"MLflow keeps the first value of a parameter. Others are tags: {', '.join(changed)}.")
        params = [Param(*it) for it in given.items() if it[0] not in changed]
        self._client.log_batch(mlflow_run, params=params, tags=[RunTag(*it) for it in changed.items()])

    @_copies
    def log_steps(self, run_id: str, points: Mapping[str, Sequence[Point]]) -> None:
        """Record metrics of steps."""
        entries = []
        for name, series in points.items():
            key = self._name(name)
            # MLflow shows a metric's value at the last step, so a result of this name needs a step after it.
            self._last_steps[run_id, key] = max(self._last_steps.get((run_id, key), 0), *(it.step for it in series))
            entries += [Metric(key, point.value, int(point.time * 1000), point.step) for point in series]
        self._client.log_batch(self._run(run_id), metrics=entries)

    @_copies
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Upload a local file or folder under the artifact's name. A URL becomes a tag."""
        mlflow_run, key = self._run(run_id), self._name(name)
        local = path.removeprefix("file://")
        if local and "://" not in local:
            is_folder = os.path.isdir(local)
            (self._client.log_artifacts if is_folder else self._client.log_artifact)(mlflow_run, local, key)
            path = f"runs:/{mlflow_run}/{key}" if is_folder else f"runs:/{mlflow_run}/{key}/{os.path.basename(local)}"
        tags = {"artifact": path, "artifact_metadata": _to_json(metadata or {})}
        self._client.log_batch(mlflow_run, tags=[RunTag(f"{_OWN}{kind}.{key}", text) for kind, text in tags.items()])

    @_copies
    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run reads another run."""
        self._client.log_batch(self._run(run_id), tags=[RunTag(*_source_tag(source_id, artifact_name))])

    def _cannot_read(self, *args: object, **options: object) -> NoReturn:
        """Refuse to read.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            "MLflow only gets copies. Read them with mlflow.MlflowClient, or read the records with "
            "torchx_kfp.tracking.current_run() or the tracker torchx_kfp of torchx.tracker."
        )

    artifacts = metadata = sources = lineage = run_ids = _cannot_read

    def _name(self, name: str, path: tuple[str, ...] = ()) -> str:
        """Return MLflow's name, and log a warning if another metric, tag, artifact or parameter already has it."""
        key = _name_for_mlflow(name)
        other = self._names.setdefault((key, bool(path)), path or name)
        if other != (path or name):
            both = f"{shown(other)} and {shown(path or name)}"
            warn_once(f"{both} have the same name in MLflow, {key!r}: the last one counts.")
        return key

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _run(self, run_id: str) -> str:
        """Return MLflow's run for this execution id. It already exists if torchrun restarted this process."""
        if run_id not in self._open:
            # These characters are special in MLflow's filters. Execution ids of pipelines do not have them.
            value = run_id.replace("%", "%25").replace("'", "%27").replace("\\", "%5C")
            experiment = self._experiment if self._is_id else self._find_experiment()
            if found := self._client.search_runs([experiment], f"tags.`{RUN_ID_TAG}` = '{value}'"):
                self._client.update_run(found[0].info.run_id, status="RUNNING")
            else:
                run, _, name = run_id.partition("/")
                tags = {RUN_ID_TAG: value, f"{_OWN}pipeline_run": run}
                tags |= {f"{_OWN}stage": name.partition("/")[0]} if name else {}
                tags |= dict(map(_source_tag, _declared_sources(run_id)))
                found = [self._client.create_run(experiment, tags=tags, run_name=name or run_id)]
            self._open[run_id] = found[0].info.run_id
            self._parameters |= {(run_id, key): text for key, text in found[0].data.params.items()}
        return self._open[run_id]

    def _find_experiment(self) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is None:
            try:
                return str(self._client.create_experiment(self._experiment))
            except MlflowException:
                experiment = self._client.get_experiment_by_name(self._experiment)
                if experiment is None:  # otherwise, another stage created it
                    raise
        return str(experiment.experiment_id)

    def _end(self) -> None:
        """Set the final status of MLflow's runs."""
        status = "FAILED" if hasattr(sys, "last_value") else "FINISHED"  # set by an uncaught exception
        for run_id, mlflow_run in self._open.items() if self._client and os.getpid() == self._pid else ():
            try:
                with _short_timeouts(), contextlib.redirect_stdout(sys.stderr):  # it prints the run's URL
                    self._client.set_terminated(mlflow_run, status)
            except Exception as error:  # the server may no longer run
                _logger.warning("The end of the execution %r could not be reported to MLflow: %s", run_id, error)


def create(config: str | None = None) -> MlflowTracker:
    """Return the tracker of this process. TorchX calls this through the entry point ``mlflow`` of ``torchx.tracker``.

    ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` names the experiment, which is ``torchx-kfp`` by default.

    Args:
        config: MLflow's tracking URI, by default ``MLFLOW_TRACKING_URI``.

    Raises:
        TrackerError: the URI is unusable, or missing, so MLflow would write into the container.
    """
    uri = config or os.environ.get(_URI)
    if not uri:
        raise TrackerError(
            'The tracker "mlflow" has no tracking URI. Give the stage one, trackers={"mlflow": "http://mlflow:5000"}, '
            f"or set the variable {_URI}."
        )
    if _HOST.fullmatch(uri):
        raise TrackerError(f"The tracking URI {uri!r} of the tracker \"mlflow\" has no protocol. Write 'http://{uri}'.")
    name, identifier = os.environ.get(_EXPERIMENT_NAME), os.environ.get(_EXPERIMENT_ID)
    uri = os.path.expanduser(uri)  # MLflow would create a folder named "~"
    try:
        experiment = name or identifier or _DEFAULT_EXPERIMENT
        return _tracker(uri, experiment, is_id=not name and bool(identifier), is_main=rank() == 0)
    except Exception as error:  # MLflow's own, and those of a database's driver
        raise TrackerError(
            f'The tracker "mlflow" cannot be used ({type(error).__name__}: {error}). Check its URI, or leave it out of '
            "trackers= of the stage."
        ) from None


_tracker = functools.cache(MlflowTracker)


def _declared_sources(run_id: str) -> list[str]:
    """Return the declared sources of the run of this process; none for another run."""
    with contextlib.suppress(NotInStageError):
        context = protocol.decode_context(os.environ)
        if context.run_id == run_id:
            return [source.run_id for source in declared_sources(context.parents)]
    return []


def _source_tag(source_id: str, artifact_name: str | None = None) -> tuple[str, str]:
    text = _to_json({"run_id": source_id, "artifact_name": artifact_name})
    return f"{_OWN}source.{_digest(text)}", text


def _name_for_mlflow(name: str) -> str:
    """Convert a name to one that MLflow accepts: a relative path of letters, digits and ``_-. /``."""
    parts = [part for part in _REFUSED.sub("_", name).split("/") if part not in ("", ".", "..")]
    taken = "/".join(parts) or "_"
    if taken.startswith((_OWN, "mlflow.", "..")):
        taken = f"_{taken}"
    if len(taken) > _LONGEST_NAME:
        taken = f"{taken[: _LONGEST_NAME - 9].rstrip('/')}-{_digest(name)[:8]}"
    if taken != name:
        warn_once(f"MLflow does not accept the name {name[:300]!r}: it is {taken!r} there.")
    return taken


def _flat(values: Mapping[str, object], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the values of nested dicts with their paths."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*above, name))
        else:
            is_json = value is None or isinstance(value, (Mapping, list, tuple))
            yield (*above, name), _to_json(value) if is_json else str(value)


def _to_json(value: object) -> str:
    return json.dumps(value, default=str)  # other values become text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
