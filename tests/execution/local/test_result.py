"""The result that ``run`` returns: stages by their names, and the table that a notebook shows."""

import dataclasses
import json

import pytest
from kfp import dsl

from tests.execution.local.components import shell, shell_out
from tests.facts import says
from torchx_kfp.errors import UnknownNameError
from torchx_kfp.local import State


@dsl.container_component
def metric(out: dsl.Output[dsl.Metrics], executor: str = ""):
    metadata = json.dumps({"<script>": "<img src=x>"})
    report = '{"artifacts": {"out": {"artifacts": [{"name": "out", "metadata": %s}]}}}' % metadata  # noqa: UP031 (JSON has braces)
    script = """p=${1#*'"outputFile":"'}; printf %s "$0" >"${p%%'"'*}" """
    return dsl.ContainerSpec(image="x", command=["sh", "-c", script], args=[report, "{{$}}"])


@pytest.fixture
def result(execute):
    @dsl.pipeline
    def inner(item: str) -> str:
        return shell_out(script=f"printf %s '{'<b>'}' >$0").set_display_name("x").output

    @dsl.pipeline
    def pipeline(rate: float = 0.1) -> str:
        with dsl.ParallelFor(["a", "b"]) as item:
            inner(item=item)
        with dsl.ParallelFor(["only"]) as item:
            last = inner(item=item)
        shell(script=":").after(last)
        metric()
        return shell_out(script="printf done >$0").output

    return execute(pipeline)


def test_a_stage_is_found_by_its_name(result):
    assert result["shell"].state == "succeeded"
    assert result["inner[1]/shell-out"].outputs == {"out": "<b>"}
    assert result["inner-2/shell-out"].name == "inner-2[0]/shell-out", "a loop of one iteration needs no index"
    assert [stage.name for stage in result.all("inner/shell-out")] == ["inner[0]/shell-out", "inner[1]/shell-out"]
    assert result.all("nothing") == []
    with pytest.raises(UnknownNameError, match=says("'shel'", "'shell'", "inner")):
        result["shel"]
    with pytest.raises(KeyError, match=says("result.all('inner/shell-out')")):
        result["inner/shell-out"]


def test_a_value_that_is_not_there_is_refused_with_what_there_is(result):
    stage = dataclasses.replace(result["shell-out"], results={"loss": 0.1})
    assert result["shell-out"].results is None
    for values, name, facts in (
        (stage.outputs, "oout", ["The stage 'shell-out' has no output 'oout'. Did you mean 'out'? Its"]),
        (stage.inputs, "scrpt", ["The stage 'shell-out' has no input 'scrpt'.", "'script'"]),
        (stage.artifacts, "model", ["The stage 'shell-out' has no artifact 'model'.", "none"]),
        (stage.results, "los", ["The stage 'shell-out' has no result 'los'.", "'loss'"]),
        (result.outputs, "x", [f"The run {result.run_id} has no output 'x'.", "'Output'"]),
    ):
        with pytest.raises(UnknownNameError, match=says(*facts)) as error:
            values[name]
        assert isinstance(error.value, KeyError)


def test_a_notebook_shows_a_table_and_text_of_others_as_text(result):
    html = result._repr_html_()
    assert f"<caption>{result.run_id}: succeeded, " in html
    assert "<tr><td>shell</td><td>succeeded</td>" in html
    assert "&lt;script&gt;=&#x27;&lt;img src=x&gt;&#x27;" in html
    assert "<b>" not in html
    assert "<script>" not in html


def test_printing_a_result_shows_a_short_table(result):
    long = dataclasses.replace(result["shell"], attempts=3, results={"url": "s3://" + "x" * 300, "loss": 0.1})
    shown = str(dataclasses.replace(result, stages=(*result.stages, long)))
    caption, head, *rows = shown.splitlines()
    assert caption.startswith(f"{result.run_id}: succeeded, ")
    assert head.split() == ["stage", "state", "seconds", "results"]
    assert {row.split()[0] for row in rows} == {stage.name for stage in result.stages}
    assert "3 attempts" in rows[-1]
    assert max(map(len, shown.splitlines())) < 160
    assert str(result["shell"]).startswith("shell: succeeded, ")
    assert repr(result).startswith(f"<RunResult {result.run_id}: succeeded, ")


def test_a_frame_has_a_row_for_each_stage(result):
    pytest.importorskip("pandas", reason="an extra")
    stages = [dataclasses.replace(each, results={"loss": 0.1, "stage": "own"}) for each in result.stages[:1]]
    nested = dataclasses.replace(result["inner[1]/shell-out"], name="inner[1]/train[2,0]", state=State.FAILED)
    frame = dataclasses.replace(result, stages=(*stages, nested, result["shell"])).to_frame()
    assert [*frame.index] == [stages[0].name, "inner[1]/train[2,0]", "shell"]
    assert [*frame.columns][:4] == ["stage", "iteration", "state", "seconds"]
    assert frame.loc["inner[1]/train[2,0]", ["stage", "iteration", "state"]].tolist() == [
        *("inner/train", (1, 2, 0), "failed")
    ]
    assert frame.loc[stages[0].name, "loss"] == 0.1
    assert frame.loc[stages[0].name, "stage"] == "inner/shell-out", "a result of this name does not replace it"
    assert frame.loc["shell", "input.script"] == ":"
    assert frame["loss"].isna().tolist() == [False, True, True]
