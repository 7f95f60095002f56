"""Derive the events of a run on a KFP host from what its API answers, as the local runner makes them.

Whatever ``RunState`` computes from them is therefore the same: the view, the table, the report and ``--json``.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from torchx_kfp.common.text import clean
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.execution.host.answers import mapping, text
from torchx_kfp.execution.host.nodes import Nodes
from torchx_kfp.execution.host.outcomes import reason_of_workflow
from torchx_kfp.execution.host.stages import StageEvent, StageReader
from torchx_kfp.execution.host.states import Period, Progress, read_progress
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import KnownStage, known_inputs, tracked_stages, walk, without_indices
from torchx_kfp.execution.runs.events import (
    CANCELED_ON_KFP,
    KFP_GRACE,
    Event,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
)
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.resume_record import continuation_of
from torchx_kfp.execution.runs.vocabulary import State

#: The sentence that ends a canceled run: "Run X was ended by ...".
CANCELED_BY = "a request to KFP"
#: Seconds that the replicas of an engine have after SIGTERM.
_GRACE_OF_REPLICAS = 30.0


class Observer:
    """Compares each answer with those before it. It does not ask for them: see ``run``."""

    def __init__(self, link: str = "") -> None:
        """Begin without an answer; ``link`` is the run's page in KFP's UI."""
        self._link = link
        #: The pipeline, from the first answer that has it.
        self.pipeline: Pipeline | None = None
        #: Why the pipeline in the answers cannot be read, as a sentence. Then there are no events of stages.
        self.problem = ""
        #: The pipeline's tracked stages, and the numbers of items of its loops as far as they are known, by their names
        #: without indices.
        self._tracked: Mapping[str, KnownStage] = {}
        self._items: Mapping[str, int] = {}
        #: The stages whose replicas an engine runs.
        self._distributed: frozenset[str] = frozenset()
        self._imports: frozenset[str] = frozenset()
        self._nodes: Nodes | None = None
        #: The names of the nodes of the drivers of stages, by the stages' names.
        self.drivers: Mapping[str, str] = {}
        #: The id of the run that this one resumes, and the ends of the stages that it has kept.
        self.resumes = ""
        self._kept: tuple[StageResult, ...] = ()
        #: The parts of the last answer that matter.
        self._last: tuple[Any, ...] | None = None
        #: The content of each event so far, by its key.
        self._seen: dict[Hashable, str] = {}
        #: The period and round in which each stage has ended last.
        self._ended: dict[str, tuple[int, ...]] = {}
        #: The period of the last answer.
        self._period = 0

    def observe(self, run: Mapping[str, Any], nodes: Nodes | None = None) -> list[Event]:
        """Return the events that are new since the last answer, in the order of their times.

        Args:
            run: v2beta1's answer about the run.
            nodes: the run's nodes now; None if the host does not serve them, or they are the same as before.
        """
        self._load(run)
        answer = (run.get("state"), run.get("state_history"), run.get("finished_at"), self.pipeline is not None)
        if nodes is None and answer == self._last:
            return []
        self._nodes, self._last = nodes or self._nodes, answer
        progress = read_progress(run)
        events = []
        for index, event in self._events(run, progress):
            if self._is_new(index, event):
                self._seen[(index, event.key)] = event.content
                if isinstance(event.event, StageFinished):
                    self._ended[event.stage] = (index, *event.round)
                events.append(event.event)
        self._period = len(progress.periods) - 1
        return events

    def is_distributed(self, stage: str) -> bool:
        """Tell whether an engine runs the replicas of a stage."""
        return without_indices(stage) in self._distributed

    def is_import(self, stage: str) -> bool:
        """Tell whether a stage is an importer, whose pod runs nothing but KFP's launcher."""
        return without_indices(stage) in self._imports

    def restarts(self, stage: str) -> bool:
        """Tell whether a stage's own program starts the application again if it fails."""
        tracked = self._tracked.get(without_indices(stage))
        return tracked is not None and tracked.restarts

    def _is_new(self, period: int, event: StageEvent) -> bool:
        if (period, event.key) in self._seen:
            return self._seen[(period, event.key)] != event.content
        # The round of the last end may be that of a pipeline around the stage.
        now, ended = (period, *event.round), self._ended.get(event.stage, ())
        common = min(len(now), len(ended))
        # News of a period after the next one has begun comes too late.
        return period >= self._period and (not ended or now[:common] > ended[:common])

    def _events(self, run: Mapping[str, Any], progress: Progress) -> Iterator[tuple[int, StageEvent]]:
        """Yield all events of the run so far, each with the index of its period."""
        stages = []
        if self.pipeline is not None and self._nodes is not None:
            reader = StageReader(self.pipeline, self._tracked, self._items, self._nodes, progress)
            stages = reader.read()
            self.drivers = reader.drivers
        by_period: list[list[StageEvent]] = [[] for _ in progress.periods]
        for event in stages:
            by_period[progress.period_at(event.event.time)].append(event)
        by_period[-1][:0] = _carried(by_period, progress)
        for index, (period, events) in enumerate(zip(progress.periods, by_period, strict=True)):
            started = RunStarted(
                pipeline=self.pipeline.name if self.pipeline is not None else text(run.get("display_name")),
                run_id=progress.run_id,
                arguments=self._arguments(run, self.pipeline),
                resumed=index > 0,
                time=period.started_at,
                link=self._link,
            )
            yield index, StageEvent(started, "started")
            for end in self._kept:
                kept = StageFinished(end, kept=True, time=period.started_at)
                yield index, StageEvent(kept, ("kept", end.name), end.name)
            canceled = period.canceled_at
            before = [one for one in events if canceled is None or one.event.time < canceled]
            yield from ((index, one) for one in before)
            if canceled is not None:
                grace = _GRACE_OF_REPLICAS if self._distributed else KFP_GRACE
                yield index, StageEvent(RunEnding(CANCELED_ON_KFP, grace, time=canceled), "ending")
            yield from ((index, one) for one in events[len(before) :])
            if period.state.is_over:
                is_last = index + 1 == len(progress.periods)
                yield index, StageEvent(self._finished(run, period, events, is_last=is_last), "end")

    def _finished(
        self, run: Mapping[str, Any], period: Period, stages: list[StageEvent], *, is_last: bool
    ) -> RunFinished:
        """Return the end of a period; a failed stage in it is the reason, if there is one."""
        last = max((one.event.time for one in stages), default=period.started_at)
        end = max(period.ended_at or last, last)
        reason = CANCELED_BY if period.state is State.CANCELED else ""
        if (
            is_last
            and period.state is State.FAILED
            and not any(
                isinstance(one.event, StageFinished) and one.event.result.state is State.FAILED for one in stages
            )
        ):
            message = reason_of_workflow(self._nodes) if self._nodes is not None else ""
            reason = text(mapping(run.get("error")).get("message")) or message or "KFP does not say why"
        return RunFinished(
            text(run.get("run_id")), period.state, end - period.started_at, reason=clean(reason), time=end
        )

    def _load(self, run: Mapping[str, Any]) -> None:
        spec = run.get("pipeline_spec")
        if self.pipeline is not None or self.problem or not isinstance(spec, Mapping) or not spec:
            return
        inner = spec.get("pipeline_spec")
        documents = [spec] if inner is None else [inner, spec.get("platform_spec")]
        name = f"run {text(run.get('run_id'))}"
        try:
            pipeline = pipeline_from_documents([document for document in documents if document], name)
            arguments = self._arguments(run, pipeline)
            self._tracked, self._items = tracked_stages(pipeline, arguments), _items(pipeline, arguments)
        except (TorchxKfpError, ValueError) as error:
            self.problem = f"The pipeline of this run cannot be read: {error}"
            return
        self.pipeline = pipeline
        if (continuation := continuation_of(pipeline.description)) is not None:
            # The record may be anybody's: it names no files of this machine.
            kept = (dataclasses.replace(end, log_file=None, files=(), artifacts={}) for end in continuation.ends)
            self.resumes, self._kept = continuation.resumes, tuple(kept)
        self._distributed = frozenset(place.name for place in walk(pipeline) if place.component.facts.replica_roles)
        self._imports = frozenset(place.name for place in walk(pipeline) if place.component.importer is not None)

    def _arguments(self, run: Mapping[str, Any], pipeline: Pipeline | None) -> dict[str, Any]:
        given = dict(mapping(mapping(run.get("runtime_config")).get("parameters")))
        try:
            return complete_arguments(pipeline, given) if pipeline is not None else given
        except TorchxKfpError:
            return given


def _carried(by_period: list[list[StageEvent]], progress: Progress) -> list[StageEvent]:
    """Return the ends of stages that a retry of the run has kept, as events of the last period."""
    ends: dict[str, tuple[int, StageEvent]] = {}
    for index, events in enumerate(by_period):
        ends.update((one.stage, (index, one)) for one in events if isinstance(one.event, StageFinished))
    last = len(by_period) - 1
    carried = []
    for index, one in ends.values():
        result = one.event.result if isinstance(one.event, StageFinished) else None
        # Until the retry has removed what failed, the nodes are those of the period before.
        if result and index < last and (progress.is_over or result.state.is_success or result.state is State.SKIPPED):
            event = StageFinished(result, kept=result.state.is_success, time=progress.last.started_at)
            carried.append(dataclasses.replace(one, event=event))
    return carried


def _items(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, int]:
    """Return how many items loops have, as far as it is known, by the loops' names without indices."""
    found = {}
    for place, known in known_inputs(pipeline, arguments):
        if place.task.loop is None:
            continue
        items = known.get(place.task.loop.from_input or "")
        if place.task.loop.raw is not None:
            items = json.loads(place.task.loop.raw)
        if isinstance(items, list):
            found[place.name] = len(items)
    return found
