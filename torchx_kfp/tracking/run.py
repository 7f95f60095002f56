"""The execution of this process, and the executions that it reads."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from torchx_kfp.common.text import SuggestingDict, describe_unknown, shown
from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried.storage import PATIENCE
from torchx_kfp.errors import NotRecordedError, RefusedError, TorchxKfpError, TrackerError, UnknownNameError
from torchx_kfp.tracking.artifacts import Artifact, add_artifact
from torchx_kfp.tracking.curves import History
from torchx_kfp.tracking.entries import add_entry
from torchx_kfp.tracking.lineage import Lineage, rank, read_lineage, record_start_once, record_use_once
from torchx_kfp.tracking.records import Record, Source, read_record
from torchx_kfp.tracking.results import Result, check_results, join_named
from torchx_kfp.tracking.steps import flush, step_log
from torchx_kfp.tracking.store import key_text
from torchx_kfp.tracking.tracker import FsspecResultTracker, open_tracker

if TYPE_CHECKING:
    from torchx_kfp.tracking.backends.mlflow import MlflowTracker

_logger = logging.getLogger(__name__)

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The TorchX tracker that gets copies of all records.
_MLFLOW = "mlflow"


def _without_frames(method: Callable[_P, _T]) -> Callable[_P, _T]:
    """Raise errors of a method without frames of this package, which would hide the caller's line in a log."""

    @functools.wraps(method)
    def call(*given: _P.args, **named: _P.kwargs) -> _T:
        try:
            return method(*given, **named)
        except TorchxKfpError as error:
            raise error.with_traceback(None)  # noqa: B904 (it keeps its cause)

    return call


class Run:
    """One execution of a stage: that of this process, or another one.

    ``current_run()`` returns that of this process, the only one that can record. Others can only be read.

    All methods that record or read raise a ``TrackerError`` if the store fails, and ``results`` if the results are
    malformed. Other malformed records are left out, with a warning in the log.
    """

    def __init__(
        self,
        run_id: str,
        tracker: FsspecResultTracker,
        reads: Mapping[str, protocol.RunIds] | None = None,
        *,
        reader: str | None = None,
        fetch_all: Callable[[], Mapping[str, dict[str, Result]]] | None = None,
        mlflow: MlflowTracker | None = None,
        is_main_process: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._id = run_id
        self._tracker = tracker
        self._reads = reads  # None for a run that another one reads
        self._reader = reader  # the run that reads it
        self._fetch_all = fetch_all  # fetches results with those of others
        self._mlflow = mlflow  # gets copies
        self._is_main_process = is_main_process  # of its stage, which may have others
        self._environ = environ or {}

    @property
    def id(self) -> str:
        """The execution id, ``<pipeline run>/<stage>/<execution>``: the key of the results below the tracker base."""
        return self._id

    @_without_frames
    def put(self, /, *results: Mapping[str, Result], **named: Result) -> None:
        """Record results of this execution. Earlier results under other names stay.

        All threads of a process can record. If a stage has several processes or replicas, let one of them record: if
        two put concurrently, the results of one can be lost. A warning is logged unless this process is rank 0 of
        torchrun, DeepSpeed or mpirun, and replica 0.

        Args:
            results: results by name, for names that are not identifiers: ``run.put({"l2norm/mean": 1.2})``.
            named: results by name: ``run.put(accuracy=0.9)``. NumPy and PyTorch scalars are accepted.

        Raises:
            RefusedError: a result is not an int, float, bool or short str, or this is not the execution of this
                process. Nothing was written.
        """
        self._refuse_others("records results", "put")
        if not self._is_main_process:
            self._is_main_process = True
            _logger.warning(
                "This process records results of the execution %r, but is not the first process of its stage. If two "
                "processes record concurrently, results can be lost. Let one record: if RANK or %s is 0.",
                self._id,
                protocol.REPLICA_ID,
            )
        new = check_results(self.id, join_named(self.id, results, named))
        self._tracker.update(self.id, **new)
        if self._mlflow and new:
            self._mlflow.add_metadata(self.id, **new)

    @_without_frames
    def results(self) -> dict[str, Result]:
        """Return the results of this execution by name.

        Returns:
            The results; ``{}`` if that of this process has not recorded any yet. An unknown name raises an
            ``UnknownNameError``, a KeyError that lists the known names.

        Raises:
            NotRecordedError: this is not the execution of this process, and it has not recorded any results.
        """
        if not self.id:
            raise NotRecordedError(
                "The stage reads an execution with an empty id, because the pipeline passed an empty value to reads=, "
                "such as an empty parameter. Pass an execution id."
            )
        fetch_all, self._fetch_all = self._fetch_all, None  # another call reads the current results
        found = (fetch_all and fetch_all().get(self.id)) or self._tracker.get(self.id)
        if not found and self._reads is None:
            raise NotRecordedError(
                f"The execution {self.id!r} has recorded no results under the tracker base "
                f"{self._tracker.tracker_base!r}. Does that stage call current_run().put(...)? If its results were "
                "removed, run it again: a local run does so by itself; on KFP, submit it with --fresh STAGE."
            )
        return found

    @_without_frames
    def log(self, step: int, /, *metrics: Mapping[str, float], **named: float) -> None:
        """Log metrics of one step of a training: ``run.log(step, loss=0.3)``.

        The values are buffered. A call writes them if the last write was some seconds ago, five at first and later up
        to thirty; ``flush()`` and Python's exit write them at once. A process killed by a signal loses its buffer: let
        its SIGTERM handler call ``flush()``. If the store fails, a warning is logged, and the next write includes
        everything. About 1,000 points of a metric are kept, with the exact last, smallest and largest values. All
        processes of a stage can log; their values under one name become one curve.

        Args:
            step: the number of the batch, the epoch or another step.
            metrics: metrics by name, for names that are not identifiers: ``{"train/loss": 0.3}``.
            named: metrics by name. NaN and infinities are accepted.

        Raises:
            RefusedError: the step is not an int, a metric is not a number, the process uses more than 500 names, or
                this is not the execution of this process. Nothing was logged.
        """
        self._refuse_others("logs metrics", "log")
        copies = self._mlflow and functools.partial(self._mlflow.log_steps, self.id)
        step_log(self._tracker.store, self.id, copies).log(step, metrics, named)

    def flush(self) -> None:
        """Write the metrics that this process logged, and wait until they are stored."""
        flush(self._tracker.store, self.id)

    def history(self) -> History:
        """Return the metrics of this execution: one curve for each name.

        ``history().to_frame()`` is a pandas DataFrame.
        """
        self.flush()
        return self._read("steps").steps

    @_without_frames
    def add_metadata(self, /, *metadata: Mapping[str, object], **named: object) -> None:
        """Record metadata of this execution, of any size: hyperparameters, environment, notes.

        Metadata is for people and tools; other stages read results. A list or dict that the stage declares
        (``task_from_app(..., results={"trials": list})``) becomes an output of KFP, which can drive a loop. MLflow
        (``trackers={"mlflow": ...}``) shows metadata as parameters. All processes of a stage can record metadata. Of
        several values with one name, the last one counts.

        Args:
            metadata: JSON values by name.
            named: JSON values by name.

        Raises:
            RefusedError: a value has no name, JSON cannot represent it, or this is not the execution of this process.
                Nothing was written.
        """
        self._refuse_others("records metadata", "add_metadata")
        new = join_named(self.id, metadata, named)
        add_entry(self._tracker.store, self.id, {"metadata": new})
        if self._mlflow and new:
            self._mlflow.add_parameters(self.id, new)

    def metadata(self) -> dict[str, object]:
        """Return the metadata of this execution by name."""
        return SuggestingDict(self._read("metadata").metadata, f"The execution {self.id!r}", "metadata key")

    @_without_frames
    def add_artifact(
        self, name: str, path: str | os.PathLike[str], /, *, store: bool = False, **metadata: object
    ) -> None:
        """Register a file or folder that this execution created and, with ``store=True``, store it.

        A stored file or folder is copied below the tracker base, with its SHA-256. A stage that reads this execution
        opens it with ``run.parent.artifact(name).open()``, or copies it with ``.download(folder)``. Otherwise, only the
        path is registered, and readers must be able to reach it: the files of a pod are lost when it ends. Links in a
        folder are followed; empty folders are kept. Of several artifacts with one name, the last one counts, but
        readers of an earlier one can still read it.

        If the stage declares the artifact (``task_from_app(..., artifacts={name: dsl.Model})``), it becomes a KFP
        artifact with this metadata. KFP stores the file or folder at a local path. For a URL, it stores a small file
        that names the URL. The content of HTML and Markdown is always stored, so that KFP's UI can show it.

        Args:
            name: the name with which the stage declares the artifact and others find it.
            path: a local path or an fsspec URL; empty if the artifact consists only of metadata, as
                ``dsl.ClassificationMetrics`` does. If a local path does not exist yet, a warning is logged.
            store: whether to store the file or folder, which must be complete: files that change during the upload are
                an error.
            metadata: JSON values by name.

        Raises:
            RefusedError: the name, path, file or metadata cannot be stored, or this is not the execution of this
                process. Nothing was registered.
        """
        self._refuse_others("registers artifacts", "add_artifact")
        if not isinstance(store, bool):
            raise RefusedError(
                f"store= of the artifact {name!r} must be True or False, but is {shown(store)}. "
                "Metadata needs another name."
            )
        place = add_artifact(self._tracker.store, self.id, name, path, metadata, stored=store)
        if self._mlflow:
            self._mlflow.add_artifact(self.id, name, place, metadata)

    def artifacts(self) -> dict[str, Artifact]:
        """Return the artifacts of this execution by name."""
        return SuggestingDict(self._read("artifacts").artifacts, f"The execution {self.id!r}", "artifact")

    @_without_frames
    def artifact(self, name: str) -> Artifact:
        """Return one artifact. If a stage reads this execution, the lineage shows that it used the artifact.

        Raises:
            NotRecordedError: the execution has not registered an artifact with this name.
        """
        there = self.artifacts()
        if name not in there:
            raise NotRecordedError(
                f"{describe_unknown(f'The execution {self.id!r}', 'artifact', name, there)} A stage registers "
                "artifacts with current_run().add_artifact(name, path)."
            )
        if self._reader is not None:
            record_use_once(self._tracker.store, self._reader, Source(self.id, name))
        return there[name]

    def sources(self) -> list[Source]:
        """Return the sources of this execution in order: its parents, and the artifacts that it used."""
        return list(self._read("sources").sources)

    def lineage(self) -> Lineage:
        """Return the lineage of this execution, over all pipelines that use the tracker base.

        It has all executions that this one depends on, all that depend on it, and the artifacts between them.
        """
        return read_lineage(self._tracker.store, [self.id])

    @property
    def parent(self) -> Run:
        """The first parent of this execution.

        Raises:
            UnknownNameError: the stage does not read any other.
        """
        run_id = protocol.first_run_id(self._declared())
        if run_id is None:
            raise UnknownNameError(
                f"The stage {self.id!r} does not read another stage, or the first one is an empty fan-in. "
                "Declare what it reads in the pipeline, stages.task(app, reads=other_task), or use run.parents[alias]."
            )
        return Run(run_id, self._tracker, reader=self.id)

    @property
    def parents(self) -> dict[str, Run | FanIn]:
        """The executions that this one reads, by alias. A fan-in is the list of its executions in loop order.

        An unknown alias raises ``UnknownNameError``.
        """
        runs: dict[str, Run | FanIn] = {}
        for alias, ids in self._declared().items():
            if isinstance(ids, str):
                runs[alias] = Run(ids, self._tracker, reader=self.id)
            else:
                runs[alias] = FanIn(ids, self._tracker, self.id)
        way_out = "Declare what it reads in the pipeline: stages.task(app, reads={alias: task})."
        return SuggestingDict(runs, f"The stage {self.id!r}", "parent", way_out)

    @_without_frames
    def environ(self) -> dict[str, str]:
        """Return the variables with which processes that this one starts elsewhere record under this execution.

        They are for jobs that the stage creates itself, such as a TrainJob by Kubeflow's SDK:
        ``CustomTrainer(func=train, env=current_run().environ())``. There, ``current_run()`` is this execution. The
        variables contain no credentials for the tracker base.

        Raises:
            RefusedError: this is not the execution of this process.
        """
        self._refuse_others("hands on variables", "environ")
        return dict(self._environ)

    def _read(self, field: str) -> Record:
        return read_record(self._tracker.store, self.id, field)

    def _refuse_others(self, what: str, method: str) -> None:
        if self._reads is None:
            raise RefusedError(
                f"The execution {self.id!r} is not that of this process, which {what} only for its own. Use "
                f"current_run().{method}(...)."
            )

    def _declared(self) -> Mapping[str, protocol.RunIds]:
        if self._reads is None:
            raise UnknownNameError(
                f"The execution {self.id!r} is not that of this process, which knows only its own parents: "
                "current_run().parents. Its sources() have the ids."
            )
        return self._reads

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def __getstate__(self) -> dict[str, object]:
        # Another process fetches its own results, and copies nothing.
        return {**vars(self), "_fetch_all": None, "_mlflow": None}

    def _identity(self) -> tuple[str, str]:
        return self.id, self._tracker.tracker_base

    def __repr__(self) -> str:
        return f"Run({self.id!r})"


class FanIn(list[Run]):
    """The executions of a fan-in in loop order. The first ``results`` in an iteration fetches those of all."""

    def __init__(self, run_ids: Iterable[str], tracker: FsspecResultTracker, reader: str) -> None:
        self._ids = tuple(run_ids)
        self._tracker = tracker
        super().__init__(Run(run_id, tracker, reader=reader) for run_id in self._ids)

    def __iter__(self) -> Iterator[Run]:
        fetch_all = functools.cache(self._fetch)
        for run in super().__iter__():
            yield Run(run.id, self._tracker, reader=run._reader, fetch_all=fetch_all)

    def _fetch(self) -> Mapping[str, dict[str, Result]]:
        with contextlib.suppress(TrackerError):  # raised again when the program reads it
            return self._tracker.get_many(self._ids)
        return {}


def current_run(environ: Mapping[str, str] = os.environ, *, patience: float = PATIENCE) -> Run:
    """Return the execution of this process, which is a tracked stage of a pipeline.

    The first call in a process records the start of the execution with one request: when and where it started, and its
    parents. So a tracker base that cannot be written is reported at the start, not after the work. All processes of
    torchrun can call this; rank 0 records.

    Args:
        environ: the environment variables, with those of the stage protocol.
        patience: about how many seconds calls of S3 are retried before they raise.

    Returns:
        The execution: ``put`` records results, and ``parents`` are the executions that it reads.

    Raises:
        NotInStageError: the process was not started as a tracked stage. The message lists the variables to set to run
            the application by hand.
        TrackerError: a variable of the stage protocol is malformed.
        TrackerError: the tracker base cannot be used or written, or the tracker for MLflow cannot be loaded.
    """
    context = protocol.decode_context(environ)
    try:
        key_text(context.run_id)
    except RefusedError as error:
        raise TrackerError(f"{protocol.JOB_ID} is not an execution id. {error}") from None
    tracker = FsspecResultTracker(context.tracker_base, patience=patience)
    is_main = rank(environ) == 0
    mlflow = None
    if is_main and _MLFLOW in context.trackers:
        from torchx_kfp.tracking.backends.mlflow import create

        mlflow = create(context.trackers[_MLFLOW])
    record_start_once(tracker.store, context, environ)
    environ = protocol.encode_context(context)
    return Run(context.run_id, tracker, context.parents, mlflow=mlflow, is_main_process=is_main, environ=environ)


def open_run(tracker_base: str | os.PathLike[str], execution_id: str, *, patience: float = PATIENCE) -> Run:
    """Return an execution by its id, to read its records: ``open_run(base, execution_id).artifact("model").open()``.

    Args:
        tracker_base: an fsspec URL or a local directory.
        execution_id: ``<pipeline run>/<stage>/<execution>``, as in the index of ``open_tracker(base).to_frame()``.
        patience: about how many seconds calls of S3 are retried before they raise.

    Raises:
        TrackerError: the base cannot be used or is a directory that does not exist, or the id is not a key.
    """
    return Run(key_text(execution_id), open_tracker(tracker_base, patience=patience))


def record_arguments(run: Run, arguments: Mapping[str, str]) -> None:
    """Record the arguments of a stage's function and their origins; of several replicas, the first one does."""
    if rank() == 0:
        add_entry(run._tracker.store, run.id, {"arguments": dict(arguments)})
