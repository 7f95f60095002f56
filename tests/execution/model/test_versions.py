"""What differs between versions of KFP: each change with a pipeline that it matters to, before it and after it."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from kfp import dsl, kubernetes
from torchx import specs

from tests.cases import VERSION as SDK
from tests.cases.parts import component, echo
from torchx_kfp import Stages, engines
from torchx_kfp.execution.local.preflight import check_pipeline
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.model.versions import NEWEST, OLDEST, Version, parse_version
from torchx_kfp.execution.pipeline.load import load_pipeline, pipeline_from_documents
from torchx_kfp.execution.pipeline.values import defaults_of

VERSIONS = [Version(2, minor) for minor in range(OLDEST.minor, NEWEST.minor + 1)]


@dsl.container_component
def given(number: float = 0.5):
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[f"--lr={number}"])


@dsl.container_component
def perhaps(text: str = "a"):
    words = dsl.IfPresentPlaceholder(input_name="text", then=["--text", text])
    return dsl.ContainerSpec(image="busybox", command=["echo"], args=[words])


@component
def told(when: str) -> str:
    return when


def replicas(tracker_base: str = "s3://bucket/results") -> None:
    role = specs.Role("train", "registry/app:1", entrypoint="true", num_replicas=2)
    Stages(tracker_base=tracker_base).task(specs.AppDef("train", [role]), engine=engines.Job())


def numbers(lr: float = 0.00001, epochs: float = 3.0) -> None:
    given(number=lr)
    given(number=epochs)


def items(mode: str = "a") -> None:
    with dsl.ParallelFor([{"lr": 0.1, "n": 1}, {"lr": 0.00001, "n": 2}]) as item:
        given(number=item.n)
        given(number=item.lr)
    with dsl.ParallelFor([0.5, 2.5e-7]) as number, dsl.If(mode == "a"):
        given(number=number)


def items_of_a_parameter(rates: list[float] = [0.5, 0.00001]) -> None:  # noqa: B006 (KFP takes the text of defaults)
    with dsl.ParallelFor(rates) as rate, dsl.ParallelFor(["x", "y"]):
        given(number=rate)


def conditional() -> None:
    perhaps(text="b")


def time() -> None:
    told(when=dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER)


def macro(text: str = "x") -> None:
    echo(text=text)


def part_of_a_claim() -> None:
    kubernetes.mount_pvc(echo(text="x"), pvc_name="data", mount_path="/data", sub_path="part")


def user() -> None:
    kubernetes.set_security_context(echo(text="x"), run_as_user=1000)


def optional() -> None:
    keys = {"key": "TOKEN"}
    kubernetes.use_config_map_as_env(echo(text="x"), "settings", keys, optional=True)
    kubernetes.use_secret_as_env(echo(text="x"), "tokens", keys)


def unset() -> None:
    given()


def retried() -> None:
    echo(text="x").set_retry(2)


@dsl.pipeline
def inner() -> None:
    echo(text="x")


def retried_inside() -> None:
    inner().set_retry(2)


def find(
    function: Callable[..., Any], version: Version, arguments: dict[str, Any] | None = None, config: Any = None
) -> list[tuple[Kind, str]]:
    more = {"pipeline_config": config} if config is not None else {}
    pipeline = load_pipeline(dsl.pipeline(function, name="checked", **more))
    values = {**defaults_of(pipeline), **(arguments or {})}
    return [(found.kind, str(found)) for found in check_pipeline(pipeline, values, version=version)]


#: The pipeline, the kind of the finding and the beginning of its text, and the versions for which it holds.
CHANGES: list[tuple[Callable[..., Any], Kind, str, list[Version], tuple[int, int]]] = [
    (
        replicas,
        Kind.WORKS_LOCALLY,
        "task 'train' takes the settings of its task (dsl.TaskConfig)",
        VERSIONS[:1],
        (2, 15),
    ),
    (time, Kind.CHANGED, "task 'told' has {{$.pipeline_job_create_time_utc}} as its", VERSIONS[:2], (2, 14)),
    (part_of_a_claim, Kind.CHANGED, "task 'echo' mounts a part of a volume claim", VERSIONS[:2], (2, 16)),
    (user, Kind.CHANGED, "task 'echo' has a security context", VERSIONS[:2], (2, 16)),
    (optional, Kind.MAY_FAIL, "task 'echo' takes variables from an optional secret or", VERSIONS[:1], (2, 15)),
    (numbers, Kind.CHANGED, "task 'given' gets 'number' as the text 1e-05 locally", VERSIONS[:3], (2, 14)),
    (conditional, Kind.CHANGED, "task 'perhaps' contains dsl.IfPresentPlaceholder", VERSIONS[:3], (2, 14)),
    (unset, Kind.MAY_FAIL, "task 'given' is not given the input 'number'", VERSIONS[3:], (2, 14)),
    (retried, Kind.CHANGED, "task 'echo' is retried locally when its application fails", VERSIONS[3:], (2, 14)),
    (retried_inside, Kind.MAY_FAIL, "task 'inner' is a nested pipeline, which is not retried", VERSIONS, (2, 14)),
]


@pytest.mark.versions
@pytest.mark.parametrize("version", VERSIONS, ids=str)
@pytest.mark.parametrize(
    ("function", "kind", "text", "holds", "since"), CHANGES, ids=lambda it: getattr(it, "__name__", None)
)
def test_a_change(
    function: Callable[..., Any], kind: Kind, text: str, holds: list[Version], since: tuple[int, int], version: Version
) -> None:
    if since > SDK:
        pytest.skip(f"kfp {SDK} cannot write it")
    found = [each for each in find(function, version) if each[1].startswith(text)]
    assert [each[0] for each in found] == ([kind] if version in holds else [])
    others = [each for each in find(function, version) if not each[1].startswith(text)]
    assert not [each for each in others if "2.1" in each[1]], "another finding that depends on the version"


@pytest.mark.versions
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_numbers_in_the_items_of_a_loop(version: Version) -> None:
    found = [
        re.search(r"(given\S*)' gets 'number' as the text (\S+) locally", text) for _, text in find(items, version)
    ]
    expected = [("given-2", "1e-05"), ("given-3", "2.5e-07")] if version < NEWEST else []
    assert [each.groups() for each in found if each is not None] == expected


def test_numbers_in_the_items_of_a_parameter_that_an_inner_loop_takes() -> None:
    found = [text for _, text in find(items_of_a_parameter, OLDEST) if "as the text 1e-05 locally" in text]
    assert len(found) == 1


@pytest.mark.versions
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_macros_in_arguments(version: Version) -> None:
    found = find(macro, version, {"text": "at [[CurrentTime]]"})
    assert [kind for kind, text in found if "[[CurrentTime]]. KFP 2.16 and newer replaces" in text] == (
        [Kind.CHANGED] if version >= (2, 16) else []
    )


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_inputs_of_a_literal_type(version: Version) -> None:
    """Only kfp 2.17 and newer compile them."""
    spec, _ = load_pipeline(dsl.pipeline(macro, name="checked")).copy_documents()
    for scope in (spec["root"], spec["components"]["comp-echo"]):
        scope["inputDefinitions"]["parameters"]["text"]["literals"] = ["x", "y"]
    pipeline = pipeline_from_documents([spec], "checked")
    found = [each for each in check_pipeline(pipeline, {"text": "x"}, version=version) if "Literal" in str(each)]
    assert [(each.kind, each.place) for each in found] == (
        [(Kind.WORKS_LOCALLY, "the pipeline"), (Kind.WORKS_LOCALLY, "task 'echo'")] if version < (2, 16) else []
    )


@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_a_claim_that_is_filled_from_a_snapshot(version: Version) -> None:
    """Only kfp-kubernetes 2.17 and newer write it."""

    def claim() -> None:
        kubernetes.CreatePVC(access_modes=["ReadWriteOnce"], size="1Gi", pvc_name="data")

    spec, _ = load_pipeline(dsl.pipeline(claim, name="checked")).copy_documents()
    inputs = spec["components"]["comp-createpvc"]["inputDefinitions"]["parameters"]
    inputs["data_source"] = {"isOptional": True, "parameterType": "STRUCT"}
    source = {"constant": {"kind": "PersistentVolumeClaim", "name": "seed"}}
    spec["root"]["dag"]["tasks"]["createpvc"]["inputs"]["parameters"]["data_source"] = {"runtimeValue": source}
    found = check_pipeline(pipeline_from_documents([spec], "checked"), {}, version=version)
    assert [(each.kind, each.place) for each in found if "data_source" in each.text] == (
        [(Kind.CHANGED, "task 'createpvc'")] if version < NEWEST else []
    )


@pytest.mark.versions
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_the_workspace_of_kfp(version: Version) -> None:
    config = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))
    found = [kind for kind, text in find(macro, version, config=config) if "the pipeline has KFP's workspace" in text]
    assert found == ([Kind.WORKS_LOCALLY] if version == OLDEST else [])


@pytest.mark.versions
@pytest.mark.skipif(SDK < (2, 17), reason="kfp 2.17 and newer have limits of runs")
@pytest.mark.parametrize("version", VERSIONS, ids=str)
def test_limits_of_a_run(version: Version) -> None:
    config = dsl.PipelineConfig(active_deadline_seconds=60)
    found = [kind for kind, text in find(macro, version, config=config) if "sets 'activeDeadlineSeconds'" in text]
    assert found == ([Kind.WORKS_LOCALLY] if version < NEWEST else [])


@pytest.mark.parametrize(
    ("text", "version"),
    [("2.14.4", (2, 14)), ("v2.17.0", (2, 17)), ("2.16", (2, 16)), ("2.20.0-rc.1", (2, 20))],
)
def test_a_version(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize("text", ["", "unknown", "master", "2", "a2.17"])
def test_no_version(text: str) -> None:
    assert parse_version(text) is None
