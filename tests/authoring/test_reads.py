"""The stages that a stage reads: their aliases, their run ids, and the dependencies that follow."""

import functools
import json
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, load, make_app, unresolved_inputs
from tests.authoring.kfp_engines import constants
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, task_from_app
from torchx_kfp.errors import ChannelError, ReadsError, UnknownOutputError

pytestmark = pytest.mark.versions

BASE = "/tmp/results"
stage = functools.partial(task_from_app, tracker_base=BASE)


@dsl.container_component
def foreign(accuracy: dsl.OutputPath(float), name: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["true", accuracy, name])


@dsl.pipeline(name="inner")
def inner(tracker_base: str) -> str:
    return task_from_app(make_app("deep"), tracker_base=tracker_base).outputs["run_id"]


def parents(compiled: str, executor: str) -> dict[str, Any]:
    """Return the parents in a stage's command, with placeholders of lists as the text of their input."""
    spec, _ = load(compiled)
    assert unresolved_inputs(spec) == []
    value = parents_text(spec["deploymentSpec"]["executors"][f"exec-{executor}"]["container"]["command"])
    for name in constants(compiled)[executor]["stage"].split("|")[1 : value.count('""') + 1]:
        value = value.replace('""', f'"{name}"', 1)
    value = value.replace(": {{$", ': "{{$').replace("}},", '}}",').replace("}}}", '}}"}').replace('""', '"')
    return {key: str(ids) for key, ids in json.loads(value).items()}


def parents_text(command: list[str]) -> str:
    """Return the JSON object that a stage's script makes, with placeholders for run ids."""
    words = command[command.index("-ec") + 5 :]
    last = next(number for number, word in enumerate(words) if number % 2 == 0 and word.endswith("}"))
    return "{" + "".join(words[: last + 1])


def test_dependencies_follow_from_what_is_read() -> None:
    def pipeline() -> None:
        prepare = stage(make_app("prepare"))
        train = stage(make_app("train"), reads=prepare)
        stage(make_app("evaluate"), reads=[prepare, train])

    spec, _ = load(compile_pipeline(pipeline))
    tasks = spec["root"]["dag"]["tasks"]
    assert "dependentTasks" not in tasks["prepare"]
    assert tasks["train"]["dependentTasks"] == ["prepare"]
    assert tasks["evaluate"]["dependentTasks"] == ["prepare", "train"]
    assert tasks["evaluate"]["inputs"]["parameters"]["reads_2"] == {
        "taskOutputParameter": {"producerTask": "train", "outputParameterKey": "run_id"}
    }


def test_aliases_are_the_stages_names() -> None:
    def pipeline() -> None:
        first = stage(make_app("My Train"))
        second = stage(make_app("train"), name="Second one")
        stage(make_app("read"), reads=[first, second])

    assert list(parents(compile_pipeline(pipeline), "read")) == ["My Train", "Second one"]


def test_a_fan_in_over_a_loop() -> None:
    def pipeline() -> None:
        with dsl.ParallelFor([1, 2]):
            trial = stage(make_app("trial"))
        stage(make_app("select"), reads={"trials": dsl.Collected(trial.outputs["run_id"])})
        stage(make_app("select-2"), reads=[dsl.Collected(trial.outputs["run_id"])])
        stage(make_app("select-3"), reads=dsl.Collected(trial))

    compiled = compile_pipeline(pipeline)
    assert list(parents(compiled, "select-3")) == ["trial"]
    assert parents(compiled, "select") == {"trials": "{{$.inputs.parameters['trials']}}"}
    assert list(parents(compiled, "select-2")) == ["trial"]
    spec, _ = load(compiled)
    assert spec["components"]["comp-select"]["inputDefinitions"]["parameters"]["trials"] == {"parameterType": "LIST"}


def test_a_fan_in_over_a_list_of_tasks() -> None:
    def pipeline() -> None:
        tasks = [stage(make_app("trial"), name=f"trial-{number}") for number in range(2)]
        stage(make_app("select"), reads={"trials": [*tasks, "old/trial/1"]})

    spec, _ = load(compile_pipeline(pipeline))
    command = spec["deploymentSpec"]["executors"]["exec-select"]["container"]["command"]
    placeholders = ["{{$.inputs.parameters['trials']}}", "{{$.inputs.parameters['trials_2']}}", "old/trial/1"]
    assert parents_text(command) == json.dumps({"trials": placeholders})


def test_run_ids_of_all_kinds() -> None:
    def pipeline(old_run: str, mode: str, ids: list) -> None:
        with dsl.If(mode == "a"):
            a = stage(make_app("a"))
        with dsl.Else():
            b = stage(make_app("b"))
        nested = inner(tracker_base=BASE)
        stage(
            make_app("read"),
            reads={
                "old": old_run,
                "text": f"{old_run}",
                "constant": "run/train/1",
                "either": dsl.OneOf(a.outputs["run_id"], b.outputs["run_id"]),
                "nested": nested.output,
                "many": ids,
            },
        )

    found = parents(compile_pipeline(pipeline), "read")
    assert found["constant"] == "run/train/1"
    assert found["old"] == found["text"] == "{{$.inputs.parameters['old']}}"
    assert found["many"] == "{{$.inputs.parameters['many']}}"
    assert set(found) == {"old", "text", "constant", "either", "nested", "many"}


def test_a_channel_that_is_read_and_used_is_one_input() -> None:
    def pipeline() -> None:
        train = stage(make_app("train"))
        stage(make_app("read", args=[f"--parent={train.outputs['run_id']}"]), reads={"model": train})

    spec, _ = load(compile_pipeline(pipeline))
    assert set(spec["components"]["comp-read"]["inputDefinitions"]["parameters"]) == {"model", "stage"}


def test_aliases_that_are_no_identifiers() -> None:
    aliases = ["a b", "a-b", "1", "ünï", "tracker_base", 'x"y', "$$ {{z}}", "run_id"]

    def pipeline(tracker_base: str) -> None:
        train = task_from_app(make_app("train"), tracker_base=tracker_base)
        others = [task_from_app(make_app("train"), tracker_base=tracker_base) for _ in aliases[1:]]
        reads = dict(zip(aliases, [train, *others], strict=True))
        task_from_app(make_app("read"), tracker_base=tracker_base, reads=reads)

    assert list(parents(compile_pipeline(pipeline), "read")) == aliases


def test_nothing_to_read() -> None:
    def pipeline() -> None:
        for number, reads in enumerate(([], {}, None, ())):
            stage(make_app(f"stage-{number}"), reads=reads)

    assert "TORCHX_PARENT" not in compile_pipeline(pipeline)


def test_the_tracker_base_in_text() -> None:
    def pipeline(bucket: str) -> None:
        task_from_app(make_app("train"), tracker_base=f"s3://{bucket}/results")

    spec, _ = load(compile_pipeline(pipeline))
    command = spec["deploymentSpec"]["executors"]["exec-train"]["container"]["command"]
    assert command[1] == "TORCHX_TRACKER_BASE=s3://{{$.inputs.parameters['bucket']}}/results"


def same_names() -> None:
    stage(make_app("read"), reads=[stage(make_app("train")), stage(make_app("train"))])


def untracked() -> None:
    stage(make_app("read"), reads=task_from_app(make_app("train")))


def foreign_task() -> None:
    stage(make_app("read"), reads={"x": foreign()})


def number() -> None:
    stage(make_app("read"), reads={"x": foreign().outputs["accuracy"]})


def collected_number() -> None:
    with dsl.ParallelFor([1]):
        task = foreign()
    stage(make_app("read"), reads={"x": dsl.Collected(task.outputs["accuracy"])})


def without_collected() -> None:
    with dsl.ParallelFor([1]):
        task = stage(make_app("train"))
    stage(make_app("read"), reads=task)


def channel_without_alias(run: str) -> None:
    stage(make_app("read"), reads=run)


def channel_as_text_without_alias(run: str) -> None:
    stage(make_app("read"), reads=f"{run}")


def run_id_of_task() -> None:
    stage(make_app("read"), reads=stage(make_app("train")).output)


def run_ids_of_tasks() -> None:
    stage(make_app("read"), reads=[stage(make_app("train")).output])


def outputs_of_task() -> None:
    stage(make_app("read"), reads=stage(make_app("train"), results={"loss": float}).outputs)


def result_of_task() -> None:
    stage(make_app("read"), reads=stage(make_app("train"), results={"loss": float}).outputs["loss"])


def output_of_foreign_task() -> None:
    stage(make_app("read"), reads=foreign().outputs["accuracy"])


def number_without_alias() -> None:
    stage(make_app("read"), reads=[3])


def text_with_channel_without_alias(run: str) -> None:
    stage(make_app("read"), reads=f"{run}/train/1")


def text_without_alias() -> None:
    stage(make_app("read"), reads=["run/train/1"])


def nothing_known() -> None:
    stage(make_app("read"), reads={"x": 3})


def text_with_channel(run: str) -> None:
    stage(make_app("read"), reads={"x": f"{run}/train/1"})


def no_run_id() -> None:
    stage(make_app("read"), reads={"x": 'a"b'})


def empty_alias() -> None:
    stage(make_app("read"), reads={"": "a/b/c"})


def alias_channel(run: str) -> None:
    stage(make_app("read"), reads={f"{run}": "a/b/c"})


def nested_fan_in(ids: list) -> None:
    stage(make_app("read"), reads={"x": [ids]})


def no_base() -> None:
    task_from_app(make_app("read"), reads={"x": "a/b/c"})


def empty_base() -> None:
    task_from_app(make_app("read"), tracker_base="")


def number_as_base() -> None:
    task_from_app(make_app("read"), tracker_base=3)


def number_channel_as_base(n: int) -> None:
    task_from_app(make_app("read"), tracker_base=n)


def no_ascii() -> None:
    task_from_app(make_app("read"), tracker_base="/tmp", reads={"x": "run/é/1"})


def collected_of_one() -> None:
    one = task_from_app(make_app("one"), tracker_base="/tmp")
    task_from_app(make_app("read"), tracker_base="/tmp", reads={"x": dsl.Collected(one.outputs["run_id"])})


def name_of_a_stage(tracker_base: str = "/tmp") -> None:
    task_from_app(make_app(), tracker_base=tracker_base, reads={"t": "train"})


def slipped_base() -> None:
    task_from_app(make_app(), tracker_base="s3:/bucket")


def hostile_base() -> None:
    task_from_app(make_app("read"), tracker_base="s3://$(BUCKET)/x")


@pytest.mark.parametrize(
    ("pipeline", "text"),
    [
        (same_names, says("'train'", "reads={'train_1'", "other_task", "'train_2'")),
        (untracked, says("'train'", "'run_id'", "task_from_app", "tracker_base", "Pass")),
        (foreign_task, says("reads['x']", "'foreign'", "'run_id'", "tracker_base", "task_from_app", "Pass")),
        (number, says("reads['x']", "'foreign-accuracy'", "NUMBER_DOUBLE")),
        (collected_number, says("'foreign-accuracy'", "NUMBER_DOUBLE", "dsl.Collected", "task.outputs", "'x'")),
        (channel_without_alias, says("the channel 'run'", "alias", "reads={'run': ...}", "run id")),
        (channel_as_text_without_alias, says("the channel 'run'", "alias", "reads={'run': ...}", "run id")),
        (run_id_of_task, r"reads has the output 'run_id' of the task 'train'\. Pass the task itself: reads=task\.$"),
        (run_ids_of_tasks, says("the output 'run_id' of the task 'train'", "Pass the task itself: reads=task.")),
        (outputs_of_task, says("outputs of a task", "Pass the task itself: reads=task.")),
        (
            result_of_task,
            says("the output 'loss' of the task 'train'", "the task itself: reads=task", "{'train': ...}"),
        ),
        (output_of_foreign_task, r"output 'accuracy' of the task 'foreign'\. If this is a run id, .*{'foreign': "),
        (number_without_alias, says("3 (int)", "Give a task", "dsl.Collected")),
        (text_with_channel_without_alias, says("text with a pipeline channel inside", "Pass the task")),
        (text_without_alias, says("'run/train/1'", "reads={'train'")),
        (nothing_known, says("reads['x']", "(int)", "dsl.Collected")),
        (text_with_channel, says("channel", "'x'", "Pass")),
        (no_run_id, says("reads['x']", "'a\"b'", "'run/stage/execution'")),
        (empty_alias, says("''", "'train'", "alias")),
        (alias_channel, says("'{{channel", "alias", "'train'")),
        (nested_fan_in, says("list", "fan-in", "'x'")),
        (
            no_base,
            says("Stages(tracker_base=...).task(app, reads=...)", "task_from_app(app, tracker_base=..., reads=...)"),
        ),
        (empty_base, says("tracker_base", "''", "tracker base", "directory", "Use")),
        (no_ascii, says("reads['x']", "'run/é/1'", "'run/stage/execution'")),
        (
            collected_of_one,
            says("reads['x']", "'one-run_id'", "dsl.Collected", "dsl.ParallelFor"),
        ),
        (name_of_a_stage, says("reads['t']", "'train'", "not a run id", "task", "reads=train")),
        (slipped_base, says("tracker_base", "'s3:/bucket'", "'s3://bucket'")),
        (number_as_base, r"tracker_base is 3\."),
        (number_channel_as_base, says("tracker_base", "'n'", "NUMBER_INTEGER")),
        (hostile_base, says("tracker_base", "'s3://$(BUCKET)/x'", "'$('")),
    ],
)
def test_refused(pipeline: Callable[..., Any], text: str) -> None:
    with pytest.raises(ReadsError, match=text):
        compile_pipeline(pipeline)


def test_only_stages_are_collected_as_tasks() -> None:
    def pipeline() -> None:
        with dsl.ParallelFor([1, 2]):
            made = foreign()
        stage(make_app("select"), reads={"x": dsl.Collected(made)})

    with pytest.raises(ReadsError, match=says("'foreign'", "dsl.Collected(task.outputs", "'accuracy'")):
        compile_pipeline(pipeline)


def test_an_untracked_stage_has_no_run_id() -> None:
    def pipeline() -> None:
        component_from_app(make_app())().outputs["run_id"]

    with pytest.raises(UnknownOutputError, match=says("'train'", "'run_id'", "tracker_base", "tracked=True")):
        compile_pipeline(pipeline)


def test_a_component_without_tracked_has_no_tracker_base() -> None:
    def pipeline() -> None:
        component_from_app(make_app())(tracker_base=BASE)

    with pytest.raises(ReadsError, match=says("'train'", "'tracker_base'", "tracked=True")):
        compile_pipeline(pipeline)


def test_stages_of_a_closed_loop_are_read_collected() -> None:
    with pytest.raises(
        ChannelError, match=says("dsl.ParallelFor", "dsl.Collected(task.outputs", "'run_id'", "'train'", "reads=")
    ):
        compile_pipeline(without_collected)


@pytest.mark.parametrize("make", [component_from_app, component_spec_from_app])
@pytest.mark.parametrize(
    ("reads", "text"),
    [
        ("train", says("reads=['train']", "component", "list")),
        (["tracker_base"], says("'tracker_base'", "alias", "input", "'run_id'", "'self'")),
        (["run_id"], says("'tracker_base'", "'run_id'", "'self'")),
        (["import"], says("'import'", "alias", "input", "'tracker_base'", "'run_id'")),
        (["self"], says("'self'", "alias", "input", "'tracker_base'", "'run_id'")),
        (None, says("None", "component", "list", "reads=", "'train'")),
        (5, says("component", "5", "reads=", "'train'")),
        (["my-train"], says("'my-train'", "alias", "input", "'tracker_base'", "'run_id'")),
        (["a", "a"], r"the alias 'a' twice"),
        ([""], r"the alias ''"),
    ],
)
def test_aliases_of_components(make: Callable[..., Any], reads: Any, text: str) -> None:
    with pytest.raises(ReadsError, match=text):
        make(make_app(), reads=reads)


def test_a_nested_pipeline_is_read_by_the_run_id_that_it_returns() -> None:
    @dsl.pipeline(name="inner")
    def inner(base: str) -> str:
        return task_from_app(make_app(), tracker_base=base).outputs["run_id"]

    def whole(base: str) -> None:
        task_from_app(make_app(), tracker_base=base, reads=inner(base=base))

    def by_its_output(base: str) -> None:
        task_from_app(make_app(), tracker_base=base, reads={"inner": inner(base=base).output})

    with pytest.raises(ReadsError, match=says("'inner'", "nested pipeline", "task.outputs['run_id']", "task.output}")):
        compile_pipeline(whole)
    compile_pipeline(by_its_output)
