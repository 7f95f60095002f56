"""Conditions as KFP compiles them, evaluated like on its backend."""

from __future__ import annotations

import re

import pytest

from tests.facts import says
from torchx_kfp.execution.pipeline.conditions import holds, is_field_selector, select_field

pytestmark = pytest.mark.lowest

A = "inputs.parameter_values['a']"


@pytest.mark.parametrize(
    ("expression", "value", "expected"),
    [
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
        (f"{A} == 'x' && inputs.parameter_values['b'] == 'y'", "y", False),
    ],
)
def test_condition(expression, value, expected):
    assert holds(expression, {"a": value}) is expected


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (f"{A} == 'it's'", r"^is not an expression of the Common Expression Language$"),
        (f"{A} == 'a", r"^is not an expression of the Common Expression Language$"),
        (f"{A} == 'a\nb'", r"^is not an expression of the Common Expression Language$"),
        ("\\", r"^is not an expression of the Common Expression Language$"),
        (f"{A} ==", r"^is not an expression of the Common Expression Language$"),
        ("inputs.parameter_values['b'] == 'x'", says("cannot be evaluated", "the task has no input b")),
        ("inputs.parameter_values['b'] != 'x'", says("cannot be evaluated", "the task has no input b")),
        ("inputs.parameter_values['b'] < 'x'", says("cannot be evaluated", "the task has no input b")),
        (f"{A} < true", r"^cannot be evaluated: found no matching overload"),
        (f"int({A})", r"^cannot be evaluated: "),
        ("1 + 1", says("not true or false", "IntType(2)")),
    ],
)
def test_a_condition_that_cannot_hold_says_why(expression, message):
    with pytest.raises(ValueError, match=message):
        holds(expression, {"a": "x"})


_FOREVER = f"[{','.join(['1'] * 40)}]"
for _ in range(6):
    _FOREVER = f"[{','.join(['1'] * 40)}].map(x, {_FOREVER})"


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(" * 5000 + "true" + ")" * 5000, "^(is nested too deeply|cannot be evaluated|takes longer)"),
        ("!" * 9001 + "true", "^(is nested too deeply|cannot be evaluated|takes longer)"),
        ("[" * 3000 + "]" * 3000 + " == 1", "^(is nested too deeply|cannot be evaluated|takes longer)"),
        ("true" + " && true" * 3000, "^is longer than 20,000 characters$"),
        pytest.param(f"{_FOREVER} == 1", says("takes longer than", "--condition-time"), marks=pytest.mark.usual),
    ],
    ids=["parentheses", "negations", "lists", "long", "loops"],
)
def test_a_condition_that_would_take_for_ever(expression, message):
    with pytest.raises(ValueError, match=message):
        holds(expression, {"a": "x"}, seconds=2)
    # The next one is still evaluated.
    assert holds("1 < 2", {})


@pytest.mark.usual
def test_nobody_waits_for_a_condition_of_a_run_that_was_ended():
    wanted = iter([True] * 5)
    with pytest.raises(ValueError, match="the run was ended"):
        holds(f"{_FOREVER} == 1", {}, seconds=600, is_wanted=lambda: next(wanted, False))


def test_fields_of_loop_items():
    assert select_field({"a": [1]}, 'parseJson(string_value)["a"]') == [1]
    assert select_field('{"a": {"b": 2}}', 'parseJson(string_value)["a"]["b"]') == 2
    assert select_field({'q"': 1}, 'parseJson(string_value)["q\\""]') == 1
    assert not is_field_selector("string_value")


@pytest.mark.parametrize(
    ("value", "selector", "message"),
    [
        ({"a": 1}, 'parseJson(string_value)["b"]', "the loop item {'a': 1} has no field 'b'"),
        ([1], 'parseJson(string_value)["b"]', "the loop item [1] is not a dict, so it has no field 'b'"),
        ("x", 'parseJson(string_value)["b"]', "the loop item 'x' is not JSON, so it has no fields"),
        ({"a": 1}, "size(string_value)", "the expression 'size(string_value)' is not a field of a loop item"),
    ],
)
def test_a_missing_field_says_so(value, selector, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        select_field(value, selector)
