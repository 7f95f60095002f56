"""Files that are compiled pipelines, and those that are none: they are refused in these words."""

from pathlib import Path

import pytest
from kfp import compiler, dsl, kubernetes

from tests.local.components import ir, write
from torchx_kfp.errors import PipelineFileError
from torchx_kfp.local import load_pipeline
from torchx_kfp.local.load import pipeline_from_documents


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


@pytest.mark.parametrize("name", ["../../../../etc/passwd", "..", ".", "a/b", "a\nb", "", "a" * 300, 7])
@pytest.mark.parametrize("where", ["inputs", "outputs"])
def test_names_that_would_lead_out_of_a_folder(tmp_path, name, where):
    compiled, *_ = ir(tmp_path)
    definitions = compiled["components"]["comp-write"].setdefault(f"{where[:-1]}Definitions", {})
    definitions["artifacts"] = {name: {"artifactType": {"schemaTitle": "system.Artifact"}}}
    with pytest.raises(PipelineFileError, match=r"is not a name for an input or output"):
        pipeline_from_documents([compiled], "p.yaml")
