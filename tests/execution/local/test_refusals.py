"""Features that cannot run locally are rejected by name, with these messages, before anything is started."""

# The oldest supported kfp knows only typing's names of generic types.

import pytest

from tests.execution.local.components import ir, load
from torchx_kfp.errors import (
    PipelineError,
)
from torchx_kfp.local import Watch, run


def refusal(pipeline, tmp_path, why="fails on KFP"):
    """Return the message without its first line, and check that nothing was started."""
    with pytest.raises(PipelineError) as error:
        run(pipeline, output_dir=tmp_path / "runs", watch=Watch())
    assert not (tmp_path / "runs").exists()
    assert error.value.exit_code == 2
    first, *lines = str(error.value).splitlines()
    assert first == f"The pipeline 'pipeline' {why}, so nothing was started:"
    return [line.removeprefix("- ") for line in lines]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "spec['root']['dag']['tasks']['for-loop-2']['parameterIterator']['items'] = {'kind': 'x'}",
            "task 'for-loop-2' loops over items that come from neither a constant nor an input. Run the pipeline "
            "on KFP.",
        ),
        (
            "spec['root']['dag']['tasks']['for-loop-2']['componentRef']['name'] = 'comp-write'",
            "task 'for-loop-2' is a loop that does not contain a pipeline. Run the pipeline on KFP.",
        ),
        (
            "spec['deploymentSpec']['executors']['exec-write'] = {'customJob': {}}",
            "task 'for-loop-2/write' has an executor of the kind 'customJob'. Run the pipeline on KFP.",
        ),
        (
            "spec['components']['comp-for-loop-2']['dag']['tasks']['write']['inputs']['parameters']['x']"
            "['parameterExpressionSelector'] = 'size(string_value)'",
            "task 'for-loop-2/write' has the expression 'size(string_value)' for its input 'x'. Run the pipeline "
            "on KFP.",
        ),
        (
            "spec['components']['comp-write']['outputDefinitions']['parameters']['../x'] = {'parameterType': 'STRING'}",
            "task 'for-loop-2/write' has the output '../x', which cannot be the name of a file. Rename the output.",
        ),
        (
            "del spec['deploymentSpec']['executors']['exec-write']['container']['command']",
            "task 'for-loop-2/write' has no command, so it runs the default command of the image 'busybox', and images "
            "are not used locally. Give the component a command, or run the stage in its image (--docker).",
        ),
        (
            "spec['root']['inputDefinitions']['artifacts'] = {'data': {}}",
            "the pipeline takes an artifact ('data'), which cannot be passed to a run. Import it by its URI "
            "(dsl.importer), or use the pipeline inside another one.",
        ),
    ],
)
def test_what_other_compilers_may_write(tmp_path, change, message):
    documents = ir(folder=tmp_path)
    platform = {}
    exec(change, {"spec": documents[0], "platform": platform})  # noqa: S102 - the changes above
    documents.append({"platforms": {"kubernetes": platform}})
    why = "fails on KFP" if "artifact" in message else "cannot run locally"
    assert refusal(load(documents, tmp_path), tmp_path, why) == [message]


def test_items_that_are_no_list_are_reported(execute_failing, tmp_path):
    documents = ir(folder=tmp_path)
    loop = documents[0]["root"]["dag"]["tasks"]["for-loop-2"]
    loop["parameterIterator"]["items"] = {"inputParameter": "items"}
    loop["inputs"] = {"parameters": {"items": {"runtimeValue": {"constant": "no list"}}}}
    with pytest.raises(PipelineError, match="'for-loop-2' loops over something that is not a list: 'no li"):
        execute_failing(load(documents, tmp_path))


def test_an_output_of_a_stage_that_was_skipped_has_no_value(execute_failing, tmp_path):
    """As of a compiler that lets a pipeline return what a branch makes."""
    documents = ir(folder=tmp_path)
    spec = documents[0]
    task = spec["components"].pop("comp-for-loop-2")["dag"]["tasks"]["write"]
    skipped = {
        "inputs": {"parameters": {"x": {"runtimeValue": {"constant": ""}}}},
        "triggerPolicy": {"condition": "1 > 2"},
    }
    output = {"valueFromParameter": {"producerSubtask": "write", "outputParameterKey": "out"}}
    spec["components"]["comp-inner"] = {
        "dag": {"tasks": {"write": {**task, **skipped}}, "outputs": {"parameters": {"o": output}}},
        "outputDefinitions": {"parameters": {"o": {"parameterType": "STRING"}}},
    }
    taken = {"taskOutputParameter": {"producerTask": "inner", "outputParameterKey": "o"}}
    spec["root"]["dag"]["tasks"] = {
        "inner": {"componentRef": {"name": "comp-inner"}, "taskInfo": {"name": "inner"}},
        "write": {**task, "inputs": {"parameters": {"x": taken}}, "dependentTasks": ["inner"]},
    }
    assert execute_failing(load(documents, tmp_path))["write"].reason == (
        "has no value for its input 'x': 'inner' did not produce its output 'o', since the task that produces it was "
        "skipped"
    )
