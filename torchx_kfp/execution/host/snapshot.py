"""A KFP host's reports about a run, as events of a local run, and the new ones among them.

So the view, the table, the report and ``--json`` all use ``RunState``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import clean
from torchx_kfp.errors import PipelineError, TorchxKfpError
from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.host.nodes import Nodes
from torchx_kfp.execution.host.outcomes import reason_of_workflow
from torchx_kfp.execution.host.stages import OrderedEvent, Phase, Progression, StageReader
from torchx_kfp.execution.host.states import Period, Progress, read_progress
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk_tasks, without_indices
from torchx_kfp.execution.runs.events import (
    CANCELED_ON_KFP,
    KFP_GRACE,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StagePending,
)
from torchx_kfp.execution.runs.vocabulary import State

#: The name of the run itself in ``OrderedEvent.of``.
RUN = ""
#: The sentence that ends a canceled run: "Run X was ended by ...".
CANCELED_BY = "a request to KFP"


@dataclass(frozen=True, eq=False)
class RunPipeline:
    """The pipeline of a run. Stages and loops have their names without indices.

    Attributes:
        places: its stages and groups.
    """

    pipeline: Pipeline
    places: Mapping[str, ScopedTask]
    arguments: Mapping[str, Any]
    tracked: Mapping[str, ScopedTask]

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> RunPipeline | None:
        """Return the pipeline in the run's JSON (v2beta1), if present.

        Raises:
            PipelineError: it cannot be read.
        """
        spec = run.get("pipeline_spec")
        if not isinstance(spec, Mapping) or not spec:
            return None
        inner = spec.get("pipeline_spec")
        documents = [spec] if inner is None else [inner, spec.get("platform_spec")]
        try:
            pipeline = pipeline_from_documents(
                [each for each in documents if each], f"run {as_text(run.get('run_id'))}"
            )
            arguments = given_arguments(run)
            with contextlib.suppress(TorchxKfpError):  # they are not those of this pipeline
                arguments = complete_arguments(pipeline, arguments)
            places = list(walk_tasks(pipeline, arguments=arguments))
            tracked = {place.name: place for place in places if place.is_tracked}
        except (TorchxKfpError, ValueError) as error:
            raise PipelineError(f"The pipeline of this run cannot be read: {error}") from None
        return cls(pipeline, {place.name: place for place in places}, arguments, tracked)

    def is_distributed(self, stage: str) -> bool:
        """Return whether a tracked stage has replicas, which its launcher starts."""
        place = self.tracked.get(without_indices(stage))
        return place is not None and place.decoded.specification is not None

    def is_import(self, stage: str) -> bool:
        """Return whether a stage is an importer, whose pod runs only KFP's launcher."""
        return self.places[without_indices(stage)].component.importer is not None


@dataclass(frozen=True)
class Snapshot:
    """The state of a run according to the host's responses so far.

    Attributes:
        new: the new events of the last response, in order.
        last: the last event of the run and of each stage, loop and nested pipeline.
        patches: the pod spec patches of drivers, by stage: see ``PodSpec``.
        read: the names of the nodes that were read.
        unread: the names of unread pods, which this version does not know.
    """

    new: Sequence[OrderedEvent] = ()
    last: Mapping[str, OrderedEvent] = field(default_factory=dict)
    patches: Mapping[str, str] = field(default_factory=dict)
    read: Collection[str] = ()
    unread: Sequence[str] = ()

    @classmethod
    def of(
        cls,
        run: Mapping[str, Any],
        pipeline: RunPipeline | None = None,
        nodes: Nodes | None = None,
        link: str = "",
        before: Snapshot | None = None,
    ) -> Snapshot:
        """Read the responses about a run.

        Args:
            run: the run's JSON (v2beta1).
            pipeline: its pipeline. Without it, or without nodes, stages have no events.
            nodes: the run's nodes.
            link: the run's page in KFP's UI.
            before: the snapshot of earlier responses. This response may be older: no event is repeated or withdrawn.
        """
        progress, before = read_progress(run, time.time()), before or cls()
        of_stages: Sequence[OrderedEvent] = ()
        unread: Sequence[str] = ()
        last, patches, new = {**before.last}, before.patches, []
        if pipeline is not None and nodes is not None:
            nodes.read.update(before.read)
            reader = StageReader(pipeline.pipeline, pipeline.tracked, nodes, progress, last, patches)
            of_stages, patches, unread = reader.read(), reader.patches, nodes.unread_pods()
        for item in _events_of_run(run, progress, pipeline, nodes, of_stages, link):
            known = last.get(item.of)
            if (known is None or item.at >= known.at) and _is_news(item, known):
                new.append(item)
                last[item.of] = item
        return cls(new, last, patches, nodes.read if nodes is not None else (), unread)


def _events_of_run(
    run: Mapping[str, Any],
    progress: Progress,
    pipeline: RunPipeline | None,
    nodes: Nodes | None,
    of_stages: Sequence[OrderedEvent],
    link: str,
) -> Iterator[OrderedEvent]:
    """Yield the events of the run and, within each period, those of its stages."""
    last = len(progress.periods) - 1
    for index, period in enumerate(progress.periods):
        stages = [item for item in of_stages if item.at.period == index]
        if index == last:
            stages = [*_carried(of_stages, progress), *stages]
        started = RunStarted(
            pipeline=pipeline.pipeline.name if pipeline is not None else as_text(run.get("display_name")),
            run_id=progress.run_id,
            arguments=pipeline.arguments if pipeline is not None else given_arguments(run),
            retried=index > 0,
            time=period.started_at,
            link=link,
        )
        yield OrderedEvent(RUN, Progression(index, phase=Phase.STARTED), started)
        canceled = period.canceled_at
        before = [item for item in stages if canceled is None or item.event.time < canceled]
        yield from before
        if canceled is not None:
            yield OrderedEvent(
                RUN, Progression(index, phase=Phase.ENDING), RunEnding(CANCELED_ON_KFP, KFP_GRACE, time=canceled)
            )
        yield from stages[len(before) :]
        if period.state.is_over:
            reason = _reason(run, period, stages, nodes, is_last=index == last)
            latest = max((item.event.time for item in stages), default=period.started_at)
            time = max(period.ended_at or latest, latest)
            finished = RunFinished(
                progress.run_id, period.state, time - period.started_at, reason=clean(reason), time=time
            )
            yield OrderedEvent(RUN, Progression(index, phase=Phase.ENDED), finished)


def _carried(events: Sequence[OrderedEvent], progress: Progress) -> Iterator[OrderedEvent]:
    """Yield the ends of stages that a retry of the run did not restart, as events of the last period."""
    ends = {item.of: (item.at.period, item.event.result) for item in events if isinstance(item.event, StageFinished)}
    last = len(progress.periods) - 1
    for name, (period, result) in ends.items():
        # Until the retry has removed what failed, the nodes are those of the period before.
        if period < last and (progress.is_over or result.state.is_success or result.state is State.SKIPPED):
            yield OrderedEvent(name, Progression(last), StageFinished(result, time=progress.last.started_at))


def _reason(
    run: Mapping[str, Any], period: Period, stages: Sequence[OrderedEvent], nodes: Nodes | None, *, is_last: bool
) -> str:
    """Return why a period ended, unless a stage failed in it."""
    if period.state is State.CANCELED:
        return CANCELED_BY
    ends = (item.event.result.state for item in stages if isinstance(item.event, StageFinished))
    if not is_last or period.state is not State.FAILED or State.FAILED in ends:
        return ""
    said = as_text(as_object(run, "error").get("message")) or (reason_of_workflow(nodes) if nodes is not None else "")
    return said or "KFP does not report why"


def _is_news(item: OrderedEvent, known: OrderedEvent | None) -> bool:
    if isinstance(item.event, StagePending):
        # A pod may wait for several reasons, one after the other; most give none.
        before = known.event.reason if known is not None and isinstance(known.event, StagePending) else ""
        return item.event.reason != before
    return known is None or item.at > known.at


def given_arguments(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in the JSON of a run (v2beta1)."""
    return dict(as_object(run, "runtime_config", "parameters"))
