"""Connections to a container engine that speaks Docker's API: Docker, or Podman's service."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torchx_kfp.errors import ContainerEngineError

if TYPE_CHECKING:
    from docker import APIClient

#: The label of all containers with the id of their run.
RUN_LABEL = "torchx-kfp.run"
#: The label with the mark of its folder: a copy of the folder has the same id.
MARK_LABEL = "torchx-kfp.folder"
# Seconds to wait for one answer of the engine, which is slow while many containers start.
_TIMEOUT = 120
# Connections that are kept open: each stage uses one for its output and one for requests.
_CONNECTIONS = 64


def reason_of(error: Exception) -> str:
    """Return the engine's own message."""
    text = str(getattr(error, "explanation", None) or error).strip().rstrip(".")
    return " ".join(text.split())


def connect() -> APIClient:
    """Return a client of the first engine that answers, at DOCKER_HOST if that is set, else at the usual sockets.

    Raises:
        ContainerEngineError: no engine answers; the message lists the addresses that were tried.
    """
    import docker

    tried = []
    for address, options in _candidates():
        try:
            # The client would take longer to fail, with a message that says less.
            if address.startswith("unix://"):
                with socket.socket(socket.AF_UNIX) as probe:
                    probe.connect(address.removeprefix("unix://"))
            return docker.APIClient(
                version="auto", timeout=_TIMEOUT, max_pool_size=_CONNECTIONS, num_pools=_CONNECTIONS, **options
            )
        except (docker.errors.DockerException, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or reason_of(error)
            tried.append(f"- {address}: {reason}")
    raise ContainerEngineError(
        "Stages in containers need an engine that speaks Docker's API, and none answers. Tried:\n"
        + "\n".join(tried)
        + "\nStart Docker, or Podman's service (systemctl --user start podman.socket), or name one with DOCKER_HOST."
    )


def _candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    from docker.context import ContextAPI
    from docker.utils import kwargs_from_env

    if host := os.environ.get("DOCKER_HOST"):
        yield host, kwargs_from_env()
        return
    try:
        context = ContextAPI.get_current_context()  # chosen by `docker context use`
    except Exception:  # a configuration that the docker command would reject
        context = None
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    hosts = [
        context.Host if context is not None else None,
        "unix:///var/run/docker.sock",
        f"unix://{runtime}/docker.sock",
        os.environ.get("CONTAINER_HOST"),
        f"unix://{runtime}/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    ]
    for host in dict.fromkeys(filter(None, hosts)):
        yield host, {"base_url": host}


def remove_containers(run_id: str, mark: str = "") -> int:
    """Remove the containers of this run that a killed runner left, and return their number.

    Args:
        run_id: the run's id.
        mark: the mark of its folder; empty for any folder.

    Raises:
        ContainerEngineError: the package is missing, or no engine answers.
    """
    with contextlib.closing(connect()) as client:
        return remove_all(client, run_id, mark)


def remove_all(client: APIClient, run_id: str, mark: str) -> int:
    """Remove every container of the run, and return their number."""
    from docker.errors import APIError

    labels = [f"{RUN_LABEL}={run_id}", *([f"{MARK_LABEL}={mark}"] if mark else [])]
    found = client.containers(all=True, filters={"label": labels})
    for container in found:
        with contextlib.suppress(APIError):  # it is being removed already
            client.remove_container(container["Id"], force=True, v=True)
    return len(found)
