"""KFP's SDK is quicker while torchx-kfp calls it, with the same results, and unchanged afterwards."""

import contextlib
import inspect
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from kfp import compiler, dsl
from kfp.dsl import pipeline_task, utils
from torchx.specs import AppDef, Resource, Role

from tests.facts import says
from torchx_kfp import task_from_app
from torchx_kfp.common.sdk import quick_sdk
from torchx_kfp.execution.pipeline.load import compile_function

pytestmark = pytest.mark.versions


def app(name: str) -> AppDef:
    role = Role("trainer", image="image", entrypoint="train", resource=Resource(cpu=2, gpu=1, memMB=500))
    return AppDef(name, roles=[role])


@dsl.pipeline
def inner(tracker_base: str, names: list = ["a"]):  # noqa: B006  # KFP reads the default
    with dsl.ParallelFor(names) as name:
        task_from_app(app("Inner stage"), tracker_base=tracker_base).set_env_variable("NAME", "x").set_retry(2)
        with dsl.If(name == "a"):
            task_from_app(app("inner-stage"), tracker_base=tracker_base)


def chain(length: int) -> Any:
    def function(tracker_base: str) -> None:
        previous = task_from_app(app("stage_0"), tracker_base=tracker_base)
        for number in range(1, length):
            previous = task_from_app(app(f"stage_{number}"), tracker_base=tracker_base, reads=previous)
        inner(tracker_base=tracker_base).after(previous)

    return function


def test_what_is_compiled_is_the_same_byte_for_byte(tmp_path: Path) -> None:
    compiler.Compiler().compile(dsl.pipeline(name="chain")(chain(20)), str(tmp_path / "plain.yaml"))
    with quick_sdk():
        pipeline = dsl.pipeline(name="chain")(chain(20))
    assert compile_function(pipeline).text == (tmp_path / "plain.yaml").read_text()


def test_names_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    original = utils.maybe_rename_for_k8s
    monkeypatch.setattr(utils, "maybe_rename_for_k8s", lambda name: calls.append(name) or original(name))
    dsl.pipeline(name="plain")(chain(30))
    assert len(calls) > 30 * 30
    calls.clear()
    with quick_sdk():
        dsl.pipeline(name="quick")(chain(30))
    assert len(calls) < 30 * 5


def test_setters_look_for_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    for name in ("findsource", "getmodule", "getsourcefile"):
        original = getattr(inspect, name)
        monkeypatch.setattr(inspect, name, lambda *given, original=original: looked.append(given) or original(*given))
    tasks: list[dsl.PipelineTask] = []
    make = dsl.pipeline(name="pipeline")
    make(lambda: tasks.append(task_from_app(app("stage"))))
    assert [task.container_spec.resources.cpu_limit for task in tasks] == ["2000m"]
    assert not [given for given in looked if isinstance(given[0], FrameType)]


def test_a_setter_names_itself_in_its_error() -> None:
    def function() -> None:
        with quick_sdk():
            inner(tracker_base="base").set_cpu_limit("1")

    with pytest.raises(ValueError, match=says("set_cpu_limit")):
        dsl.pipeline(name="pipeline")(function)


def test_the_sdk_is_as_it_was_afterwards() -> None:
    before = dict(vars(utils)), dict(vars(pipeline_task))
    with contextlib.suppress(ZeroDivisionError), quick_sdk(), quick_sdk():
        assert utils.sanitize_task_name is not before[0]["sanitize_task_name"]
        raise ZeroDivisionError
    assert (vars(utils), vars(pipeline_task)) == before


#: Imports kfp once, and has a fork for each of the ways to its client.
CLIENT = """
import os, sys, torchx_kfp.common.sdk
torchx_kfp.common.sdk.import_kfp()
import kfp.dsl, kfp.compiler, kfp.kubernetes, torchx_kfp.authoring
print([name for name in sys.modules if name.startswith(("kfp.client", "kfp_server_api"))])
try:
    kfp.no_such_name
except AttributeError as error:
    print(error, flush=True)
for first in sys.argv[1:]:
    if pid := os.fork():
        os.waitpid(pid, 0)
        continue
    exec(first)
    import kfp.client.client
    from kfp.client import Client
    print(first, kfp.Client is Client is kfp.client.Client is kfp.client.client.Client, Client.__name__, sep=": ")
    break
"""


def test_kfps_client_is_loaded_when_it_is_asked_for() -> None:
    ways = (
        *("kfp.Client", "from kfp import Client", "import kfp.client"),
        *("from kfp import client", "from kfp.client import *"),
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", CLIENT, *ways], capture_output=True, text=True)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "[]",
        "module 'kfp' has no attribute 'no_such_name'",
        *(f"{first}: True: Client" for first in ways),
    ]
