"""Every golden of the engines is accepted: by Kubernetes' schemas, strictly, by rules in CEL, and by webhooks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.authoring.engines.goldens import NAMES, golden_file
from tests.kubernetes.api import ApiError
from tests.kubernetes.controllers import runtime
from tests.kubernetes.namespaces import Namespace
from tests.kubernetes.waiting import until_it_answers
from torchx_kfp.contract.carried import cluster_api, cluster_stage

#: What users can set on a task, as KFP 2.17 was seen to hand it on.
CONFIG = {
    "affinity": {"nodeAffinity": {}},
    "env": [{"name": "EXTRA", "value": "1"}],
    "nodeSelector": {"gpu": "a100"},
    "resources": {"limits": {"cpu": "50", "memory": "96M"}},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
}


@pytest.fixture
def account(namespace: Namespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a launcher."""
    address = namespace.write_account(tmp_path / "account")
    monkeypatch.setattr(cluster_api, "FOLDER", str(tmp_path / "account"))
    variables = {"KFP_ARGO_NODE": "w(0).train(0)", "KFP_RUN_ID": "run", "KFP_POD_NAME": "pod", "KFP_POD_UID": "uid"}
    for name, value in {**address, **variables, "TORCHX_JOB_ID": "run/train/pod"}.items():
        monkeypatch.setenv(name, value)


def manifests(name: str, config: Any) -> list[Any]:
    """Return the objects that the launcher would create."""
    golden = yaml.safe_load(golden_file(name).read_text(encoding="utf-8"))
    spec = golden["spec"]
    executor_input = {"inputs": {"parameterValues": {spec["config"]: config}}}
    # Channels are not filled in here: their text stands for them.
    words = [str(word) for word in golden["words"]]
    counts = [role["most"] for role in spec["roles"]]
    stage = cluster_stage.ClusterStage(spec, words, counts, executor_input)
    made = stage.manifest([])
    return [made, *(cluster_stage.fill(one, {"name": stage.name}) for _, _, one in spec["companions"])]


@pytest.mark.usefixtures("account", "controllers")
@pytest.mark.parametrize("config", [{}, CONFIG], ids=["plain", "configured"])
def test_the_cluster_accepts_what_the_engines_make(namespace: Namespace, config: Any) -> None:
    problems = []
    namespace.create({**runtime("torch-of-the-team", {}), "kind": "TrainingRuntime"})
    (of_team,) = manifests("runtime.trainjob", {})
    # Trainer's webhook may not know the runtime yet.
    until_it_answers(lambda: namespace.validate(of_team), lambda: None, "the runtime", 30)
    for name in NAMES:
        for manifest in manifests(name, config):
            try:
                made = namespace.validate(manifest)
            except ApiError as error:
                problems.append(f"{name}: {error}")
            else:
                # Names of pods are made of it: 63 characters with the largest index.
                assert len(made["metadata"]["name"]) <= 31
    assert not problems, "\n".join(problems)
