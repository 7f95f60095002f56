"""Placeholders in commands and in constants."""

from __future__ import annotations

import json

import pytest

from torchx_kfp.execution.pipeline.placeholders import (
    Facts,
    resolve_command,
    resolve_text,
    resolve_value,
)

X = "{{$.inputs.parameters['x']}}"
FACTS = Facts(
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
    assert resolve_text(text, FACTS) == resolved


def test_the_executor_input_is_json():
    """Placeholders in its values are filled in once, like the launcher does."""
    assert json.loads(resolve_text("{{$}}", FACTS)) == {
        "inputs": {"parameterValues": {**FACTS.parameters, "trap": "X {{$}}"}},
        "outputs": {"parameters": {"out": {"outputFile": "/o/out"}}, "outputFile": "/o/executor.json"},
    }


def test_constants_are_resolved_inside_of_lists_and_dicts():
    assert resolve_value([X, {"k": [X, 1.5, None]}], FACTS) == ["X", {"k": ["X", 1.5, None]}]


def test_structured_placeholders():
    then = json.dumps({"IfPresent": {"InputName": "x", "Then": ["--x", X], "Else": ["no"]}})
    other = json.dumps({"IfPresent": {"InputName": "opt", "Then": ["--x", X], "Else": ["no"]}})
    nothing = json.dumps({"IfPresent": {"InputName": "opt", "Then": ["--x", X]}})
    inner = json.dumps({"IfPresent": {"InputName": "x", "Then": ["y", json.loads(other)]}})
    assert resolve_command(["c", then, other, nothing, inner], FACTS) == ["c", "--x", "X", "no", "y", "no"]


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
    assert resolve_command([word], FACTS) == [word]


def test_quotes_in_a_value_do_not_break_a_structured_placeholder():
    facts = Facts(parameters={"x": 'q"\\'})
    assert resolve_command([json.dumps({"IfPresent": {"InputName": "x", "Then": X}})], facts) == ['q"\\']
