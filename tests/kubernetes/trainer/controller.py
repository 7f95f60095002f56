"""Starts Kubeflow Trainer's controller beside a control plane with JobSet's, with its webhooks and two runtimes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kubernetes.api import Api, Object
from tests.kubernetes.jobset.controller import webhook
from tests.kubernetes.waiting import until_it_answers

if TYPE_CHECKING:
    from tests.kubernetes.control_plane import Processes

NAME = "trainer-controller-manager"
_GROUP, _VERSION = "trainer.kubeflow.org", "v1alpha1"
#: Webhooks by kind: those of ``manifests/base/webhook`` of Trainer 2.2.1, all for creations and updates.
WEBHOOKS = {
    "MutatingWebhookConfiguration": {"mutate": ["trainjob"]},
    "ValidatingWebhookConfiguration": {"validate": ["trainjob", "trainingruntime", "clustertrainingruntime"]},
}


def runtime(name: str, policy: Object) -> Object:
    """Return a runtime: with ``torch``, that of ``manifests/base/runtimes/torch_distributed.yaml``."""
    pod = {"spec": {"containers": [{"name": "node", "image": "pytorch/pytorch:2.10.0-cuda12.8-cudnn9-runtime"}]}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}}
    return {
        "apiVersion": f"{_GROUP}/{_VERSION}",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": {"replicatedJobs": [node]}}},
    }


def start(processes: Processes, api: Api, program: Path, port: int) -> None:
    """Start the controller; its webhooks are called at this port of 127.0.0.1."""
    folder = processes.folder
    # It has no option for the place of its certificate.
    certificates = folder / "trainer" / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    for end in ("crt", "key"):
        (certificates / f"tls.{end}").write_bytes((folder / f"server.{end}").read_bytes())
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    (folder / "trainer.json").write_text(json.dumps(configuration))
    environ = {"TMPDIR": str(folder / "trainer")}
    processes.start(program, environ, config=folder / "trainer.json", kubeconfig=folder / "kubeconfig")
    for kind, hooks in WEBHOOKS.items():
        api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": f"trainer-{kind.lower()}"},
                "webhooks": [
                    webhook(
                        f"{verb}.{resource}.trainer.tests",
                        f"https://127.0.0.1:{port}/{verb}-trainer-kubeflow-org-v1alpha1-{resource}",
                        (_GROUP, _VERSION, f"{resource}s"),
                        ["CREATE", "UPDATE"],
                        folder / "ca.crt",
                    )
                    for verb, resources in hooks.items()
                    for resource in resources
                ],
            }
        )


def wait(processes: Processes, api: Api, seconds: float) -> None:
    """Wait until the webhooks answer, and create the runtimes."""
    for made in (runtime("torch-distributed", {"torch": {}}), runtime("plain", {})):
        until_it_answers(lambda made=made: api.create(made), processes.check, "Trainer's webhook", seconds)
        name = made["metadata"]["name"]
        small = {
            "apiVersion": f"{_GROUP}/{_VERSION}",
            "kind": "TrainJob",
            "metadata": {"name": "small", "namespace": "default"},
            "spec": {"runtimeRef": {"name": name}},
        }
        # The controller may not know the runtime yet.
        until_it_answers(
            lambda small=small: api.create(small, dryRun="All"), processes.check, f"the runtime {name}", seconds
        )
