"""Changes that make a stage run again, and changes that do not: they follow from the cache key of KFP's backend.

The key's parts are those of ``GenerateCacheKey`` (kubeflow/pipelines, ``backend/src/v2/cacheutils/cache.go``): values
of input parameters, names of input artifacts, types of outputs, the image, and the words of the container. Variables,
resources, labels and retries are not part of it. KFP's own local cache is tested in containers.
"""
# No annotations from __future__: KFP reads those of pipelines as objects.

import json
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import Resource

from tests.authoring.apps import compile_pipeline, load, make_app
from torchx_kfp import component_from_app, task_from_app

UPSTREAM = "run-1/prepare/pod-1"


def key_of(compiled: str, task: str = "train", **values: Any) -> str:
    """Return the key of a task, given the values of the pipeline's parameters and of upstream outputs."""
    spec, _ = load(compiled)
    entry = spec["root"]["dag"]["tasks"][task]
    component = spec["components"][entry["componentRef"]["name"]]
    container = spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
    outputs = component.get("outputDefinitions", {})

    def value(source: dict[str, Any]) -> Any:
        if "taskOutputParameter" in source:
            return values[source["taskOutputParameter"]["outputParameterKey"]]
        return values[source["componentInputParameter"]] if "componentInputParameter" in source else source

    key = {
        "inputParameterValues": {name: value(source) for name, source in entry["inputs"]["parameters"].items()},
        "outputParametersSpec": {name: kind["parameterType"] for name, kind in outputs["parameters"].items()},
        "outputArtifactsSpec": {name: kind["artifactType"] for name, kind in outputs.get("artifacts", {}).items()},
        "containerSpec": {
            "image": container["image"],
            "cmdArgs": [*container["command"], *container.get("args", [])],
        },
    }
    return json.dumps(key, sort_keys=True)


def key(
    *,
    lr: float = 0.1,
    tracker_base: str = "s3://b",
    run_id: str = UPSTREAM,
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> str:
    def pipeline(tracker_base: str, lr: float) -> None:
        prepared = task_from_app(make_app("prepare"), tracker_base=tracker_base)
        app = make_app("train", **{"args": ["--lr", f"{lr}"], **fields})
        task_from_app(
            app, tracker_base=tracker_base, reads=prepared, **{"results": {"accuracy": float}, **(options or {})}
        )

    return key_of(compile_pipeline(pipeline), lr=lr, tracker_base=tracker_base, run_id=run_id)


def test_the_same_stage_has_the_same_key_in_every_run() -> None:
    """Values that differ from run to run, such as the pipeline's run id and the pod's name, are not part of it."""
    assert key() == key()
    assert "KFP_RUN_ID:-" in key(options={"results": None}), "read from the environment when the stage runs"


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.2},
        {"tracker_base": "s3://other"},
        {"run_id": "run-2/prepare/pod-1"},
        {"args": ["--lr", "constant"]},
        {"env": {"A": "1"}},
        {"env": {"A": "2"}},
        {"image": "image:2"},
        {"entrypoint": "other"},
        {"options": {"results": {"loss": float}}},
        {"options": {"results": {"accuracy": str}}},
        {"options": {"artifacts": {"model": dsl.Model}}},
    ],
    ids=lambda change: "-".join(map(str, change)),
)
def test_what_makes_a_stage_run_again(change: dict[str, Any]) -> None:
    assert key(**change) != key(env={"A": "0"} if "env" in change else {})


def test_what_does_not() -> None:
    assert key(resource=Resource(cpu=4, gpu=0, memMB=4096)) == key()


def test_a_value_from_upstream_is_a_part_of_the_key() -> None:
    def pipeline(tracker_base: str) -> None:
        made = task_from_app(make_app("make"), tracker_base=tracker_base, results={"loss": float, "image": str})
        app = make_app("use", args=[f"{made.outputs['loss']}"], image=f"{made.outputs['image']}")
        task_from_app(app, tracker_base=tracker_base)

    compiled = compile_pipeline(pipeline)
    values = [(loss, image) for loss in (0.5, 0.5, 0.75) for image in ("a:1", "a:2")]
    keys = {key_of(compiled, "use", tracker_base="s3://b", loss=loss, image=image) for loss, image in values}
    assert len(keys) == 4


def test_a_stage_that_is_not_cached_says_so() -> None:
    component = component_from_app(make_app("component"), cache=False)

    def pipeline() -> None:
        task_from_app(make_app("never"), cache=False)
        task_from_app(make_app("always"))
        component()

    spec, _ = load(compile_pipeline(pipeline))
    tasks = spec["root"]["dag"]["tasks"]
    enabled = {name: task["cachingOptions"].get("enableCache", False) for name, task in tasks.items()}
    assert enabled == {"never": False, "always": True, "component": False}
