"""A container engine that speaks Docker's API (Docker or Podman's service): its connection, images and containers."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from torchx_kfp.errors import ContainerEngineError
from torchx_kfp.local.engines.engine import StartError
from torchx_kfp.local.engines.mounts import share
from torchx_kfp.safe_files import make_folder

if TYPE_CHECKING:
    from docker import APIClient

    from torchx_kfp.local.engines.engine import AttemptPlan

#: Labels of all containers.
RUN_LABEL = "torchx-kfp.run"
STAGE_LABEL = "torchx-kfp.stage"
# Seconds to wait for one answer of the engine, which is slow while many containers start.
_TIMEOUT = 120
# Connections that are kept open: each stage uses one for its output and one for requests.
_CONNECTIONS = 64
# Neither Podman's service nor a Docker whose NVIDIA toolkit is a hook reports GPUs.
_NVIDIA_DEVICE = "/dev/nvidiactl"


class Host:
    """The engine that runs the containers of one run. ``close`` removes those that are left."""

    def __init__(self, client: APIClient, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        info = client.info()
        #: The engine rejects a container that asks for more CPUs.
        self.cpus = int(info.get("NCPU") or 0)
        #: Whether a container's root is a different user on this machine, who needs access to the mounts.
        self.remaps_users = "name=userns" in str(info.get("SecurityOptions"))
        #: Whether a container's root is this user, as in rootless engines.
        self._is_rootless = "rootless" in str(info.get("SecurityOptions"))
        #: Whether the engine has an init that forwards signals; without one, the application is a container's first
        #: process.
        self.has_init = True
        self.has_gpus = has_gpus(client)
        self._images = _Images(client)

    def image_id(self, image: str) -> str:
        """Return the id of the image that has this name now: an image that is rebuilt gets another id."""
        from docker.errors import DockerException

        try:
            return str(self.client.inspect_image(image)["Id"])
        except (DockerException, OSError, KeyError):
            return ""

    def provide_image(self, puller: Puller, image: str, policy: str) -> dict[str, Any]:
        """Return the engine's description of the image, which is pulled if it is missing.

        Raises:
            StartError: the image cannot be provided, or the stage was ended meanwhile.
        """
        return self._images.provide(puller, image, policy)

    def share_folders(self, attempt: AttemptPlan, image_user: str) -> None:
        """Let the container's user and this process's user write to the same folders, unless both are root.

        Raises:
            UnfitFileError: another container has replaced a folder with something else.
        """
        plan = attempt.container
        assert plan is not None
        user = (plan.user or image_user).partition(":")[0]
        is_root = user in ("", "0", "root")
        for folder, root in plan.shared_folders.items():
            # Rootless engines run a container's root as their own user.
            if is_root and (os.geteuid() == 0 or self._is_rootless):
                os.close(make_folder(folder, root))
            else:
                share(folder, root)

    def labels(self, attempt: AttemptPlan) -> dict[str, str]:
        """Return the labels by which the attempt's container can be found."""
        return {RUN_LABEL: self.run_id, STAGE_LABEL: attempt.stage}

    def remove_left(self) -> None:
        """Remove every container of the run, such as those of a runner that was killed."""
        _remove(self.client, self.run_id)

    def close(self) -> None:
        """Remove every container of the run, and close the connection."""
        try:
            self.remove_left()
        finally:
            self.client.close()


class Puller(Protocol):
    """A stage that waits for its image."""

    def say(self, line: str) -> None:
        """Write a line into the stage's log."""

    def wait_for(self, future: Future[None]) -> None:
        """Wait until the future is done, and raise its exception; raise StartError if the stage is ended first."""


class _Images:
    """The engine's images. Each is pulled once, however many stages wait for it."""

    def __init__(self, client: APIClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._pulls: dict[str, Future[None]] = {}

    def provide(self, puller: Puller, image: str, policy: str) -> dict[str, Any]:
        from docker.errors import APIError, ImageNotFound

        found = None
        with contextlib.suppress(ImageNotFound):
            found = self._inspect(image)
        if policy == "Never" and found is None:
            raise StartError(
                f"could not be started: the image {image!r} is not here, and its image pull policy is Never. Build or "
                "pull it"
            )
        if policy == "Always" or found is None:
            try:
                self._pull(puller, image)
                found = self._inspect(image)
            except (APIError, _PullError) as error:
                raise StartError(
                    f"could not be started: the image {image!r} "
                    f"{'is not here and ' if found is None else ''}cannot be pulled: {reason_of(error)}. Build it, or "
                    "correct its name"
                ) from None
        return found

    def _inspect(self, image: str) -> dict[str, Any]:
        answer: dict[str, Any] = self._client.inspect_image(image)
        return answer

    def _pull(self, puller: Puller, image: str) -> None:
        with self._lock:
            pull = self._pulls.get(image)
            is_done = pull is not None and pull.done() and pull.exception() is None
            if not is_done:
                puller.say(f"Pulling the image {image}.")
            if pull is None or (pull.done() and not is_done):
                pull = self._pulls[image] = Future()
                threading.Thread(target=self._fetch, args=(image, pull), name=f"pull {image}", daemon=True).start()
        puller.wait_for(pull)

    def _fetch(self, image: str, pull: Future[None]) -> None:
        from docker.utils import parse_repository_tag

        try:
            repository, tag = parse_repository_tag(image)
            # Without a tag, the engine would pull all tags.
            for event in self._client.pull(repository, tag=tag or "latest", stream=True, decode=True):
                if "error" in event:
                    raise _PullError(event["error"])
        except BaseException as error:
            pull.set_exception(error)
        else:
            pull.set_result(None)


class _PullError(Exception):
    """The engine could not pull an image."""


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
    for where, options in _candidates():
        try:
            _verify_socket(where)
            return docker.APIClient(
                version="auto", timeout=_TIMEOUT, max_pool_size=_CONNECTIONS, num_pools=_CONNECTIONS, **options
            )
        except (docker.errors.DockerException, OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or reason_of(error)
            tried.append(f"- {where}: {reason}")
    raise ContainerEngineError(
        "Stages in containers need an engine that speaks Docker's API, and none answers. Tried:\n"
        + "\n".join(tried)
        + "\nStart Docker, or Podman's service (systemctl --user start podman.socket), or name one with DOCKER_HOST."
    )


def _candidates() -> Iterator[tuple[str, dict[str, Any]]]:
    from docker.utils import kwargs_from_env

    if host := os.environ.get("DOCKER_HOST"):
        yield host, kwargs_from_env()
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    hosts = [
        _context(),
        "unix:///var/run/docker.sock",
        f"unix://{runtime}/docker.sock",
        os.environ.get("CONTAINER_HOST"),
        f"unix://{runtime}/podman/podman.sock",
        "unix:///run/podman/podman.sock",
    ]
    for host in dict.fromkeys(filter(None, hosts)):
        yield host, {"base_url": host}


def _context() -> str | None:
    """Return the address of the engine that ``docker context use`` has chosen."""
    from docker.context import ContextAPI

    try:
        context = ContextAPI.get_current_context()
    except Exception:  # a configuration that the docker command would reject
        return None
    return None if context is None else context.Host


def _verify_socket(where: str) -> None:
    # The client would take longer to fail, with a message that says less.
    if where.startswith("unix://"):
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(where.removeprefix("unix://"))


def has_gpus(client: APIClient) -> bool:
    """Tell whether the engine can give NVIDIA GPUs to containers."""
    return "nvidia" in (client.info().get("Runtimes") or {}) or os.path.exists(_NVIDIA_DEVICE)


def remove_containers(run_id: str) -> int:
    """Remove the containers of this run that a killed runner left, and return their number.

    Raises:
        ContainerEngineError: the package is missing, or no engine answers.
    """
    client = connect()
    try:
        return _remove(client, run_id)
    finally:
        client.close()


def _remove(client: APIClient, run_id: str) -> int:
    from docker.errors import APIError

    found = client.containers(all=True, filters={"label": f"{RUN_LABEL}={run_id}"})
    for container in found:
        with contextlib.suppress(APIError):  # it is being removed already
            client.remove_container(container["Id"], force=True, v=True)
    return len(found)
