"""The values of inputs by KFP's rules, for what its compiler does not write with each version; cases have the rest."""

from __future__ import annotations

from typing import Any

import pytest

from torchx_kfp.execution.pipeline.artifacts import Artifact, ArtifactList
from torchx_kfp.execution.pipeline.inputs import (
    UNKNOWN,
    NoOutput,
    TaskInputs,
    importer_uri,
    inputs_of_iteration,
    inputs_of_root,
    inputs_of_stage,
    loop_items,
    resolve,
)
from torchx_kfp.execution.pipeline.spec import (
    ArtifactType,
    Component,
    Constant,
    Container,
    Dag,
    FromInput,
    FromTask,
    Importer,
    Loop,
    Origin,
    Parameter,
    Task,
)

RUN = {"pipeline_job_name": "run-1", "workspace_path": "/work"}


def stage(parameter: Parameter, **more: Any) -> Component:
    return Component("c", "container", {parameter.name: parameter}, container=Container("x", ("y",), ()), **more)


def given(source: Origin, parameter: Parameter, scope: dict[str, Any] | None = None, made: Any = UNKNOWN) -> TaskInputs:
    return resolve(Task("t", "t", "c", {parameter.name: source}), stage(parameter), scope or {}, lambda _: made, RUN)


TYPES = [
    ("STRING", 1.5, "1.5"),
    ("STRING", [1, "é"], '[1,"é"]'),
    ("STRING", True, "true"),
    ("NUMBER_INTEGER", 3.0, 3),
    ("NUMBER_DOUBLE", 3, 3.0),
    ("NUMBER_INTEGER", True, ValueError("it is True, not an int")),
    ("NUMBER_DOUBLE", "1", ValueError("it is '1', not a float")),
    ("BOOLEAN", 1, ValueError("it is 1, not a bool")),
    ("LIST", "[]", ValueError("it is '[]', not a list")),
    ("STRUCT", [], ValueError("it is [], not a dict")),
    ("TASK_FINAL_STATUS", {"state": "COMPLETE"}, {"state": "COMPLETE"}),
]


@pytest.mark.parametrize(("type_", "value", "expected"), TYPES)
def test_values_are_converted_or_refused(type_: str, value: Any, expected: Any) -> None:
    found = given(FromTask("a", "out"), Parameter("x", type_), made=value)
    if isinstance(expected, ValueError):
        assert (found.values, found.problems) == ({}, {"x": str(expected)})
    else:
        assert (found.values, found.problems) == ({"x": expected}, {})


def test_what_a_constant_is_to_the_driver() -> None:
    x = Parameter("x", "STRING")
    text = "{{$.pipeline_job_name}}"
    assert given(Constant(text), x).values == {"x": "run-1"}
    assert given(Constant(f"{text}!"), x).values == {"x": f"{text}!"}
    assert given(Constant("a{{$.workspace_path}}/b"), x).values == {"x": "a/work/b"}
    assert given(Constant(["{{$.workspace_path}}"]), Parameter("x", "LIST")).values == {"x": ["{{$.workspace_path}}"]}
    assert given(Constant(None), Parameter("x", "LIST")).problems == {"x": "it is null"}
    assert resolve(Task("t", "t", "c", {"y": Constant(1)}), stage(x), {}, lambda _: UNKNOWN).values == {"y": 1}


def test_literals_of_a_component() -> None:
    color = Parameter("x", "STRING", literals=("red", "green"))
    assert given(FromTask("a", "out"), color, made="red").values == {"x": "red"}
    assert given(FromTask("a", "out"), color, made="blue").problems == {
        "x": "it is 'blue', and must be one of 'red', 'green'"
    }


def test_what_a_failed_task_leaves() -> None:
    lost = NoOutput("it failed")
    assert given(FromTask("a", "out"), Parameter("x", "STRING", True, True, "d"), made=lost).values == {"x": ""}
    assert given(FromTask("a", "out"), Parameter("x", "LIST"), made=lost).problems == {"x": "it failed"}


def test_defaults_and_null() -> None:
    optional = Parameter("x", "STRING", True, True, "default")
    null = given(FromInput("p"), optional, {"p": None})
    assert (null.values, null.problems) == ({}, {})
    component = stage(optional)
    assert inputs_of_stage(Task("t", "t", "c"), component, null.values) == {"x": "default"}
    assert given(FromInput("p"), Parameter("x", "STRING"), {"p": None}).problems.keys() == {"x"}
    assert given(FromInput("p"), optional, {}).problems.keys() == {"x"}
    # A nested pipeline has its default only if it is not passed the input.
    nested = Component("c", "dag", {"x": optional, "y": Parameter("y", "LIST", True)}, dag=Dag({}))
    assert resolve(Task("t", "t", "c"), nested, {}, lambda _: UNKNOWN).values == {"x": "default", "y": None}
    passed = resolve(Task("t", "t", "c", {"x": FromInput("p")}), nested, {"p": None}, lambda _: UNKNOWN)
    assert passed.values == {"y": None}


def test_an_artifact_that_is_not_set() -> None:
    component = Component(
        "c", "container", artifact_inputs={"d": ArtifactType("system.Dataset")}, optional_artifacts=frozenset("d")
    )
    task = Task("t", "t", "c", artifacts={"d": FromInput("p")})
    assert "even if the input is optional" in resolve(task, component, {}, lambda _: UNKNOWN).problems["d"]
    made = Artifact("d", ArtifactType("system.Dataset"), "/d")
    assert resolve(task, component, {"p": made}, lambda _: UNKNOWN).values == {"d": made}


def test_what_only_a_run_knows() -> None:
    root = stage(Parameter("p", "LIST"))
    assert inputs_of_root(root, None) == {"p": UNKNOWN}
    assert inputs_of_root(root, {"p": [1]}) == {"p": [1]}
    assert inputs_of_root(stage(Parameter("p", "LIST", True)), {}) == {"p": None}
    assert given(FromInput("p"), Parameter("x", "NUMBER_INTEGER"), {"p": UNKNOWN}).known == {}
    # A constant with the placeholder of an input that only the run knows stays as it is.
    parameters = {name: Parameter(name, "STRING") for name in ("x", "y")}
    component = Component("c", "container", parameters, container=Container("x", ("y",), ()))
    task = Task("t", "t", "c", {"y": Constant("{{$.inputs.parameters['x']}}!")})
    values = {"x": UNKNOWN, "y": "{{$.inputs.parameters['x']}}!"}
    assert inputs_of_stage(task, component, values) == values
    assert inputs_of_stage(task, component, {**values, "x": "v"}) == {"x": "v", "y": "v!"}


def test_an_iteration_has_the_item_in_place_of_the_list() -> None:
    loop = Task("t", "t", "c", loop=Loop("item", None, "list"))
    component = Component("c", "dag", {"item": Parameter("item", "STRING")}, dag=Dag({}))
    assert inputs_of_iteration(loop, component, {"list": [1, 2], "x": 3}, 1) == {"x": 3, "item": "1"}


def test_a_loop_is_not_passed_the_item_that_it_makes() -> None:
    loop = Task("t", "t", "c", {"list": Constant([1])}, loop=Loop("item", None, "list"))
    inputs = {name: Parameter(name, "LIST" if name == "list" else "STRING") for name in ("list", "item", "other")}
    found = resolve(loop, Component("c", "dag", inputs, dag=Dag({})), {}, lambda _: UNKNOWN)
    assert (found.values, found.problems) == ({"list": [1]}, {"other": "it is not passed on"})


def test_the_items_of_a_loop() -> None:
    several = ArtifactList([Artifact("d", ArtifactType("system.Dataset"), f"/{name}") for name in "ab"])
    assert loop_items(Loop("item", None, "list"), {"list": several}) == [*several]
    assert loop_items(Loop("item", None, "list"), {"list": "[1, 2]"}) == [1, 2]
    for wrong in ("no list", {"a": 1}, None):
        with pytest.raises(ValueError, match="loops over something that is not a list"):
            loop_items(Loop("item", None, "list"), {"list": wrong})


def test_the_uri_of_an_importer() -> None:
    def uri(source: Origin, scope: dict[str, Any]) -> Any:
        importer = Importer(FromInput("uri"), ArtifactType("system.Dataset"))
        return importer_uri(importer, Task("t", "t", "c", {"uri": source}), scope)

    fixed = Importer(Constant("s3://b/x"), ArtifactType("system.Dataset"))
    assert importer_uri(fixed, Task("t", "t", "c"), {}) == "s3://b/x"
    assert uri(FromInput("p"), {"p": "s3://b/y"}) == "s3://b/y"
    assert uri(FromInput("p"), {"p": UNKNOWN}) is UNKNOWN
    for scope in ({}, {"p": ""}, {"p": 3}):
        with pytest.raises(ValueError, match="has no URI to import"):
            uri(FromInput("p"), scope)
    for source in (FromTask("a", "out"), Constant("s3://b"), FromInput("p", selector="a")):
        with pytest.raises(ValueError, match="KFP's importer takes a parameter"):
            uri(source, {"p": "s3://b/y"})
