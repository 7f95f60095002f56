"""What a resumed run keeps, as a table: the same rules for each pair of places."""

# No postponed annotations: kfp reads annotations as types.
import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from kfp import dsl
from torchx.specs import AppDef, Role

from tests.facts import says
from torchx_kfp import Stages
from torchx_kfp.errors import ArgumentError
from torchx_kfp.execution.host.snapshot import RunPipeline, Snapshot
from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.load import load_pipeline
from torchx_kfp.execution.pipeline.spec import ArtifactType, Pipeline
from torchx_kfp.execution.pipeline.walk import walk, without_indices
from torchx_kfp.execution.runs.earlier_run import EarlierRun, ResumeRecord, earlier_run, read_record, whole_pipeline
from torchx_kfp.execution.runs.events import RunFinished, RunStarted, StageFinished
from torchx_kfp.execution.runs.record import RunRecord
from torchx_kfp.execution.runs.result import StageResult
from torchx_kfp.execution.runs.resume_plan import ResumePlan, plan_resume
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.execution.runs.units import OutputLookup, Units
from torchx_kfp.execution.runs.vocabulary import State
from torchx_kfp.local import Watch
from torchx_kfp.local import run as run_here

BASE = "s3://bucket/results"
ARGUMENTS = {"tracker_base": BASE, "lr": 0.1, "branch": True}


@dsl.container_component
def make(text: str, out: dsl.OutputPath(str), data: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "make", text, out, data.path])


@dsl.container_component
def take(text: str, data: dsl.Input[dsl.Dataset]):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "take", text, data.path])


def app(name: str, *args: str, image: str = "app:1") -> AppDef:
    return AppDef(name, [Role(name, image=image, entrypoint="python3", args=["app.py", *args])])


def pipeline(image: str = "app:1", name: str = "table") -> Pipeline:
    """A tracked stage that two others read, one of them in a branch, and two of KFP's own components."""

    @dsl.pipeline(name=name)
    def table(tracker_base: str, lr: float, branch: bool):
        stages = Stages(tracker_base=tracker_base)
        prepare = stages.task(app("prepare", f"{lr}", image=image), results={"rows": int})
        made = make(text="x")
        with dsl.If(branch == True):  # noqa: E712 (KFP compiles it)
            stages.task(app("branch"), reads=prepare)
        take(text=made.outputs["out"], data=made.outputs["data"])
        stages.task(app("train", f"{prepare.outputs['rows']}"), reads=prepare)

    return load_pipeline(table)


PIPELINE = pipeline()
DATA = Artifact("data", ArtifactType("system.Dataset", "0.0.1"), "s3://bucket/data")


def earlier(
    states: Mapping[str, State] | None = None,
    *,
    here: bool = True,
    is_told: bool = True,
    data: Any = DATA,
    text: str = "x",
    state: State = State.FAILED,
    **known: Any,
) -> EarlierRun:
    """Return a run in which all but the last stage succeeded; ``states`` has others. A host may not tell outputs."""
    run_id = "table-1"
    found = dict.fromkeys(("prepare", "make", "branch"), State.SUCCEEDED) | {"take": State.FAILED}
    ends = {}
    for name, each in {**found, "train": State.NOT_RUN, **(states or {})}.items():
        tracked = {"run_id": f"{run_id}/{name}/1", "tracker_base": BASE, "results": {"rows": 5}}
        own = {"outputs": {"out": text}, "artifacts": {"data": data}} if is_told and name == "make" else {}
        ends[name] = StageResult(name, name, each, **(tracked if name not in ("make", "take") else own))
    run = RunState()
    events = [RunStarted("table", run_id), *map(StageFinished, ends.values())]
    if state is not State.RUNNING:
        events.append(RunFinished(run_id, state, 1.0))
    for event in events:
        run.on_event(event)
    is_running = state is State.RUNNING
    folder = Path("/runs/table-1") if here else None
    record = RunRecord(run_id, "table", 0.0, (), run, is_running, lambda: PIPELINE, folder, arguments=ARGUMENTS)
    return EarlierRun(record, PIPELINE, ends, **known)


def planned(run: EarlierRun, new: Pipeline = PIPELINE, to_here: bool = True, **options: Any) -> ResumePlan:
    arguments = {**ARGUMENTS, **options.pop("arguments", {})}
    return plan_resume(run, new, arguments, is_here=to_here, **options)


PLACES = [(here, there) for here in (True, False) for there in (True, False)]
#: What is different in a case -> the stages that are kept, and a part of the reason of each one that runs.
CASES: dict[str, tuple[dict[str, Any], set[str], dict[str, str]]] = {
    "failed": ({}, {"prepare", "make", "branch"}, {"take": "it failed", "train": "it was not run"}),
    "cached": ({"states": {"prepare": State.CACHED}}, {"prepare", "make", "branch"}, {}),
    "canceled": ({"states": {"make": State.CANCELED}}, {"prepare", "branch"}, {"make": "it was ended"}),
    "gone": (
        {"gone": {"prepare": "no results of it are there"}},
        {"make"},
        {"prepare": "no results", "branch": "it reads prepare", "train": "it was not run"},
    ),
    "lists of artifacts": ({"data": ArtifactList([DATA, DATA])}, {"prepare", "branch"}, {"make": "only single ones"}),
    "braces": ({"text": "{{x}}"}, {"prepare", "branch"}, {"make": "contains '{{'"}),
    "no type": (
        {"data": Artifact("data", ArtifactType(""), "s3://b/c")},
        {"prepare", "branch"},
        {"make": "type is not"},
    ),
    "skipped": ({"states": {"branch": State.SKIPPED}}, {"prepare", "make"}, {"branch": "it was skipped"}),
}


@pytest.mark.parametrize(("here", "to_here"), PLACES, ids=["here-here", "here-host", "host-here", "host-host"])
@pytest.mark.parametrize("case", CASES)
def test_the_rules(case: str, here: bool, to_here: bool) -> None:
    given, kept, reasons = CASES[case]
    plan = planned(earlier(here=here, **given), to_here=to_here)
    assert {step.name for step in plan.kept} == kept
    found = {step.name: step.reason for step in plan.running}
    assert all(part in found[name] for name, part in reasons.items()), found
    assert not {task for task in plan.pipeline.root.as_dag().tasks if task in kept}


@pytest.mark.parametrize(("here", "to_here"), PLACES, ids=["here-here", "here-host", "host-here", "host-host"])
def test_stages_that_share_a_workspace_run_again_together(here: bool, to_here: bool) -> None:
    """Each run has its own one: a stage would not find there what a kept one has written."""

    @dsl.pipeline(name="table", pipeline_config=dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi")))
    def shared(tracker_base: str, lr: float, branch: bool):
        make(text=dsl.WORKSPACE_PATH_PLACEHOLDER)
        with dsl.ParallelFor([1, 2]):
            make(text=f"{dsl.WORKSPACE_PATH_PLACEHOLDER}/x")
            make(text="y")
        make(text="z")
        make(text="last")

    loaded, run = load_pipeline(shared), RunState()
    names = ["make", "make-2[0]", "make-2[1]", "make-3[0]", "make-3[1]", "make-4", "make-5"]
    made = {name: StageResult(name, without_indices(name), State.SUCCEEDED) for name in names}
    for failed, runs in (
        ("make-5", {"make-5"}),
        ("make", {"make", "make-2, make-3"}),
        ("make-2[1]", {"make", "make-2, make-3"}),
    ):
        ends = {**made, failed: replace(made[failed], state=State.FAILED)}
        record = RunRecord(
            "r", "table", 0.0, (), run, False, lambda: loaded, Path("r") if here else None, arguments=ARGUMENTS
        )
        plan = plan_resume(EarlierRun(record, loaded, ends), loaded, ARGUMENTS, is_here=to_here)
        assert {step.name for step in plan.running} == runs
        assert not [name for name in plan.reusable if name.startswith("make-2")]


def test_what_only_some_pairs_have() -> None:
    # Nobody was given it, and a host does not tell it.
    unknown = planned(earlier(here=False, is_told=False))
    assert {step.name: step.reason for step in unknown.running}["make"].endswith("no other stage was given it")
    # A file of this machine is out of the host's reach, and only then.
    file = Artifact("data", ArtifactType("system.Dataset"), "/runs/table-1/data")
    there = {step.name: step.reason for step in planned(earlier(data=file), to_here=False).running}
    assert "'/runs/table-1/data' of this machine" in there["make"]
    assert "make" in {step.name for step in planned(earlier(data=file)).kept}
    # What a host names may be any file of this machine.
    named = planned(earlier(here=False, data=file))
    assert "'/runs/table-1/data' of a pod" in {step.name: step.reason for step in named.running}["make"]
    assert "make" in {step.name for step in planned(earlier(here=False, data=file), to_here=False).kept}
    unreadable = {BASE: "no such bucket"}
    (note,) = planned(earlier(here=False, unreadable=unreadable), to_here=False).notes
    assert BASE in note
    assert "no such bucket" in note
    with pytest.raises(ArgumentError, match=says("cannot read", BASE, "no such bucket", "submit --resume")):
        planned(earlier(here=False, unreadable=unreadable))
    with pytest.raises(ArgumentError, match=says(BASE, "s3://other", "--tracker-base", "without --resume")):
        planned(earlier(), arguments={"tracker_base": "s3://other"})


def test_changes_are_named_and_kept_unless_the_user_starts_from_them() -> None:
    changed = planned(earlier(), pipeline("app:2"), arguments={"lr": 0.2})
    (prepare,) = (step for step in changed.kept if step.name == "prepare")
    assert prepare.changes == ("image", "command")
    assert "changed, kept anyway: image, command\n" in str(changed)
    anew = planned(earlier(), pipeline("app:2"), from_stages=["prepare"])
    assert {step.name: step.reason for step in anew.running} == {
        "prepare": "you start from it",
        "branch": "it depends on prepare, from which you start",
        "take": "it failed",
        "train": "it depends on prepare, from which you start",
    }
    # No cache answers for what the user wants to run.
    cached = {place.name: place.task.caches for place in walk(anew.pipeline) if place.is_stage}
    assert cached == {"prepare": False, "branch": False, "kept-make-data": False, "take": True, "train": False}
    assert "Run without the cache: prepare, branch, train." in str(anew)


def test_what_a_resumed_run_has_in_place_of_kept_stages_is_no_change() -> None:
    """Its own pipeline has constants there; its record has the whole one."""
    run = earlier({"train": State.SUCCEEDED})
    for _ in range(2):
        plan = planned(run, run.pipeline)
        assert {step.name: step.changes for step in plan.steps} == dict.fromkeys(run.ends, ())
        run = replace(run, pipeline=whole_pipeline(plan.pipeline))
        assert {step.name: step.changes for step in planned(run).steps} == dict.fromkeys(run.ends, ())
        assert {place.name for place in walk(run.pipeline)} == {place.name for place in walk(PIPELINE)}


def test_what_stages_were_given_is_known_further_down_a_chain() -> None:
    """A host tells nothing else of what a stage without a tracker base has made."""
    untold = earlier(here=False, is_told=False)
    given = {"take": {"text": "x", "data": DATA}}
    ends = OutputLookup(Units(PIPELINE, ARGUMENTS), untold.ends).with_given(given)
    for run in (replace(untold, ends=ends), earlier()):
        plan = planned(run, to_here=False)
        again = earlier_run(replace(untold.record, load=lambda plan=plan: plan.pipeline), ends=untold.ends)
        assert (again.ends["make"].outputs, again.ends["make"].artifacts) == ({"out": "x"}, {"data": DATA})
        assert set(again.kept) == {"prepare", "make", "branch"}
        assert "make" in {step.name for step in planned(again, to_here=False).kept}


def test_a_list_that_a_stage_was_given_tells_the_outputs_of_all_iterations() -> None:
    @dsl.component(base_image="python:3.11")
    def count(texts: list): ...

    @dsl.pipeline(name="table")
    def looped():
        with dsl.ParallelFor([1, 2]):
            made = make(text="x")
        count(texts=dsl.Collected(made.outputs["out"]))

    ends = {name: StageResult(name, "make", State.SUCCEEDED) for name in ("make[1]", "make[0]")}
    lookup = OutputLookup(Units(load_pipeline(looped), {}), ends)
    told = lookup.with_given({"count": {"texts": ["a", "b"]}})
    assert {name: end.outputs for name, end in told.items()} == {"make[0]": {"out": "a"}, "make[1]": {"out": "b"}}
    assert lookup.with_given({"count": {"texts": ["a"]}}) == ends, "another run's"


def test_an_artifact_that_is_handed_on_has_a_type_and_its_own_metadata() -> None:
    """A driver tells neither the type that the producer declares, nor which metadata is KFP's."""
    metadata = {"x": 3, "store_session_info": "{}", "display_name": "data"}
    given = Artifact("data", ArtifactType("system.Artifact"), "s3://bucket/data", metadata)
    lookup = OutputLookup(Units(PIPELINE, ARGUMENTS), earlier(is_told=False).ends)
    made = lookup.with_given({"take": {"text": "x", "data": given}})["make"].artifacts["data"]
    assert isinstance(made, Artifact)
    assert (made.type.title, made.metadata) == ("system.Dataset", {"x": 3})


def test_a_record_that_would_fill_the_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = "torchx_kfp.execution.runs.earlier_run._LONGEST"
    assert pkgutil.resolve_name(longest) <= 64 << 20
    monkeypatch.setattr(longest, 1 << 20)
    torn = ResumeRecord("before", text="{" * 1000).describe("")
    assert read_record(torn) is not None
    own = replace(PIPELINE, description=torn)
    assert whole_pipeline(own) is own
    assert read_record(ResumeRecord("before", text="{" * (2 << 20)).describe("")) is None


@pytest.mark.parametrize("fails", ["show", "last"])
def test_what_an_importer_reads_is_read_by_those_that_take_its_artifact(fails: str) -> None:
    @dsl.pipeline(name="table")
    def imported():
        place = make(text="x").set_display_name("place")
        found = dsl.importer(artifact_uri=place.outputs["out"], artifact_class=dsl.Dataset)
        take(text="y", data=found.output).set_display_name("show")
        make(text="z").set_display_name("last")

    loaded, run = load_pipeline(imported), RunState()
    outputs = {"out": "s3://bucket/x"}
    ends = {name: StageResult(name, name, State.SUCCEEDED, outputs=outputs) for name in ("make", "take", "make-2")}
    failed = {"show": "take", "last": "make-2"}[fails]
    for known in (outputs, {}):
        ends |= {"make": replace(ends["make"], outputs=known), failed: replace(ends[failed], state=State.FAILED)}
        record = RunRecord("r", "table", 0.0, (), run, False, lambda: loaded, None)
        plan = plan_resume(EarlierRun(record, loaded, ends), loaded, {}, is_here=False)
        assert {step.name for step in plan.running} == {failed, *(["make"] if failed == "take" and not known else [])}
        again = plan_resume(EarlierRun(record, loaded, ends), loaded, {}, is_here=False, from_stages=["make"])
        assert {step.name for step in again.running} == {"make", "take", failed}


def test_what_comes_after_a_stage_runs_again_if_it_would_not_wait_for_its_success() -> None:
    @dsl.pipeline(name="table")
    def ordered():
        first = make(text="first")
        make(text="plain").after(first)
        make(text="always").after(first).ignore_upstream_failure()
        make(text="last")

    loaded, run = load_pipeline(ordered), RunState()
    states = {"make": State.SUCCEEDED, "make-2": State.SUCCEEDED, "make-3": State.SUCCEEDED, "make-4": State.FAILED}
    ends = {name: StageResult(name, name, state) for name, state in states.items()}
    record = RunRecord("r", "table", 0.0, (), run, False, lambda: loaded, None)
    plan = plan_resume(EarlierRun(record, loaded, ends, gone={"make": "it is gone"}), loaded, {}, is_here=False)
    assert {step.name: step.reason for step in plan.running} == {
        "make": "it is gone",
        "make-3": "make runs before it",
        "make-4": "it failed",
    }


def test_what_is_refused() -> None:
    with pytest.raises(ArgumentError, match=says("table-1", "not over", "torchx-kfp watch", "torchx-kfp cancel")):
        planned(earlier(state=State.RUNNING))
    everything = dict.fromkeys(("take", "train"), State.SUCCEEDED)
    with pytest.raises(ArgumentError, match=says("nothing left", "--from STAGE")):
        planned(earlier(everything, state=State.SUCCEEDED))
    # A pipeline that was only renamed is the same one.
    assert planned(earlier(), pipeline(name="renamed")).kept


@pytest.mark.parametrize(
    "options", [{"directory": 7}, {"docker": 5}, {"docker": {"a": 1}}, {"docker": ["make", 3], "directory": "."}]
)
def test_damaged_options_are_shown(options: dict[str, Any]) -> None:
    run = earlier()
    run = replace(run, record=replace(run.record, folder=Path("runs/table-1"), options=options))
    with pytest.raises(ArgumentError, match=says("table-1", "own options", repr(options), "--docker", "--directory")):
        _ = run.options


def test_the_record_of_somebody_else_names_no_file_of_this_machine(tmp_path: Path) -> None:
    secret = tmp_path / "secret" / "log.txt"
    secret.parent.mkdir()
    secret.write_text("a secret")
    ends = tuple(
        StageResult(name, name, state, log_file=secret, cached_from=str(tmp_path))
        for name, state in (("made", State.SUCCEEDED), ("bad", State.FAILED))
    )
    text = ResumeRecord("before", ends, text=PIPELINE.text).describe("")
    found = read_record(text)
    assert found is not None
    assert [end.name for end in found.ends] == ["made"]
    assert read_record(f"{text[:-20]}") is None
    document = next(yaml.safe_load_all(PIPELINE.text))
    document["pipelineInfo"]["description"] = text
    run = {"run_id": "r", "state": "RUNNING", "pipeline_spec": document, "created_at": "2026-01-01T00:00:00Z"}
    (there,) = (
        step.event.result
        for step in Snapshot.of(run, RunPipeline.of(run)).steps
        if isinstance(step.event, StageFinished)
    )
    assert there.log_file is None

    @dsl.pipeline(name="small")
    def small():
        make(text="x")

    document = next(yaml.safe_load_all(load_pipeline(small).text))
    document["pipelineInfo"]["description"] = text
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(document))
    result = run_here(tmp_path / "small.yaml", output_dir=tmp_path / "runs", watch=Watch())
    assert result["made"].log_file is None


def test_the_branch_that_ran_says_why_an_output_is_not_known() -> None:
    @dsl.pipeline(name="table")
    def branches(mode: str):
        with dsl.If(mode == "a"):
            one = make(text="a")
        with dsl.Else():
            two = make(text="b")
        make(text=dsl.OneOf(one.outputs["out"], two.outputs["out"]))

    loaded, run = load_pipeline(branches), RunState()
    ends = {"make": State.SUCCEEDED, "make-2": State.SKIPPED, "make-3": State.FAILED}
    found = {name: StageResult(name, name, state) for name, state in ends.items()}
    for event in (RunStarted("table", "r"), *map(StageFinished, found.values()), RunFinished("r", State.FAILED, 1.0)):
        run.on_event(event)
    record = RunRecord("r", "table", 0.0, (), run, False, lambda: loaded, None, arguments={"mode": "a"})
    plan = plan_resume(EarlierRun(record, loaded, found), loaded, {"mode": "a"}, is_here=False)
    (reason,) = [step.reason for step in plan.steps if step.name == "make, make-2"]
    assert "no other stage was given it" in reason
