"""The run that this process is: its results, and those of the runs that it reads."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from torchx_kfp import protocol
from torchx_kfp.errors import (
    CorruptResultError,
    KeyRefusedError,
    MissingArtifactError,
    MissingResultsError,
    ProtocolError,
    ReadsError,
    ResultRefusedError,
    TrackerError,
    UnknownAliasError,
)
from torchx_kfp.text import listed, shown
from torchx_kfp.tracking.batch import Batch
from torchx_kfp.tracking.forwarding import FurtherTracker, further_trackers
from torchx_kfp.tracking.lineage import Lineage, read_lineage
from torchx_kfp.tracking.nearby import recorded_nearby
from torchx_kfp.tracking.statements.artifacts import Artifact, absolute, add_artifact, read_artifacts
from torchx_kfp.tracking.statements.metadata import add_metadata, read_metadata
from torchx_kfp.tracking.statements.sources import Source, add_source, read_sources
from torchx_kfp.tracking.statements.starts import is_first_rank, record_start, start_here
from torchx_kfp.tracking.step_log import flush, step_log
from torchx_kfp.tracking.steps import History, read_history
from torchx_kfp.tracking.stores.calls import PATIENCE
from torchx_kfp.tracking.stores.keys import key_text
from torchx_kfp.tracking.tracker import FsspecResultTracker
from torchx_kfp.tracking.values import Result, check_results

if TYPE_CHECKING:
    import pandas

_logger = logging.getLogger(__name__)

#: Seconds between two looks at the store: the first wait, and the longest.
_FIRST_WAIT, _LONGEST_WAIT = 0.05, 5.0
#: What this process has said already of what its stage reads: tracker base, run id, and the source.
_said: set[tuple[str, str, object]] = set()
_NO_LINEAGE = "The lineage of the run %r lacks what it reads: %s"


class Run:
    """One execution of a stage: this process's own, or one that it reads.

    Get this process's own from ``current_run()``.
    """

    def __init__(
        self,
        run_id: str,
        tracker: FsspecResultTracker,
        reads: Mapping[str, protocol.RunIds] | None = None,
        *,
        reader: str | None = None,
        batch: Batch | None = None,
        further: Sequence[FurtherTracker] = (),
    ) -> None:
        self._id = run_id
        self._tracker = tracker
        self._reads = reads  # None: a run that another one reads
        self._reader = reader  # which one
        self._batch = batch
        self._further = further

    @property
    def id(self) -> str:
        """``<pipeline run>/<stage>/<execution>``, also the key of its results below the tracker base."""
        return self._id

    def put(self, results: Mapping[str, Result] | None = None, /, **named: Result) -> None:
        """Record results of this run; those recorded before under other names stay.

        Names that are no identifiers go in a mapping: ``run.put({"l2norm/mean": 1.2}, accuracy=0.9)``. Where a
        stage has several processes, let one of them record: two that put at once may lose one's results.

        Raises:
            ResultRefusedError: a result is not an int, float, bool or short str, or this is a run that the
                stage reads. Nothing was written.
        """
        self._refuse_others("records results", "put")
        new = {**check_results(self.id, {} if results is None else results), **check_results(self.id, named)}
        self._tracker.update(self.id, **new)
        for tracker in self._further:
            tracker.add_metadata(new)

    def results(self, timeout: float = 0.0) -> dict[str, Result]:
        """What this run has recorded. This process's own run may have recorded nothing yet: ``{}``.

        Args:
            timeout: seconds to wait for results, on stores that are slow to show what was put.

        Raises:
            MissingResultsError: this is a run that the stage reads, and it has recorded nothing.
            CorruptResultError: what is stored is not a JSON object.
            ValueError: the timeout is no number of seconds.
        """
        if not self.id:
            raise MissingResultsError(
                "The run that shall be read has an empty run id: nothing was given to the stage where the pipeline "
                "declares what it reads, for example a parameter that is empty."
            )
        if not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise ValueError(f"timeout is a number of seconds, 0 or more. Got: {timeout!r}.")
        deadline = time.monotonic() + timeout
        wait = _FIRST_WAIT
        found = self._batch.take(self.id) if self._batch else None
        while not found:
            try:
                found = self._tracker.get(self.id)
            except CorruptResultError:  # other writers than this tracker show their files half written
                if time.monotonic() >= deadline:
                    raise
                found = {}
            left = deadline - time.monotonic()
            if found or left <= 0:
                break
            time.sleep(min(wait, left))
            wait = min(wait * 1.5, _LONGEST_WAIT)
        if not found and self._reads is None:
            raise MissingResultsError(self._missing(timeout))
        return found

    def log(self, step: int, metrics: Mapping[str, float] | None = None, /, **named: float) -> None:
        """Record metrics of one step of a training: ``run.log(step, loss=0.3)``. Returns at once.

        They are written in the background: after two seconds, then every five seconds and later once a minute, when
        the process ends, and on SIGTERM. A process that is killed otherwise loses what it has logged since the last
        write; ``flush()`` writes now. A store that fails is a warning, and the next write tries again. However many
        steps there are, some 1,000 points of a metric are kept, beside the exact last, smallest and largest value.
        All processes of a stage can log; what they log under one name becomes one curve.

        Args:
            step: an int that counts batches, epochs or what else the metrics are drawn over.
            metrics: by name, such as ``{"train/loss": 0.3}``; NaN and infinities are numbers too.

        Raises:
            ResultRefusedError: the step is not an int, a metric is not a number, the process has used more than 500
                names, or this is a run that the stage reads. Nothing was recorded.
        """
        self._refuse_others("logs metrics", "log")
        step_log(self._tracker.store, self.id, self._further).log(step, {**(metrics or {}), **named})

    def flush(self) -> None:
        """Write what this process has logged of the run, and wait until it is stored."""
        flush(self._tracker.store, self.id)

    def history(self) -> History:
        """The curves that this run has logged, by name; ``history().to_frame()`` is a pandas DataFrame.

        Raises:
            CorruptResultError: what is stored is no curve.
            TrackerError: the store failed.
        """
        self.flush()
        return read_history(self._tracker.store, self.id)

    def add_metadata(self, metadata: Mapping[str, object] | None = None, /, **named: object) -> None:
        """Say of this run what is not a result: hyperparameters, environment, notes; of any size, not for other stages.

        To MLflow (``trackers={"mlflow": ...}`` of the stage) these are parameters.

        All processes of a stage can; of several values under one name, the last one counts.

        Raises:
            ResultRefusedError: JSON cannot hold a value, or this is a run that the stage reads. Nothing was written.
            TrackerError: the store failed.
        """
        self._refuse_others("records metadata", "add_metadata")
        new = {**(metadata or {}), **named}
        add_metadata(self._tracker.store, self.id, new)
        for tracker in self._further:
            tracker.add_parameters(new)

    def metadata(self) -> dict[str, object]:
        """What this run has said of itself, by name.

        Raises:
            CorruptResultError: what is stored is no metadata.
            TrackerError: the store failed.
        """
        return read_metadata(self._tracker.store, self.id)

    def add_artifact(self, name: str, path: str | os.PathLike[str], /, **metadata: object) -> None:
        """Register a file or folder that this run has made.

        Where the stage declares it (``task_from_app(..., artifacts={name: dsl.Model})``), it becomes an artifact of
        KFP, and ``metadata`` goes along. KFP stores a local path; a URL stays where it is, and KFP stores a small file
        that names it; HTML and Markdown go by their content, for the UI to show.

        Args:
            name: under which the stage declares it, and others find it.
            path: local path or fsspec URL; empty where the metadata is all, as for ``dsl.ClassificationMetrics``. Where
                nothing is yet at a local path, a warning is logged.
            metadata: what JSON can hold.

        Raises:
            ResultRefusedError: the name, path or metadata cannot be stored, or this is a run that the stage reads.
            TrackerError: the store failed.
        """
        self._refuse_others("registers artifacts", "add_artifact")
        add_artifact(self._tracker.store, self.id, name, path, metadata)
        for tracker in self._further:
            tracker.add_artifact(name, absolute(os.fspath(path)), metadata)

    def artifacts(self) -> dict[str, Artifact]:
        """The artifacts that this run has registered, by name.

        Raises:
            CorruptResultError: what is stored is no artifact.
            TrackerError: the store failed.
        """
        return read_artifacts(self._tracker.store, self.id)

    def artifact(self, name: str) -> Artifact:
        """The artifact of that name; of a run that this stage reads, the lineage then shows that it was used.

        Raises:
            MissingArtifactError: the run has registered none of that name.
            CorruptResultError: what is stored is no artifact.
            TrackerError: the store failed.
        """
        there = self.artifacts()
        if name not in there:
            others = f"It has {listed(map(repr, list(there)))}." if there else "It has none."
            raise MissingArtifactError(
                f"The run {self.id!r} has registered no artifact {shown(name)}. {others} A stage registers artifacts "
                "with current_run().add_artifact(name, path)."
            )
        if self._reader is not None:
            _say_once(self._tracker, self._reader, Source(self.id, name))
        return there[name]

    def sources(self) -> list[Source]:
        """What this run was made of: the runs that it reads, in order, with the artifacts that it has used.

        Raises:
            CorruptResultError: what is stored are no sources.
            TrackerError: the store failed.
        """
        return read_sources(self._tracker.store, self.id)

    def lineage(self) -> Lineage:
        """All runs that this one was made of, all that were made of it, and the artifacts between them.

        Raises:
            CorruptResultError: what is stored are no sources or no artifacts.
            TrackerError: the store failed.
        """
        return read_lineage(self._tracker.store, [self.id])

    @property
    def parent(self) -> Run:
        """The first run that this stage reads.

        Raises:
            ReadsError: the stage reads none.
        """
        run_id = protocol.first_run_id(self._declared())
        if run_id is None:
            raise ReadsError(self._no_parent())
        return Run(run_id, self._tracker, reader=self.id)

    @property
    def parents(self) -> Parents:
        """The runs that this stage reads, by alias; a fan-in is the list of its runs, in loop order."""
        return Parents(self.id, self._declared(), self._tracker)

    def _refuse_others(self, what: str, method: str) -> None:
        if self._reads is None:
            raise ResultRefusedError(
                f"The run {self.id!r} is one that this stage reads; a stage {what} of its own run only. "
                f"Use current_run().{method}(...)."
            )

    def _no_parent(self) -> str:
        first = next(iter(self._declared()), None)
        if first is None:
            return (
                f"The stage {self.id!r} reads no other stage. Declare what it reads in the pipeline: "
                "task_from_app(app, tracker_base=..., reads=other_task)."
            )
        return (
            f"The stage {self.id!r} has no first run to read: its first alias {first!r} is a fan-in of no runs. "
            f"Use run.parents[{first!r}], which is an empty list."
        )

    def _declared(self) -> Mapping[str, protocol.RunIds]:
        if self._reads is None:
            raise ReadsError(
                f"What the run {self.id!r} reads is not known here: a stage knows what it reads itself. "
                "Use current_run().parents, and declare what else it shall read in the pipeline."
            )
        return self._reads

    def _missing(self, timeout: float) -> str:
        waited = f" after {timeout:g} s" if timeout > 0 else ""
        return (
            f"The run {self.id!r} has recorded no results{waited} under the tracker base "
            f"{self._tracker.tracker_base!r}. {recorded_nearby(self._tracker, self.id)} Does that stage record any "
            "(current_run().put(...))? If they were removed (torchx-kfp gc), run that stage again: a local run does so "
            "by itself, also with --resume; on a cluster, run the pipeline without KFP's cache. Where the store is "
            "slow to show them, wait: results(timeout=60)."
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str]:
        return self.id, self._tracker.tracker_base

    def __repr__(self) -> str:
        return f"Run({self.id!r})"


class FanIn(list[Run]):
    """The runs of a fan-in, in loop order. To read their results one after the other fetches them many at once."""

    def __init__(self, run_ids: Iterable[str], tracker: FsspecResultTracker, reader: str) -> None:
        self._ids = tuple(run_ids)
        self._tracker = tracker
        super().__init__(Run(run_id, tracker, reader=reader) for run_id in self._ids)

    def __iter__(self) -> Iterator[Run]:
        batch = Batch(self._tracker, self._ids)
        for run in super().__iter__():
            yield Run(run.id, self._tracker, reader=run._reader, batch=batch)

    def to_frame(self) -> pandas.DataFrame:
        """Their results as a pandas DataFrame, a row for each run; see ``FsspecResultTracker.to_frame``.

        Raises:
            MissingResultsError: a run has recorded nothing.
            TrackerError: pandas is not installed, or the store failed.
        """
        from torchx_kfp.tracking.frame import frame

        return frame((run.id, run.results()) for run in self)


class Parents(Mapping[str, Run | FanIn]):
    """The runs that a stage reads, by alias; a fan-in is the list of its runs, in loop order."""

    def __init__(self, run_id: str, reads: Mapping[str, protocol.RunIds], tracker: FsspecResultTracker) -> None:
        self._run_id = run_id
        self._reads = reads
        self._tracker = tracker

    def __getitem__(self, alias: str) -> Run | FanIn:
        ids = self._reads.get(alias)
        if ids is None:
            there = f"It reads {', '.join(map(repr, self._reads))}." if self._reads else "It reads no other stage."
            raise UnknownAliasError(
                f"The stage {self._run_id!r} reads nothing under the alias {shown(alias)}. {there} Aliases are "
                "declared in the pipeline: task_from_app(..., reads={alias: task})."
            )
        if isinstance(ids, str):
            return Run(ids, self._tracker, reader=self._run_id)
        return FanIn(ids, self._tracker, self._run_id)

    def __iter__(self) -> Iterator[str]:
        return iter(self._reads)

    def __len__(self) -> int:
        return len(self._reads)

    def __repr__(self) -> str:
        return f"Parents({dict(self)!r})"


def current_run(environ: Mapping[str, str] = os.environ, *, patience: float = PATIENCE) -> Run:
    """The run of the stage that this process is.

    Its start is recorded with one request, once in a process: when and where it runs, and what the pipeline declares
    that it reads. So a tracker base that cannot be written is an error here and not after the work. Processes that
    torchrun starts can all call this; the first rank records.

    Args:
        environ: the stage protocol's variables.
        patience: seconds for which a call tries again while the store fails for a moment.

    Raises:
        NotInStageError: the process was not started as a tracked stage; the message says what is missing.
        ProtocolError: a variable of the stage protocol is malformed.
        TrackerError: the tracker base cannot be used or written, or a further tracker of the stage cannot be loaded.
    """
    context = protocol.decode(environ)
    try:
        key_text(context.run_id)
    except KeyRefusedError as error:
        raise ProtocolError(f"{protocol.JOB_ID} is no run id. {error}") from None
    tracker = FsspecResultTracker(context.tracker_base, patience=patience)
    further = further_trackers(context)
    announce(tracker, context, environ)
    return Run(context.run_id, tracker, context.parents, further=further)


def announce(tracker: FsspecResultTracker, context: protocol.StageContext, environ: Mapping[str, str]) -> None:
    """Record the start of the stage and what it reads, once in a process; of torchrun's ranks the first one does.

    Raises:
        TrackerError: the tracker base cannot be written, so that no result could be recorded either.
    """
    saying = (tracker.tracker_base, context.run_id, "start")
    if saying in _said or not is_first_rank(environ):
        return
    try:
        record_start(tracker.store, context.run_id, context.parents, start_here(environ))
    except KeyRefusedError as error:  # no place for such a name, which results may have all the same
        _logger.warning(_NO_LINEAGE, context.run_id, error)
    except TrackerError as error:
        raise TrackerError(
            f"The stage {context.run_id!r} could record no results: its tracker base {tracker.tracker_base!r} cannot "
            f"be written. {error}"
        ) from error
    _said.add(saying)


def _say_once(tracker: FsspecResultTracker, run_id: str, source: Source) -> None:
    """Record that the run uses the source. A stage that can read does not fail over that."""
    saying = (tracker.tracker_base, run_id, source)
    if saying in _said:
        return
    try:
        add_source(tracker.store, run_id, source)
        _said.add(saying)
    except TrackerError as error:
        _logger.warning(_NO_LINEAGE, run_id, error)
