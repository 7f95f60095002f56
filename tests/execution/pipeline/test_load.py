"""Files that are compiled pipelines, and files that are not, which are rejected with these messages."""

import contextlib
import copy
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl, kubernetes
from torchx.components import utils

from tests.execution.host.answers_of_kfp import polls
from tests.execution.local.components import ir, write
from tests.facts import says
from torchx_kfp.errors import PipelineFileError, TorchxKfpError
from torchx_kfp.execution.host.observer import Observer
from torchx_kfp.execution.host.submission import check_submission
from torchx_kfp.execution.local.preflight import check_supported, find_not_applied
from torchx_kfp.execution.model.workflow import describe, measure
from torchx_kfp.execution.pipeline.load import pipeline_from_documents
from torchx_kfp.execution.pipeline.values import complete_arguments
from torchx_kfp.execution.runs.events import encode
from torchx_kfp.execution.runs.state import RunState, outline
from torchx_kfp.local import load_pipeline

#: The number of damaged pipelines: more of them find more errors.
SEEDS = int(os.environ.get("TORCHX_KFP_SEEDS", "10"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", says("p.yaml'", "YAML")),
        (
            "",
            says("v2", "mapping", "kfp.compiler.Compiler()", "pipelineInfo"),
        ),
        ("- 1", says("v2", "mapping", "root", "kfp.compiler.Compiler()", "pipelineInfo")),
        (
            "b: 1\na: 2",
            says("'a'", "'b'", "pipelineInfo", "kfp.compiler.Compiler()"),
        ),
        (
            "kind: Workflow",
            says("v1", "Argo", "pipeline", "Compile"),
        ),
        (
            "kind: Pipeline",
            says("a Kubernetes manifest (Pipeline)", "without Kubernetes manifest format", "Compile"),
        ),
        ("implementation: {}", says("a component of KFP v1", "kfp 2", "compile a pipeline")),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: gone}",
            says("v2", "'gone'", "pipeline", "executor", "Compile"),
        ),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: e}\ndeploymentSpec: {executors: {e: {container: {}}}}",
            says("v2", "pipeline", "tasks", "Compile"),
        ),
        ("pipelineInfo: {}\nroot: {dag: {}}", says("v2", "pipelineInfo.name is missing", "Compile")),
        ("pipelineInfo: 1\nroot: {dag: []}", says("damaged KFP v2 pipeline", "pipelineInfo is 1", "an object")),
        (
            "pipelineInfo: {name: x}\nroot: {dag: {tasks: {train: {dependentTasks: prepare}}}}",
            says("root.dag.tasks.train.dependentTasks is 'prepare', but must be a list"),
        ),
        (
            # dict.update takes such a list for an object.
            "pipelineInfo: {name: x}\nroot: {dag: {}}\n---\nplatforms: [{fieldPath: a, name: b}]",
            says("platforms is [{'fieldPath': 'a', 'name': 'b'}]", "must be an object"),
        ),
        ("pipelineInfo: {name: x}\nroot: {dag: {tasks: {a: }}}", says("root.dag.tasks.a is None", "an object")),
        ("pipelineInfo: {name: x}\nroot: {dag: {tasks: {3: {}}}}", says("root.dag.tasks.3", "a key", "not text")),
        ("pipelineInfo: {name: x}\nroot: {dag: {x: 1.0e+400}}", says("root.dag.x is inf", "finite")),
        ("pipelineInfo: {name: x}\nroot: {dag: {x: 2026-01-01}}", says("root.dag.x is datetime.date", "not JSON")),
    ],
)
def test_files_that_are_no_pipelines(tmp_path, text, message):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("task['componentRef']['name'] = 'gone'", "the task 'for-loop-2' names the component 'gone', which is missing"),
        ("task['dependentTasks'] = ['gone']", "the task 'for-loop-2' waits for 'gone', which is missing"),
        (
            "task['parameterIterator']['items'] = {'raw': '{'}",
            "root.dag.tasks.for-loop-2.parameterIterator.items.raw is '{', but must be a JSON list as text",
        ),
        ("task['retryPolicy'] = {'maxRetryCount': 1, 'backoffDuration': '1h'}", "'1h' is not a duration in seconds"),
        (
            "spec['components']['comp-for-loop-2']['dag']['tasks']['write']['componentRef']['name'] = "
            "'comp-for-loop-2'",
            "these components wait for each other: comp-for-loop-2 -> comp-for-loop-2",
        ),
        (
            "spec['root']['dag']['outputs'] = {'parameters': {'o': {'valueFromParameter': "
            "{'producerSubtask': 'gone', 'outputParameterKey': 'x'}}}}",
            "the output 'o' comes from the task 'gone', which is missing",
        ),
    ],
)
def test_damaged_pipelines(tmp_path, change, message):
    documents = ir(folder=tmp_path)
    spec = documents[0]
    exec(change, {"spec": spec, "task": spec["root"]["dag"]["tasks"]["for-loop-2"]})  # noqa: S102 - the changes above
    with pytest.raises(PipelineFileError) as error:
        pipeline_from_documents(documents, "p.yaml")
    assert str(error.value) == (
        f"The file 'p.yaml' is a damaged KFP v2 pipeline ({message}). Compile it again instead of editing it."
    )


def test_tasks_that_wait_for_each_other_are_named():
    @dsl.pipeline(name="circle")
    def pipeline():
        first, second = write(x="a"), write(x="b")
        first.after(second)
        second.after(first)

    with pytest.raises(PipelineFileError, match=says("'circle'", "write -> write-2 -> write", ".after()")) as error:
        load_pipeline(pipeline)
    assert "0x" not in str(error.value)


def test_a_torchx_component_is_not_a_pipeline():
    with pytest.raises(PipelineFileError, match=says("'echo'", "task_from_app(echo(", "component_from_function(echo)")):
        load_pipeline(utils.echo)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PipelineFileError, match=says("none.yaml'", "path", "kfp.compiler.Compiler()")):
        load_pipeline(tmp_path / "none.yaml")
    (tmp_path / "some.yml").touch()
    with pytest.raises(PipelineFileError, match=says("some.yaml'", f"Did you mean '{tmp_path}/some.yml'?")):
        load_pipeline(tmp_path / "some.yaml")
    with pytest.raises(PipelineFileError, match=says("cannot be read as a compiled pipeline", "Is a directory")):
        load_pipeline(tmp_path)
    Path(tmp_path, "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineFileError, match=says("cannot be read as a compiled pipeline", "'utf-8'", "0xff")):
        load_pipeline(tmp_path / "binary")
    with pytest.raises(PipelineFileError, match=says("3 is not a pipeline", "path", "kfp.dsl.pipeline")):
        load_pipeline(3)


def test_a_manifest_of_kubernetes_holds_a_pipeline(tmp_path):
    compiler_utils = pytest.importorskip("kfp.compiler.compiler_utils")
    if not hasattr(compiler_utils, "KubernetesManifestOptions"):
        pytest.skip("this kfp compiles no manifests")

    @dsl.pipeline
    def pipeline(x: str = "v"):
        kubernetes.set_image_pull_policy(write(x=x), "Always")

    options = compiler_utils.KubernetesManifestOptions(pipeline_name="p", pipeline_version_name="v")
    manifest, plain = tmp_path / "manifest.yaml", tmp_path / "plain.yaml"
    compiler.Compiler().compile(
        pipeline, str(manifest), kubernetes_manifest_options=options, kubernetes_manifest_format=True
    )
    compiler.Compiler().compile(pipeline, str(plain))
    assert "kind: PipelineVersion" in manifest.read_text()
    loaded = load_pipeline(manifest)
    assert loaded.components == load_pipeline(plain).components
    assert loaded.components["comp-write"].platform == {"imagePullPolicy": "Always"}


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, levels))]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, says("not a compiled pipeline", "nested more than 100 levels")),
        ("a: " + "[" * 101 + "]" * 101, says("not a compiled pipeline", "nested more than 100 levels")),
        ("{" * 100_000, says("not a compiled pipeline", "nested more than 100 levels")),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, says("not a compiled pipeline", "nested more than 100 levels")),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", says("not a compiled pipeline", "nested more than 100 levels")),
        (
            "\n".join(" " * n + "a:" for n in range(1000)),
            says("not a compiled pipeline", "nested more than 100 levels"),
        ),
        ("- " * 5000 + "a", says("not a compiled pipeline", "nested more than 100 levels")),
        (bomb(64), says("1,000,000", "aliases", "values")),
        ("a: &a [*a]", says("not a compiled pipeline", "alias")),
        ("a: &a {<<: *a}", says("not a compiled pipeline", "alias")),
        ("a: *b", "is not valid YAML"),
        ("a: 2026-99-99", "is not valid YAML"),
        ("? [a]\n: b", "is not valid YAML"),
        ("? {a: b}\n: c", "is not valid YAML"),
        ("a: !!python/object/apply:os.system [true]", "is not valid YAML"),
        ("a: !!timestamp x", "is not valid YAML"),
        ("a: !!int x", "is not valid YAML"),
        ("a: !!set [x]", "is not valid YAML"),
        ("a: \x00", "is not valid YAML"),
        ("a: !!binary é", "is not valid YAML"),
    ],
)
def test_files_that_would_take_the_machine(tmp_path, text, message):
    """Such files caused a segmentation fault and tracebacks, and one with 1 kB took all memory."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(path)


def test_a_file_that_does_not_end():
    with pytest.raises(PipelineFileError, match=says("'/dev/zero'", "16", "pipeline")):
        load_pipeline("/dev/zero")


def test_pipelines_in_pipelines_are_counted(tmp_path):
    compiled, *_ = ir(tmp_path)

    def nested(levels: int, times: int) -> dict[str, Any]:
        task = {"componentRef": {"name": "comp-write"}, "inputs": {}}
        components = {"comp-0": {"dag": {"tasks": {"write": task}}}}
        for level in range(1, levels):
            inner = {"componentRef": {"name": f"comp-{level - 1}"}}
            components[f"comp-{level}"] = {"dag": {"tasks": {f"t{n}": inner for n in range(times)}}}
        root = {"dag": {"tasks": {"top": {"componentRef": {"name": f"comp-{levels - 1}"}}}}}
        return {**compiled, "components": {**compiled["components"], **components}, "root": root}

    with pytest.raises(PipelineFileError, match=says("100,000", "tasks", "'p.yaml'", "Compile")):
        pipeline_from_documents([nested(40, 2)], "p.yaml")
    with pytest.raises(PipelineFileError, match=says("50", "levels", "'p.yaml'", "Compile")):
        pipeline_from_documents([nested(60, 1)], "p.yaml")
    assert pipeline_from_documents([nested(10, 2)], "p.yaml").name == "pipeline"


#: Values that do not belong where they are put.
VALUES: list[Any] = [
    *[None, True, 0, -1, 10**400, 1e308, 1e400, float("nan"), [], {}, [[]], {"a": {}}, {1: 2}, [None], [{}]],
    *["", "x", "a/../b", "\0", "\ud800", "{{$}}", "{{$.inputs.parameters['x']}}", "0" * 5000, "[" * 2000, "[x"],
]
KEYS: list[Any] = [7, "", "x", None, "..", "root"]


def damage(documents: list[Any], random: Random) -> None:
    """Remove, rename, repeat, exchange or replace parts of the documents."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [documents]
    while stack:
        value = stack.pop()
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                stack.append(value[key])
    for _ in range(random.choice([1, 1, 1, 2, 3]) if places else 0):
        value, key = random.choice(places)
        other, there = random.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            what = random.randrange(5)
            if what == 0:
                del value[key]
            elif what == 1 and isinstance(value, dict):
                value[random.choice(KEYS)] = value.pop(key)
            elif what == 2 and isinstance(value, list):
                value.append(copy.deepcopy(value[key]))
            elif what == 3:
                value[key] = copy.deepcopy(other[there])
            else:
                value[key] = copy.deepcopy(random.choice(VALUES))


def whole(answer: dict[str, Any]) -> None:
    """Follow a run whose host gives this answer."""
    observer, state = Observer(), RunState()
    for event in observer.observe(answer):
        encode(event)
        state.on_event(event)
    assert observer.pipeline or "cannot be read" in observer.problem


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_pipelines_are_refused_with_a_message(seed):
    """Whatever the damage, a pipeline is loaded and checked, or rejected with an error of this project."""
    random = Random(seed)
    answer = polls("succeeded")[-1]
    goldens = sorted(Path(__file__).parents[2].glob("pipelines/goldens/*.yaml"))
    for _ in range(20):
        documents = list(yaml.load_all(random.choice(goldens).read_text(), Loader=yaml.CSafeLoader))
        damage(documents, random)
        spec = copy.deepcopy(answer["pipeline_spec"])
        damage([spec], random)
        whole({**answer, "pipeline_spec": spec})
        with contextlib.suppress(TorchxKfpError):
            pipeline = pipeline_from_documents(documents, "p.yaml")
            outline(pipeline)
            describe(measure(pipeline.text))
            find_not_applied(pipeline)
            check_submission(pipeline, complete_arguments(pipeline, {}))
            check_supported(pipeline)
