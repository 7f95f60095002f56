"""What the answers of a KFP host have told of a run so far, as the steps that the local runner would report, and what
is new in the last of them.

Whatever ``RunState`` computes from their events is therefore the same: the view, the table, the report and ``--json``.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchx_kfp.common.text import clean
from torchx_kfp.errors import PipelineFileError, TorchxKfpError
from torchx_kfp.execution.host.answers import as_object, as_text
from torchx_kfp.execution.host.nodes import Nodes
from torchx_kfp.execution.host.outcomes import reason_of_workflow
from torchx_kfp.execution.host.stages import Phase, Position, StageReader, Step
from torchx_kfp.execution.host.states import Period, Progress, read_progress
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.pipeline.walk import ScopedTask, walk, without_indices
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

#: What the steps of the run itself are steps of.
RUN = ""
#: The sentence that ends a canceled run: "Run X was ended by ...".
CANCELED_BY = "a request to KFP"


@dataclass(frozen=True, eq=False)
class RunPipeline:
    """A pipeline as it runs. Its stages and loops go by their names without indices.

    Attributes:
        pipeline: the pipeline.
        places: its stages, and the groups around them.
        arguments: the values of its parameters.
        tracked: the tracked stages.
    """

    pipeline: Pipeline
    places: Mapping[str, ScopedTask]
    arguments: Mapping[str, Any]
    tracked: Mapping[str, ScopedTask]

    @classmethod
    def of(cls, run: Mapping[str, Any]) -> RunPipeline | None:
        """Return the pipeline in v2beta1's answer about a run, if it is there.

        Raises:
            PipelineFileError: it cannot be read.
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
            places = list(walk(pipeline, arguments=arguments))
            tracked = {place.name: place for place in places if place.is_tracked}
        except (TorchxKfpError, ValueError) as error:
            raise PipelineFileError(f"The pipeline of this run cannot be read: {error}") from None
        return cls(pipeline, {place.name: place for place in places}, arguments, tracked)

    def is_distributed(self, stage: str) -> bool:
        """Tell whether a tracked stage has replicas, which its launcher starts."""
        place = self.tracked.get(without_indices(stage))
        return place is not None and place.decoded.specification is not None

    def is_import(self, stage: str) -> bool:
        """Tell whether a stage is an importer, whose pod runs nothing but KFP's launcher."""
        return self.places[without_indices(stage)].component.importer is not None


@dataclass(frozen=True)
class Snapshot:
    """What the answers about a run have told so far.

    Attributes:
        steps: the new steps in the last of them, in order.
        told: the last step of each thing.
        patches: what drivers have decided about pods, by stage: see ``PodSpec``.
        read: the names of the nodes that were read.
        unread: those of pods that were not: this version does not know what they are.
    """

    steps: Sequence[Step] = ()
    told: Mapping[str, Step] = field(default_factory=dict)
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
        """Read the answers about a run.

        Args:
            run: v2beta1's answer.
            pipeline: its pipeline. Without it, or without nodes, there are no steps of stages.
            nodes: the run's nodes.
            link: the run's page in KFP's UI.
            before: what earlier answers have told. These may be older: nothing is taken back, or told again.
        """
        progress, before = read_progress(run, time.time()), before or cls()
        of_stages: Sequence[Step] = ()
        unread: Sequence[str] = ()
        told, patches, new = {**before.told}, before.patches, []
        if pipeline is not None and nodes is not None:
            nodes.read.update(before.read)
            reader = StageReader(pipeline.pipeline, pipeline.tracked, nodes, progress, told, patches)
            of_stages, patches, unread = reader.read(), reader.patches, nodes.unread_pods()
        for step in _steps(run, progress, pipeline, nodes, of_stages, link):
            known = told.get(step.of)
            if (known is None or step.at >= known.at) and _is_news(step, known):
                new.append(step)
                told[step.of] = step
        return cls(new, told, patches, nodes.read if nodes is not None else (), unread)


def _steps(
    run: Mapping[str, Any],
    progress: Progress,
    pipeline: RunPipeline | None,
    nodes: Nodes | None,
    of_stages: Sequence[Step],
    link: str,
) -> Iterator[Step]:
    """Yield the steps of the run and, in the period in which they were, those of its stages."""
    last = len(progress.periods) - 1
    for index, period in enumerate(progress.periods):
        stages = [step for step in of_stages if step.at.period == index]
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
        yield Step(RUN, Position(index, phase=Phase.STARTED), started)
        canceled = period.canceled_at
        before = [step for step in stages if canceled is None or step.event.time < canceled]
        yield from before
        if canceled is not None:
            yield Step(RUN, Position(index, phase=Phase.ENDING), RunEnding(CANCELED_ON_KFP, KFP_GRACE, time=canceled))
        yield from stages[len(before) :]
        if period.state.is_over:
            reason = _reason(run, period, stages, nodes, is_last=index == last)
            latest = max((step.event.time for step in stages), default=period.started_at)
            time = max(period.ended_at or latest, latest)
            finished = RunFinished(
                progress.run_id, period.state, time - period.started_at, reason=clean(reason), time=time
            )
            yield Step(RUN, Position(index, phase=Phase.ENDED), finished)


def _carried(steps: Sequence[Step], progress: Progress) -> Iterator[Step]:
    """Yield the ends of stages that a retry of the run has not begun again, as steps of the last period."""
    ends = {step.of: (step.at.period, step.event.result) for step in steps if isinstance(step.event, StageFinished)}
    last = len(progress.periods) - 1
    for name, (period, result) in ends.items():
        # Until the retry has removed what failed, the nodes are those of the period before.
        if period < last and (progress.is_over or result.state.is_success or result.state is State.SKIPPED):
            yield Step(name, Position(last), StageFinished(result, time=progress.last.started_at))


def _reason(
    run: Mapping[str, Any], period: Period, stages: Sequence[Step], nodes: Nodes | None, *, is_last: bool
) -> str:
    """Return why a period has ended, unless that is a stage that has failed in it."""
    if period.state is State.CANCELED:
        return CANCELED_BY
    ends = (step.event.result.state for step in stages if isinstance(step.event, StageFinished))
    if not is_last or period.state is not State.FAILED or State.FAILED in ends:
        return ""
    said = as_text(as_object(run, "error").get("message")) or (reason_of_workflow(nodes) if nodes is not None else "")
    return said or "KFP does not say why"


def _is_news(step: Step, known: Step | None) -> bool:
    if isinstance(step.event, StagePending):
        # A pod that waits stays in its place, for one reason after the other. Most wait for none.
        before = known.event.reason if known is not None and isinstance(known.event, StagePending) else ""
        return step.event.reason != before
    return known is None or step.at > known.at


def given_arguments(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a run in v2beta1's answer."""
    return dict(as_object(run, "runtime_config", "parameters"))
