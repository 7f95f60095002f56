"""What is said of two executions of a stage whose keys differ."""

from __future__ import annotations

from typing import Any

import pytest

from torchx_kfp.execution.pipeline.used_files import Code
from torchx_kfp.execution.runs.stage_key import StageKey, digest_of, kept_value

RUN = "p-20260101-120000-0a1b2c/{}/fit_1"
#: The parts of a key before and now, and the clauses.
DIFFERENCES: list[tuple[dict[str, Any], dict[str, Any], list[str]]] = [
    ({"image": "a:1"}, {"image": "a:2"}, ["image 'a:1' -> 'a:2'"]),
    ({"outputs": ["x"]}, {"outputs": ["y"]}, ["its outputs changed"]),
    ({"inputs": {"lr": 0.1, "n": 3}}, {"inputs": {"lr": 0.2, "n": 3}}, ["lr 0.1 -> 0.2"]),
    ({"inputs": {"lr_float": "a"}}, {"inputs": {"lr_float": "b"}}, ["lr 'a' -> 'b'"]),
    ({"inputs": {"lr_2": "a"}}, {"inputs": {"lr_2": "b"}}, ["lr_2 'a' -> 'b'"]),
    ({"variables": {"a_int": "1"}}, {"variables": {"a_int": "2"}}, ["a_int '1' -> '2'"]),
    ({"inputs": {}}, {"inputs": {"lr": 1}}, ["lr is new"]),
    ({"inputs": {"lr": 1}}, {"inputs": {}}, ["lr is gone"]),
    ({"inputs": {"items": [1]}}, {"inputs": {"items": [2]}}, ["items changed"]),
    ({"inputs": {"stage": "fit|1"}}, {"inputs": {"stage": "fit|2"}}, ["its command changed"]),
    ({"variables": {"stage": "a"}}, {"variables": {"stage": "b"}}, ["stage 'a' -> 'b'"]),
    ({"inputs": {"r": RUN.format("old")}}, {"inputs": {"r": RUN.format("prepare")}}, ["it reads prepare"]),
]


@pytest.mark.parametrize(("before", "now", "clauses"), DIFFERENCES)
def test_what_has_changed_is_named(before: dict[str, Any], now: dict[str, Any], clauses: list[str]) -> None:
    key = StageKey(now)
    assert key.differences(before, {}) == clauses
    assert key.differences(now, {}) == []
    assert key.digest != StageKey(before).digest


def test_files_that_have_changed_are_named_or_counted() -> None:
    files = {f"{name}.py": "1" for name in "abcd"}
    key = StageKey({}, Code(files))
    assert key.differences({}, {**files, "b.py": "2"}) == ["b.py changed"]
    assert key.differences({}, {"a.py": "1"}) == ["b.py, c.py, d.py changed"]
    assert key.differences({}, {}) == ["4 files changed"]
    assert key.digest != StageKey({}).digest


def test_a_digest_is_that_of_the_value_in_any_order() -> None:
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    assert kept_value("x" * 998) == "x" * 998
    long = [kept_value(character * 999) for character in "xxy"]
    assert (long[0] == long[1], long[0] == long[2], [*long[0]]) == (True, False, ["digest"])
