"""Plan how a run goes on: which stages are kept from an earlier run, which have changed, and which run.

The same rules hold wherever the runs are. A stage is kept if it succeeded and its results are still there. Whatever
reads a stage that runs again runs again. Loops, conditions and nested pipelines are kept as a whole.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import counted, did_you_mean, listed
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.artifacts import parameters_of
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.spec import Pipeline, is_volume_task
from torchx_kfp.execution.pipeline.surgery import without_tasks
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, without_indices
from torchx_kfp.execution.runs.earlier_run import EarlierRun, ResumeRecord
from torchx_kfp.execution.runs.record import same_base
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.units import CODE, CONDITION, OutputLookup, OutputNotKnownError, Unit, Units, differences
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.tracking.recorder import absolute_base

#: How many stages a message names.
_NAMED = 8
#: Why a stage that has ended is not kept, as a clause.
_REASONS = {
    State.FAILED: "it failed",
    State.NOT_RUN: "it was not run",
    State.CANCELED: "it was ended",
    State.SKIPPED: "it was skipped",
}


@dataclass(frozen=True)
class Step:
    """What becomes of a part of the pipeline.

    Attributes:
        name: its name: that of the stage, or of the stages in a group.
        stages: the names of its stages, without indices.
        kept_from: the id of the run in which it ran; empty if it runs now.
        reason: why it runs now, as a clause; empty if it is kept.
        changes: the names of what differs from the earlier run, such as ``image``.
    """

    name: str
    stages: tuple[str, ...]
    kept_from: str = ""
    reason: str = ""
    changes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ResumePlan:
    """How a run continues another one.

    Attributes:
        run_id: the id of the earlier run.
        steps: what becomes of each part of the pipeline, in the pipeline's order.
        pipeline: the pipeline of the new run, without what is kept.
        dropped: stages of the earlier run that the pipeline does not have any more.
        notes: sentences about what could not be verified, or is left out.
        reusable: how stages inside loops, branches and nested pipelines that run had ended, by their names: each is
            kept if its inputs are the same again. Only a run on this machine that resumes one here has some.
        folder: the folder of the earlier run, if it is on this machine.
    """

    run_id: str
    steps: tuple[Step, ...]
    pipeline: Pipeline = field(repr=False)
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    reusable: Mapping[str, StageResult] = field(default_factory=dict, repr=False)
    folder: Path | None = None

    @property
    def kept(self) -> tuple[Step, ...]:
        """The parts that are kept."""
        return tuple(step for step in self.steps if step.kept_from)

    @property
    def running(self) -> tuple[Step, ...]:
        """The parts that run."""
        return tuple(step for step in self.steps if not step.kept_from)

    def __str__(self) -> str:
        """Return the plan as lines: what is kept, and from which run, what has changed, and what runs."""
        width = max((len(step.name) for step in self.steps), default=0)
        lines = [f"Resumes {self.run_id}: {len(self.kept):,} kept, {len(self.running):,} to run."]
        for step in self.steps:
            said = f"kept, from {step.kept_from}" if step.kept_from else f"runs: {step.reason}"
            lines.append(f"  {step.name.ljust(width)}  {said}")
            if step.changes:
                changed = "changed, kept anyway" if step.kept_from else "changed"
                lines.append(f"  {' ' * width}  {changed}: {listed(step.changes, _NAMED)}")
            if not step.kept_from and (count := sum(without_indices(name) in step.stages for name in self.reusable)):
                stages = counted(count, "stage")
                lines.append(f"  {' ' * width}  kept inside, if the inputs are the same: {stages}")
        if different := [step for step in self.kept if step.changes]:
            words = " ".join(f"--from {step.stages[0]}" for step in different[:_NAMED])
            lines.append(f"To run what has changed as well: {words}")
        if self.dropped:
            lines.append(f"No longer in the pipeline: {listed(self.dropped, _NAMED)}.")
        return "\n".join([*lines, *self.notes])


def plan_resume(
    earlier: EarlierRun,
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    *,
    from_stages: Collection[str] = (),
    is_here: bool = True,
    directory: str = "",
    changed_files: Callable[[], Mapping[str, Sequence[str]]] = dict,
) -> ResumePlan:
    """Plan how a run of the pipeline continues an earlier run.

    Args:
        earlier: the run that is resumed.
        pipeline: the whole pipeline of the new run, which may differ from that of the earlier one.
        arguments: the values of all its parameters.
        from_stages: the stages at which to start anew: they run, and so does everything that depends on them.
        is_here: whether the new run is on this machine, rather than on a KFP host.
        directory: the directory in which stages of a run on this machine start.
        changed_files: returns which files have changed that stages may use, by the stages' names.

    Raises:
        ArgumentError: the run is not over, is one of another pipeline, or has nothing left to do; a stage does not
            exist; or the new run cannot reach the results that it would keep.
    """
    if earlier.record.is_running:
        raise ArgumentError(
            f"The run {earlier.run_id} is not over. `torchx-kfp watch {earlier.run_id}` shows it, and `torchx-kfp "
            f"cancel {earlier.run_id}` ends it; then resume it."
        )
    planner = _Planner(earlier, pipeline, arguments, changed_files, is_here=is_here, directory=directory)
    planner.refuse_another_pipeline()
    planner.decide(from_stages)
    return planner.plan()


class _Planner:
    """Decides about the units of a pipeline: each is kept until there is a reason to run it."""

    def __init__(
        self,
        earlier: EarlierRun,
        pipeline: Pipeline,
        arguments: Mapping[str, Any],
        changed_files: Callable[[], Mapping[str, Sequence[str]]],
        *,
        is_here: bool,
        directory: str,
    ) -> None:
        self._changed_files = changed_files
        self._earlier, self._pipeline, self._is_here, self._directory = earlier, pipeline, is_here, directory
        self._now = now = Units(pipeline, arguments)
        self._units = now.by_path
        is_same = pipeline is earlier.pipeline and arguments == earlier.record.arguments
        self._then = then = now if is_same else Units(earlier.pipeline, earlier.record.arguments)
        self._before = {unit.key: unit for unit in then.by_path.values()}
        self._names = then.stage_names
        places = earlier.record.folder is not None, is_here
        self._outputs = OutputLookup(now, earlier.ends, are_here=places)
        self._readers: dict[str, list[Unit]] = {}
        self._followers: dict[str, list[Unit]] = {}
        for unit in self._units.values():
            for path in dict.fromkeys(read.producer for read in unit.reads):
                self._readers.setdefault(path, []).append(unit)
            for path in unit.after:
                self._followers.setdefault(path, []).append(unit)
        #: Why units run, by their paths; the others are kept.
        self._runs: dict[str, str] = {}
        #: The units that the user wants to run, and exit tasks: no cache may answer for them.
        self._anew: dict[str, Unit] = {}

    def refuse_another_pipeline(self) -> None:
        names = self._now.stage_names
        is_renamed = self._pipeline.name != self._earlier.pipeline.name
        if names & self._names and not (is_renamed and names != self._names):
            return
        here, there = (listed(sorted(only), _NAMED) or "none" for only in (names - self._names, self._names - names))
        raise ArgumentError(
            f"The run {self._earlier.run_id} is one of another pipeline, {self._earlier.pipeline.name!r}. Stages that "
            f"only this pipeline, {self._pipeline.name!r}, has: {here}. Stages that only the run has: {there}. Give a "
            "run of this pipeline."
        )

    def decide(self, from_stages: Collection[str]) -> None:
        left = deque(reason for stage in from_stages for reason in self._started_from(stage))
        left += [(unit, why) for unit in self._units.values() if (why := self._reason(unit))]
        while left:
            unit, why = left.popleft()
            if unit.path not in self._runs:
                self._runs[unit.path] = why
                left += self._consequences(unit)
        self._anew.update((unit.path, unit) for unit in self._units.values() if unit.is_exit)

    def _started_from(self, stage: str) -> Iterator[tuple[Unit, str]]:
        """Yield the units at which the user starts anew, all that depend on them, and why they run."""
        found = [unit for unit in self._units.values() if unit.is_meant_by(stage)]
        if not found:
            known = [name for unit in self._units.values() for name in unit.names]
            raise ArgumentError(
                f"There is no stage {stage!r} to start from.{did_you_mean(stage, known)} The pipeline has: "
                f"{listed(known, 20)}."
            )
        left = deque(found)
        while left:
            unit = left.popleft()
            if unit.path not in self._anew:
                self._anew[unit.path] = unit
                yield unit, "you start from it" if unit in found else f"it depends on {stage}, from which you start"
                left += [*self._readers.get(unit.path, ()), *self._followers.get(unit.path, ())]

    def _consequences(self, unit: Unit) -> Iterator[tuple[Unit, str]]:
        """Yield the units that run because this one does, and why."""
        for reader in self._readers.get(unit.path, ()):
            yield reader, f"it reads {unit.name}, which runs"
        for follower in self._followers.get(unit.path, ()):
            if follower.place.task.runs_always:
                yield follower, f"{unit.name} runs before it"
        if any(map(self._uses_workspace, unit.stages)):
            for other in self._units.values():
                if any(map(self._uses_workspace, other.stages)):
                    yield other, f"it shares KFP's workspace with {unit.name}, which runs"
        for read in unit.reads:
            producer = self._units[read.producer]
            if not read.input:
                yield producer, f"the pods of {unit.name}, which runs, are set up with its output"
            elif producer.path not in self._runs:
                try:
                    self._outputs.get(producer, read.output)
                except OutputNotKnownError as error:
                    yield producer, f"{unit.name} reads its output {read.output!r}, {error}"

    def _uses_workspace(self, place: ScopedTask) -> bool:
        container = place.component.container
        texts = [*(container.words if container else ()), *map(str, place.inputs.values())]
        return any(WORKSPACE in text for text in texts)

    def _ends(self, unit: Unit) -> list[StageResult]:
        return [end for name in unit.names for end in self._outputs.executions.get(name, {}).values()]

    def _reason(self, unit: Unit) -> str:
        """Return why a unit runs whatever the others do; empty if it may be kept."""
        if unit.is_exit:
            return "it runs at the end of each run"
        if is_volume_task(unit.place.component):
            return "each run has its own volumes"
        if new := [name for name in unit.names if name not in self._names]:
            return "it is new" if len(new) == len(unit.names) else f"{listed(new, _NAMED)} is new"
        is_group, ends = unit.place.component.dag is not None, self._ends(unit)
        loops = {place.name: place.loops for place in unit.stages}
        for end in sorted(ends, key=lambda end: end.state.rank):
            stage = without_indices(end.name)
            if end.state.is_success and len(indices_of(end.name)) != loops[stage]:
                return f"{stage} is in other loops now"
            if (why := self._why_not_kept(end)) and not (is_group and end.state is State.SKIPPED):
                return f"{end.name}: {why}" if is_group else why
        if not any(end.state.is_success for end in ends):
            tasks = [self._earlier.record.run.tasks.get(name) for name in unit.names]
            has_begun = any(task is not None and task.started_at is not None for task in tasks)
            return "it was skipped" if ends else f"it had not {'ended' if has_begun else 'begun'}"
        if missing := self._without_end(unit):
            return f"{missing} had not ended"
        return "its condition, or what that reads, has changed" if ("", CONDITION) in self._changes(unit) else ""

    def _why_not_kept(self, end: StageResult) -> str:
        """Return why a stage's outputs cannot be used again, as a clause; empty if they can."""
        if end.state.is_success:
            return self._earlier.gone.get(end.name, "")
        return _REASONS.get(end.state, f"it was {end.state}")

    def _without_end(self, unit: Unit) -> str:
        """Return a stage of the unit of which some executions have no end; empty if the run has kept the unit."""
        run = self._earlier.record.run
        is_whole = run.state in (State.SUCCEEDED, State.FAILED)
        for place in () if any(end.name in self._earlier.kept for end in self._ends(unit)) else unit.stages:
            found = len(self._outputs.executions.get(place.name, ()))
            task = run.tasks.get(place.name)
            expected = task.expected if task is not None else 0
            # A branch that was not taken has an end as well, and so has each stage of a run that is over.
            if found != expected if expected else not found and not (place.looped and is_whole):
                return place.name
        return ""

    def _changes(self, unit: Unit) -> Sequence[tuple[str, str]]:
        before = self._before.get(unit.key)
        if before is None and unit.place.task.is_group:  # it has other stages now
            before = next((one for one in self._before.values() if {*unit.names} & {*one.names}), None)
        if before is None or (self._then is self._now):
            return ()
        return differences(dict(self._then.definition(before)), dict(self._now.definition(unit)))

    def plan(self) -> ResumePlan:
        """Return the plan.

        Raises:
            ArgumentError: nothing would run, or the results that would be kept are out of reach.
        """
        run_id, folder = self._earlier.run_id, self._earlier.record.folder
        running = [unit for unit in self._units.values() if unit.path in self._runs]
        kept = {unit.path: unit for unit in self._units.values() if unit.path not in self._runs}
        if all(unit.is_exit for unit in running):
            raise ArgumentError(
                f"There is nothing left to do in the run {run_id}: all stages have succeeded. To run "
                "some of them again, resume the run with --from STAGE (in Python, from_stages)."
            )
        notes = self._verify_bases([end for unit in kept.values() for end in self._ends(unit)])
        needed: dict[str, set[str]] = {}
        for read in (read for unit in running for read in unit.reads):
            needed.setdefault(read.producer, set()).add(read.output)
        #: Importers of what is not known, which nothing reads that runs.
        lost: dict[str, Mapping[str, Any]] = {}
        for path, reads in self._now.importers.items():
            try:
                for read in (read for read in reads if read.producer in kept):
                    self._outputs.get(kept[read.producer], read.output)
                    needed.setdefault(read.producer, set()).add(read.output)
            except OutputNotKnownError:
                lost[path] = {}
        outputs: dict[str, Any] = {}
        for name, read in self._now.outputs.items():
            if read.producer in kept:
                try:
                    outputs[name] = self._outputs.get(kept[read.producer], read.output)
                    needed.setdefault(read.producer, set()).add(read.output)
                except OutputNotKnownError as error:
                    notes.append(f"The run's output {name!r} is left out: {error}.")
        if cached := [unit.name for unit in self._anew.values() if any(place.task.caches for place in unit.stages)]:
            notes.append(f"Run without the cache: {listed(cached, _NAMED)}.")
        # A run on a host has copies of the logs for a while, and other files of its own.
        has_files = self._is_here and folder is not None
        record = ResumeRecord(
            run_id,
            tuple(self._taken(end, has_files=has_files) for unit in kept.values() for end in self._ends(unit)),
            parameters_of(outputs),  # artifacts stay outputs of the new pipeline
        )
        return ResumePlan(
            run_id=run_id,
            steps=tuple(self._step(unit) for unit in self._units.values() if unit.stages),
            pipeline=without_tasks(
                self._pipeline,
                lost
                | {
                    path: {name: self._outputs.get(unit, name) for name in sorted(needed.get(path, ()))}
                    for path, unit in kept.items()
                },
                run_id,
                lambda text: dataclasses.replace(record, text=text).describe(self._pipeline.description),
                uncached=self._anew,
            ),
            dropped=tuple(sorted(self._names - self._now.stage_names)),
            notes=tuple(notes),
            reusable=self._reusable(running) if has_files else {},
            folder=folder,
        )

    def _taken(self, end: StageResult, *, has_files: bool) -> StageResult:
        files: dict[str, Any] = {} if has_files else {"log_file": None, "files": ()}
        return dataclasses.replace(end, cached_from=self._origin(end), **files)

    def _origin(self, end: StageResult) -> str:
        """Return the run in which a stage ran."""
        return end.cached_from or self._earlier.run_id

    def _reusable(self, running: Sequence[Unit]) -> dict[str, StageResult]:
        """Return the ends of unchanged stages inside groups that run, unless they are to start anew."""
        found: dict[str, StageResult] = {}
        for unit in running:
            if unit.place.component.dag is not None and unit.key in self._before and unit.path not in self._anew:
                changed = {stage for stage, _ in self._changes(unit)}
                for place in unit.stages:
                    if not (place.name in changed or place.task.runs_always or self._uses_workspace(place)):
                        for end in self._outputs.executions.get(place.name, {}).values():
                            if not self._why_not_kept(end):
                                found[end.name] = self._taken(end, has_files=True)
        return found

    def _step(self, unit: Unit) -> Step:
        why = self._runs.get(unit.path, "")
        origin = "" if why else next(self._origin(end) for end in self._ends(unit) if end.state.is_success)
        changes = tuple(text for stage, name in self._changes(unit) for text in self._described(unit, stage, name))
        return Step(unit.name, unit.names, origin, why, changes)

    def _described(self, unit: Unit, stage: str, name: str) -> list[str]:
        change = f"{stage}: {name}" if stage else name
        files = self._changed_files().get(stage or unit.names[0], ()) if name == CODE else ()
        return [f"{change}: {file}" for file in files] or [change]

    def _verify_bases(self, ends: Sequence[StageResult]) -> list[str]:
        """Raise ArgumentError if stages that run would look for kept results in another place than they are."""
        now = {place.name: place for unit in self._units.values() for place in unit.stages if place.is_tracked}
        record = self._earlier.record
        notes: dict[str, str] = {}
        for end in ends:
            stage = now.get(without_indices(end.name))
            if end.tracker_base is None or stage is None or stage.tracker_base is None or not end.state.is_success:
                continue
            base, looks = record.absolute_base(end.tracker_base), stage.tracker_base
            if self._is_here:
                looks = absolute_base(looks, self._directory)
            if not same_base(base, looks):
                raise ArgumentError(
                    f"The results of the run {self._earlier.run_id} are under {base!r}, and this run would look for "
                    f"them under {looks!r}. Give --tracker-base {base}, if this run can reach it; "
                    "otherwise start a new run, without --resume."
                )
            if why := self._earlier.unreadable.get(end.tracker_base):
                if self._is_here:
                    raise ArgumentError(
                        f"This machine cannot read the results of the run {self._earlier.run_id} under {base!r}: "
                        f"{why}. Resume it on its host (torchx-kfp submit --resume), or start a new run."
                    )
                notes[base] = f"It was not verified that the results under {base!r} are still there: {why}."
        return list(notes.values())
