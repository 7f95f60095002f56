"""A tracker for ``torchx.tracker`` on MLflow: results become metrics of MLflow's runs, metadata becomes parameters.

TorchX 0.7.0 has one that records everything as tags and parameters, but not sources; its nightly does not have one.

Each run id has one run in MLflow. All processes of the stage find it by the tag ``torchx.run_id``. All calls name the
run, so an application that uses MLflow itself keeps its own active run.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import fcntl
import json
import logging
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchx.tracker.api import TrackerArtifact, TrackerBase, TrackerSource

from torchx_kfp.common.extras import install_line
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.backends import mlflow_values as values
from torchx_kfp.tracking.backends.stage import AppLineage
from torchx_kfp.tracking.lineage import Source, trace
from torchx_kfp.tracking.statements import Artifact
from torchx_kfp.tracking.steps import Point

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_MAX_RETRIES
    from mlflow.exceptions import MlflowException
except ModuleNotFoundError as error:
    raise TrackerError(f'The tracker "mlflow" needs MLflow ({error}): {install_line("mlflow")}.') from None

#: MLflow's own environment variables.
_URI, _EXPERIMENT_NAME, _EXPERIMENT_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"
#: ``localhost:5000``, which MLflow would take for a folder.
_HOST = re.compile(r"[\w.-]+:\d+(/.*)?")
#: The experiment for stages that do not name one. A stage does not know the name of its pipeline.
DEFAULT_EXPERIMENT = "torchx-kfp"

RUN_ID_TAG = f"{values.OWN}run_id"
_SOURCE, _ARTIFACT, _METADATA = (f"{values.OWN}{kind}." for kind in ("source", "artifact", "artifact_metadata"))
#: A new run has this tag until its process knows that it is the one for the run id.
_CANDIDATE_TAG = f"{values.OWN}candidate"
#: Seconds for which a new run waits for others like it, made by machines that start at the same time; and seconds for
#: which the others wait until the first of them is chosen: its process may have been killed.
_SETTLE, _CHOICE = 0.3, 10.0
#: How many tags or parameters MLflow accepts at once, and how many metrics.
_BATCH, _METRICS = 100, 1000
#: Retries of a request. MLflow's own seven take more than four minutes.
_RETRIES = 2

_log = logging.getLogger("torchx_kfp")

#: Whether the current call is one of this tracker.
_own_call: contextvars.ContextVar[bool] = contextvars.ContextVar("torchx_kfp_mlflow", default=False)


# Let calls of this tracker give up after seconds. MLflow reads the number of retries only from an environment variable,
# at each request. The environment belongs to all threads of the application and to the processes that it starts, so the
# function that reads it is replaced, with an effect only on this tracker's own calls. MLflow copies the files of a
# folder in its own threads, which keep MLflow's number of retries.
_retries = MLFLOW_HTTP_REQUEST_MAX_RETRIES
_read_retries = _retries.get
_retries.get = lambda: _RETRIES if _own_call.get() and not _retries.is_set() else _read_retries()


class _Client:
    """MLflow's client with fewer retries."""

    def __init__(self, tracking_uri: str) -> None:
        self._client = MlflowClient(tracking_uri=tracking_uri)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(*args: Any, **options: Any) -> Any:
            token = _own_call.set(True)
            try:
                return method(*args, **options)
            finally:
                _own_call.reset(token)

        return call


class MlflowTracker(TrackerBase):  # type: ignore[misc]
    """Runs in one experiment of an MLflow server.

    Args:
        tracking_uri: the URI of the server.
        experiment: the name of the experiment. It is created if it does not exist.
        experiment_id: the id of the experiment, which takes precedence over the name.
    """

    def __init__(self, tracking_uri: str, experiment: str, experiment_id: str | None = None) -> None:
        self._client = _Client(tracking_uri)
        self._experiment = experiment
        self._known_experiment = experiment_id
        self._open: dict[str, str] = {}
        self._last_time = 0
        self._steps: dict[tuple[str, str], int] = {}
        self._pid = os.getpid()
        atexit.register(self._end)

    def add_metadata(self, run_id: str, **kwargs: object) -> None:
        """Record numbers as metrics and everything else as tags."""
        metrics, tags = values.split(kwargs)
        mlflow_run = self._run(run_id)
        # The latest value of a metric is the one with the latest time, or the largest of those.
        self._last_time = now = max(int(time.time() * 1000), self._last_time + 1)
        entries = [Metric(name, value, now, self._steps.get((run_id, name), 0)) for name, value in metrics.items()]
        texts = [RunTag(name, value) for name, value in tags.items()]
        for start in range(0, max(len(entries), len(texts)), _BATCH):
            chunk = slice(start, start + _BATCH)
            self._client.log_batch(mlflow_run, metrics=entries[chunk], tags=texts[chunk])

    def add_parameters(self, run_id: str, parameters: Mapping[str, object]) -> None:
        """Record hyperparameters, one by one if they are in a dict.

        MLflow accepts each only once: a different value becomes a tag.
        """
        mlflow_run = self._run(run_id)
        entries = [Param(name, value) for name, value in values.parameters(parameters).items()]
        for start in range(0, len(entries), _BATCH):
            try:
                self._client.log_batch(mlflow_run, params=entries[start : start + _BATCH])
            except MlflowException:
                for entry in entries[start : start + _BATCH]:
                    self._add_parameter(mlflow_run, entry)

    def _add_parameter(self, mlflow_run: str, entry: Any) -> None:
        try:
            self._client.log_batch(mlflow_run, params=[entry])
        except MlflowException:
            # It already has another value, or the server is older and accepts only shorter values.
            self._client.set_tag(mlflow_run, entry.key, values.cut(entry.value, entry.key))
            values.warn_once(
                f"MLflow does not accept the parameter {entry.key!r}, or does not accept this value: it becomes a tag."
            )

    def log_steps(self, run_id: str, points: Mapping[str, Sequence[Point]]) -> None:
        """Record metrics of steps."""
        mlflow_run = self._run(run_id)
        entries = []
        for name, series in points.items():
            key = values.name_for_mlflow(name)
            # MLflow shows a metric's value at the last step. A result with this name must come after it.
            self._steps[run_id, key] = max(self._steps.get((run_id, key), 0), *(point.step for point in series))
            entries += [Metric(key, point.value, int(point.time * 1000), point.step) for point in series]
        for start in range(0, len(entries), _METRICS):
            self._client.log_batch(mlflow_run, metrics=entries[start : start + _METRICS])

    def metadata(self, run_id: str) -> dict[str, object]:
        """Return metadata by MLflow's names, with numbers as floats; ``{}`` if the run does not exist."""
        data = self._data(run_id)
        if data is None:
            return {}
        texts = {name: text for name, text in data.tags.items() if not name.startswith((values.OWN, "mlflow."))}
        metrics = {name: values.from_metric(value) for name, value in data.metrics.items()}
        return {**metrics, **data.params, **texts}

    def add_artifact(self, run_id: str, name: str, path: str, metadata: Mapping[str, object] | None = None) -> None:
        """Upload a local file or folder under the artifact's name. A URL is kept as a tag."""
        mlflow_run, key = self._run(run_id), values.name_for_mlflow(name)
        local = path.removeprefix("file://")
        if local and "://" not in local:
            if os.path.isdir(local):
                self._client.log_artifacts(mlflow_run, local, artifact_path=key)
                path = f"runs:/{mlflow_run}/{key}"
            else:
                self._client.log_artifact(mlflow_run, local, artifact_path=key)
                path = f"runs:/{mlflow_run}/{key}/{os.path.basename(local)}"
        self._client.set_tag(mlflow_run, _ARTIFACT + key, values.cut(path, name))
        text = values.to_json(metadata or {})
        if len(text) > values.LONGEST_TAG:
            # In MLflow, a list with the name of a file represents the content of that file.
            file = f"{key}.metadata.json"
            self._client.log_text(mlflow_run, text, file)
            text = values.to_json([file])
        self._client.set_tag(mlflow_run, _METADATA + key, text)

    def artifacts(self, run_id: str) -> dict[str, TrackerArtifact]:
        """Return the run's artifacts by name. Uploaded ones have the path ``runs:/...``."""
        data = self._data(run_id)
        tags = data.tags if data else {}
        names = [tag.removeprefix(_ARTIFACT) for tag in tags if tag.startswith(_ARTIFACT)]
        return {
            name: TrackerArtifact(name, tags[_ARTIFACT + name], self._metadata_of(run_id, tags.get(_METADATA + name)))
            for name in names
        }

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run reads another run."""
        text = values.to_json({"run_id": source_id, "artifact_name": artifact_name})
        self._client.set_tag(self._run(run_id), _SOURCE + values.digest(source_id, artifact_name), text)

    def sources(self, run_id: str, artifact_name: str | None = None) -> list[TrackerSource]:
        """Return the sources of the run, or only those with this artifact."""
        data = self._data(run_id)
        found = _sources(data.tags) if data else []
        return [source for source in found if artifact_name in (None, source.artifact_name)]

    def run_ids(self, **kwargs: str) -> list[str]:
        """Return the ids of all runs of the experiment, or of those that read the run ``parent_run_id``."""
        parent = kwargs.get("parent_run_id")
        return [
            run_id
            for run_id, sources in self._all_sources().items()
            if not parent or any(source.source_run_id == parent for source in sources)
        ]

    def lineage(self, run_id: str) -> AppLineage:
        """Return the lineage of the run within this experiment."""
        sources = {
            run: [Source(source.source_run_id, source.artifact_name) for source in found]
            for run, found in self._all_sources().items()
        }
        return AppLineage(**vars(trace([run_id], sources, self._artifacts_of)))

    def _artifacts_of(self, run_ids: Iterable[str]) -> dict[str, dict[str, Artifact]]:
        return {
            run_id: {name: Artifact(name, it.path, it.metadata or {}) for name, it in self.artifacts(run_id).items()}
            for run_id in run_ids
        }

    def _run(self, run_id: str) -> str:
        """Return MLflow's run for this run id, and set its status to running."""
        if run_id not in self._open:
            with _one_process_at_a_time(run_id):
                found = self._find(run_id) or self._create(run_id)
            if found.info.status != "RUNNING":  # its process has ended, and torchrun may have started it again
                self._client.update_run(found.info.run_id, status="RUNNING")
            self._open[run_id] = found.info.run_id
        return self._open[run_id]

    def _find(self, run_id: str, tag: str = RUN_ID_TAG) -> Any:
        """Return the run with this tag, or None. Of several, all processes choose the same one."""
        value = values.encode_run_id(run_id)
        found = self._client.search_runs([self._experiment_id()], f"tags.`{tag}` = '{value}'")
        return min(found, key=lambda run: (run.info.start_time, run.info.run_id), default=None)

    def _create(self, run_id: str) -> Any:
        """Create the run, or return the one that another machine creates at the same time.

        At first, a run is a candidate. Processes record nothing in it until its own process has chosen it, and runs are
        not deleted after that. So a value cannot go to a run that another process deletes.
        """
        pipeline_run, _, name = run_id.partition("/")
        own = values.encode_run_id(run_id)
        tags = {_CANDIDATE_TAG: own, f"{values.OWN}pipeline_run": pipeline_run}
        if name:
            tags[f"{values.OWN}stage"] = name.partition("/")[0]
        experiment, start = self._experiment_id(), time.monotonic()
        made = self._client.create_run(experiment, tags=tags, run_name=name or run_id)
        # If the server is busy, the runs of other machines also appear later.
        time.sleep(max(_SETTLE, 3 * (time.monotonic() - start)))
        first = self._find(run_id, _CANDIDATE_TAG) or made
        chosen = self._find(run_id)
        give_up = time.monotonic() + _CHOICE
        while chosen is None and first.info.run_id != made.info.run_id and time.monotonic() < give_up:
            time.sleep(_SETTLE)
            chosen = self._find(run_id)
        if chosen is not None:
            self._client.delete_run(made.info.run_id)
            return chosen
        self._client.set_tag(made.info.run_id, RUN_ID_TAG, own)
        self._client.delete_tag(made.info.run_id, _CANDIDATE_TAG)
        return made

    def _data(self, run_id: str) -> Any:
        found = self._find(run_id)
        return found.data if found else None

    def _metadata_of(self, run_id: str, text: str | None) -> Mapping[str, object]:
        metadata = json.loads(text or "{}")
        if isinstance(metadata, list):
            with tempfile.TemporaryDirectory() as folder:
                path = self._client.download_artifacts(self._find(run_id).info.run_id, metadata[0], folder)
                with open(path, encoding="utf-8") as file:
                    metadata = json.load(file)
        return dict(metadata)

    def _all_sources(self) -> dict[str, list[TrackerSource]]:
        """Return the id of each run of the experiment with its sources."""
        found: dict[str, list[TrackerSource]] = {}
        token: str | None = None
        while True:
            page = self._client.search_runs([self._experiment_id()], max_results=1000, page_token=token)
            for run in page:
                if RUN_ID_TAG in run.data.tags:
                    found[values.decode_run_id(run.data.tags[RUN_ID_TAG])] = _sources(run.data.tags)
            token = page.token
            if not token:
                return found

    def _experiment_id(self) -> str:
        if self._known_experiment is None:
            found = self._client.get_experiment_by_name(self._experiment)
            if found is None:
                try:
                    self._known_experiment = self._client.create_experiment(self._experiment)
                except MlflowException:
                    # Another process was faster.
                    found = self._client.get_experiment_by_name(self._experiment)
                    if found is None:
                        raise
            if found is not None:
                if found.lifecycle_stage != "active":
                    raise TrackerError(
                        f"The experiment {self._experiment!r} was deleted in MLflow. Restore it, or name another one "
                        f"in {_EXPERIMENT_NAME}."
                    )
                self._known_experiment = found.experiment_id
        return str(self._known_experiment)

    def _end(self) -> None:
        """Tell MLflow how this process has ended. A process that failed counts more than the others of its stage."""
        if os.getpid() != self._pid:
            return
        failed = hasattr(sys, "last_value")  # set when an exception has reached the top
        for run_id, mlflow_run in self._open.items():
            try:
                if failed or self._client.get_run(mlflow_run).info.status != "FAILED":
                    with contextlib.redirect_stdout(sys.stderr):  # it prints the run's URL
                        self._client.set_terminated(mlflow_run, "FAILED" if failed else "FINISHED")
            except Exception as error:  # the server may be gone by now
                _log.warning("MLflow was not told that the run %r has ended: %s", run_id, error)


def create(config: str | None = None) -> MlflowTracker:
    """Return the tracker of this process. TorchX calls this through the entry point ``mlflow`` of ``torchx.tracker``.

    ``MLFLOW_EXPERIMENT_NAME`` or ``MLFLOW_EXPERIMENT_ID`` names the experiment, which is ``torchx-kfp`` by default.

    Args:
        config: MLflow's tracking URI, by default ``MLFLOW_TRACKING_URI``.

    Raises:
        TrackerError: there is no URI. MLflow would then write into a folder of the container.
    """
    uri = config or os.environ.get(_URI)
    if not uri:
        raise TrackerError(
            'The tracker "mlflow" has no tracking URI. Give the stage one, trackers={"mlflow": "http://mlflow:5000"}, '
            f"or set the variable {_URI}."
        )
    if _HOST.fullmatch(uri):
        raise TrackerError(f"The tracking URI {uri!r} of the tracker \"mlflow\" has no protocol. Write 'http://{uri}'.")
    name = os.environ.get(_EXPERIMENT_NAME)
    uri = os.path.expanduser(uri)  # MLflow would make a folder named "~"
    return MlflowTracker(uri, name or DEFAULT_EXPERIMENT, None if name else os.environ.get(_EXPERIMENT_ID) or None)


@contextlib.contextmanager
def _one_process_at_a_time(run_id: str) -> Iterator[None]:
    """Let the processes of a run on one machine take turns.

    MLflow cannot create a run on the condition that it does not exist yet.
    """
    path = os.path.join(tempfile.gettempdir(), f"torchx-kfp-mlflow-{os.getuid()}-{values.digest(run_id)}.lock")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:  # no folder can be written, and _create must do without the lock
        yield
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
        # Processes that wait have the file open. Later ones create a new file, and find the run, which exists by then.
        with contextlib.suppress(OSError):
            os.unlink(path)


def _sources(tags: Mapping[str, str]) -> list[TrackerSource]:
    entries = [json.loads(text) for name, text in sorted(tags.items()) if name.startswith(_SOURCE)]
    return [TrackerSource(entry["run_id"], entry["artifact_name"]) for entry in entries]
