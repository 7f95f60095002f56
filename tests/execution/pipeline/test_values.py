"""Values of parameters: their text, and the values that output files and arguments may contain."""

from __future__ import annotations

import functools
import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.facts import says
from torchx_kfp.execution.pipeline.values import check, from_output, from_word, to_json, to_text

#: Text of messages, and a large number as they show it.
FINITE = "but KFP passes numbers only as finite doubles"
LARGE = "1" + "0" * 119 + "... (401 characters)"
SURROGATE = "contains the character '\\ud800', half of a surrogate pair, which UTF-8 cannot encode"


def nested(depth):
    return functools.reduce(lambda inner, _: [inner], range(depth), [])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (3, "3"),
        (3.0, "3"),
        (-0.0, "-0"),
        (0.1, "0.1"),
        (1e-05, "0.00001"),
        (1e22, "10000000000000000000000"),
        (2**53 + 1, "9007199254740992"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (True, "true"),
        (False, "false"),
        (None, ""),
        ([1, 2.5, "é", None, True], '[1,2.5,"é",null,true]'),
        ({"b": [], "a": {"c": "<&>"}}, '{"a":{"c":"\\u003c\\u0026\\u003e"},"b":[]}'),
        ([1e-7, 1e21, 1e20], "[1e-7,1e+21,100000000000000000000]"),
    ],
)
def test_text_is_that_of_kfps_backend(value, text):
    assert to_text(value) == text


finite = st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.text()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(json_values)
def test_json_reads_back_as_the_same_value(value):
    # Every number is a double there, like on the backend.
    assert json.loads(to_json(value), parse_int=float) == value


@given(finite)
def test_a_doubles_text_is_the_same_double(value):
    assert float(to_text(value)) == value
    assert "e" not in to_text(value)


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("x\n", "STRING", "x\n"),
        ("", "STRING", ""),
        (" -3\n", "NUMBER_INTEGER", -3),
        ("-9223372036854775808", "NUMBER_INTEGER", -(2**63)),
        ("+" + "0" * 5000 + "7", "NUMBER_INTEGER", 7),
        ("[" * 100 + "]" * 100, "LIST", nested(99)),
        ("1e3\n", "NUMBER_DOUBLE", 1000.0),
        ("True\n", "BOOLEAN", True),
        ("0", "BOOLEAN", False),
        ("[1, {}]", "LIST", [1, {}]),
        ('{"a": null}', "STRUCT", {"a": None}),
    ],
)
def test_output_text_becomes_a_value(text, type_, value):
    assert from_output(text, type_) == value
    assert type(from_output(text, type_)) is type(value)


@pytest.mark.parametrize(
    ("text", "type_", "message"),
    [
        ("", "NUMBER_INTEGER", "is not an int: ''"),
        ("3.0", "NUMBER_INTEGER", "is not an int: '3.0'"),
        ("1_000", "NUMBER_INTEGER", "is not an int: '1_000'"),
        ("nan", "NUMBER_DOUBLE", "is not a float: 'nan'"),
        ("1_0.5", "NUMBER_DOUBLE", "is not a float: '1_0.5'"),
        ("yes", "BOOLEAN", "is not a bool: 'yes'"),
        ("{}", "LIST", "is not a list: '{}'"),
        ("9223372036854775808", "NUMBER_INTEGER", "is not a 64-bit int: '9223372036854775808'"),
        ("1" + "0" * 5000, "NUMBER_INTEGER", "is not a 64-bit int: '1" + "0" * 118 + "... (5,003 characters)"),
        ("1" * 5000, "NUMBER_DOUBLE", "is not a float: '" + "1" * 119 + "... (5,002 characters)"),
        ("[NaN]", "LIST", f"contains the number nan, {FINITE}"),
        ("[1e400]", "LIST", f"contains the number inf, {FINITE}"),
        ('{"a": [1' + "0" * 400 + "]}", "STRUCT", f"contains the number {LARGE}, {FINITE}"),
        ("[" + "1" * 5000 + "]", "LIST", "is not a list: '[" + "1" * 118 + "... (5,004 characters)"),
        ("[" * 101 + "]" * 101, "LIST", "is nested more than 100 levels deep, which KFP cannot pass on"),
        ("[" * 200_000, "LIST", "is nested more than 100 levels deep, which KFP cannot pass on"),
        ('[{"\\ud800": 1}]', "LIST", f"{SURROGATE}: '\\ud800'"),
        ("[1", "STRUCT", "is not a dict: '[1'"),
        ("x" * 200, "LIST", "is not a list: '" + "x" * 119 + "... (202 characters)"),
    ],
)
def test_output_text_of_another_type_is_refused(text, type_, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        from_output(text, type_)


def test_words_of_a_command_line_are_read_by_type():
    assert from_word("3", "STRING") == "3"
    assert from_word("TRUE", "BOOLEAN") is True
    assert from_word('{"a": [1]}', "STRUCT") == {"a": [1]}
    with pytest.raises(ValueError, match=says("9007199254740993", "doubles", "2**53")):
        from_word(str(2**53 + 1), "NUMBER_INTEGER")
    with pytest.raises(ValueError, match=says("contains the number 9007199254740993", "Pass it as text")):
        check({"ids": [2**53 + 1]}, "STRUCT")


@pytest.mark.parametrize(
    ("value", "type_", "message"),
    [
        (3, "STRING", "is not a str: 3"),
        (True, "NUMBER_INTEGER", "is not an int: True"),
        (1.0, "NUMBER_INTEGER", "is not an int: 1.0"),
        (True, "NUMBER_DOUBLE", "is not a float: True"),
        (1, "BOOLEAN", "is not a bool: 1"),
        ("[]", "LIST", "is not a list: '[]'"),
        ([], "STRUCT", "is not a dict: []"),
        (math.inf, "NUMBER_DOUBLE", f"is inf, {FINITE}"),
        (10**400, "NUMBER_DOUBLE", f"is {LARGE}, {FINITE}"),
        ([10**400], "LIST", f"contains the number {LARGE}, {FINITE}"),
        ({"a": math.nan}, "STRUCT", f"contains the number nan, {FINITE}"),
        ("a\ud800", "STRING", f"{SURROGATE}: 'a\\ud800'"),
        ([{1}], "LIST", "cannot be written as JSON: Object of type set is not JSON serializable"),
    ],
)
def test_arguments_of_another_type_are_refused(value, type_, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check(value, type_)


def test_arguments_that_python_itself_cannot_write_are_refused():
    with pytest.raises(ValueError, match=r"^is a very large int, but KFP passes numbers only as finite doubles$"):
        check(10**5000, "NUMBER_DOUBLE")
    with pytest.raises(ValueError, match=r"^is a very large int, but KFP passes numbers as doubles, which are "):
        check(10**5000, "NUMBER_INTEGER")
    for depth in (600, 100_000):
        with pytest.raises(ValueError, match=says("nested more than 100 levels")):
            check(nested(depth), "LIST")


def test_an_integer_is_a_double_too():
    assert check(1, "NUMBER_DOUBLE") == 1.0
    assert check((1, 2), "LIST") == [1, 2]
