"""Distributed stages on the cluster: what KFP's driver and Argo make of a compiled stage is a pod, made here."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner
from torchx.specs import AppDef

from tests.contract.carried.behaviours import CompiledStage, outputs, python
from tests.kubernetes.api import Object
from tests.kubernetes.kubelet import Kubelet
from tests.kubernetes.namespaces import PIPELINE_RUNNER, Namespace
from tests.kubernetes.waiting import until
from torchx_kfp.entrypoints.cli import cli

#: The annotation with the node of a workflow that a pod is, as it was seen on a cluster, in its first attempt.
NODE = (
    "fact-identity-zhzbb(0).root(0).for-loop-2(0).iteration-iterations(0:0)(0).iteration-item(0).train(0).executor({})"
)
#: Where the objects of an engine are.
COLLECTIONS = {
    "job": "batch/v1/jobs",
    "jobset": "jobset.x-k8s.io/v1alpha2/jobsets",
    "trainjob": "trainer.kubeflow.org/v1alpha1/trainjobs",
}
RUN = "8f2f3b1e-51e7-4b62-ae0c-601f7270d2b4"


#: Runs until the file is there.
WAIT = """
import os, sys, time
print("waits")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
if os.environ["TORCHX_REPLICA_ID"] == "0":
    from torchx_kfp.tracking import current_run
    current_run().put(loss=0.5)
"""


def replicas(namespace: Namespace) -> list[Object]:
    """Return the pods of the stage's object."""
    return [pod for pod in namespace.list("pods") if "torchx-kfp/stage" in pod["metadata"].get("labels", {})]


def give_rights(namespace: Namespace, engine: str, account: str) -> None:
    """Create a service account that may do what ``torchx-kfp rbac`` prints for the engine, and nothing else."""
    namespace.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    grant(namespace, engine, account)


def grant(namespace: Namespace, engine: str, account: str = PIPELINE_RUNNER) -> None:
    """Give an account what ``torchx-kfp rbac`` prints for the engine."""
    words = ["rbac", "--engine", engine, "--service-account", account, "--namespace", namespace.name]
    for manifest in yaml.safe_load_all(CliRunner().invoke(cli, words).stdout):
        namespace.create(manifest)


def waiting(folder: Path, **fields: Any) -> tuple[AppDef, Path]:
    """Return an AppDef whose replicas run until a file is there, and the file."""
    go = folder / "go"
    return python(WAIT, arguments=[str(go)], **fields), go


@dataclass
class Attempt:
    """One pod of a stage."""

    namespace: Namespace
    kubelet: Kubelet
    name: str
    folder: Path

    @property
    def log(self) -> str:
        try:
            return self.kubelet.log(self.name)
        except StopIteration:  # the pod is not there yet
            return ""

    @property
    def outputs(self) -> dict[str, str]:
        """The output parameters that the stage has written."""
        return outputs(self.folder)

    @property
    def run_id(self) -> str:
        return self.outputs["run_id"]

    def ended(self) -> int:
        """Wait for the end of the pod's container, and return its exit code."""
        return int(until(lambda: self.state.get("terminated"))["exitCode"])

    @property
    def state(self) -> Object:
        pod = self.namespace.api.get(self.namespace.path("pods", self.name))
        return dict((pod.get("status", {}).get("containerStatuses") or [{"state": {}}])[0]["state"])

    def says(self, text: str) -> str:
        """Wait until the log has the text, and return the log."""
        return until(lambda: self.log if text in self.log else "")


class Stage:
    """A stage of a compiled pipeline, of which Argo makes one pod for each attempt."""

    def __init__(
        self,
        namespace: Namespace,
        kubelet: Kubelet,
        folder: Path,
        app: AppDef,
        *,
        tracked: bool = True,
        config: Object | None = None,
        **options: Any,
    ) -> None:
        self.namespace = namespace
        self.kubelet = kubelet
        self.folder = folder
        self.base = folder / "results"
        self.config = config
        self.environ: dict[str, str] = {}
        self.account = PIPELINE_RUNNER
        self._compiled = CompiledStage(app, self.base, tracked=tracked, **options)
        self.component = self._compiled.component
        self.attempts = 0
        # Argo owns the pods of a run through its Workflow.
        kind = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
        workflow = namespace.create({**kind, "metadata": {"generateName": "workflow-"}, "spec": {}})
        self.workflow = str(workflow["metadata"]["name"])
        self._owner = {**kind, "name": self.workflow, "uid": workflow["metadata"]["uid"], "controller": True}

    def start(self, *, node: str = NODE) -> Attempt:
        """Start the next attempt."""
        number = self.attempts
        self.attempts += 1
        name = f"workflow-{self.component}-{number}"
        folder = self.folder / name
        argv = self._compiled.container(folder, {}).argv()
        if self.config is not None:
            argv = [word if not word.startswith('{"inputs": {"param') else self._configured(word) for word in argv]
        fields = {**self._compiled.fields, "KFP_POD_NAME": "metadata.name", "KFP_POD_UID": "metadata.uid"}
        env: list[Object] = [
            {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()
        ]
        env += [{"name": name, "value": value} for name, value in self.environ.items()]
        command = [word.replace("$", "$$") for word in argv]
        main = {"name": "main", "image": "any", "command": command, "env": env}
        self.namespace.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": name,
                    "labels": {"pipeline/runid": RUN},
                    "annotations": {"workflows.argoproj.io/node-name": node.format(number)},
                    "ownerReferences": [self._owner],
                },
                "spec": {"restartPolicy": "Never", "serviceAccountName": self.account, "containers": [main]},
            }
        )
        return Attempt(self.namespace, self.kubelet, name, folder)

    def _configured(self, executor_input: str) -> str:
        """Return the executor input with what KFP's driver puts into the input of type TASK_CONFIG."""
        found = json.loads(executor_input)
        found["inputs"]["parameterValues"]["task_config"] = self.config
        return json.dumps(found)
