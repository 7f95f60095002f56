"""A run that is resumed, as far as it is known, and the plan of the run that continues it: see ``resume_plan``."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp.common.text import counted, listed
from torchx_kfp.contract.protocol import TRACKER_BASE_PARAMETER
from torchx_kfp.execution.pipeline.spec import Pipeline
from torchx_kfp.execution.pipeline.walk import without_indices
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.resume_record import Continuation, continuation_of
from torchx_kfp.execution.runs.source import RunRecord
from torchx_kfp.execution.runs.vocabulary import State

#: How many stages a message names.
_NAMED = 8


@dataclass(frozen=True)
class EarlierRun:
    """What is known of a run that is resumed.

    Attributes:
        record: the run.
        pipeline: its pipeline.
        ends: how its stages ended, by their names, with those that it had kept itself.
        values: outputs of units that its stages were given, by the unit's key and the output.
        gone: why results of stages are not there any more, as clauses by the stages' names.
        unreadable: the tracker bases that cannot be read here, and why.
    """

    record: RunRecord
    pipeline: Pipeline
    ends: Mapping[str, StageResult]
    values: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    gone: Mapping[str, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        """The run's id."""
        return self.record.run_id

    @property
    def continuation(self) -> Continuation | None:
        """What the run has taken over itself, if it was resumed."""
        return continuation_of(self.pipeline.description)

    @property
    def named(self) -> list[str]:
        """The tracker bases on this machine that the user has named for it: none for a run on a host."""
        found = self.record.options.get("named")
        places = [path for path in found if isinstance(path, str)] if isinstance(found, (list, tuple)) else []
        return self.record.bases_among(places)

    @property
    def options(self) -> dict[str, Any]:
        """How its stages were run on this machine: in containers, and in which directory."""
        found = self.record.options if self.record.folder is not None else {}
        return {name: found[name] for name in ("docker", "directory") if found.get(name)}

    def arguments_for(
        self, pipeline: Pipeline, given: Mapping[str, Any], without: Collection[str] = ()
    ) -> dict[str, Any]:
        """Return the arguments of a run that resumes this one: those given, and otherwise this run's own.

        Args:
            pipeline: the pipeline of the new run.
            given: the arguments that the user has given.
            without: parameters of which this run's arguments do not count.
        """
        names = pipeline.root.inputs.keys() - set(without)
        own = {name: value for name, value in self.record.arguments.items() if name in names}
        if isinstance(base := own.get(TRACKER_BASE_PARAMETER), str) and base:
            own[TRACKER_BASE_PARAMETER] = self.record.absolute_base(base)
        return {**own, **given}


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


def why_not_kept(end: StageResult | None, gone: str = "") -> str:
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


def missing_files(end: StageResult) -> str:
    """Return which file of a stage that ran on this machine is gone, as a clause; empty if all are there."""
    # The log stands for the stage's folder. Of a tracked stage without artifacts, all that counts is under its base.
    needs_folder = end.tracker_base is None or bool(end.artifacts)
    paths = [
        *(path for path in end.files if "://" not in path),
        *([str(end.log_file)] if end.log_file is not None and needs_folder else []),
    ]
    return next((f"its file {path!r} is gone" for path in paths if not os.path.exists(path)), "")
