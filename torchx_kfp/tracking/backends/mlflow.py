"""A tracker for ``torchx.tracker`` on MLflow: results become metrics of MLflow's runs, metadata becomes parameters.

It only writes: MLflow gets copies, and the tracker base is where records are read. TorchX 0.7.0 has a tracker that
records everything as tags and parameters, but not sources; its nightly does not have one.

Each run id has one run in MLflow. All processes of the stage find it by the tag ``torchx.run_id``. All calls name the
run, so an application that uses MLflow itself keeps its own active run.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torchx.tracker.api import TrackerBase

from torchx_kfp.common.extras import install_line
from torchx_kfp.errors import TrackerError
from torchx_kfp.tracking.backends import mlflow_values as values
from torchx_kfp.tracking.curves import Point
from torchx_kfp.tracking.lineage import rank

try:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag
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
#: Seconds for which each rank waits for the run of the rank before it, and the ranks that wait longer and longer.
_TURN, _TURNS = 1.0, 10
#: How many tags or parameters MLflow accepts at once, and how many metrics.
_BATCH, _METRICS = 100, 1000

_log = logging.getLogger("torchx_kfp")


class MlflowTracker(TrackerBase):  # type: ignore[misc]
    """Runs in one experiment of an MLflow server.

    Args:
        tracking_uri: the URI of the server.
        experiment: the name of the experiment. It is created if it does not exist.
        experiment_id: the id of the experiment, which takes precedence over the name.
    """

    def __init__(self, tracking_uri: str, experiment: str, experiment_id: str | None = None) -> None:
        self._client = MlflowClient(tracking_uri=tracking_uri)
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

    def add_source(self, run_id: str, source_id: str, artifact_name: str | None = None) -> None:
        """Record that the run reads another run."""
        text = values.to_json({"run_id": source_id, "artifact_name": artifact_name})
        self._client.set_tag(self._run(run_id), _SOURCE + values.digest(source_id, artifact_name), text)

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

    def _run(self, run_id: str) -> str:
        """Return MLflow's run for this run id, and set its status to running."""
        if run_id not in self._open:
            found = self._find_or_create(run_id)
            if found.info.status != "RUNNING":  # its process has ended, and torchrun may have started it again
                self._client.update_run(found.info.run_id, status="RUNNING")
            self._open[run_id] = found.info.run_id
        return self._open[run_id]

    def _find_or_create(self, run_id: str) -> Any:
        """Return the run that all processes of a stage share.

        MLflow cannot create a run on the condition that it does not exist yet. So the first rank creates it at once,
        and each later one waits a little longer before it does.
        """
        give_up = time.monotonic() + min(rank(), _TURNS) * _TURN
        while (found := self._find(run_id)) is None and time.monotonic() < give_up:
            time.sleep(_TURN / 4)
        return found or self._create(run_id)

    def _find(self, run_id: str) -> Any:
        """Return the run with this run id, or None. Of several, all processes choose the same one."""
        value = values.encode_run_id(run_id)
        found = self._client.search_runs([self._experiment_id()], f"tags.`{RUN_ID_TAG}` = '{value}'")
        return min(found, key=lambda run: (run.info.start_time, run.info.run_id), default=None)

    def _create(self, run_id: str) -> Any:
        pipeline_run, _, name = run_id.partition("/")
        tags = {RUN_ID_TAG: values.encode_run_id(run_id), f"{values.OWN}pipeline_run": pipeline_run}
        if name:
            tags[f"{values.OWN}stage"] = name.partition("/")[0]
        return self._client.create_run(self._experiment_id(), tags=tags, run_name=name or run_id)

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
