"""Files that are compiled pipelines, and those that are none: they are refused in these words."""

import contextlib
import copy
import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from kfp import compiler, dsl, kubernetes

from tests.local.components import ir, write
from torchx_kfp.errors import PipelineFileError, TorchxKfpError
from torchx_kfp.local import load_pipeline
from torchx_kfp.local.check import check_supported, find_not_applied
from torchx_kfp.pipeline.arguments import complete_arguments
from torchx_kfp.pipeline.load import pipeline_from_documents, reading
from torchx_kfp.pipeline.walk import walk

#: Of how many pipelines are damaged: more finds more.
SEEDS = int(os.environ.get("TORCHX_KFP_SEEDS", "10"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", r"^The file '.*p\.yaml' is not valid YAML: while parsing a flow node"),
        (
            "",
            r"^The file '.*' is not a compiled KFP v2 pipeline: it has no mapping at its top level, and no pipeline",
        ),
        ("- 1", r"it has no mapping at its top level"),
        (
            "b: 1\na: 2",
            r"it has 'a', 'b' at its top level, and no pipelineInfo and root\. Compile a pipeline with kfp\.comp",
        ),
        (
            "kind: Workflow",
            r"it is an Argo workflow, which KFP v1 compiled to\. Compile the pipeline again with kfp 2\.$",
        ),
        (
            "kind: Pipeline",
            r"it is a Kubernetes manifest \(Pipeline\)\. Compile the pipeline without Kubernetes manifest",
        ),
        ("implementation: {}", r"it is a component of KFP v1\. Compile a pipeline that uses it, with kfp 2\.$"),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: gone}",
            r"^The file '.*' is a damaged KFP v2 pipeline \(root names the executor 'gone', which is missing\)\. "
            r"Compile",
        ),
        (
            "pipelineInfo: {name: x}\nroot: {executorLabel: e}\ndeploymentSpec: {executors: {e: {container: {}}}}",
            r"damaged KFP v2 pipeline \(its root has no tasks\)",
        ),
        ("pipelineInfo: {}\nroot: {dag: {}}", r"damaged KFP v2 pipeline \(KeyError: 'name'\)"),
        ("pipelineInfo: 1\nroot: {dag: []}", r"damaged KFP v2 pipeline \(AttributeError: "),
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
        ("task['dependentTasks'] = ['for-loop-2']", "these tasks wait for each other: for-loop-2 -> for-loop-2"),
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


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PipelineFileError, match=r"^There is no file '.*none\.yaml'\. Give the path of a compiled pipe"):
        load_pipeline(tmp_path / "none.yaml")
    with pytest.raises(PipelineFileError, match=r"^The file '.*' cannot be read as a compiled pipeline: .*directory"):
        load_pipeline(tmp_path)
    Path(tmp_path, "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PipelineFileError, match=r"cannot be read as a compiled pipeline: 'utf-8' codec can't decode"):
        load_pipeline(tmp_path / "binary")
    with pytest.raises(
        PipelineFileError, match=r"^3 is no pipeline: pass the path of a compiled pipeline, or a functi"
    ):
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
        ("[" * 100_000, "nested more than 100 levels deep"),
        ("a: " + "[" * 101 + "]" * 101, "nested more than 100 levels deep"),
        ("{" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested more than 100 levels deep"),
        ('{"a":' + "[" * 200 + "]" * 200 + "}", "nested more than 100 levels deep"),
        ("\n".join(" " * n + "a:" for n in range(1000)), "nested more than 100 levels deep"),
        ("- " * 5000 + "a", "nested more than 100 levels deep"),
        (bomb(64), "with its aliases written out it has more than 1,000,000 values"),
        ("a: &a [*a]", r"the alias \*a stands inside of what it names"),
        ("a: &a {<<: *a}", r"the alias \*a stands inside of what it names"),
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
    """Seen: a segmentation fault, tracebacks, and a file of 1 kB that took all memory."""
    path = tmp_path / "p.yaml"
    path.write_text(text)
    with pytest.raises(PipelineFileError, match=message):
        load_pipeline(path)


def test_a_file_that_does_not_end():
    with pytest.raises(PipelineFileError, match="'/dev/zero' is no compiled pipeline: it is larger than 16 MiB"):
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

    with pytest.raises(PipelineFileError, match="more than 100,000 tasks, with those of nested pipelines"):
        pipeline_from_documents([nested(40, 2)], "p.yaml")
    with pytest.raises(PipelineFileError, match="nested more than 50 levels deep"):
        pipeline_from_documents([nested(60, 1)], "p.yaml")
    assert pipeline_from_documents([nested(10, 2)], "p.yaml").name == "pipeline"


VALUES = [None, True, 0, -1, 1e400, float("nan"), "", "x", "a/../b", "{{$}}", [], {}, [[]], {"a": {}}, {1: 2}, [None]]


def damage(documents: list[Any], random: Random) -> None:
    """Changes values somewhere in the documents into what does not belong there."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [documents]
    while stack:
        value = stack.pop()
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            places.append((value, key))
            if isinstance(value[key], (dict, list)):
                stack.append(value[key])
    for _ in range(random.randint(1, 3)):
        value, key = random.choice(places)
        with contextlib.suppress(KeyError, IndexError):
            what = random.randrange(4)
            if what == 0:
                del value[key]
            elif what == 1 and isinstance(value, dict):
                value[random.choice([7, "", "x", None, ".."])] = value.pop(key)
            elif what == 2:
                other, there = random.choice(places)
                value[key] = copy.deepcopy(other[there])
            else:
                value[key] = copy.deepcopy(random.choice(VALUES))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_damaged_pipelines_are_refused_with_a_message(seed):
    """Whatever is done to a pipeline, it is loaded and checked, or refused by an error of this project."""
    random = Random(seed)
    goldens = sorted(Path(__file__).parents[1].glob("pipelines/goldens/*.yaml"))
    for _ in range(20):
        documents = list(yaml.load_all(random.choice(goldens).read_text(), Loader=yaml.CSafeLoader))
        damage(documents, random)
        with contextlib.suppress(TorchxKfpError):
            pipeline = pipeline_from_documents(documents, "p.yaml")
            list(walk(pipeline))
            check_supported(pipeline)
            find_not_applied(pipeline)
            with reading("p.yaml"):
                complete_arguments(pipeline, {})
