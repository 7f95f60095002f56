"""``artifact_from_uri``: KFP artifacts with the URI of data that is stored elsewhere."""

from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl

from tests.authoring.apps import compile_pipeline, load, make_app, unresolved_inputs
from torchx_kfp import artifact_from_uri, task_from_app

pytestmark = pytest.mark.versions


@dsl.container_component
def deploy(model: dsl.Input[dsl.Model]):
    return dsl.ContainerSpec(image="busybox", command=["cat", model.path])


def compiled(uri: Callable[[Any, Any], Any], **options: Any) -> dict[str, Any]:
    def pipeline(place: str = "s3://models/1", number: int = 3) -> None:
        train = task_from_app(make_app("train"), tracker_base="/tmp/results", results={"model_uri": str})
        deploy(model=artifact_from_uri(uri(train, (place, number)), dsl.Model, **options))

    spec, _ = load(compile_pipeline(pipeline))
    assert unresolved_inputs(spec) == []
    return spec


@pytest.mark.parametrize(
    ("uri", "source"),
    [
        (
            lambda train, _: train.outputs["model_uri"],
            {"taskOutputParameter": {"producerTask": "train", "outputParameterKey": "model_uri"}},
        ),
        (lambda _, given: given[0], {"componentInputParameter": "place"}),
        (lambda _, given: f"{given[0]}", {"componentInputParameter": "place"}),
        (lambda *_: "s3://models/2", {"runtimeValue": {"constant": "s3://models/2"}}),
    ],
    ids=["output", "parameter", "text", "constant"],
)
def test_the_importer_takes_a_parameter_of_its_own_pipeline(uri: Any, source: Any) -> None:
    """A backend's importer does not accept an output of a task ("parent DAG does not have input parameter")."""
    spec = compiled(uri, metadata={"framework": "none"})
    tasks = spec["root"]["dag"]["tasks"]
    assert tasks["artifact-from-uri"]["inputs"]["parameters"] == {"uri": source}
    inner = spec["components"]["comp-artifact-from-uri"]["dag"]["tasks"]["importer"]
    assert inner["inputs"]["parameters"]["uri"] == {"componentInputParameter": "uri"}
    importer = spec["deploymentSpec"]["executors"]["exec-importer"]["importer"]
    assert importer["artifactUri"] == {"runtimeParameter": "uri"}
    assert importer["typeSchema"]["schemaTitle"] == "system.Model"
    assert importer["metadata"] == {"framework": "none"}
    taken = tasks["deploy"]["inputs"]["artifacts"]["model"]["taskOutputArtifact"]
    assert taken == {"producerTask": "artifact-from-uri", "outputArtifactKey": "Output"}
