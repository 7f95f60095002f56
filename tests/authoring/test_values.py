"""Stages of one shape share a container; the values that distinguish them are in an input of the task."""

import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx import specs

from tests.authoring.apps import HOSTILE, compile_pipeline, load, make_app
from tests.authoring.kfp_engines import constants, containers, tracked_container
from torchx_kfp import component_from_app, component_from_function, local, task_from_app

pytestmark = pytest.mark.versions


def shapes(compiled: str) -> dict[str, list[str]]:
    """Return the names of tasks by the text of their container."""
    found = defaultdict(list)
    for name, container in containers(compiled).items():
        found[json.dumps(container, sort_keys=True)].append(name)
    return found


def test_a_chain_of_stages_has_one_container() -> None:
    def pipeline(tracker_base: str = "/tmp/results", lr: float = 0.1) -> None:
        previous = None
        for number in range(5):
            app = make_app(
                f"stage-{number}",
                entrypoint="python",
                args=["-m", "app.train", "--lr", f"{lr}", "--fold", str(number)],
                env={"SEED": str(number)},
            )
            previous = task_from_app(app, tracker_base=tracker_base, reads=previous, results={"x": float})

    compiled = compile_pipeline(pipeline)
    (first, others) = shapes(compiled).values()
    assert (len(first), len(others)) == (1, 4), "the first one reads nothing"
    assert constants(compiled)["stage-3"] == {"stage": "stage-3|stage-2|3|app.train|3"}


def test_names_of_stages_arrive(shells: Path, tmp_path: Path) -> None:
    names = ["My Train", "é $$ {{x}}", 'a"b\\', "\x7f$(HOME)", *HOSTILE[:3]]

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        tasks = [task_from_app(make_app(), name=name, tracker_base=tracker_base) for name in names]
        app = make_app("read", entrypoint="env", args=["-0"], env={"LAST": "a b"})
        task_from_app(app, tracker_base=tracker_base, reads=tasks)

    compiled = compile_pipeline(pipeline)
    inputs = load(compiled)[0]["root"]["dag"]["tasks"]["read"]["inputs"]["parameters"]
    assert {name for name in inputs if name.startswith("reads")} == {"reads", *(f"reads_{n}" for n in range(2, 8))}
    run_ids = {name: f"r/{name}/1" for name in inputs if "reads" in name}
    environ = tracked_container(compiled, "read", tmp_path, **run_ids).environment(shells)
    parents = json.loads(environ["TORCHX_PARENT_RUN_IDS"])
    assert list(parents) == names
    assert list(parents.values()) == ["r/reads/1", *(f"r/reads_{number}/1" for number in range(2, 8))]
    assert (environ["TORCHX_PARENT_RUN_ID"], environ["LAST"]) == ("r/reads/1", "a b")


def app_of(number: int = 0, text: str = "a") -> specs.AppDef:
    """Has a parameter that is not in any text."""
    return make_app("same", args=[f"{text}"])


def app_with_another_default(number: int = 1, text: str = "a") -> specs.AppDef:
    """Has a different default for it."""
    return make_app("same", args=[f"{text}"])


def app_with_less(text: str = "a") -> specs.AppDef:
    """Does not have it."""
    return make_app("same", args=[f"{text}"])


class Other(dsl.Artifact):
    schema_title = "system.Other"


def of_item(items: list[Any]) -> Callable[[Any], Any]:
    """Return what makes a task of a loop over these items."""

    def make(base: Any) -> None:
        with dsl.ParallelFor(items) as item:
            task_from_app(make_app("same", args=[item]), tracker_base=base)

    return make


SIGNATURES: dict[str, Callable[[Any], Any]] = {
    "plain": lambda base: task_from_app(make_app("same"), tracker_base=base),
    "results": lambda base: task_from_app(make_app("same"), tracker_base=base, results={"x": float}),
    "integer": lambda base: task_from_app(make_app("same"), tracker_base=base, results={"x": int}),
    "text": lambda base: task_from_app(make_app("same"), tracker_base=base, results={"x": str}),
    "model": lambda base: task_from_app(make_app("same"), tracker_base=base, artifacts={"x": dsl.Model}),
    "other": lambda base: task_from_app(make_app("same"), tracker_base=base, artifacts={"x": Other}),
    "component": lambda base: component_from_app(make_app("same"), tracked=True)(tracker_base=base),
    **{
        fn.__name__: lambda base, fn=fn: component_from_function(fn, tracked=True)(tracker_base=base)
        for fn in (app_of, app_with_another_default, app_with_less)
    },
    **{str(items): of_item(items) for items in ([1, 2], [0.5], ["a", "b"], [{"a": 1}], [[1]], [True])},
}


def test_containers_of_other_signatures_differ() -> None:
    """The backend keeps one component for all tasks whose containers have the same text."""

    def pipeline(tracker_base: str = "/tmp/results") -> None:
        for make in (*SIGNATURES.values(), *SIGNATURES.values()):
            make(tracker_base)

    compiled = compile_pipeline(pipeline)
    spec, _ = load(compiled)
    definitions: dict[str, set[str]] = {}
    for names in shapes(compiled).values():
        for name in names:
            component = {key: value for key, value in spec["components"][f"comp-{name}"].items() if "Def" in key}
            definitions.setdefault(names[0], set()).add(json.dumps(component, sort_keys=True))
    assert all(len(found) == 1 for found in definitions.values())
    # A component from an app equals a task from that app.
    assert len(definitions) == len(SIGNATURES) - 1


@pytest.mark.parametrize("results", [None, {"x": int}])
def test_an_input_called_stage_does_not_name_the_stage(tmp_path: Path, results: dict[str, type] | None) -> None:
    code = "import sys; from torchx_kfp import current_run; current_run().put(x=1); print(sys.argv[1])"

    @dsl.pipeline
    def pipeline(tracker_base: str, stage: str) -> None:
        app = make_app("train", entrypoint=sys.executable, args=["-c", code, stage, "a|constant"])
        task_from_app(app, tracker_base=tracker_base, results=results)

    done = local.run(
        pipeline, {"tracker_base": str(tmp_path / "base"), "stage": "mine"}, output_dir=tmp_path / "runs", watch=None
    )
    done.raise_for_failure()
    assert done["train"].execution_id.split("/")[1] == "train"
    assert done["train"].inputs["stage"] == "mine"
    assert done["train"].results == {"x": 1}
