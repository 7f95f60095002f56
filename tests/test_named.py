"""Dicts for users: a name that does not exist is a helpful error."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable

import pytest

from tests.facts import says
from torchx_kfp.errors import UnknownNameError
from torchx_kfp.named import Named, describe_unknown


def test_it_is_a_dict() -> None:
    named = Named({"loss": 0.1}, "The run 'r'", "result")
    assert named == {"loss": 0.1}
    assert named["loss"] == 0.1
    assert named.get("los") is None
    assert "los" not in named
    assert repr(named) == "{'loss': 0.1}"
    assert json.dumps(named) == '{"loss": 0.1}'


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_copies_have_the_error(copied: Callable[[Named[float]], Named[float]]) -> None:
    named = copied(Named({"loss": 0.1}, "The run 'r'", "result"))
    with pytest.raises(UnknownNameError, match=says("The run 'r' has no result 'los'.")):
        named["los"]


def test_the_error_suggests_and_lists() -> None:
    with pytest.raises(KeyError) as caught:
        Named({"loss": 0.1, "accuracy": 0.9}, "The stage 'train'", "result")["acuracy"]
    assert str(caught.value) == (
        "The stage 'train' has no result 'acuracy'. Did you mean 'accuracy'? Its results: 'loss', 'accuracy'."
    )
    with pytest.raises(UnknownNameError, match=r"^The stage 'train' has no result 7\. It has none\.$"):
        Named({}, "The stage 'train'", "result")[7]
    many = describe_unknown("The run", "metric", "x", (f"m{number:02}" for number in range(30)))
    assert many.endswith("'m18', 'm19' and 10 more.")
