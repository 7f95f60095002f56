"""A Kubernetes control plane. Without its programs, tests are skipped, or fail if ``TORCHX_KFP_REQUIRE_CLUSTER=1``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.control_plane import BUILT, ControlPlane, find_controllers, find_programs, shared
from tests.kubernetes.kubelet import Kubelet, why_it_cannot_run
from tests.kubernetes.namespaces import Namespace, new_namespace
from tests.skipped import missing


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """The control plane that all processes of this test run share."""
    programs = find_programs()
    if isinstance(programs, str):
        missing("cluster", programs)
    base = tmp_path_factory.getbasetemp()
    # The temporary folder of each process that runs tests is in that of the run.
    with shared((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cluster", programs) as running:
        yield running


@pytest.fixture
def namespace(cluster: ControlPlane) -> Namespace:
    """A new namespace in which ``pipeline-runner`` may do what KFP lets it do."""
    return new_namespace(cluster)


@pytest.fixture
def kubelet(namespace: Namespace, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> Iterator[Kubelet]:
    """A node that runs the pods of the namespace, which start in the test's folder."""
    folder = tmp_path_factory.mktemp("kubelet")
    if reason := why_it_cannot_run(folder):
        lacks = "processes cannot have their own mounts and host names here, as root or in user namespaces"
        missing("cluster", f"{lacks}: {reason}")
    node = Kubelet(namespace, folder, tmp_path)
    node.start()
    try:
        yield node
    finally:
        node.end()


@pytest.fixture
def controllers(cluster: ControlPlane) -> None:
    """The real controllers of JobSet and Trainer, for all namespaces."""
    if not find_controllers(Path(os.environ.get("KUBEBUILDER_ASSETS", BUILT))):
        way_out = "run the tests with `dev/ci/with-cluster COMMAND`, which builds them"
        missing("cluster", f"The controllers of JobSet and Trainer are not built: {way_out}")
