"""A namespace for a test, with the service account that KFP's pipelines have."""

from __future__ import annotations

import contextlib
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import yaml

from tests.kubernetes.api import Api, ApiError, Object
from tests.kubernetes.control_plane import ControlPlane

#: The service account of KFP's pipelines, and the name of its Role.
PIPELINE_RUNNER = "pipeline-runner"
ROLE = Path(__file__).parent / "pipeline-runner-role.yaml"


@dataclass(frozen=True)
class Namespace:
    """A namespace in which ``pipeline-runner`` has KFP's Role, and clients."""

    name: str
    cluster: ControlPlane
    api: Api

    def path(self, resource: str, name: str = "") -> str:
        """Return the path of a collection such as ``pods``, ``batch/v1/jobs``, or of an object in it."""
        group, _, resource = resource.rpartition("/")
        root = f"/apis/{group}" if group else "/api/v1"
        return f"{root}/namespaces/{self.name}/{resource}{'/' if name else ''}{name}"

    def list(self, resource: str, **query: str) -> list[Object]:
        """Return the objects of a collection."""
        return list(self.api.get(self.path(resource), **query)["items"])

    def create(self, manifest: Object) -> Object:
        """Create an object in the namespace, as the administrator."""
        return dict(self.api.create(manifest, self.name))

    def validate(self, manifest: Object) -> Object:
        """Return the object that the API server would make of a manifest; `ApiError` says why it refuses."""
        return dict(self.api.create(manifest, self.name, dryRun="All", fieldValidation="Strict"))

    def write_account(self, folder: Path) -> dict[str, str]:
        """Write what a pod gets of its account to a folder, and return the address of the API server as variables."""
        folder.mkdir(parents=True)
        (folder / "ca.crt").write_bytes(self.cluster.authority.file.read_bytes())
        (folder / "namespace").write_text(self.name)
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        made = self.api.post(self.path("serviceaccounts", f"{PIPELINE_RUNNER}/token"), request)
        (folder / "token").write_text(made["status"]["token"])
        parts = urlsplit(self.cluster.url)
        return {"KUBERNETES_SERVICE_HOST": str(parts.hostname), "KUBERNETES_SERVICE_PORT": str(parts.port)}


def new_namespace(cluster: ControlPlane, name: str = "") -> Namespace:
    """Create a namespace. It stays: to delete all that is in it costs the API server more than a test does."""
    api = cluster.api
    name = name or f"test-{uuid.uuid4().hex[:10]}"
    namespace = Namespace(name, cluster, api)
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    # A controller would make this one in a moment, and until then pods are refused.
    for account in ("default", PIPELINE_RUNNER):
        with contextlib.suppress(ApiError):
            namespace.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}})
    namespace.create(yaml.safe_load(ROLE.read_text()))
    bind(namespace, PIPELINE_RUNNER)
    return namespace


def bind(namespace: Namespace, role: str) -> None:
    """Give the service account of pipelines the rights of a Role; return when the API server knows."""
    namespace.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{PIPELINE_RUNNER}-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": PIPELINE_RUNNER, "namespace": namespace.name}],
        }
    )
    rules = namespace.api.get(namespace.path("rbac.authorization.k8s.io/v1/roles", role))["rules"]
    while not _may(namespace, PIPELINE_RUNNER, rules[-1]):
        time.sleep(0.02)


def _may(namespace: Namespace, account: str, rule: Object) -> bool:
    attributes = {
        "namespace": namespace.name,
        "verb": rule["verbs"][0],
        "group": rule["apiGroups"][0],
        "resource": rule["resources"][0].partition("/")[0],
        "subresource": rule["resources"][0].partition("/")[2],
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace.name}:{account}",
            "resourceAttributes": attributes,
        },
    }
    return bool(namespace.api.create(review)["status"]["allowed"])
