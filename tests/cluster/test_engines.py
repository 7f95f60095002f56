"""The kinds of JobSet and Volcano are installed in the control plane."""

from __future__ import annotations

import pytest

from tests.cluster.api import ApiError, Object
from tests.cluster.manifests import container
from tests.cluster.namespaces import Namespace
from tests.facts import says


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


def volcano_job(name: str, *tasks: tuple[str, Object, int], **spec: object) -> Object:
    """Return a Volcano Job with tasks of some replicas."""
    manifests = [
        {"name": task, "replicas": count, "template": {"spec": {"restartPolicy": "Never", "containers": [each]}}}
        for task, each, count in tasks
    ]
    kind = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    specification = {"minAvailable": sum(count for _, _, count in tasks), "schedulerName": "volcano"}
    return {**kind, "metadata": {"name": name}, "spec": {**specification, "tasks": manifests, **spec}}


def test_a_jobset_is_checked_against_its_rules(namespace: Namespace) -> None:
    valid = jobset("training", ("trainer", container("true"), 2))
    assert namespace.validate(valid)["spec"]["replicatedJobs"][0]["name"] == "trainer"
    with pytest.raises(ApiError, match=says('unknown field "spec.suspended"')):
        namespace.validate({**valid, "spec": {**valid["spec"], "suspended": True}})
    # A rule in CEL.
    waiting = jobset("training", ("reader", container("true"), 1), ("trainer", container("true"), 2))
    waiting["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    waiting["spec"]["replicatedJobs"][1]["dependsOn"] = [{"name": "reader", "status": "Complete"}]
    with pytest.raises(ApiError, match=says("StartupPolicy and DependsOn APIs are mutually exclusive")) as refused:
        namespace.validate(waiting)
    assert refused.value.status == 422


def test_a_volcano_job_is_checked_against_its_schema(namespace: Namespace) -> None:
    valid = volcano_job("training", ("trainer", container("true"), 2))
    assert namespace.validate(valid)["spec"]["minAvailable"] == 2
    with pytest.raises(ApiError, match=says('unknown field "spec.minAvailabel"')):
        namespace.validate({**valid, "spec": {**valid["spec"], "minAvailabel": 1}})
