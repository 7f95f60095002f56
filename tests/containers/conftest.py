"""A Docker engine for tests. Without one, they are skipped, or fail if ``TORCHX_KFP_REQUIRE_DOCKER=1``."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import hashlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from tests.containers.images import (
    BUSYBOX_IMAGE,
    HOST_IMAGE,
    OWN_CHANGES,
    OWN_IMAGE,
    UnusableHostError,
    busybox_root,
    host_changes,
    host_root,
)
from tests.skipped import missing


def _connect() -> docker.DockerClient:
    reason = ""
    with warnings.catch_warnings():
        # A client that does not find an engine leaves its socket open until the garbage collector closes it.
        warnings.simplefilter("ignore", ResourceWarning)
        try:
            return docker.from_env(timeout=120)
        except docker.errors.DockerException as error:
            where = os.environ.get("DOCKER_HOST") or "the default socket"
            reason = f"no Docker engine answers at {where}: {error}"
        gc.collect()
    return missing("docker", reason)


@pytest.fixture(scope="session")
def docker_client() -> Iterator[docker.DockerClient]:
    """A client of this machine's Docker engine."""
    client = _connect()
    with_images = [
        (BUSYBOX_IMAGE, busybox_root, []),
        (HOST_IMAGE, host_root, host_changes()),
        (OWN_IMAGE, busybox_root, OWN_CHANGES),
    ]
    try:
        with _alone(client):
            for name, root, changes in with_images:
                # Do not build it twice: an image that is built again has another id, by which the cache identifies it.
                if not client.images.list(name):
                    repository, tag = name.split(":")
                    client.api.import_image_from_data(root(), repository, tag, changes)
        yield client
    except UnusableHostError as error:
        missing("docker", str(error))
    finally:
        client.close()


@contextlib.contextmanager
def _alone(client: docker.DockerClient) -> Iterator[None]:
    """Wait for other processes that do this with the same engine, wherever their temporary files are."""
    engine = hashlib.sha256(str(client.info()["ID"]).encode()).hexdigest()[:16]
    with Path("/tmp", f"torchx-kfp-tests-{engine}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
