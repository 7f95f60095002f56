"""The result that ``run`` returns: stages by their names, and the table that a notebook shows."""

import dataclasses
import json

import pytest
from kfp import dsl

from tests.execution.local.components import shell, shell_out
from tests.facts import says
from torchx_kfp.errors import StageNotFoundError, UnknownNameError


@pytest.fixture
def result(execute):
    @dsl.pipeline
    def inner(item: str):
        shell_out(script=f"printf %s '{'<b>'}' >$0").set_display_name("x")

    @dsl.pipeline
    def pipeline():
        with dsl.ParallelFor(["a", "b"]) as item:
            inner(item=item)
        shell(script=":")

    return execute(pipeline)


def test_a_stage_is_found_by_its_name(result):
    assert result["shell"].state == "succeeded"
    assert result["inner[1]/shell-out"].outputs == {"out": "<b>"}
    assert [stage.name for stage in result.all("inner/shell-out")] == ["inner[0]/shell-out", "inner[1]/shell-out"]
    assert result.all("nothing") == []


def test_a_stage_that_is_not_there(result):
    with pytest.raises(StageNotFoundError, match=says("'shel'", "'shell'", "inner")):
        result["shel"]
    with pytest.raises(KeyError, match=says("result.all('inner/shell-out')")):
        result["inner/shell-out"]


def test_values_that_are_not_there(execute):
    @dsl.pipeline
    def pipeline(rate: float = 0.1) -> str:
        return shell_out(script="printf done >$0").output

    result = execute(pipeline)
    stage = result["shell-out"]
    with pytest.raises(KeyError, match=says("The stage 'shell-out' has no output 'oout'. Did you mean 'out'? Its")):
        stage.outputs["oout"]
    with pytest.raises(UnknownNameError, match=says("The stage 'shell-out' has no input 'scrpt'.", "'script'")):
        stage.inputs["scrpt"]
    with pytest.raises(UnknownNameError, match=says("The stage 'shell-out' has no artifact 'model'.", "none")):
        stage.artifacts["model"]
    with pytest.raises(UnknownNameError, match=says(f"The run {result.run_id} has no output 'x'.", "'Output'")):
        result.outputs["x"]
    assert stage.results is None
    tracked = dataclasses.replace(stage, results={"loss": 0.1})
    with pytest.raises(UnknownNameError, match=says("The stage 'shell-out' has no result 'los'.", "'loss'")):
        tracked.results["los"]


def test_a_loop_of_one_iteration_needs_no_index(execute):
    @dsl.pipeline
    def pipeline(items: list = ["only"]):  # noqa: B006
        with dsl.ParallelFor(items) as item:
            del item
            shell(script=":")

    assert execute(pipeline)["shell"].name == "shell[0]"


def test_a_notebook_shows_a_table(result):
    html = result._repr_html_()
    assert f"<caption>{result.run_id}: succeeded, " in html
    assert "<tr><td>shell</td><td>succeeded</td>" in html
    assert "<b>" not in html


def test_text_of_others_is_no_html(execute):
    @dsl.container_component
    def metric(out: dsl.Output[dsl.Metrics], executor: str = ""):
        metadata = json.dumps({"<script>": "<img src=x>"})
        report = '{"artifacts": {"out": {"artifacts": [{"name": "out", "metadata": %s}]}}}' % metadata  # noqa: UP031
        script = """p=${1#*'"outputFile":"'}; printf %s "$0" >"${p%%'"'*}" """
        return dsl.ContainerSpec(image="x", command=["sh", "-c", script], args=[report, "{{$}}"])

    @dsl.pipeline
    def pipeline():
        metric()

    html = execute(pipeline)._repr_html_()
    assert "&lt;script&gt;=&#x27;&lt;img src=x&gt;&#x27;" in html
    assert "<script>" not in html


def test_printing_a_result_shows_a_short_table(result):
    long = dataclasses.replace(result["shell"], attempts=3, results={"url": "s3://" + "x" * 300, "loss": 0.1})
    shown = str(dataclasses.replace(result, stages=(*result.stages, long)))
    caption, head, *rows = shown.splitlines()
    assert caption.startswith(f"{result.run_id}: succeeded, ")
    assert head.split() == ["stage", "state", "seconds", "results"]
    names = ["inner[0]/shell-out", "inner[1]/shell-out", "shell", "shell"]
    assert sorted(row.split()[0] for row in rows) == names
    assert "3 attempts" in rows[-1]
    assert max(map(len, shown.splitlines())) < 160
    assert str(result["shell"]).startswith("shell: succeeded, ")
    assert repr(result).startswith(f"<RunResult {result.run_id}: succeeded, ")
