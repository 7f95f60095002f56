"""A tracker for ``torchx.tracker`` on MLflow: results become metrics of MLflow's runs, metadata becomes parameters.

It only writes, and only in the first process of a stage: MLflow gets copies of what ``current_run()`` and TorchX's
``AppRun`` record, in the same calls and after it is stored under the tracker base, where records are read. A
server that fails is left out from then on, with a warning in the log. Each run id has one run in MLflow, which the tag
``torchx.run_id`` names. All calls name the run, so an application that uses MLflow itself keeps its own active run.
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
#: ``localhost:5000``, which MLflow would take for a folder.
_HOST = re.compile(r"[\w.-]+:\d+(/.*)?")
#: The experiment for stages that do not name one. A stage does not know the name of its pipeline.
_DEFAULT_EXPERIMENT = "torchx-kfp"

#: The prefix of this project's tags. MLflow reserves its own in the same way.
_OWN = "torchx."
RUN_ID_TAG = f"{_OWN}run_id"
_REFUSED = re.compile(r"[^\w\-. /]")
#: The longest name in characters. MLflow accepts 250, but tags of artifacts have a prefix.
_LONGEST_NAME = 220

#: MLflow's settings for calls from here, unless the user has set them. By its own, a server that hangs takes minutes.
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
    """Decorate a method that records something of a run: whatever it raises, the records are stored already."""

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
                    f"The tracker 'mlflow' failed, and lacks records of the run {run_id!r} in the experiment "
                    f"{self._experiment!r}; the results under the tracker base are complete."
                )
                # It has answered that it does not accept this.
                if isinstance(error, MlflowException) and 400 <= error.get_http_status_code() < 500:
                    warn_once(f"{text} Further errors of this kind are not shown. {kind}: {error}", f"mlflow {kind}")
                else:
                    self._client = None
                    _logger.warning("%s MLflow gets no more records of this process. %s: %s", text, kind, error)

    return call


class MlflowTracker(TrackerBase):  # type: ignore[misc]
    """Runs in one experiment of an MLflow server.

    Args:
        tracking_uri: the URI of the server.
        experiment: the name of the experiment, which is created if it does not exist, or its id.
        is_id: whether it is the id.
        is_main: whether this is the first process of its stage; others record nothing.
    """

    def __init__(self, tracking_uri: str, experiment: str, *, is_id: bool = False, is_main: bool = True) -> None:
        # A client of a database creates its tables, which several processes cannot do at once.
        self._client: Any = MlflowClient(tracking_uri=tracking_uri) if is_main else None
        self._experiment = experiment
        self._is_id = is_id
        self._open: dict[str, str] = {}  # by run id
        self._parameters: dict[tuple[str, str], str] = {}
        self._last_time = 0
        self._last_steps: dict[tuple[str, str], int] = {}
        self._names: dict[tuple[str, bool], object] = {}
        self._renew_lock()
        os.register_at_fork(after_in_child=self._renew_lock)  # another thread may hold it
        self._pid = os.getpid()
        atexit.register(self._end)

    @_copies
    def add_metadata(self, run_id: str, /, **kwargs: object) -> None:
        """Record numbers as metrics and everything else as tags, which can be set again, unlike parameters."""
        # The latest value of a metric is the one with the latest time, or the largest of those.
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
        """Record hyperparameters, one by one if they are in a dict. MLflow has each once: a new value becomes a tag."""
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
            # MLflow shows a metric's value at the last step. A result with this name must come after it.
            self._last_steps[run_id, key] = max(self._last_steps.get((run_id, key), 0), *(it.step for it in series))
            entries += [Metric(key, point.value, int(point.time * 1000), point.step) for point in series]
        self._client.log_batch(self._run(run_id), metrics=entries)

    @_copies
    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Upload a local file or folder under the artifact's name. A URL is kept as a tag."""
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
            "MLflow gets copies of what a stage records. Read them with mlflow.MlflowClient, or the records themselves "
            "with torchx_kfp.tracking.current_run(), or the tracker torchx_kfp of torchx.tracker."
        )

    artifacts = metadata = sources = lineage = run_ids = _cannot_read

    def _name(self, name: str, path: tuple[str, ...] = ()) -> str:
        """Return MLflow's name, and report a second metric, tag or artifact, or parameter with a path, that gets it."""
        key = _name_for_mlflow(name)
        other = self._names.setdefault((key, bool(path)), path or name)
        if other != (path or name):
            both = f"{shown(other)} and {shown(path or name)}"
            warn_once(f"{both} have the same name in MLflow, {key!r}: the last one counts.")
        return key

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def _run(self, run_id: str) -> str:
        """Return MLflow's run for this run id. It exists already if torchrun has started this process again."""
        if run_id not in self._open:
            # The characters are special in strings of MLflow's filters. Pipelines' run ids do not have any.
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
        found = self._client.get_experiment_by_name(self._experiment)
        if found is None:
            try:
                return str(self._client.create_experiment(self._experiment))
            except MlflowException:
                found = self._client.get_experiment_by_name(self._experiment)
                if found is None:  # otherwise, another stage was faster
                    raise
        return str(found.experiment_id)

    def _end(self) -> None:
        """Tell MLflow how this process has ended."""
        status = "FAILED" if hasattr(sys, "last_value") else "FINISHED"  # set when an exception has reached the top
        for run_id, mlflow_run in self._open.items() if self._client and os.getpid() == self._pid else ():
            try:
                with _short_timeouts(), contextlib.redirect_stdout(sys.stderr):  # it prints the run's URL
                    self._client.set_terminated(mlflow_run, status)
            except Exception as error:  # the server may be gone by now
                _logger.warning("MLflow was not told that the run %r has ended: %s", run_id, error)


def create(config: str | None = None) -> MlflowTracker:
    """Return the tracker of this process. TorchX calls this through the entry point ``mlflow`` of ``torchx.tracker``.

    ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` names the experiment, which is ``torchx-kfp`` by default.

    Args:
        config: MLflow's tracking URI, by default ``MLFLOW_TRACKING_URI``.

    Raises:
        TrackerError: there is no URI, with which MLflow would write into a folder of the container, or it cannot be
            used.
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
    uri = os.path.expanduser(uri)  # MLflow would make a folder named "~"
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
    """Return the runs that a run reads as the pipeline declares it, if it is that of this process."""
    with contextlib.suppress(NotInStageError):
        context = protocol.decode(os.environ)
        if context.run_id == run_id:
            return [source.run_id for source in declared_sources(context.parents)]
    return []


def _source_tag(source_id: str, artifact_name: str | None = None) -> tuple[str, str]:
    text = _to_json({"run_id": source_id, "artifact_name": artifact_name})
    return f"{_OWN}source.{_digest(text)}", text


def _name_for_mlflow(name: str) -> str:
    """Return the name as MLflow accepts it: a relative path of letters, digits and ``_-. /``."""
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
    """Yield the values of dicts in each other, with their paths."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, (*above, name))
        else:
            is_json = value is None or isinstance(value, (Mapping, list, tuple))
            yield (*above, name), _to_json(value) if is_json else str(value)


def _to_json(value: object) -> str:
    return json.dumps(value, default=str)  # values that JSON lacks become text


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
