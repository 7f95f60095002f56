"""Manifests for the tests of the cluster itself."""

from __future__ import annotations

from typing import Any

from tests.kubernetes.api import Object


def container(*command: str, env: dict[str, Any] | None = None, **fields: Any) -> Object:
    """Return a container; a variable is a text, or what ``valueFrom`` has."""
    variables = [
        {"name": name, **({"value": value} if isinstance(value, str) else {"valueFrom": value})}
        for name, value in (env or {}).items()
    ]
    return {"name": "main", "image": "any", "command": list(command), "env": variables, **fields}


def pod(name: str, *containers: Object, **spec: Any) -> Object:
    specification = {"restartPolicy": "Never", "containers": list(containers), **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": specification}


def job(name: str, *containers: Object, replicas: int = 1, **spec: Any) -> Object:
    """Return an Indexed Job."""
    template = {"spec": {"restartPolicy": "Never", "containers": list(containers)}}
    counts = {"completions": replicas, "parallelism": replicas, "completionMode": "Indexed", "backoffLimit": 0}
    specification = {**counts, "template": template, **spec}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": specification}


def headless_service(name: str, job: str) -> Object:
    """Return a service that names the pods of a Job, before they are ready."""
    selector = {"batch.kubernetes.io/job-name": job}
    specification = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": selector}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": specification}


def secret(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}


def jobset(name: str, *roles: tuple[str, Object, int], **spec: object) -> Object:
    """Return a JobSet with roles of some replicas."""
    replicated = [
        {"name": role, "replicas": 1, "template": {"spec": {"parallelism": count, "completions": count,
         "completionMode": "Indexed", "backoffLimit": 0,
         "template": {"spec": {"restartPolicy": "Never", "containers": [each]}}}}}
        for role, each, count in roles
    ]  # fmt: skip
    kind = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return {**kind, "metadata": {"name": name}, "spec": {"replicatedJobs": replicated, **spec}}
