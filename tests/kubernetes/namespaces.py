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
class ServiceAccountFolder:
    """The files in a pod's ``/var/run/secrets/kubernetes.io/serviceaccount``, and its environment."""

    path: Path
    url: str
    _admin: Api
    _tokens: str

    @property
    def environ(self) -> dict[str, str]:
        """The address of the API server, as a pod gets it."""
        parts = urlsplit(self.url)
        return {"KUBERNETES_SERVICE_HOST": str(parts.hostname), "KUBERNETES_SERVICE_PORT": str(parts.port)}

    @property
    def api(self) -> Api:
        """A client of the service account."""
        return Api(self.url, self.path / "ca.crt", token=self.path / "token")

    def rotate(self) -> str:
        """Put a new token into the folder, and return it."""
        token = str(self._admin.post(self._tokens, _token_request())["status"]["token"])
        # Like the kubelet: never a token that is half written.
        partial = self.path / "..token"
        partial.write_text(token)
        partial.rename(self.path / "token")
        return token


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

    def validate(self, manifest: Object, api: Api | None = None) -> Object:
        """Return the object that the API server would make of a manifest; `ApiError` says why it refuses."""
        return dict((api or self.api).create(manifest, self.name, dryRun="All", fieldValidation="Strict"))

    def service_account_folder(
        self, folder: Path, account: str = PIPELINE_RUNNER, url: str = "", authority: Path | None = None
    ) -> ServiceAccountFolder:
        """Write the token, certificate and namespace of a service account to a folder, as a pod gets them.

        The URL and the certificate are those of the API server, unless others are given, such as a proxy's.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "ca.crt").write_bytes((authority or self.cluster.authority.file).read_bytes())
        (folder / "namespace").write_text(self.name)
        tokens = self.path("serviceaccounts", f"{account}/token")
        written = ServiceAccountFolder(folder, url or self.cluster.url, self.api, tokens)
        written.rotate()
        return written


def _token_request() -> Object:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}


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


def bind(namespace: Namespace, role: str, account: str = PIPELINE_RUNNER) -> None:
    """Give a service account the rights of a Role; return when the API server knows."""
    namespace.create(
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": f"{account}-{role}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace.name}],
        }
    )
    rules = namespace.api.get(namespace.path("rbac.authorization.k8s.io/v1/roles", role))["rules"]
    while not _may(namespace, account, rules[-1]):
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
