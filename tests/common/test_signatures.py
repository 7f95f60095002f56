"""What editors and ``help()`` show of functions with many keywords."""

import inspect
from typing import Any

import pytest

from torchx_kfp import Stages, host, local, task_from_app

CONNECTION = {"host": "str | None", "namespace": "str | None", "kube_context": "str | None"}
RUN = {"parallelism": "int | None", "docker": "bool | Collection[str] | None", "resume": "Resumable | None"}


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (local.run, RUN),
        (host.submit, {"workspace": "str | os.PathLike[str] | None", **CONNECTION}),
        (host.schedule, CONNECTION),
        (host.attach, {"run": "str", **CONNECTION}),
        (host.connect, CONNECTION),
        (Stages, {"tracker_base": "TrackerBase | None", "cache": "bool"}),
        (task_from_app, {"app": "specs.AppDef", "reads": "Reads | None", "cache": "bool"}),
    ],
)
def test_a_signature_lists_the_keywords(function: Any, expected: dict[str, str]) -> None:
    parameters = inspect.signature(function).parameters
    assert {name: parameters[name].annotation for name in expected} == expected
    assert all(each.kind is not each.VAR_KEYWORD for each in parameters.values())
