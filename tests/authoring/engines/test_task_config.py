"""Settings of a distributed stage's task: KFP passes them to the launcher, which applies them to the replicas."""

# No annotations from __future__: KFP reads the annotations of pipeline functions.

from typing import Any

import pytest
import yaml
from kfp import dsl, kubernetes
from torchx.specs import Resource, VolumeMount

from tests.authoring.apps import compile_pipeline, make_app
from tests.authoring.engines.apps import app, distributed, role
from tests.documents import documents
from torchx_kfp import task_from_app
from torchx_kfp.execution.local.preflight import check_supported
from torchx_kfp.local import load_pipeline

pytestmark = pytest.mark.versions

HAS_CONFIG = hasattr(dsl, "TaskConfig")
since_kfp_2_15 = pytest.mark.skipif(not HAS_CONFIG, reason="kfp 2.15 and newer have dsl.TaskConfig")
until_kfp_2_14 = pytest.mark.skipif(HAS_CONFIG, reason="kfp 2.14 does not have dsl.TaskConfig")


def findings(configure: Any, engine: str | None = "job", **fields: Any) -> list[tuple[str, str]]:
    """Return the kinds and texts of findings about a pipeline with one stage, on whose task something is set."""

    def pipeline(memory: str = "1G") -> None:
        made = app(role(**fields)) if engine else make_app(**fields)
        configure(task_from_app(made, engine=engine, secrets={"s3": {"key": "KEY"}}), memory)

    found = check_supported(load_pipeline(dsl.pipeline(pipeline)))
    return [(finding.kind.name, str(finding)) for finding in found]


def everything(task: dsl.PipelineTask, memory: Any) -> None:
    task.set_memory_limit(memory).set_cpu_limit("2").set_env_variable("MORE", "1")
    kubernetes.add_toleration(task, key="gpu", operator="Exists")
    kubernetes.add_node_selector(task, "pool", "gpu")
    kubernetes.mount_pvc(task, pvc_name="data", mount_path="/data")


@since_kfp_2_15
@pytest.mark.parametrize("publishes", [True, False])
def test_the_component_takes_all_that_kfp_hands_on(publishes: bool) -> None:
    options: dict[str, Any] = {"tracker_base": "/tmp/results", "results": {"loss": float}} if publishes else {}
    component = distributed(app(role()), **options).component
    config = component["inputDefinitions"]["parameters"]["task_config"]
    assert config == {"parameterType": "TASK_CONFIG", "isOptional": True}
    handed_on = {item["field"]: item.get("applyToTask", False) for item in component["taskConfigPassthroughs"]}
    # The launcher's pod gets its own variables, and the volumes from which its publisher reads files.
    assert handed_on == {
        "RESOURCES": False,
        "ENV": True,
        "KUBERNETES_AFFINITY": False,
        "KUBERNETES_TOLERATIONS": False,
        "KUBERNETES_NODE_SELECTOR": False,
        "KUBERNETES_VOLUMES": publishes,
    }
    assert set(handed_on) == {field.name for field in dsl.TaskConfigField}


@until_kfp_2_14
def test_an_older_kfp_hands_on_nothing() -> None:
    component = distributed(app(role(), name="train"), replicas=lambda n: n).component
    assert "taskConfigPassthroughs" not in component
    assert set(component["inputDefinitions"]["parameters"]) == {"n_int"}


# torchx-kfp check


@pytest.mark.parametrize("fields", [{}, {"resource": Resource(1, 0, 10)}, {"mounts": [VolumeMount("a", "/a")]}])
def test_a_stage_without_settings_has_no_findings(fields: dict[str, Any]) -> None:
    assert findings(lambda *_: None, **fields) == []


@since_kfp_2_15
def test_settings_that_kfp_hands_on_have_no_findings() -> None:
    [(_, cached)] = findings(everything)
    assert "sets 'MORE' on the task, which KFP's cache ignores" in cached
    # The limit is that of the replicas, not of KFP's own launcher.
    assert findings(lambda task, _: task.set_memory_limit("10M")) == []


def test_a_small_limit_of_another_stage_still_has_one() -> None:
    ((kind, text),) = findings(lambda task, _: task.set_memory_limit("10M"), engine=None)
    assert (kind, "10 MB of memory" in text) == ("MAY_FAIL", True)


@until_kfp_2_14
def test_settings_that_an_older_kfp_does_not_hand_on() -> None:
    [text] = [text for kind, text in findings(everything) if kind == "CHANGED" and "cache" not in text]
    for fact in ("resources and variables and volumes", "node selectors", "tolerations", "kfp 2.15", "AppDef"):
        assert fact in text
    ((_, text),) = findings(lambda task, _: kubernetes.use_secret_as_env(task, "other", {"k": "MINE"}))
    assert "sets variables on the task" in text


@pytest.mark.parametrize(
    ("configure", "fact"),
    [
        (lambda task, _: kubernetes.set_image_pull_secrets(task, ["registry"]), "image pull secrets"),
        (lambda task, _: kubernetes.set_image_pull_policy(task, "Always"), "image pull policies"),
    ],
)
def test_settings_that_kfp_never_hands_on(configure: Any, fact: str) -> None:
    ((kind, text),) = findings(configure)
    assert kind == "CHANGED"
    assert f"sets {fact} on the task" in text
    assert "metadata['kubernetes']" in text
    assert findings(configure, engine=None) == []


def test_an_older_kfps_file_is_read_by_any(tmp_path: Any) -> None:
    """The findings depend on the file, not on the installed kfp."""

    def pipeline() -> None:
        task_from_app(app(role()), engine="job").set_memory_limit("1G")

    spec, *rest = documents(compile_pipeline(pipeline))
    for component in spec["components"].values():
        component.pop("taskConfigPassthroughs", None)
        component.pop("inputDefinitions", None)
    (tmp_path / "old.yaml").write_text(yaml.safe_dump_all([spec, *rest]))
    (finding,) = check_supported(load_pipeline(tmp_path / "old.yaml"))
    assert "sets resources on the task of a distributed stage" in str(finding)


def test_settings_of_a_later_version_do_not_reach_replicas(tmp_path: Any) -> None:
    def pipeline() -> None:
        task_from_app(app(role()), engine="job")

    spec, *_ = documents(compile_pipeline(pipeline))
    (label,) = spec["deploymentSpec"]["executors"]
    kubernetes = {"deploymentSpec": {"executors": {label: {"initContainers": [{"name": "init"}]}}}}
    (tmp_path / "later.yaml").write_text(yaml.safe_dump_all([spec, {"platforms": {"kubernetes": kubernetes}}]))
    (finding,) = check_supported(load_pipeline(tmp_path / "later.yaml"))
    assert "sets initContainers on the task of a distributed stage. KFP does not pass these on" in str(finding)
