"""Starts the controllers of JobSet and Kubeflow Trainer beside a control plane, with their webhooks."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kubernetes.api import Api, Object
from tests.kubernetes.waiting import until_it_answers

if TYPE_CHECKING:
    from tests.kubernetes.control_plane import Processes

#: The programs, in the order in which they start.
JOBSET, TRAINER = "jobset", "trainer-controller-manager"
_JOBSETS, _PODS = ("jobset.x-k8s.io", "v1alpha2", "jobsets"), ("", "v1", "pods")
_TRAINER, _VERSION = "trainer.kubeflow.org", "v1alpha1"
#: The path of each webhook, its API group, version and resource, and the operations that it is called for. Those of
#: Trainer 2.2.1 are in its ``manifests/base/webhook``.
WEBHOOKS = {
    JOBSET: [
        ("/mutate-jobset-x-k8s-io-v1alpha2-jobset", _JOBSETS, ["CREATE"]),
        ("/mutate--v1-pod", _PODS, ["CREATE"]),
        ("/validate-jobset-x-k8s-io-v1alpha2-jobset", _JOBSETS, ["CREATE", "UPDATE"]),
        ("/validate--v1-pod", _PODS, ["CREATE"]),
    ],
    TRAINER: [
        (f"/{verb}-trainer-kubeflow-org-v1alpha1-{kind}", (_TRAINER, _VERSION, f"{kind}s"), ["CREATE", "UPDATE"])
        for verb, kind in [
            ("mutate", "trainjob"),
            ("validate", "trainjob"),
            ("validate", "trainingruntime"),
            ("validate", "clustertrainingruntime"),
        ]
    ],
}
#: JobSet's webhooks of pods see only the pods of JobSets.
_OF_JOBSET = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def runtime(name: str, policy: Object) -> Object:
    """Return a runtime: with ``torch``, that of ``manifests/base/runtimes/torch_distributed.yaml``."""
    pod = {"spec": {"containers": [{"name": "node", "image": "pytorch/pytorch:2.10.0-cuda12.8-cudnn9-runtime"}]}}
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    node = {"name": "node", "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}}
    return {
        "apiVersion": f"{_TRAINER}/{_VERSION}",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": name},
        "spec": {"mlPolicy": {"numNodes": 1, **policy}, "template": {"spec": {"replicatedJobs": [node]}}},
    }


def start(processes: Processes, api: Api, program: Path, port: int) -> None:
    """Start a controller; its webhooks are called at this port of 127.0.0.1."""
    folder, name = processes.folder, program.name
    # Where Trainer's looks for its certificate: it has no option for the place.
    certificates = folder / name / "k8s-webhook-server" / "serving-certs"
    certificates.mkdir(parents=True, exist_ok=True)
    for end in ("crt", "key"):
        shutil.copyfile(folder / f"server.{end}", certificates / f"tls.{end}")
    configuration = {
        "apiVersion": f"config.{_JOBSETS[0] if name == JOBSET else _TRAINER}/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement" if name == JOBSET else "certManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, **({"certDir": str(certificates)} if name == JOBSET else {})},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    (folder / f"{name}.json").write_text(json.dumps(configuration))
    environ = {"TMPDIR": str(folder / name)}
    processes.start(program, environ, config=folder / f"{name}.json", kubeconfig=folder / "kubeconfig")
    for verb, configuring in (("mutate", "Mutating"), ("validate", "Validating")):
        api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{configuring}WebhookConfiguration",
                "metadata": {"name": f"{name}-{verb}"},
                "webhooks": [
                    _webhook(f"{verb}.{kind[2]}.{name}.tests", f"https://127.0.0.1:{port}{path}", kind, calls, folder)
                    for path, kind, calls in WEBHOOKS[name]
                    if path.startswith(f"/{verb}-")
                ],
            }
        )


def wait(processes: Processes, api: Api, program: Path, seconds: float) -> None:
    """Wait until a controller's webhooks answer; create Trainer's runtimes."""

    def takes(group: str, version: str, kind: str, spec: Object) -> None:
        small = {"kind": kind, "metadata": {"name": "small", "namespace": "default"}, "spec": spec}
        small["apiVersion"] = f"{group}/{version}"
        until_it_answers(lambda: api.create(small, dryRun="All"), processes.check, f"the webhook of {kind}", seconds)

    if program.name == JOBSET:
        pod = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}}
        takes(*_JOBSETS[:2], "JobSet", {"replicatedJobs": [{"name": "one", "template": {"spec": {"template": pod}}}]})
        return
    for made in (runtime("torch-distributed", {"torch": {}}), runtime("plain", {})):
        until_it_answers(lambda made=made: api.create(made), processes.check, "Trainer's webhook", seconds)
        # The controller may not know the runtime yet.
        takes(_TRAINER, _VERSION, "TrainJob", {"runtimeRef": {"name": made["metadata"]["name"]}})


def _webhook(name: str, url: str, kind: Sequence[str], operations: Sequence[str], folder: Path) -> Object:
    group, version, resource = kind
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": [resource]}
    certificate = base64.b64encode((folder / "ca.crt").read_bytes()).decode()
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": certificate},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        **({"objectSelector": _OF_JOBSET} if resource == "pods" else {}),
    }
