"""The public functions: components and tasks as KFP's users use them."""

import re
from pathlib import Path

import pytest
from kfp import compiler, components
from torchx.specs import Resource

import torchx_kfp
from tests.authoring.apps import compile_pipeline, compile_stage, load, make_app, unresolved_inputs
from tests.authoring.kfp_engines import containers, tracked_container
from tests.facts import says
from torchx_kfp import component_from_app, component_spec_from_app, task_from_app

pytestmark = pytest.mark.versions


def test_unknown_names_of_the_package() -> None:
    with pytest.raises(AttributeError, match=says("'torchx_kfp'", "'nothing'")):
        torchx_kfp.nothing  # noqa: B018 (it raises)
    assert set(torchx_kfp.__all__) <= set(dir(torchx_kfp))


def test_a_component_file_holds_the_whole_app(tmp_path: Path) -> None:
    app = make_app(resource=Resource(cpu=2, gpu=1, memMB=4000), max_retries=2)
    text = component_spec_from_app(app, reads=["prepare"])
    made = component_from_app(app, reads=["prepare"])
    compiler.Compiler().compile(made, str(tmp_path / "train.yaml"))
    assert (tmp_path / "train.yaml").read_text() == text
    assert "{{channel" not in text
    loaded = components.load_component_from_text(text)
    assert loaded.name == "train"
    assert set(loaded.component_spec.inputs) == {"tracker_base", "prepare"}
    assert set(loaded.component_spec.outputs) == {"run_id"}
    assert "# Description: TorchX application train, role trainer" in text

    def pipeline(tracker_base: str) -> None:
        first = loaded(tracker_base=tracker_base, prepare="a/b/c")
        made(tracker_base=tracker_base, prepare=first.outputs["run_id"])
        task_from_app(make_app("read"), tracker_base=tracker_base, reads=first)

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) == []
    stages = {label: spec["deploymentSpec"]["executors"][label] for label in ("exec-train-stage", "exec-train-2")}
    assert stages["exec-train-stage"] == stages["exec-train-2"], "also its retries"
    assert stages["exec-train-2"]["container"]["resources"]["resourceMemoryLimit"] == "4000M"


def test_a_component_takes_run_ids_under_the_aliases_as_they_are_given() -> None:
    aliases = ["_train", "metrics", "Model", "stage"]
    component = component_from_app(make_app(), reads=aliases)
    assert {*component.component_spec.inputs} == {*aliases, "tracker_base", "stage_2"}

    def pipeline(tracker_base: str) -> None:
        task = task_from_app(make_app("first"), tracker_base=tracker_base)
        component(tracker_base=tracker_base, **dict.fromkeys(aliases, task.outputs["run_id"]))

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) == []


NAMES = [
    *("train", "Train_1", "my app", "a/b", "..", "漢字", "x" * 300, "1", "-", "a$$b", 'quo"te', "{{x}}", "new\nline"),
    *("UPPER.case-ok_1", "comp-train", "exec-x", "for-loop-1", "root"),
    *("import", "self", "None", "__class__", "match", "tracker_base", "run_id"),  # which Python or a stage keeps
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_kfp_would_change(name: str, tmp_path: Path) -> None:
    def pipeline(tracker_base: str) -> None:
        first = task_from_app(make_app(name, role=name), tracker_base=tracker_base)
        again = task_from_app(make_app(name, role=name), tracker_base=tracker_base, reads={name: first})
        task_from_app(make_app("given"), tracker_base=tracker_base, reads=again, name=name)
        task_from_app(make_app(name))

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) == []
    tasks = spec["root"]["dag"]["tasks"]
    assert len(tasks) == 4
    assert all(len(task) <= 66 for task in tasks)
    stage, _ = names_of(name, tmp_path)
    assert re.fullmatch(r"[\w.-]{1,63}", stage, re.ASCII)
    assert stage.strip(".") == stage
    assert (stage == name) == (re.fullmatch(r"[^\W_][\w.-]{0,62}", name, re.ASCII) is not None)
    components.load_component_from_text(component_spec_from_app(make_app(name), tracked=True))


def names_of(name: str, folder: Path) -> tuple[str, str]:
    """Return the name of a stage, which is the middle of its execution id, and that of its component."""
    compiled = compile_stage(make_app(name, entrypoint="true"))
    (component,) = containers(compiled)
    assert tracked_container(compiled, component, folder).run().returncode == 0
    return (folder / "run_id").read_text().split("/")[1], component


def test_long_names_are_told_apart(tmp_path: Path) -> None:
    assert names_of("UPPER.case-ok_1", tmp_path) == ("UPPER.case-ok_1", "upper-case-ok-1")
    for first, second in zip(*(names_of("x" * 100 + end, tmp_path) for end in "ab"), strict=True):
        assert first != second
