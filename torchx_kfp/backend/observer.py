"""Makes the events of a run on a KFP host from what its API answers, as the local runner makes them.

Whatever ``RunState`` computes from them is therefore the same: the view, the table, the report and ``--json``.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from typing import Any

from torchx_kfp.backend.details import Details, entries_of
from torchx_kfp.backend.ends import Progress
from torchx_kfp.backend.nodes import Nodes, from_manifest, workflow_of
from torchx_kfp.backend.plan import Plan
from torchx_kfp.backend.pods import PodNames
from torchx_kfp.backend.stages import Told, tell
from torchx_kfp.backend.states import is_canceled, run_state, seconds
from torchx_kfp.backend.tracked import tracked_stages
from torchx_kfp.backend.values import mapping, text
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.known import known_inputs
from torchx_kfp.pipeline.load import pipeline_from_documents
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs.events import (
    CANCELED_ON_KFP,
    Event,
    RunEnding,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)
from torchx_kfp.runs.vocabulary import State
from torchx_kfp.text import clean

#: What ends a canceled run: "Run X was ended by ...".
CANCELED_BY = "a request to KFP"
_CANCELING = "CANCELING"
#: Kubernetes gives the processes of a pod this many seconds to end by themselves.
GRACE = 30.0


class Observer:
    """Compares each answer with those before it. It does not ask for them: see ``run``."""

    def __init__(self, link: str = "") -> None:
        """Begin without an answer; ``link`` is the run's page in KFP's UI."""
        self._link = link
        #: The pipeline, from the first answer that has it.
        self.pipeline: Pipeline | None = None
        #: Why the pipeline in the answers cannot be read, as a sentence. Then there are no events of stages.
        self.problem = ""
        self._details: Details | None = None
        self._plan: Plan | None = None
        self._nodes = Nodes()
        #: The parts of the last observed answer that matter.
        self._last: tuple[Any, ...] | None = None
        #: An answer that has been read, or is the same as the last one, and the events that it tells.
        self._read_one: tuple[Mapping[str, Any], list[Told]] | None = None
        self._keys: set[Hashable] = set()
        #: The round in which each stage has ended last.
        self._ended: dict[str, tuple[int, ...]] = {}
        self._is_over = False

    def observe(self, run: Mapping[str, Any], manifest: Mapping[str, Any] | None = None) -> list[Event]:
        """Return the events that are new since the last answer, in the order of their times.

        Args:
            run: v2beta1's answer about the run.
            manifest: v1beta1's answer about the run, or the Argo workflow in it: see ``wants_manifest``.
        """
        if self._is_over:
            return []
        told = self._read(run)
        if manifest is not None:
            self._add_manifest(manifest)
            told = self._tell(run)
        events = []
        for one in told:
            if self._is_new(one):
                self._keys.add(one.key)
                if isinstance(one.event, StageFinished):
                    self._ended[one.stage] = one.round
                events.append(one.event)
        self._last, self._read_one = _compared(run), None
        self._is_over = any(isinstance(event, RunFinished) for event in events)
        return events

    def wants_manifest(self, run: Mapping[str, Any]) -> bool:
        """Tell whether v1beta1 knows more about what is new in an answer: pods, exit codes, and ends.

        Pass its answer to the next ``observe``: what has been told once is not told again.
        """
        if self._is_over:
            return False
        new = [one.event for one in self._read(run) if self._is_new(one)]
        for event in new:
            if isinstance(event, StageStarted) and not event.pod_name:
                return True
            if isinstance(event, StageFinished) and (
                event.result.state is State.FAILED or (event.result.attempts and not event.result.pod_name)
            ):
                return True
            if isinstance(event, RunFinished) and not (event.state is State.SUCCEEDED and self._has_ended()):
                return True
        return False

    def _has_ended(self) -> bool:
        """Tell whether the nodes of the run have ended: KFP may report that some time after the run's own end."""
        whole = self._nodes.get(self._nodes.workflow)
        return whole is not None and whole.state.is_over

    def _is_new(self, told: Told) -> bool:
        ended = self._ended.get(told.stage)
        return told.key not in self._keys and (ended is None or _is_later(told.round, ended))

    def _read(self, run: Mapping[str, Any]) -> list[Told]:
        """Return all events of the run so far, or none if the answer is the same as the last one."""
        if self._read_one is not None and self._read_one[0] is run:
            return self._read_one[1]
        told: list[Told] = []
        if self._last is None or _compared(run) != self._last:
            self._load(run)
            if self._details is not None:
                self._nodes = self._nodes.updated(self._details.read(run))
            told = self._tell(run)
        self._read_one = run, told
        return told

    def _add_manifest(self, manifest: Mapping[str, Any]) -> None:
        workflow = workflow_of(manifest)
        self._nodes = self._nodes.updated(from_manifest(workflow))
        if self._plan is not None:
            self._plan.pods = PodNames.of(workflow, self._plan.pipeline)

    def _tell(self, run: Mapping[str, Any]) -> list[Told]:
        progress = _progress(run)
        stages = tell(self._plan, self._nodes, progress) if self._plan is not None else []
        last = max((one.event.time for one in stages), default=progress.started_at)
        canceled = progress.canceled_at
        ending = [Told(RunEnding(CANCELED_ON_KFP, GRACE, time=canceled), "ending")] if canceled is not None else []
        before = [one for one in stages if canceled is None or one.event.time < canceled]
        told = [Told(self._started(run, progress), "started"), *before, *ending, *stages[len(before) :]]
        if progress.is_over:
            has_failed = any(
                isinstance(one.event, StageFinished) and one.event.result.state is State.FAILED for one in stages
            )
            told.append(Told(self._finished(run, progress, last, has_failed=has_failed), "finished"))
        return told

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
            self._plan = Plan(pipeline, tracked_stages(pipeline, arguments), _items(pipeline, arguments))
        except (TorchxKfpError, ValueError) as error:
            self.problem = f"The pipeline of this run cannot be read: {error}"
            return
        self.pipeline, self._details = pipeline, Details(pipeline)

    def _arguments(self, run: Mapping[str, Any], pipeline: Pipeline | None) -> dict[str, Any]:
        given = dict(mapping(mapping(run.get("runtime_config")).get("parameters")))
        try:
            return complete_arguments(pipeline, given) if pipeline is not None else given
        except TorchxKfpError:
            return given

    def _started(self, run: Mapping[str, Any], progress: Progress) -> RunStarted:
        return RunStarted(
            pipeline=self.pipeline.name if self.pipeline is not None else text(run.get("display_name")),
            run_id=progress.run_id,
            arguments=self._arguments(run, self.pipeline),
            time=progress.started_at,
            link=self._link,
        )

    def _finished(self, run: Mapping[str, Any], progress: Progress, last: float, *, has_failed: bool) -> RunFinished:
        """Return the end of the run; ``has_failed`` tells whether a stage has failed, which is then the reason."""
        end = max(progress.ended_at or last, last)
        reason = CANCELED_BY if progress.state is State.CANCELED else ""
        if progress.state is State.FAILED and not has_failed:
            reason = text(mapping(run.get("error")).get("message")) or self._nodes.message or "KFP does not say why"
        return RunFinished(progress.run_id, progress.state, end - progress.started_at, reason=clean(reason), time=end)


def _is_later(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Tell whether a round comes after another one; the other may be that of a pipeline around the stage."""
    common = min(len(one), len(other))
    return one[:common] > other[:common]


def _progress(run: Mapping[str, Any]) -> Progress:
    """Return how far the run is."""
    history = run.get("state_history")
    times = [
        (text(item.get("state")), when)
        for item in map(mapping, history if isinstance(history, list) else ())
        if (when := seconds(item.get("update_time"))) is not None
    ]
    first = times[0][1] if times else 0.0
    started = seconds(run.get("created_at")) or first
    state = run_state(run)
    if not state.is_over:
        state = State.RUNNING
    canceled = None
    if state is State.CANCELED or is_canceled(run):
        canceled = next(
            (when for word, when in reversed(times) if word == _CANCELING), times[-1][1] if times else started
        )
    ended = seconds(run.get("finished_at")) or (times[-1][1] if times else started) if state.is_over else None
    return Progress(text(run.get("run_id")), state, started, canceled, ended)


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


def _compared(run: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the parts of an answer of which a change matters."""
    return (
        entries_of(run),
        run.get("state"),
        run.get("state_history"),
        run.get("finished_at"),
        "pipeline_spec" in run,
    )
