"""Plan how a run goes on: which stages are kept from an earlier run, which have changed, and which run.

The same rules hold wherever the runs are. A stage is kept if it succeeded and its results are still there. Whatever
reads a stage that runs again runs again. Loops, conditions and nested pipelines are kept as a whole.
"""

from __future__ import annotations

import dataclasses
import os
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import counted, did_you_mean, listed
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.pipeline.artifacts import Artifact, is_artifact
from torchx_kfp.execution.pipeline.placeholders import WORKSPACE
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.surgery import KeptOutputs, without_tasks
from torchx_kfp.execution.pipeline.walk import ScopedTask, indices_of, without_indices
from torchx_kfp.execution.runs.earlier_run import EarlierRun
from torchx_kfp.execution.runs.record import same_base
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.resume_record import Continuation, continuation_of, describe
from torchx_kfp.execution.runs.unit_outputs import OutputLookup, OutputNotKnownError
from torchx_kfp.execution.runs.units import (
    CONDITION,
    Definition,
    KnownUnits,
    Unit,
    differences,
    outputs_of,
)
from torchx_kfp.execution.runs.vocabulary import State

#: How many stages a message names.
_NAMED = 8


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
        arguments: the arguments of the new run that are not defaults.
        dropped: stages of the earlier run that the pipeline does not have any more.
        notes: sentences about what could not be verified, or is left out.
        reusable: how stages inside loops, branches and nested pipelines that run had ended, by their names: each is
            kept if its inputs are the same again. Only a run on this machine that resumes one here has some.
        folder: the folder of the earlier run, if it is on this machine.
    """

    run_id: str
    steps: tuple[Step, ...]
    pipeline: Pipeline = field(repr=False)
    arguments: Mapping[str, Any] = field(default_factory=dict)
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


def _why_not_kept(end: StageResult | None, gone: str = "") -> str:
    """Return why a stage's outputs cannot be used again, as a clause; empty if they can.

    Args:
        end: how the stage ended; None if it did not.
        gone: why its results are not there any more.
    """
    if end is None:
        return "it had not ended"
    if not end.state.is_success:
        return {State.NOT_RUN: "it was not run", State.CANCELED: "it was ended", State.SKIPPED: "it was skipped"}.get(
            end.state, "it failed" if end.state is State.FAILED else f"it was {end.state}"
        )
    return gone


def plan_resume(
    earlier: EarlierRun,
    pipeline: Pipeline,
    arguments: Mapping[str, Any],
    *,
    given: Mapping[str, Any] | None = None,
    from_stages: Collection[str] = (),
    is_here: bool = True,
    directory: str = "",
) -> ResumePlan:
    """Plan how a run of the pipeline continues an earlier run.

    Args:
        earlier: the run that is resumed.
        pipeline: the pipeline of the new run, which may differ from that of the earlier one.
        arguments: the values of all its parameters.
        given: those that are not defaults. Default: all.
        from_stages: the stages at which to start anew: they run, and so does everything that depends on them.
        is_here: whether the new run is on this machine, rather than on a KFP host.
        directory: the directory in which stages of a run on this machine start.

    Raises:
        ArgumentError: the run is not over, is one of another pipeline, or has nothing left to do; a stage does not
            exist; or the new run cannot reach the results that it would keep.
    """
    if earlier.record.is_running:
        raise ArgumentError(
            f"The run {earlier.run_id} is not over. `torchx-kfp watch {earlier.run_id}` shows it, and `torchx-kfp "
            f"cancel {earlier.run_id}` ends it; then resume it."
        )
    planner = _Planner(earlier, pipeline, arguments, is_here=is_here, directory=directory)
    planner.refuse_another_pipeline()
    planner.start_from(from_stages)
    planner.decide()
    return dataclasses.replace(planner.plan(), arguments=arguments if given is None else given)


class _Planner:
    """Decides about the units of a pipeline: each is kept until there is a reason to run it."""

    def __init__(
        self,
        earlier: EarlierRun,
        pipeline: Pipeline,
        arguments: Mapping[str, Any],
        *,
        is_here: bool,
        directory: str,
    ) -> None:
        self._earlier, self._pipeline, self._is_here, self._directory = earlier, pipeline, is_here, directory
        self._now = now = KnownUnits.of(pipeline, arguments)
        self._units, self._definitions = now.by_path, now.definitions
        before, known = earlier.continuation, continuation_of(pipeline.description)
        is_same = pipeline is earlier.pipeline and arguments == earlier.record.arguments
        then = now if is_same else KnownUnits.of(earlier.pipeline, earlier.record.arguments)
        old, own = then.by_path, then.definitions
        #: The definitions of the earlier run's units, by their keys.
        self._before: dict[str, Definition] = {**own, **(before.definitions if before else {})}
        #: The definitions that are recorded: those in the whole pipeline.
        self._recorded: dict[str, Definition] = {**(known.definitions if known else {}), **self._definitions}
        if known is not None and known == before:
            # It is the run's own pipeline, which has constants in place of what the run had kept.
            self._before.update(own)
            unchanged = [key for key, one in self._definitions.items() if key in own and not differences(own[key], one)]
            self._recorded.update((key, known.definitions[key]) for key in unchanged if key in known.definitions)
        #: What the pipeline itself had taken over, if it is that of a resumed run.
        self._known = known
        imports = {place.name for unit in old.values() if unit.is_import for place in unit.stages}
        self._names = {place.name for unit in old.values() for place in unit.stages} - imports
        self._names |= {without_indices(end.name) for end in earlier.ends.values()} - imports
        self._executions: dict[str, list[StageResult]] = {}
        for end in earlier.ends.values():
            self._executions.setdefault(without_indices(end.name), []).append(end)
        leaves = not is_here and earlier.record.folder is not None
        self._outputs = OutputLookup(pipeline, earlier.ends, earlier.values, leaves=leaves)
        self._readers: dict[str, list[Unit]] = {}
        self._followers: dict[str, list[Unit]] = {}
        for unit in self._units.values():
            for path in dict.fromkeys([*(read.producer for read in unit.reads), *unit.settings]):
                self._readers.setdefault(path, []).append(unit)
            for path in unit.after:
                self._followers.setdefault(path, []).append(unit)
        self._runs: dict[str, str] = {}
        #: The units that the user wants to run, and exit tasks: no cache may answer for them.
        self._anew: dict[str, Unit] = {}
        self._queue: deque[str] = deque()

    # Decisions

    def refuse_another_pipeline(self) -> None:
        names = {place.name for unit in self._units.values() if not unit.is_import for place in unit.stages}
        names |= {without_indices(end.name) for end in (self._known.ends if self._known else ())}
        common = names & self._names
        is_renamed = self._pipeline.name != self._earlier.pipeline.name
        if common and not (is_renamed and names != self._names):
            return
        here, there = sorted(names - self._names), sorted(self._names - names)
        what = f"only this pipeline has {listed(here, _NAMED)}" if here else ""
        other = f"only the run has {listed(there, _NAMED)}" if there else ""
        of = f": it ran {self._earlier.pipeline.name!r}, and this is" if is_renamed else " of the same name,"
        raise ArgumentError(
            f"The run {self._earlier.run_id} is one of another pipeline{of} {self._pipeline.name!r}. Their stages do "
            f"not match: {'; '.join(filter(None, [what, other])) or 'they have none'}. Give a run of this pipeline."
        )

    def start_from(self, stages: Collection[str]) -> None:
        for stage in stages:
            found = [unit for unit in self._units.values() if unit.names(stage)]
            if not found:
                known = [place.name for unit in self._units.values() for place in unit.stages]
                if stage in {without_indices(end.name) for end in (self._known.ends if self._known else ())}:
                    raise ArgumentError(
                        f"The run {self._earlier.run_id} has kept {stage!r} itself, so its pipeline does not have that "
                        "stage. To start from it, name the whole pipeline as well."
                    )
                raise ArgumentError(
                    f"There is no stage {stage!r} to start from.{did_you_mean(stage, known)} The pipeline has: "
                    f"{listed(known, 20)}."
                )
            left = deque(found)
            while left:
                unit = left.popleft()
                why = "you start from it" if unit in found else f"it depends on {stage}, from which you start"
                if self._mark(unit, why):
                    self._anew[unit.path] = unit
                    left += [*self._readers.get(unit.path, ()), *self._followers.get(unit.path, ())]

    def decide(self) -> None:
        for unit in self._units.values():
            if unit.is_exit:
                self._anew[unit.path] = unit
            if reason := self._reason(unit):
                self._mark(unit, reason)
        while self._queue:
            unit = self._units[self._queue.popleft()]
            for reader in self._readers.get(unit.path, ()):
                self._mark(reader, f"it reads {unit.name}, which runs")
            for follower in self._followers.get(unit.path, ()):
                if follower.task.runs_always:
                    self._mark(follower, f"{unit.name} runs before it")
            if any(map(self._uses_workspace, unit.stages)):
                for other in self._units.values():
                    if any(map(self._uses_workspace, other.stages)):
                        self._mark(other, f"it shares KFP's workspace with {unit.name}, which runs")
            for path in unit.settings:
                self._mark(self._units[path], f"the pods of {unit.name}, which runs, are set up with its output")
            for read in unit.reads:
                producer = self._units[read.producer]
                if producer.path in self._runs or producer.is_import:
                    continue
                try:
                    self._outputs.get(producer, read.output)
                except OutputNotKnownError as error:
                    self._mark(producer, f"{unit.name} reads its output {read.output!r}, {error}")

    def _uses_workspace(self, place: ScopedTask) -> bool:
        container = place.component.container
        texts = [*(container.words if container else ()), *map(str, self._now.inputs[place.path].values())]
        return any(WORKSPACE in text for text in texts)

    def _mark(self, unit: Unit, reason: str) -> bool:
        if unit.path in self._runs or unit.is_import:
            return False
        self._runs[unit.path] = reason
        self._queue.append(unit.path)
        return True

    def _reason(self, unit: Unit) -> str:
        """Return why a unit runs whatever the others do; empty if it may be kept."""
        if unit.is_exit:
            return "it runs at the end of each run"
        if unit.is_volume:
            return "each run has its own volumes"
        if new := [place.name for place in unit.stages if place.name not in self._names]:
            return "it is new" if len(new) == len(unit.stages) else f"{listed(new, _NAMED)} is new"
        for place in unit.stages:
            ran = [end.name for end in self._executions.get(place.name, ()) if end.state.is_success]
            if any(len(indices_of(name)) != place.loops for name in ran):
                return f"{place.name} is in other loops now"
        ends = [end for place in unit.stages for end in self._executions.get(place.name, ())]
        for end in sorted(ends, key=lambda end: end.state.rank):
            reason = _why_not_kept(end, self._earlier.gone.get(end.name, ""))
            if reason and (end.state is not State.SKIPPED or unit.component.dag is None):
                return reason if unit.component.dag is None else f"{end.name}: {reason}"
        if not any(end.state.is_success for end in ends):
            return "it was skipped" if ends else "it had not begun"
        if missing := self._without_end(unit):
            return f"{missing} had not ended"
        if any(change.startswith(CONDITION) for change in self._changes(unit)):
            return "its condition, or what that reads, has changed"
        return ""

    def _without_end(self, unit: Unit) -> str:
        """Return a stage of the unit of which some executions have no end."""
        run = self._earlier.record.run
        is_whole = run.state in (State.SUCCEEDED, State.FAILED)
        kept = {without_indices(end.name) for end in self._kept_before()}
        for place in unit.stages:
            found = len(self._executions.get(place.name, ()))
            task = run.tasks.get(place.name)
            expected = task.expected if task is not None else 0
            is_short = found != expected if expected else not found and not (place.looped and is_whole)
            if place.name not in kept and is_short:
                # A branch that was not taken has an end as well, and so has each stage of a run that is over.
                return place.name
        return ""

    def _kept_before(self) -> Sequence[StageResult]:
        return self._earlier.continuation.ends if self._earlier.continuation else ()

    def _changes(self, unit: Unit) -> tuple[str, ...]:
        before = self._before.get(unit.key)
        if before is None and unit.task.is_group:  # it has other stages now
            same = {place.name for place in unit.stages}
            before = next((one for key, one in self._before.items() if same & set(key.split("+"))), None)
        return differences(before, self._definitions[unit.key]) if before is not None else ()

    # The plan

    def plan(self) -> ResumePlan:
        """Return the plan.

        Raises:
            ArgumentError: nothing would run, or the results that would be kept are out of reach.
        """
        kept = [unit for unit in self._units.values() if unit.path not in self._runs and not unit.is_import]
        if not [unit for unit in self._units.values() if unit.path in self._runs and not unit.is_exit]:
            raise ArgumentError(
                f"There is nothing left to do in the run {self._earlier.run_id}: all stages have succeeded. To run "
                "some of them again, resume the run with --from STAGE (in Python, from_stages)."
            )
        ends = [end for unit in kept for place in unit.stages for end in self._executions.get(place.name, ())]
        notes = self._verify_bases(ends)
        needed = {
            (read.producer, read.output)
            for unit in self._units.values()
            if unit.path in self._runs
            for read in unit.reads
        }
        outputs, unknown = self._pipeline_outputs({unit.path for unit in kept})
        notes += [f"The run's output {name!r} is left out: {why}." for name, why in unknown.items()]
        if cached := [unit.name for unit in self._anew.values() if unit.may_be_cached]:
            notes.append(f"Run without the cache: {listed(cached, _NAMED)}.")
        # Artifacts stay outputs of the new pipeline; parameters cannot.
        needed |= {(read.producer, read.output) for read, value in outputs.values() if is_artifact(value)}
        taken = {unit.path: self._kept_outputs(unit, needed) for unit in kept}
        before = self._known
        own = {key for key, _ in self._earlier.values}
        continuation = Continuation(
            resumes=self._earlier.run_id,
            ends=(
                *(before.ends if before else ()),
                *(dataclasses.replace(end, cached_from=self._origin(end), log_file=self._log_of(end)) for end in ends),
            ),
            values={
                **(before.values if before else {}),
                **{
                    (unit.key, output): value
                    for unit in kept
                    if unit.key in own
                    for (key, output), value in self._earlier.values.items()
                    if key == unit.key
                },
            },
            definitions=self._recorded,
            outputs={
                **(before.outputs if before else {}),
                **{name: value for name, (_, value) in outputs.items() if not is_artifact(value)},
            },
            after=self._after({unit.path for unit in kept}, before),
        )
        names = {place.name for unit in self._units.values() for place in unit.stages}
        names |= {without_indices(end.name) for end in continuation.ends}
        return ResumePlan(
            run_id=self._earlier.run_id,
            steps=tuple(self._steps()),
            pipeline=without_tasks(
                self._pipeline, taken, describe(self._pipeline.description, continuation), uncached=self._anew
            ),
            dropped=tuple(sorted(self._names - names)),
            notes=tuple(notes),
            reusable=self._reusable() if self._is_here and self._earlier.record.folder is not None else {},
            folder=self._earlier.record.folder,
        )

    def _reusable(self) -> dict[str, StageResult]:
        """Return the ends of unchanged stages inside groups that run, unless they are to start anew."""
        found: dict[str, StageResult] = {}
        for unit in self._units.values():
            is_group = unit.component.dag is not None and unit.key in self._before
            if is_group and unit.path in self._runs.keys() - self._anew.keys():
                changes = self._changes(unit)
                for place in unit.stages:
                    is_changed = any(change.startswith(f"{place.name}: ") for change in changes)
                    if not (is_changed or place.task.runs_always or self._uses_workspace(place)):
                        found.update(
                            (end.name, dataclasses.replace(end, cached_from=self._origin(end)))
                            for end in self._executions.get(place.name, ())
                            if not _why_not_kept(end, self._earlier.gone.get(end.name, ""))
                        )
        return found

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        for end in self._known.ends if self._known else ():
            name = without_indices(end.name)
            if not any(step.name == name for step in steps):
                steps.append(Step(name, (name,), end.cached_from))
        for unit in self._units.values():
            if unit.is_import or not unit.stages:
                continue
            stages = tuple(place.name for place in unit.stages)
            if unit.path in self._runs:
                steps.append(Step(unit.name, stages, "", self._runs[unit.path], self._changes(unit)))
            else:
                first = next(end for name in stages for end in self._executions.get(name, ()) if end.state.is_success)
                steps.append(Step(unit.name, stages, self._origin(first), "", self._changes(unit)))
        return steps

    def _after(self, kept: Collection[str], before: Continuation | None) -> dict[str, list[str]]:
        """Return the kept stages that stages follow, by their names; of a group that runs, by that of its first."""
        after = {name: [*names] for name, names in before.after.items()} if before else {}
        for unit in self._units.values():
            paths = {*unit.after, *(read.producer for read in unit.reads)} & set(kept)
            follows = [place.name for path in sorted(paths) for place in self._units[path].stages]
            for place in unit.stages if unit.path in kept else unit.stages[:1]:
                if follows:
                    after.setdefault(place.name, []).extend(follows)
        return after

    def _log_of(self, end: StageResult) -> Path | None:
        """Return the stage's log, if the new run finds it there: that of a run on a host is a copy for a while."""
        return end.log_file if self._is_here and self._earlier.record.folder is not None else None

    def _origin(self, end: StageResult) -> str:
        """Return the run in which a stage ran."""
        before = {one.name: one.cached_from for one in self._kept_before()}
        return before.get(end.name) or self._earlier.run_id

    def _kept_outputs(self, unit: Unit, needed: Collection[tuple[str, str]]) -> KeptOutputs:
        parameters: dict[str, Any] = {}
        artifacts: dict[str, Artifact] = {}
        for output in sorted(output for path, output in needed if path == unit.path):
            value = self._outputs.get(unit, output)
            (artifacts if is_artifact(value) else parameters)[output] = value
        return KeptOutputs(parameters, artifacts, self._earlier.run_id)

    def _pipeline_outputs(self, kept: Collection[str]) -> tuple[dict[str, tuple[Any, Any]], dict[str, str]]:
        """Return the pipeline's own outputs that kept units have made, and why others of theirs are not known."""
        found, unknown = {}, {}
        for name, read in outputs_of(self._pipeline).items():
            if read.producer in kept:
                try:
                    found[name] = read, self._outputs.get(self._units[read.producer], read.output)
                except OutputNotKnownError as error:
                    unknown[name] = str(error)
        return found, unknown

    def _verify_bases(self, ends: Sequence[StageResult]) -> list[str]:
        """Raise ArgumentError if stages that run would look for kept results in another place than they are."""
        now = {stage.place.name: stage for stage in self._now.stages.values() if stage.is_tracked}
        record = self._earlier.record
        notes: dict[str, str] = {}
        for end in ends:
            stage = now.get(without_indices(end.name))
            if end.tracker_base is None or stage is None or stage.tracker_base is None or not end.state.is_success:
                continue
            base, looks = record.absolute_base(end.tracker_base), stage.tracker_base
            if self._is_here and "://" not in looks:
                looks = os.path.abspath(os.path.join(self._directory, looks))
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
