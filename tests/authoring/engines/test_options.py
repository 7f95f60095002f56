"""``engine`` and ``replicas`` of each authoring function, and the options of engines."""

# The oldest supported kfp knows only typing's names of generic types.
# ruff: noqa: UP006, UP035
# No annotations from __future__: KFP reads the annotations of pipeline functions.

import subprocess
import sys
from typing import Any, List

import pytest
from kfp import components, dsl
from torchx.specs import AppDef

from tests.authoring.apps import compile_pipeline, load, unresolved_inputs
from tests.authoring.engines.apps import app, distributed, role
from torchx_kfp import (
    Stages,
    component_from_app,
    component_from_function,
    component_spec_from_app,
    engines,
    task_from_app,
)

pytestmark = pytest.mark.versions

GIVEN: dict[str, Any] = {"engine": "jobset", "replicas": 2}


def command(compiled: str) -> list[str]:
    """Return the command of the only container."""
    spec, _ = load(compiled)
    (executor,) = spec["deploymentSpec"]["executors"].values()
    words: list[str] = executor["container"]["command"]
    return words


def train(lr: float) -> AppDef:
    """A TorchX component.

    Args:
        lr: the learning rate
    """
    return app(role(args=["--lr", str(lr)]))


# The same option everywhere


def test_every_authoring_function_takes_an_engine() -> None:
    made = app(role())

    def by_task() -> None:
        task_from_app(made, **GIVEN)

    def by_stages() -> None:
        Stages().task(made, **GIVEN)

    def by_component() -> None:
        component_from_app(made, **GIVEN)()

    def by_shared_component() -> None:
        Stages().component(made, **GIVEN)()

    expected = command(compile_pipeline(by_task))
    for pipeline in (by_stages, by_component, by_shared_component):
        assert command(compile_pipeline(pipeline)) == expected
    assert command(component_spec_from_app(made, **GIVEN)) == expected


def test_components_of_functions_take_an_engine() -> None:
    component = component_from_function(train, **GIVEN)
    assert set(component.component_spec.inputs) - {"task_config"} == {"lr"}
    words = command(compile_pipeline(lambda: component(lr=0.5) and None))
    assert words[-4:] == ["python3", "--lr", "{{$.inputs.parameters['lr']}}", "2"]
    shared = Stages().component_from_function(train, **GIVEN)
    assert command(compile_pipeline(lambda: shared(lr=0.5) and None)) == words


def test_a_name_is_an_engine_with_its_default_options() -> None:
    for name, kind in engines.ENGINES.items():
        for same in (kind, kind()):
            assert distributed(app(role()), same).spec == distributed(app(role()), name).spec
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


# Sizes


def size(**options: Any) -> int:
    def pipeline(tracker_base: str = "/tmp/results") -> None:
        made = app(role(num_replicas=1 if "engine" not in options else 3))
        task_from_app(made, tracker_base=tracker_base, results={"loss": float}, **options)

    return len(compile_pipeline(pipeline))


@pytest.mark.parametrize("engine", engines.ENGINES)
def test_what_an_engine_adds_to_a_stage(engine: str) -> None:
    """Argo allows 1 MiB for a run, and a stage in a loop is stored once."""
    without = size(engine=engine, inline=False) - size(inline=False)
    assert without < 2_700, "bytes of YAML: what the launcher must know, its variables, the task's settings"
    assert size(engine=engine) - size() - without < 12_400, "the program"


TWO = app(role("Trainer"), role("server", num_replicas=2))


def test_numbers_of_replicas() -> None:
    assert distributed(app(role()), replicas=2).words[-1] == "2"
    assert distributed(app(role()), replicas={"trainer": 2}).words[-1] == "2"
    found = distributed(TWO, "jobset", replicas=lambda n: {"server": n, "Trainer": 1})
    counts = {described["name"]: found.words[described["count"]] for described in found.spec["roles"]}
    assert counts == {"trainer": "1", "server": "{{$.inputs.parameters['n_int']}}"}


@pytest.mark.parametrize(("fields", "least"), [({}, 1), ({"min_replicas": 2}, 2), ({"min_replicas": None}, 1)])
def test_the_launcher_knows_the_fewest_replicas(fields: dict[str, Any], least: int) -> None:
    (described,) = distributed(app(role(**fields)), replicas=lambda n: n).spec["roles"]
    assert described["least"] == least
    (fixed,) = distributed(app(role(**fields))).spec["roles"]
    assert "least" not in fixed


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
