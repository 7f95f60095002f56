"""Makes the events of a run on a KFP host from what its API answers, as the local runner makes them.

Whatever ``RunState`` computes from them is therefore the same: the view, the table, the report and ``--json``.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any

from torchx_kfp.backend.details import Details, entries_of
from torchx_kfp.backend.nodes import Nodes, from_manifest, mapping, text
from torchx_kfp.backend.stages import Progress, Told, Tracked, tell
from torchx_kfp.backend.states import run_state, seconds
from torchx_kfp.backend.tracked import tracked_stages
from torchx_kfp.errors import TorchxKfpError
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.known import known_inputs
from torchx_kfp.pipeline.load import pipeline_from_documents
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.runs.events import Event, RunEnding, RunFinished, RunStarted, StageFinished, StageStarted
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
        self._tracked: dict[str, Tracked] = {}
        self._items: dict[str, int] = {}
        self._nodes = Nodes()
        self._last: tuple[Any, ...] | None = None
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
        if self._is_over or (manifest is None and self._is_known(run)):
            return []
        events = []
        for told in self._read(run, manifest):
            if not self._is_new(told):
                continue
            self._keys.add(told.key)
            if isinstance(told.event, StageFinished):
                self._ended[told.stage] = told.round
            events.append(told.event)
        self._last = _compared(run)
        self._is_over = any(isinstance(event, RunFinished) for event in events)
        return events

    def wants_manifest(self, run: Mapping[str, Any]) -> bool:
        """Tell whether v1beta1 knows more about what is new in an answer: pods, exit codes, and ends.

        Pass its answer to the next ``observe``: what has been told once is not told again.
        """
        if self._is_over or self._is_known(run):
            return False
        if run_state(run).is_over:
            return True
        new = (told.event for told in self._read(run, None) if self._is_new(told))
        return any(
            (isinstance(event, StageStarted) and not event.pod_name)
            or (isinstance(event, StageFinished) and (event.result.attempts or event.result.state is State.FAILED))
            for event in new
        )

    def _is_known(self, run: Mapping[str, Any]) -> bool:
        return self._last is not None and _compared(run) == self._last

    def _is_new(self, told: Told) -> bool:
        ended = self._ended.get(told.stage)
        return told.key not in self._keys and (ended is None or told.round > ended)

    def _read(self, run: Mapping[str, Any], manifest: Mapping[str, Any] | None) -> Iterator[Told]:
        """Yield all events of the run so far."""
        self._load(run)
        progress = _progress(run)
        yield Told(self._started(run, progress), "started")
        if self._details is not None:
            self._nodes = self._nodes.updated(self._details.read(run))
        if manifest is not None:
            self._nodes = self._nodes.updated(from_manifest(manifest))
        last = progress.started_at
        ending = progress.canceled_at
        stages = (
            tell(self.pipeline, self._nodes, progress, self._tracked, self._items) if self.pipeline is not None else []
        )
        for told in stages:
            last = max(last, told.event.time)
            if ending is not None and told.event.time >= ending:
                yield _ending(ending)
                ending = None
            yield told
        if ending is not None:
            yield _ending(ending)
        if progress.is_over:
            yield Told(self._finished(run, progress, last), "finished")

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
            self._tracked = tracked_stages(pipeline, arguments)
            self._items = _items(pipeline, arguments)
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

    def _finished(self, run: Mapping[str, Any], progress: Progress, last: float) -> RunFinished:
        end = max(progress.ended_at or last, last)
        reason = CANCELED_BY if progress.state is State.CANCELED else ""
        if progress.state is State.FAILED and not self._has_failed_stage():
            reason = text(mapping(run.get("error")).get("message")) or self._nodes.message or "KFP does not say why"
        return RunFinished(progress.run_id, progress.state, end - progress.started_at, reason=clean(reason), time=end)

    def _has_failed_stage(self) -> bool:
        return any(
            node.state is State.FAILED and node.name.endswith(("-driver", ".executor"))
            for node in self._nodes.by_name.values()
        )


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
    canceled = next((when for word, when in times if word == _CANCELING), None)
    if canceled is None and (state is State.CANCELED or run.get("state") == _CANCELING):
        canceled = times[-1][1] if times else started
    ended = seconds(run.get("finished_at")) or (times[-1][1] if times else started) if state.is_over else None
    return Progress(text(run.get("run_id")), state, started, canceled, ended)


def _ending(time: float) -> Told:
    return Told(RunEnding("Canceled on KFP", GRACE, time=time), "ending")


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
