"""Placeholders in commands and in constants."""

from __future__ import annotations

import json

import pytest

from torchx_kfp.execution.pipeline.artifacts import Artifact
from torchx_kfp.execution.pipeline.placeholders import (
    PlaceholderValues,
    resolve_command,
    resolve_parameters,
    resolve_pod_text,
    resolve_text,
    resolve_value,
)
from torchx_kfp.execution.pipeline.spec import ArtifactType

X = "{{$.inputs.parameters['x']}}"
VALUES = PlaceholderValues(
    parameters={"x": "X", "n": 3, "l": [1, "a"], "trap": "{{$.inputs.parameters['x']}} {{$}}"},
    workspace="/work",
    unset=frozenset({"opt"}),
    output_files={"out": "/o/out"},
    executor_output="/o/executor.json",
)


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("plain {{x}} $", "plain {{x}} $"),
        (f"a{X}b{X}", "aXbX"),
        ('{{$.inputs.parameters["x"]}}', '{{$.inputs.parameters["x"]}}'),
        ("{{$.inputs.parameters['n']}}", "3"),
        ("{{$.inputs.parameters['l']}}", '[1,"a"]'),
        ("{{$.inputs.parameters['trap']}}", "{{$.inputs.parameters['x']}} {{$}}"),
        ("{{$.inputs.parameters['opt']}}", ""),
        ("{{$.inputs.parameters['unknown']}}", "{{$.inputs.parameters['unknown']}}"),
        ("{{$.outputs.parameters['out'].output_file}}", "/o/out"),
        ("{{$.workspace_path}}/x", "{{$.workspace_path}}/x"),
        ("{{$.outputs.output_file}}", "/o/executor.json"),
        ("{{$.pipeline_job_name}}", "{{$.pipeline_job_name}}"),
        ("{{$.inputs.artifacts['data'].metadata['k']}}", "{{$.inputs.artifacts['data'].metadata['k']}}"),
        ("{{$.unknown}} {{workflow.name}}", "{{$.unknown}} {{workflow.name}}"),
    ],
)
def test_placeholders_in_text_are_resolved(text, resolved):
    assert resolve_text(text, VALUES) == resolved


def test_the_executor_input_is_json():
    """Placeholders in its values are filled in once, like the launcher does."""
    assert json.loads(resolve_text("{{$}}", VALUES)) == {
        "inputs": {"parameterValues": {**VALUES.parameters, "trap": "X {{$}}"}},
        "outputs": {"parameters": {"out": {"outputFile": "/o/out"}}, "outputFile": "/o/executor.json"},
    }


def test_constants_are_resolved_inside_of_lists_and_dicts():
    assert resolve_value([X, {"k": [X, 1.5, None]}], VALUES) == ["X", {"k": ["X", 1.5, None]}]


def test_structured_placeholders():
    then = json.dumps({"IfPresent": {"InputName": "x", "Then": ["--x", X], "Else": ["no"]}})
    other = json.dumps({"IfPresent": {"InputName": "opt", "Then": ["--x", X], "Else": ["no"]}})
    nothing = json.dumps({"IfPresent": {"InputName": "opt", "Then": ["--x", X]}})
    inner = json.dumps({"IfPresent": {"InputName": "x", "Then": ["y", json.loads(other)]}})
    assert resolve_command(["c", then, other, nothing, inner], VALUES) == ["c", "--x", "X", "no", "y", "no"]


@pytest.mark.parametrize(
    "word",
    [
        '{"IfPresent": 3}',
        '{"IfPresent": {"InputName": 3, "Then": "a"}}',
        '{"IfPresent": {"InputName": "x"}}',
        '{"IfPresent": {"InputName": "x", "Then": [3]}}',
        '{"IfPresent": {"InputName": "x", "Then": "a", "Other": "b"}}',
        '{"IfPresent": {"InputName": "x", "Then": "a"}, "Other": "b"}',
        '{"IfPresent": x',
        '{"IfPresent": ' + "[" * 100_000,
        '{"IfPresent": ' + "1" * 5_000 + "}",
    ],
)
def test_text_that_only_looks_like_a_structured_placeholder_stays(word):
    assert resolve_command([word], VALUES) == [word]


def test_quotes_in_a_value_do_not_break_a_structured_placeholder():
    values = PlaceholderValues(parameters={"x": 'q"\\'})
    assert resolve_command([json.dumps({"IfPresent": {"InputName": "x", "Then": X}})], values) == ['q"\\']


NUMBERS = {
    1e-5: "1e-05",
    -2.5e-7: "-2.5e-07",
    1234567.5: "1.2345675e+06",
    123456.5: "123456.5",
    0.0001: "0.0001",
    3.0: "3",
    1e18: "1000000000000000000",
    1e20: "1e+20",
    1.5e300: "1.5e+300",
}


@pytest.mark.parametrize("number", NUMBERS)
def test_the_driver_writes_numbers_as_go_does(number):
    assert resolve_command([f"--x={X}"], PlaceholderValues(parameters={"x": number})) == [f"--x={NUMBERS[number]}"]
    assert resolve_parameters(f"--x={X} {{{{$}}}}", {"x": number}) == f"--x={NUMBERS[number]} {{{{$}}}}"


def test_the_launcher_fills_in_words_with_outputs():
    out = "{{$.outputs.parameters['out'].output_file}}"
    values = PlaceholderValues(parameters={"x": 1e-5}, output_files={"out": "/o"})
    present = json.dumps({"IfPresent": {"InputName": "x", "Then": out}})
    assert resolve_command([f"{X} {out}", present], values) == ["0.00001 /o", present.replace(out, "/o")]
    assert resolve_parameters(f"{X} {out}", {"x": 1}) == f"{X} {out}"


def test_an_artifact_is_never_present():
    data = Artifact("d", ArtifactType("system.Dataset"), "/d")
    words = [json.dumps({"IfPresent": {"InputName": "d", "Then": "yes", "Else": "no"}})]
    assert resolve_command(words, PlaceholderValues(parameters={"d": data})) == ["no"]


def test_concatenated_text():
    concat = {"Concat": ["--x=", X, {"IfPresent": {"InputName": "opt", "Then": "a", "Else": ["b", X]}}]}
    assert resolve_command([json.dumps(concat)], VALUES) == ["--x=XbX"]


def test_the_text_of_a_pod_is_one_input():
    assert [resolve_pod_text(text, {"x": "a", "n": 1}) for text in ("b", X, f"b:{X}")] == ["b", "a", "a"]
    assert resolve_pod_text("{{$.inputs.parameters['n']}}", {"n": 1}) == ""
    with pytest.raises(ValueError, match="the input 'x' has no value"):
        resolve_pod_text(X, {})
