"""Conditions as KFP compiles them, and fields of loop items, evaluated like on its backend."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.execution.local.components import load
from torchx_kfp.errors import PipelineError
from torchx_kfp.execution.pipeline.conditions import is_true
from torchx_kfp.local import RunResult, Watch, run

A = "inputs.parameter_values['a']"
B = "inputs.parameter_values['b']"
TYPES = {str: "STRING", int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE", bool: "BOOLEAN"}


def attempt(folder: Path, tasks: list[dict[str, Any]], **options: Any) -> RunResult:
    """Run a pipeline of stages whose input ``a`` has any type."""
    components: dict[str, Any] = {
        f"comp-{kind}": {"executorLabel": "exec", "inputDefinitions": {"parameters": {"a": {"parameterType": kind}}}}
        for kind in TYPES.values()
    }
    for at, task in enumerate(tasks):
        if inside := task.pop("component", None):
            components[f"comp-{at}"], task["componentRef"] = inside, {"name": f"comp-{at}"}
    named = {f"t{at}": {**task, "taskInfo": {"name": f"t{at}"}} for at, task in enumerate(tasks)}
    document = {
        "pipelineInfo": {"name": "conditions"},
        "schemaVersion": "2.1.0",
        "sdkVersion": "kfp-2.14.0",
        "components": components,
        "deploymentSpec": {"executors": {"exec": {"container": {"image": "busybox", "command": ["true"]}}}},
        "root": {"dag": {"tasks": named}},
    }
    return run(load([document], folder), output_dir=folder / "runs", watch=Watch(), cache=False, **options)


def conditional(expression: str, value: Any = "x") -> dict[str, Any]:
    """Return a stage with this condition on its input."""
    return {
        "componentRef": {"name": f"comp-{TYPES[type(value)]}"},
        "inputs": {"parameters": {"a": {"runtimeValue": {"constant": value}}}},
        "triggerPolicy": {"condition": expression},
    }


CONDITIONS = [
    (f"{A} == 'heads'", "heads", True),
    (f"{A} == 'heads'", "tails", False),
    (f"{A} == ''", "", True),
    (f"{A} == 'he\"ads'", 'he"ads', True),
    (f"{A} == 'häé😀'", "häé😀", True),
    (f"{A} == 'a\\\\b'", "a\\b", True),
    (f"{A} < 'b'", "a", True),
    (f"int({A}) > 2", 3, True),
    (f"int({A}) > 2", 2, False),
    (f"int({A}) > -3", -2, True),
    (f"{A} == 3", 3, True),
    (f"{A} != 3", 3, False),
    (f"{A} == 1", 1.0, True),
    (f"{A} > 1", 1.5, True),
    (f"{A} >= 2", 1.5, False),
    (f"{A} < 1e-05", 1e-6, True),
    (f"{A} <= -0.5", -0.5, True),
    (f"int({A}) < 2.5", 2, True),
    (f"double(int({A})) == 2.0", 2, True),
    (f"{A} == true", True, True),
    (f"{A} == true", False, False),
    (f"!({A} == true)", False, True),
    # Values of different types are unequal; comparing them is not an error.
    (f"{A} == '1'", 1, False),
    (f"{A} != true", 1, True),
    (f"{A} == 1", True, False),
    (f"!({A} == 'x') && int('3') > 2", "y", True),
    (f"{A} == 'x' || {A} == 'y'", "y", True),
    # The second operand cannot be evaluated, but it need not be.
    (f"{A} == 'x' && {B} == 'y'", "y", False),
    (f"{B} == 'x' || {A} == 'y'", "y", True),
    (f"!{A} && false < {A}", True, False),
    (f"int({A}) == 2", 2.9, True),
    (f"double({A}) == 0.5", "5e-1", True),
]


def test_conditions_hold_as_on_the_backend(tmp_path: Path) -> None:
    result = attempt(tmp_path, [conditional(expression, value) for expression, value, _ in CONDITIONS])
    found = [(*row[:2], stage.state == "succeeded") for row, stage in zip(CONDITIONS, result.stages, strict=True)]
    assert found == CONDITIONS
    assert {str(stage.state) for stage in result.stages} == {"succeeded", "skipped"}


NO_COMPARISONS = [
    f"{A} == 'it's'",
    f"{A} == 'it''s'",
    f"{A} == 'a",
    f"{A} == 'a\nb'",
    f"{A} == 'a\\d'",
    "\\",
    f"{A} ==",
]
OTHERS = [
    "1 + 1",
    f"{A} in ['x']",
    f"size({A}) > 1",
    f"{A} < {A} < {A}",
    "[1] == [1]",
    "None == 1",
    "inputs",
    "inputs['a']",
    "... == ...",
]


@pytest.mark.parametrize(
    "expression", [*NO_COMPARISONS, *OTHERS, f"__import__('os').system({A}) == 1", "1 == 2.x", "0x1 == 1"]
)
def test_what_is_not_an_expression_is_refused(expression: str, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="is not a comparison of inputs, text and numbers"):
        attempt(tmp_path, [conditional(expression)])


#: An expression -> a part of the reason why it does not hold.
REASONS = {
    f"{B} == 'x'": "cannot be evaluated: the task has no input b",
    f"{B} != 'x'": "cannot be evaluated: the task has no input b",
    f"{B} < 'x'": "cannot be evaluated: the task has no input b",
    f"{A} < true": "cannot be evaluated: 'x' and True have no order",
    f"int({A})": "cannot be evaluated: 'x' is not a number",
    "double('inf') > 1": "cannot be evaluated: 'inf' is not a number",
    "3": "cannot be evaluated: 3 is neither true nor false",
}


def test_a_condition_that_cannot_hold_says_why(tmp_path: Path) -> None:
    result = attempt(tmp_path, [conditional(expression) for expression in REASONS])
    for reason, stage in zip(REASONS.values(), result.stages, strict=True):
        assert (stage.state, reason in stage.reason) == ("failed", True), stage.reason


def test_infinity_is_no_integer() -> None:
    assert is_true(f"int({A}) == 2 || {A} > 2", {"a": math.inf})


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(" * 5000 + "true" + ")" * 5000, "is not a comparison of inputs, text and numbers"),
        ("!" * 9001 + "true", "is not a comparison of inputs, text and numbers"),
        ("true" + " && true" * 3000, "is longer than 20,000 characters"),
    ],
    ids=["parentheses", "negations", "long"],
)
def test_a_condition_that_is_too_large(expression: str, message: str, tmp_path: Path) -> None:
    try:
        said = attempt(tmp_path, [conditional(expression)]).stages[0].reason
    except PipelineError as error:
        said = str(error)
    assert message in said
    # The next one is still evaluated.
    assert attempt(tmp_path, [conditional("1 < 2")]).stages[0].state == "succeeded"


#: The item of a loop, the field that a stage takes, and what it gets, or why it fails.
FIELDS = [
    ({"a": [1]}, '["a"]', "[1]"),
    ('{"a": {"b": 2}}', '["a"]["b"]', "2"),
    ({'q"': 1}, '["q\\""]', "1"),
    ({"a": 1}, '["b"]', "the loop item {'a': 1} has no field 'b'"),
    ([1], '["b"]', "the loop item [1] is not a dict, so it has no field 'b'"),
    ("x", '["b"]', "the loop item 'x' is not JSON, so it has no fields"),
]


def test_fields_of_loop_items(tmp_path: Path) -> None:
    loops = []
    for at, (value, field, _) in enumerate(FIELDS):
        selected = {"componentInputParameter": "item", "parameterExpressionSelector": f"parseJson(string_value){field}"}
        stage = {"componentRef": {"name": "comp-STRING"}, "inputs": {"parameters": {"a": selected}}}
        kind = {dict: "STRUCT", list: "LIST", str: "STRING"}[type(value)]
        loops.append(
            {
                "component": {
                    "dag": {"tasks": {f"s{at}": {**stage, "taskInfo": {"name": f"s{at}"}}}},
                    "inputDefinitions": {"parameters": {"item": {"parameterType": kind}}},
                },
                "parameterIterator": {"itemInput": "item", "items": {"raw": json.dumps([value])}},
                # A check refuses such items, unless the loop may be skipped.
                "triggerPolicy": {"condition": "'a' == 'a'"},
            }
        )
    stages = attempt(tmp_path, loops).stages
    assert [stage.inputs.get("a") or stage.reason.partition(": ")[2] for stage in stages] == [it for *_, it in FIELDS]
