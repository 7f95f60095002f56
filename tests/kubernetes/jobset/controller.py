"""Starts JobSet's controller beside a control plane, with its webhooks."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.kubernetes.api import Api, Object
from tests.kubernetes.waiting import until_it_answers

if TYPE_CHECKING:
    from tests.kubernetes.control_plane import Processes

#: Webhooks by kind, with the operations that each is called for. Those of pods see only the pods of JobSets.
WEBHOOKS = {
    "MutatingWebhookConfiguration": {
        "/mutate-jobset-x-k8s-io-v1alpha2-jobset": ("jobsets", ["CREATE"]),
        "/mutate--v1-pod": ("pods", ["CREATE"]),
    },
    "ValidatingWebhookConfiguration": {
        "/validate-jobset-x-k8s-io-v1alpha2-jobset": ("jobsets", ["CREATE", "UPDATE"]),
        "/validate--v1-pod": ("pods", ["CREATE"]),
    },
}
#: A JobSet that the API server accepts once the webhooks answer.
_SMALL: Object = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "small", "namespace": "default"},
    "spec": {
        "replicatedJobs": [
            {
                "name": "one",
                "template": {
                    "spec": {
                        "template": {
                            "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "any"}]}
                        }
                    }
                },
            }
        ]
    },
}
_OF_JOBSET = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}


def start(processes: Processes, api: Api, program: Path, port: int) -> None:
    """Start the controller; its webhooks are called at this port of 127.0.0.1."""
    folder = processes.folder
    for end in ("crt", "key"):
        (folder / f"tls.{end}").write_bytes((folder / f"server.{end}").read_bytes())
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    (folder / "jobset.json").write_text(json.dumps(configuration))
    processes.start(program, config=folder / "jobset.json", kubeconfig=folder / "kubeconfig")
    for kind, hooks in WEBHOOKS.items():
        api.create(
            {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": kind,
                "metadata": {"name": f"jobset-{kind.lower()}"},
                "webhooks": [
                    webhook(
                        f"{operations[-1].lower()}.{resource}.jobset.tests",
                        f"https://127.0.0.1:{port}{path}",
                        ("jobset.x-k8s.io", "v1alpha2", resource) if resource == "jobsets" else ("", "v1", resource),
                        operations,
                        folder / "ca.crt",
                        **({"objectSelector": _OF_JOBSET} if resource == "pods" else {}),
                    )
                    for path, (resource, operations) in hooks.items()
                ],
            }
        )


def wait(processes: Processes, api: Api, seconds: float) -> None:
    """Wait until the webhooks answer."""
    until_it_answers(lambda: api.create(_SMALL, dryRun="All"), processes.check, "JobSet's webhook", seconds)


def webhook(
    name: str, url: str, kind: tuple[str, str, str], operations: list[str], authority: Path, **more: Object
) -> Object:
    """Return a webhook of a controller: ``kind`` has the API group, version and resource."""
    group, version, resource = kind
    rule = {"apiGroups": [group], "apiVersions": [version], "operations": operations, "resources": [resource]}
    certificate = base64.b64encode(authority.read_bytes()).decode()
    return {
        "name": name,
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"url": url, "caBundle": certificate},
        "failurePolicy": "Fail",
        "rules": [rule],
        "sideEffects": "None",
        **more,
    }
