"""A new run continues an earlier one: what succeeded is kept, as constants in the new run's pipeline."""

import contextlib
import json
import shlex
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
from kfp import components, dsl
from torchx.specs import AppDef, Role

from tests.execution.local.resuming import RandomPipeline, Runs, everything, items, joined, made, stage
from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import ArgumentError
from torchx_kfp.local import load_pipeline, plan_run


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_each_kind_of_task(runs: Runs) -> None:
    """A chain of three runs, each from another place, ends as a new run does."""
    runs.fail("i")
    failed = runs.run(everything())
    assert failed.state == "failed"
    assert runs.notes == sorted(["a", "b", "c", "c", "d", "e", "g", "h", "last", "i", "n", "exit"])
    runs.mend()
    plan = plan_run(everything(), {"folder": str(runs.folder)}, resume=failed)
    assert str(plan).splitlines()[0] == f"Resumes {failed.run_id}: 8 kept, 5 to run."
    assert str(plan).endswith("Run without the cache: tell.")
    components.load_component_from_text(plan.pipeline.text)
    (runs.folder / "plan.yaml").write_text(plan.pipeline.text)
    assert load_pipeline(runs.folder / "plan.yaml") == plan.pipeline
    resumed = runs.run(everything(), resume=failed)
    resumed.raise_for_failure()
    assert runs.notes == ["exit", "i", "j", "k", "m", "m"]
    new = runs.run(everything())
    assert made(resumed) == made(new)
    assert resumed.outputs == new.outputs == {"Output": "n(out)"}
    # The run before it, and its folder's name, are not needed any more where outputs are constants.
    again = runs.run(everything(), resume=resumed.run_id, from_stages=["joined"])
    assert runs.notes == sorted(["d", "g", "i", "j", "k", "m", "m", "exit"])
    assert made(again) == made(new)
    whole = runs.run(everything({"k": "K"}), resume=again.folder, from_stages=["stage-5"])
    assert runs.notes == ["K", "exit"]
    assert whole["stage-5"].outputs == {"out": "K(e(a(t)))"}
    assert json.loads((whole.folder / "run.json").read_text())["resumes"] == again.run_id
    assert load_pipeline(whole.folder / "pipeline.yaml").description.startswith("The author's own words.")
    assert {stage.cached_from for stage in whole.stages} == {"", failed.run_id, again.run_id}


def test_groups_that_would_be_others_run(runs: Runs) -> None:
    """A condition on an argument is evaluated again; loops with new stages, and stages in new loops, run."""

    def pipeline(*, has_more: bool = False, is_looped: bool = False, tag: str = "c") -> Any:
        @dsl.pipeline(name="groups")
        def groups(folder: str, mode: str = "full"):
            with dsl.If(mode == "full"):
                yes = stage(tag="a", text="", folder=folder)
            with dsl.Else():
                no = stage(tag="b", text="", folder=folder)
            with dsl.ParallelFor(["x", "y"]) as item:
                stage(tag=tag, text=item, folder=folder)
                if has_more:
                    items(tag="d", folder=folder)
            with dsl.ParallelFor(["x", "y"]) if is_looped else contextlib.nullcontext():
                one = joined(tag="e", texts=[], folder=folder)
            last = stage(tag="z", text=dsl.OneOf(yes.output, no.output), folder=folder)
            texts = dsl.Collected(one.output) if is_looped else [one.output]
            joined(tag="l", texts=texts, folder=folder).after(last)

        return groups

    runs.fail("z")
    failed = runs.run(pipeline())
    runs.mend()
    given = {"folder": str(runs.folder)}
    branches = plan_run(pipeline(), {**given, "mode": "quick"}, resume=failed)
    reasons = {step.name: step.reason for step in branches.running}
    assert reasons["stage, stage-2"] == "its condition, or what that reads, has changed"
    plan = plan_run(pipeline(has_more=True, is_looped=True, tag="C"), given, resume=failed)
    steps = {step.name: step for step in plan.running}
    assert steps["items, stage-3"].reason == "items is new"
    assert steps["items, stage-3"].changes == ("stage-3: input tag",)
    assert steps["joined"].reason == "joined is in other loops now"
    resumed = runs.run(pipeline(is_looped=True), {"mode": "quick"}, resume=failed)
    assert made(resumed) == made(runs.run(pipeline(is_looped=True), {"mode": "quick"}))


def test_a_chain_outlives_the_folders_of_its_first_runs(runs: Runs) -> None:
    """All that counts of a tracked stage is under the tracker base, unless it has made artifacts."""
    put = f"{shlex.quote(sys.executable)} -c 'from torchx_kfp.tracking import current_run; current_run().put(a=1)'"

    def app(name: str, folder: str) -> AppDef:
        script = f'echo {name} >> "$0/notes"; test ! -e "$0/fail-{name}" && {put}'
        return AppDef(name, [Role("role", image="busybox", entrypoint="sh", args=["-ec", script, folder])])

    @dsl.pipeline
    def pipeline(folder: str, tracker_base: str):
        stages = Stages(tracker_base=tracker_base)
        reads = stages.task(app("a", f"{folder}"))
        for name in "bc":
            reads = stages.task(app(name, f"{folder}"), reads=reads)

    (runs.folder / "base").mkdir()
    runs.fail("b")
    first = runs.run(pipeline, {"tracker_base": str(runs.folder / "base")})
    runs.mend()
    runs.fail("c")
    second = runs.run(pipeline, resume=first)
    runs.mend()
    shutil.rmtree(str(first.folder))
    last = runs.run(pipeline, resume=second)
    assert runs.notes == ["c"]
    assert [stage.cached_from for stage in last.stages] == [first.run_id, second.run_id, ""]


def test_what_cannot_be_resumed(runs: Runs) -> None:
    @dsl.pipeline(name="other")
    def other(folder: str):
        stage(tag="a", text="t", folder=folder)
        stage(tag="b", text="t", folder=folder)

    done = runs.run(everything())
    given = {"folder": str(runs.folder)}
    with pytest.raises(
        ArgumentError, match=says("another pipeline", "'everything'", "'other'", "items", "inner/stage")
    ):
        plan_run(other, given, resume=done)
    with pytest.raises(ArgumentError, match=says("'jioned'", "Did you mean 'joined'", "inner/stage")):
        plan_run(everything(), given, resume=done, from_stages=["jioned"])


@pytest.mark.parametrize("seed", range(8))
def test_random_pipelines_failures_and_edits(seed: int, runs: Runs) -> None:
    """A resumed run ends as a new run does, but for stages that are kept on purpose, and repeats nothing."""
    chance = Random(seed)
    pipeline = RandomPipeline(chance)
    names = list(pipeline.kinds)
    runs.fail(*chance.sample(names, 2))
    failed = runs.run(pipeline.build({}))
    before, earlier = made(failed), {name.rstrip("r") for name in runs.notes}
    failures = {file.name.removeprefix("fail-") for file in runs.folder.glob("fail-*")}
    runs.mend()
    edited = set(chance.sample(names, chance.randint(0, 2)))
    versions = {name: f"{name}v" for name in edited}
    now = pipeline.build(versions)
    new = runs.run(now)
    ran_new = runs.notes
    text = load_pipeline(now)
    resumed = runs.run(text, resume=failed)
    resumed.raise_for_failure()
    unfinished = pipeline.below(failures)
    ran = {name.rstrip("r").removesuffix("v") for name in runs.notes} & set(names)
    assert ran <= unfinished, "a stage that succeeded has run again"
    kept_on_purpose = pipeline.below(edited - unfinished)
    theirs, ours = made(new), made(resumed)
    assert theirs.keys() == ours.keys()
    if not kept_on_purpose & earlier:
        assert ours == theirs
    # What was kept has the outputs that it had.
    plan = plan_run(text, {"folder": str(runs.folder)}, resume=failed)
    for step in plan.kept:
        for name in step.stages:
            assert {one: ours[one] for one in ours if one.partition("[")[0] == name} == {
                one: before[one] for one in before if one.partition("[")[0] == name
            }
    # From each edited stage on, everything is as in a new run.
    changed = [step.stages[0] for step in plan.kept if step.changes]
    if changed:
        whole = runs.run(text, resume=failed, from_stages=changed)
        assert made(whole) == theirs
        assert len(runs.notes) <= len(ran_new)
