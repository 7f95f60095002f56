"""``engine`` and ``replicas`` of each authoring function, and the options of engines."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035
# No annotations from __future__: KFP reads the annotations of pipeline functions.

import subprocess
import sys
from typing import Any, List

import pytest
from kfp import components, dsl

from tests.authoring.apps import compile_pipeline, load, unresolved_inputs
from tests.authoring.engines.apps import app, distributed, role
from torchx_kfp import (
    component_spec_from_app,
    engines,
    task_from_app,
)

pytestmark = pytest.mark.versions


def command(compiled: str) -> list[str]:
    """Return the command of the only container."""
    spec, _ = load(compiled)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    words: list[str] = executor["container"]["command"]
    return words


# The same option everywhere


def test_a_name_is_an_engine_with_its_default_options() -> None:
    for name, kind in engines.ENGINES.items():
        assert distributed(app(role()), kind()).spec == distributed(app(role()), name).spec
    assert set(engines.__all__) >= {kind.__name__ for kind in engines.ENGINES.values()}


def test_the_package_has_its_engines_without_kfp_and_torchx() -> None:
    program = "import sys, torchx_kfp; torchx_kfp.engines.Job(); print({'kfp', 'torchx'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("set()\n", "")


@pytest.mark.parametrize(
    "options", [{}, {"tracked": True}, {"results": {"loss": float}, "reads": ["data"]}, {"inline": False}]
)
def test_a_component_file_is_loaded_and_used(options: dict[str, Any]) -> None:
    text = component_spec_from_app(app(role(max_retries=2)), engine="job", secrets={"s3": {"k": "KEY"}}, **options)
    loaded = components.load_component_from_text(text)
    inputs = {"tracker_base": "/tmp/results", "data": "a/b/c"}
    given = {name: inputs[name] for name in loaded.component_spec.inputs or ()}
    assert "task_config" not in given, "KFP fills it in for the task inside"

    def pipeline() -> None:
        with dsl.ParallelFor([1, 2]):
            loaded(**given)
        loaded(**given)

    spec, platform = load(compile_pipeline(pipeline))
    assert [problem for problem in unresolved_inputs(spec) if "task_config is not passed" not in problem] == []
    for name, executor in spec["deploymentSpec"]["executors"].items():
        paths = {entry["name"]: entry["fieldPath"] for entry in platform[name]["fieldPathAsEnv"]}
        assert paths["KFP_ARGO_NODE"] == "metadata.annotations['workflows.argoproj.io/node-name']"
        assert paths["KFP_SERVICE_ACCOUNT"] == "spec.serviceAccountName"
        assert paths["KFP_RUN_ID"] == "metadata.labels['pipeline/runid']"
        assert platform[name]["secretAsEnv"], "the launcher's publisher may need them"
        carried = len(" ".join(executor["container"]["command"])) > 10_000
        assert carried == options.get("inline", True)
    tasks = [task for one in spec["components"].values() for task in one.get("dag", {}).get("tasks", {}).values()]
    assert tasks
    assert not any("retryPolicy" in task for task in tasks), "the launcher starts replicas again"


def test_an_image_that_has_torchx_kfp() -> None:
    words = command(component_spec_from_app(app(role()), engine="job", inline=False))
    assert words[words.index("python3") + 1] == "-c"
    assert "import launcher" in words[words.index("python3") + 2]


TWO = app(role("Trainer"), role("server", num_replicas=2))


def test_numbers_of_replicas() -> None:
    assert distributed(app(role()), replicas=2).words[-1] == "2"
    assert distributed(app(role()), replicas={"trainer": 2}).words[-1] == "2"
    found = distributed(TWO, "jobset", replicas=lambda n: {"server": n, "Trainer": 1})
    counts = {described["name"]: found.words[described["count"]] for described in found.spec["roles"]}
    assert counts == {"trainer": "1", "server": "{{$.inputs.parameters['n_int']}}"}


@pytest.mark.parametrize(("fields", "fewest"), [({}, None), ({"min_replicas": 2}, 2), ({"min_replicas": None}, None)])
def test_the_launcher_knows_the_fewest_replicas(fields: dict[str, Any], fewest: int | None) -> None:
    (described,) = distributed(app(role(**fields)), replicas=lambda n: n).spec["roles"]
    assert described.get("fewest") == fewest


def test_items_may_be_numbers() -> None:
    """To KFP, the items of a list of an unknown type are text. They are checked when the stage starts."""

    def pipeline(unknown: list, numbers: List[int]) -> None:
        made = app(role())
        with dsl.ParallelFor(unknown) as item:
            task_from_app(made, engine="job", replicas=item)
        with dsl.ParallelFor(unknown) as item:
            task_from_app(made, engine="job", replicas=item.nodes)
        with dsl.ParallelFor(numbers) as item:
            task_from_app(made, engine="job", replicas=item)
        with dsl.ParallelFor([{"nodes": 1}, {"nodes": 2}]) as item:
            task_from_app(made, engine="job", replicas=item.nodes)

    compile_pipeline(pipeline)


def test_a_channel_may_have_the_name_of_that_input() -> None:
    def pipeline(task_config: str = "text") -> None:
        task_from_app(app(role(args=[f"{task_config}"])), engine="job")

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) in ([], ["root/train: task_config is not passed"])
    (task,) = spec["root"]["dag"]["tasks"].values()
    assert task["inputs"]["parameters"] == {"task_config_2": {"componentInputParameter": "task_config"}}
