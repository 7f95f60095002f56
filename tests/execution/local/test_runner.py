"""Pipelines that run: data flow, types, scopes."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035, UP045

import datetime
import json
import re
import time
from typing import Dict, List, NamedTuple, Optional

import pytest
from kfp import compiler, dsl

from tests.execution.local.components import produce, python, shell, shell_out, text_of, write
from tests.watching import Heard
from torchx_kfp.local import StageStarted, State, Watch, run

texts = {
    "STRING": text_of(str, "text-of-str"),
    "INT": text_of(int, "text-of-int"),
    "DOUBLE": text_of(float, "text-of-float"),
    "BOOL": text_of(bool, "text-of-bool"),
    "LIST": text_of(List[int], "text-of-list"),
    "STRUCT": text_of(Dict[str, float], "text-of-dict"),
}


OptionalStr = Optional[str]
FIVE = [("i", int), ("d", float), ("b", bool), ("li", List[int]), ("st", Dict[str, float])]


def outputs_of(result, name="out"):
    return {stage.name: stage.outputs.get(name) for stage in result.stages}


def test_a_file_and_a_function_run_alike(execute, tmp_path):
    @dsl.pipeline(name="Two Ways")
    def pipeline(x: str = "v") -> str:
        return write(x=x).outputs["out"]

    path = tmp_path / "p.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    for way in (path, str(path), pipeline):
        result = execute(way)
        assert result.outputs == {"Output": "v"}
        assert result.pipeline == "two-ways"
        assert re.fullmatch(r"two-ways-\d{8}-\d{6}-[0-9a-f]{6}", result.run_id)
        assert result.state is State.SUCCEEDED
        assert result.folder == tmp_path / "runs" / result.run_id
        assert [stage.exit_code for stage in result.stages] == [0]


@pytest.mark.filterwarnings("ignore:Compiling to JSON:DeprecationWarning")
def test_a_json_file_has_the_same_numbers(execute, tmp_path):
    @dsl.pipeline
    def pipeline(x: float = 1e-05) -> str:
        with dsl.If(x < 0.5):
            write(x="small")
        return texts["DOUBLE"](x=x).outputs["out"]

    path = tmp_path / "p.json"
    compiler.Compiler().compile(pipeline, str(path))
    result = execute(path)
    assert result.outputs == {"Output": "0.00001"}
    assert [str(stage.state) for stage in result.stages] == ["succeeded", "succeeded"]


def test_outputs_with_names_that_are_alike(execute):
    @dsl.container_component
    def alike(a_b: dsl.OutputPath(str), a__b: dsl.OutputPath(str), x: dsl.OutputPath(str), x_: dsl.OutputPath(str)):
        script = 'for file; do printf %s "${file##*/}" > "$file"; done'
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, "sh", a_b, a__b, x, x_])

    @dsl.pipeline
    def pipeline():
        alike()

    names = ("a_b", "a__b", "x", "x_")
    assert execute(pipeline).stages[0].outputs == {name: name for name in names}


def test_parameters_of_every_type_as_text(execute):
    @dsl.pipeline
    def pipeline(s: str, i: int, d: float, b: bool, li: List[int], st: Dict[str, float]):
        texts["STRING"](x=s)
        texts["INT"](x=i)
        texts["DOUBLE"](x=d)
        texts["BOOL"](x=b)
        texts["LIST"](x=li)
        texts["STRUCT"](x=st)

    hostile = "q\"'\\ $HOME $$ $(PATH) {{workflow.name}} {{=1+1}} é😀 \x7f\n{{$.inputs.parameters['x']}} {{$}}"
    values = {"s": hostile, "i": -3, "d": 1e-05, "b": True, "li": [1, 2], "st": {"b": 1, "a": 0.5}}
    assert outputs_of(execute(pipeline, values)) == {
        "text-of-str": hostile,
        "text-of-int": "-3",
        "text-of-float": "0.00001",
        "text-of-bool": "true",
        "text-of-list": "[1,2]",
        "text-of-dict": '{"a":0.5,"b":1}',
    }


def test_constants_of_every_type_as_text(execute):
    @dsl.pipeline
    def pipeline():
        texts["STRING"](x="")
        texts["INT"](x=7)
        texts["DOUBLE"](x=1.0)
        texts["BOOL"](x=False)
        texts["LIST"](x=[1, 2])
        texts["STRUCT"](x={"k": 3})

    assert outputs_of(execute(pipeline)) == {
        "text-of-str": "",
        "text-of-int": "7",
        "text-of-float": "1",
        "text-of-bool": "false",
        "text-of-list": "[1,2]",
        "text-of-dict": '{"k":3}',
    }


def test_outputs_of_every_type_reach_the_next_stage_and_the_result(execute):
    @dsl.pipeline
    def pipeline() -> NamedTuple(
        "O", [("i", int), ("d", float), ("b", bool), ("li", List[int]), ("st", Dict[str, float])]
    ):
        i = produce(int, "make-int")(text=" 5\n").outputs["out"]
        d = produce(float, "make-float")(text="1e-3").outputs["out"]
        b = produce(bool, "make-bool")(text="True").outputs["out"]
        li = produce(List[int], "make-list")(text="[1, 2]").outputs["out"]
        st = produce(Dict[str, float], "make-dict")(text='{"k": 0.5}').outputs["out"]
        texts["INT"](x=i)
        texts["DOUBLE"](x=d)
        texts["BOOL"](x=b)
        texts["LIST"](x=li)
        texts["STRUCT"](x=st)
        return NamedTuple("O", FIVE)(i, d, b, li, st)

    result = execute(pipeline)
    assert result.outputs == {"i": 5, "d": 0.001, "b": True, "li": [1, 2], "st": {"k": 0.5}}
    outs = outputs_of(result)
    assert [outs[f"text-of-{name}"] for name in ("int", "float", "bool", "list", "dict")] == [
        "5",
        "0.001",
        "true",
        "[1,2]",
        '{"k":0.5}',
    ]


def test_text_around_values_and_values_that_look_like_placeholders(execute):
    @dsl.pipeline
    def pipeline(a: str, n: int):
        first = write(x=f"[{a}|{n}]")
        write(x=f"<{first.outputs['out']}|{a}>")

    trap = "{{$.inputs.parameters['pipelinechannel--n']}}"
    outs = outputs_of(execute(pipeline, {"a": trap, "n": 3}))
    assert outs == {"write": f"[{trap}|3]", "write-2": f"<[{trap}|3]|{trap}>"}


def test_defaults_optional_inputs_and_structured_placeholders(execute):
    @dsl.container_component
    def optional(out: dsl.OutputPath(str), given: OptionalStr = None, default: str = 'd"f', n: int = 4):
        return dsl.ContainerSpec(
            image="busybox",
            command=["sh", "-c", 'o=$1; shift; printf "%s|" "$@" > "$o"', "sh"],
            args=[
                out,
                dsl.IfPresentPlaceholder("given", then=["--given", given], else_=["none"]),
                f"c{default}{n}",
                given,
            ],
        )

    @dsl.pipeline
    def pipeline(p: OptionalStr = None):
        optional()
        optional(given="G", default="D", n=5)
        optional(given=p)

    assert outputs_of(execute(pipeline, {"p": None})) == {
        "optional": 'none|cd"f4||',
        "optional-2": "--given|G|cD5|G|",
        "optional-3": 'none|cd"f4||',
    }
    assert outputs_of(execute(pipeline, {"p": "P"}))["optional-3"] == '--given|P|cd"f4|P|'


def test_facts_about_the_run(execute):
    names = {
        "job": dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        "job_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        "root": dsl.PIPELINE_ROOT_PLACEHOLDER,
        "task": dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        "created": dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
    }

    @dsl.container_component
    def facts(out: dsl.OutputPath(str), x: str, job: str, job_id: str, root: str, task: str, created: str):
        return dsl.ContainerSpec(
            image="busybox",
            command=["sh", "-c", 'printf "%s|" "$@" > "$0"', out],
            args=[job, job_id, root, task, created, x, "{{$}}"],
        )

    @dsl.pipeline
    def pipeline():
        facts(**names, x=dsl.PIPELINE_JOB_ID_PLACEHOLDER)
        write(x=dsl.PIPELINE_TASK_ID_PLACEHOLDER)
        write(x=dsl.PIPELINE_TASK_ID_PLACEHOLDER)

    result = execute(pipeline)
    outs = outputs_of(result)
    job, job_id, root, task, created, x, executor_input, _ = outs["facts"].split("|")
    assert job == job_id == x == result.run_id
    assert (root, task) == (dsl.PIPELINE_ROOT_PLACEHOLDER, "facts")  # backends do not fill in the former
    assert datetime.datetime.fromisoformat(created.replace("Z", "+00:00")).tzinfo is not None
    decoded = json.loads(executor_input)
    assert decoded["inputs"]["parameterValues"]["x"] == result.run_id
    assert decoded["outputs"]["parameters"]["out"]["outputFile"].startswith(str(result.folder))
    assert len({outs["write"], outs["write-2"]}) == 2


def test_only_the_taken_branch_runs(execute):
    @dsl.pipeline
    def pipeline(coin: str, n: int) -> str:
        flip = write(x=coin)
        with dsl.If(flip.outputs["out"] == "heads"):
            one = write(x="one")
        with dsl.Elif(n > 2):
            two = write(x="two")
            write(x=two.outputs["out"])
        with dsl.Else():
            three = write(x="three")
        chosen = dsl.OneOf(one.outputs["out"], two.outputs["out"], three.outputs["out"])
        return write(x=chosen).outputs["out"]

    def states(result):
        return {stage.name: str(stage.state) for stage in result.stages}

    heads = execute(pipeline, {"coin": "heads", "n": 9})
    assert heads.outputs == {"Output": "one"}
    assert states(heads)["write-2"] == "succeeded"
    assert [states(heads)[f"write-{i}"] for i in (3, 4, 5)] == ["skipped"] * 3
    assert execute(pipeline, {"coin": "tails", "n": 3}).outputs == {"Output": "two"}
    assert execute(pipeline, {"coin": "tails", "n": 2}).outputs == {"Output": "three"}


def test_conditions_on_numbers_and_booleans(execute):
    @dsl.pipeline
    def pipeline(i: int, d: float, b: bool):
        with dsl.If(i == 3):
            write(x="i")
        with dsl.If(d > 0.5):
            write(x="d")
        with dsl.If(d >= 1):
            write(x="d1")
        with dsl.If(b == True):  # noqa: E712 - a channel, not a bool
            write(x="b")
        with dsl.If(i > d):
            write(x="i>d")

    def ran(result):
        return sorted(stage.outputs["out"] for stage in result.stages if stage.state is State.SUCCEEDED)

    assert ran(execute(pipeline, {"i": 3, "d": 1.0, "b": True})) == ["b", "d", "d1", "i", "i>d"]
    assert ran(execute(pipeline, {"i": 0, "d": 0.5, "b": False})) == []


def test_what_waits_for_a_skipped_task_is_skipped(execute):
    @dsl.pipeline
    def pipeline(x: str = "no"):
        with dsl.If(x == "yes"):
            first = write(x="1")
            with dsl.ParallelFor(["a"]) as item:
                write(x=item).after(first)

    result = execute(pipeline)
    assert {stage.name: (str(stage.state), stage.reason) for stage in result.stages} == {
        "write": ("skipped", "was skipped: its condition is false"),
        "write-2": ("skipped", "was skipped: its condition is false"),
    }
    assert result.state is State.SUCCEEDED


def test_loop_over_constants_parameters_and_outputs(execute):
    @dsl.pipeline
    def pipeline(items: List[str]):
        with dsl.ParallelFor([1.0, 2.5]) as number:
            texts["DOUBLE"](x=number)
        with dsl.ParallelFor(items) as item:
            write(x=f"<{item}>")
        made = produce(List[str], "make-list")(text='["p", "q"]')
        with dsl.ParallelFor(made.outputs["out"]) as name:
            texts["STRING"](x=name)

    outs = outputs_of(execute(pipeline, {"items": ["x", "{{$}}"]}))
    assert outs == {
        "text-of-float[0]": "1",
        "text-of-float[1]": "2.5",
        "write[0]": "<x>",
        "write[1]": "<{{$}}>",
        "make-list": ["p", "q"],
        "text-of-str[0]": "p",
        "text-of-str[1]": "q",
    }


def test_fields_of_loop_items_and_conditions_on_them(execute):
    @dsl.pipeline
    def pipeline(items: List[Dict[str, str]]):
        with dsl.ParallelFor([{"a": 1, "b": 2}, {"a": 3, "b": 4}]) as item:
            texts["INT"](x=item.b)
            with dsl.If(item.a > 2):
                write(x="big")
        with dsl.ParallelFor(items) as item:
            write(x=item.k)

    result = execute(pipeline, {"items": [{"k": "v"}]})
    outs = outputs_of(result)
    assert [outs[name] for name in ("text-of-int[0]", "text-of-int[1]", "write-2[0]")] == ["2", "4", "v"]
    assert {stage.name: str(stage.state) for stage in result.stages if stage.task == "write"} == {
        "write[0]": "skipped",
        "write[1]": "succeeded",
    }


def test_nested_loops_collect_into_one_flat_list_in_loop_order(execute):
    @dsl.pipeline
    def pipeline() -> NamedTuple("O", [("one", List[str]), ("flat", List[str]), ("lists", List[List[int]])]):
        with dsl.ParallelFor(["a", "b", "c"]) as outer:
            # The first iterations take the longest.
            one = shell_out(script='case $0 in *-0-0/*) sleep 0.3;; esac; printf %s "$0" | grep -o "out-[0-9]" > "$0"')
            first = write(x=outer)
            with dsl.ParallelFor(["x", "y"]):
                both = write(x=first.outputs["out"])
            made = produce(List[int], "make-list")(text="[1, 2]")
        collected = text_of(List[str], "text-of-list")
        collected(x=dsl.Collected(both.outputs["out"]))
        fields = [("one", List[str]), ("flat", List[str]), ("lists", List[List[int]])]
        return NamedTuple("O", fields)(
            dsl.Collected(one.outputs["out"]), dsl.Collected(both.outputs["out"]), dsl.Collected(made.outputs["out"])
        )

    result = execute(pipeline)
    assert result.outputs == {
        "one": ["out-0\n", "out-1\n", "out-2\n"],
        "flat": ["a", "a", "b", "b", "c", "c"],
        # Each stage's output is itself a list, and they are not joined.
        "lists": [[1, 2], [1, 2], [1, 2]],
    }
    assert outputs_of(result)["text-of-list"] == '["a","a","b","b","c","c"]'
    assert {"write-2[0,0]", "write-2[2,1]"} <= {stage.name for stage in result.stages}


def test_loops_without_items(execute, execute_failing):
    """Tasks cannot take their outputs, even if a nested pipeline passes them on: KFP's driver fails."""

    @dsl.pipeline
    def inner(items: List[str]) -> List[str]:
        with dsl.ParallelFor(items) as item:
            made = write(x=item)
            with dsl.ParallelFor(["x"]):
                for _ in range(3):
                    write(x="never")
        return dsl.Collected(made.outputs["out"])

    @dsl.pipeline
    def pipeline(items: List[str]):
        texts["LIST"](x=inner(items=items).output)

    result = execute(inner, {"items": []})
    assert outputs_of(result) == {}
    assert result.outputs == {"Output": []}
    (stage,) = execute_failing(pipeline, {"items": []}).stages
    assert stage.attempts == 0
    assert stage.reason.startswith(
        "has no value for its input 'x': the loop with 'inner/write', 'inner/write-2', 'inner/write-3' and 1 more had "
        "no iterations, "
    )


def test_what_an_iteration_has_skipped_is_not_collected(execute_failing):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["a", "b"]) as item, dsl.If(item != "b"):
            made = write(x=item)
        texts["LIST"](x=dsl.Collected(made.outputs["out"]))

    result = execute_failing(pipeline, {})
    assert "an iteration of the loop with 'write' has skipped it" in result.stages[-1].reason


def test_collected_from_a_branch_holds_what_has_run(execute):
    @dsl.pipeline
    def pipeline() -> List[str]:
        with dsl.ParallelFor(["a", "b", "c"]) as item, dsl.If(item != "b"):
            made = write(x=item)
        return dsl.Collected(made.outputs["out"])

    assert execute(pipeline).outputs == {"Output": ["a", "c"]}


@dsl.pipeline
def inner(a: str, suffix: str = "!") -> str:
    first = write(x=f"{a}{suffix}")
    return write(x=first.outputs["out"]).outputs["out"]


def test_nested_pipelines_used_twice_and_in_loops(execute):
    @dsl.pipeline
    def middle(a: str) -> str:
        return inner(a=a, suffix="?").output

    @dsl.pipeline
    def pipeline(x: str) -> NamedTuple("O", [("last", str), ("all", List[str])]):
        one = inner(a=x)
        two = inner(a=one.output, suffix="-X")
        with dsl.ParallelFor(["p", "q"]) as item:
            each = middle(a=item)
        return NamedTuple("O", [("last", str), ("all", List[str])])(two.output, dsl.Collected(each.output))

    result = execute(pipeline, {"x": "X"})
    assert result.outputs == {"last": "X!-X", "all": ["p?", "q?"]}
    names = {stage.name for stage in result.stages}
    assert {"inner/write", "inner-2/write-2", "middle[0]/inner/write", "middle[1]/inner/write-2"} <= names
    pods = [stage.pod_name for stage in result.stages]
    assert "middle-1-inner-write-2-0" in pods
    assert len(set(pods)) == len(pods)
    assert all(re.fullmatch(r"[A-Za-z0-9.-]+", pod) for pod in pods)


def test_pod_names_differ_where_stage_names_are_alike(execute):
    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["a", "b", "c"]) as item:
            write(x=item)
        write(x="second")

    pods = {stage.name: stage.pod_name for stage in execute(pipeline).stages}
    assert set(pods) == {"write[0]", "write[1]", "write[2]", "write-2"}
    assert len(set(pods.values())) == 4
    assert pods["write[1]"].startswith("write-1-0")


def test_events_tell_what_happens(execute):
    @dsl.pipeline
    def pipeline():
        write(x="x")

    events = []
    result = execute(pipeline, watch=Heard(on_event=events.append))
    started, waiting, stage_started, stage_finished, finished = events
    assert (started.pipeline, started.run_id, started.folder) == ("pipeline", result.run_id, result.folder)
    assert (started.not_applied, started.resumed) == ((), False)
    assert (waiting.name, waiting.task) == ("write", "write")
    assert (stage_started.name, stage_started.pod_name, stage_started.attempt) == ("write", "write-0", 1)
    assert (stage_started.log_file, stage_started.inputs) == (result.stages[0].log_file, {"x": "x"})
    assert stage_finished.result == result.stages[0]
    assert (finished.run_id, finished.state, finished.duration) == (result.run_id, State.SUCCEEDED, result.duration)


def test_an_error_in_a_listener_ends_the_run(execute, tmp_path):
    @dsl.pipeline
    def pipeline():
        python(code="import time; time.sleep(60)")

    def listener(event):
        if isinstance(event, StageStarted):
            raise RuntimeError("listener")

    started = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^listener$"):
        execute(pipeline, watch=Heard(on_event=listener))
    assert time.monotonic() - started < 30


def test_a_watch_that_does_nothing_shows_nothing(tmp_path, capfd):
    @dsl.pipeline
    def pipeline():
        shell(script="echo hello")

    result = run(pipeline, output_dir=tmp_path, watch=Watch())
    assert capfd.readouterr() == ("", "")
    assert result.stages[0].log_file.read_text() == "hello\n"
