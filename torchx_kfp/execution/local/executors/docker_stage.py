"""Stages as containers: each container's life, from pulling its image to its removal."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.safe_files import UnfitFileError, make_folder
from torchx_kfp.execution.local.executors.docker import MARK_LABEL, RUN_LABEL, reason_of, remove_all
from torchx_kfp.execution.local.executors.executor import NEEDS, NOT_FOUND, RunningStage, StartError, describe_end
from torchx_kfp.execution.local.executors.mounts import share
from torchx_kfp.execution.runs.result import describe_exit

if TYPE_CHECKING:
    from docker import APIClient

    from torchx_kfp.execution.local.executors.executor import AttemptPlan, ContainerPlan

#: The label of a container with the name of its stage.
STAGE_LABEL = "torchx-kfp.stage"
# Neither Podman's service nor a Docker whose NVIDIA toolkit is a hook reports GPUs.
_NVIDIA_DEVICE = "/dev/nvidiactl"
# One of these names is in the errors of Docker and Podman if the init is not installed.
_INITS = ("docker-init", "catatonit", "container-init")
_MEGABYTE = 10**6
# Engines do not create containers with less. On KFP, a stage with less memory would not start, either.
_LEAST_MEMORY = 6 * 1024**2


class DockerExecutor:
    """Runs the attempts of one run as containers. ``close`` removes those that are left."""

    def __init__(self, client: APIClient, run_id: str) -> None:
        self.client = client
        self.run_id = run_id
        #: The mark of the run's folder: see ``process.run_mark``.
        self.mark = ""
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
        #: Whether it can give NVIDIA GPUs to containers.
        self.has_gpus = "nvidia" in (info.get("Runtimes") or {}) or os.path.exists(_NVIDIA_DEVICE)
        self.images = Images(client)

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Return the attempt's container. ``wait`` creates and starts it, since its image may have to be pulled."""
        return ContainerStage(self, attempt)

    def image_id(self, image: str) -> str:
        """Return the id of the image that has this name now: an image that is rebuilt gets another id."""
        from docker.errors import DockerException

        try:
            return str(self.client.inspect_image(image)["Id"])
        except (DockerException, OSError, KeyError):
            return ""

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

    def labels(self, stage: str) -> dict[str, str]:
        """Return the labels of a stage's container."""
        return {RUN_LABEL: self.run_id, MARK_LABEL: self.mark, STAGE_LABEL: stage}

    def remove_left(self) -> None:
        """Remove every container of the run, such as those of a runner that was killed."""
        remove_all(self.client, self.run_id, self.mark)

    def close(self) -> None:
        """Remove every container of the run, and close the connection."""
        try:
            self.remove_left()
        finally:
            self.client.close()


class Images:
    """The engine's images. Each is pulled once, however many stages wait for it."""

    def __init__(self, client: APIClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._pulls: dict[str, Future[None]] = {}

    def provide(self, stage: ContainerStage, image: str, policy: str) -> dict[str, Any]:
        """Return the engine's description of the image, which is pulled if it is missing, while the stage waits.

        Raises:
            StartError: the image cannot be provided, or the stage was ended meanwhile.
        """
        from docker.errors import APIError, ImageNotFound

        found: dict[str, Any] | None = None
        with contextlib.suppress(ImageNotFound):
            found = self._client.inspect_image(image)
        if policy == "Never" and found is None:
            raise StartError(
                f"could not be started: the image {image!r} is not here, and its image pull policy is Never. Build or "
                "pull it"
            )
        if policy == "Always" or found is None:
            try:
                self._pull(stage, image)
                return dict(self._client.inspect_image(image))
            except (APIError, _PullError) as error:
                raise StartError(
                    f"could not be started: the image {image!r} "
                    f"{'is not here and ' if found is None else ''}cannot be pulled: {reason_of(error)}. Build it, or "
                    "correct its name"
                ) from None
        return found

    def _pull(self, stage: ContainerStage, image: str) -> None:
        with self._lock:
            pull = self._pulls.get(image)
            is_done = pull is not None and pull.done() and pull.exception() is None
            if not is_done:
                stage.say(f"Pulling the image {image}.")
            if pull is None or (pull.done() and not is_done):
                pull = self._pulls[image] = Future()
                threading.Thread(target=self._fetch, args=(image, pull), name=f"pull {image}", daemon=True).start()
        stage.wait_for(pull)

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


class ContainerStage:
    """A container that ``wait`` creates, starts, and removes when it has ended. ``pipe`` is its output."""

    def __init__(self, executor: DockerExecutor, attempt: AttemptPlan) -> None:
        assert attempt.container is not None
        self._executor = executor
        self._client = executor.client
        self._attempt = attempt
        self._plan: ContainerPlan = attempt.container
        self.pipe, self._write_end = os.pipe()
        self._lock = threading.Lock()
        #: Set when a waiting stage has to check its state.
        self._wake = threading.Event()
        self._stopped = False
        self._container: str | None = None
        self._out_of_memory = False
        self._output: Any = None

    def wait(self, output_closed: threading.Event) -> int:
        """Run the container to its end, remove it, and return its exit code, negative for a signal.

        Raises:
            StartError: it could not be started, or the engine lost it.
        """
        from docker.errors import DockerException

        identifier = None
        try:
            image = self._executor.images.provide(self, self._attempt.image, self._plan.pull)
            self._executor.share_folders(self._attempt, (image.get("Config") or {}).get("User") or "")
            identifier = self._launch()
            return self._follow(identifier)
        except UnfitFileError as error:
            raise StartError(f"could not be started: {error}") from None
        except (DockerException, OSError) as error:
            what = "could not be started" if identifier is None else "was lost"
            raise StartError(f"{what}: the container engine says: {reason_of(error)}") from None
        finally:
            os.close(self._write_end)

    def terminate(self, grace: float) -> None:
        """Ask the container to end, or prevent its start; the caller kills it if it does not end."""
        self._end("SIGTERM")

    def kill(self) -> None:
        """Kill the container, or prevent its start."""
        self._end("SIGKILL")

    def describe(self, code: int, last_line: str) -> str:
        """Describe how a container with this exit code, and this last line of its log, ended."""
        limit = self._plan.limits.memory
        limited = f" (its limit is {limit / _MEGABYTE:.0f} MB)" if limit else ""
        if self._out_of_memory:
            return f"{describe_exit(code)}: it was out of memory{limited}"
        if code == -signal.SIGKILL and limit and not self._stopped:
            # Podman does not always notice.
            return f"{describe_exit(code)}: perhaps it was out of memory{limited}"
        return describe_end(code, last_line, here=False)

    def say(self, line: str) -> None:
        """Write a line into the stage's log."""
        self._write(f"{line}\n".encode())

    def wait_for(self, future: Future[None]) -> None:
        """Wait until the future is done, and raise its exception; raise StartError if the stage is ended first."""
        future.add_done_callback(lambda _: self._wake.set())
        self._wake.wait()
        if self._stopped:
            raise _ended()
        self._wake.clear()
        future.result()

    def _launch(self) -> str:
        """Create and start the container, without an init if the engine has none, and return its id."""
        from docker.errors import APIError

        while True:
            has_init = self._executor.has_init
            try:
                return self._start(has_init)
            except APIError as error:
                if has_init and any(name in str(error) for name in _INITS):
                    self._executor.has_init = False
                    continue
                text = str(error)
                # A shell's exit code for a command that cannot be started.
                code = 126 if "permission denied" in text else None
                if "not found" in text or "no such file" in text:
                    code = NOT_FOUND
                why = f"{reason_of(error)}; {NEEDS}" if code == NOT_FOUND else reason_of(error)
                raise StartError(f"could not be started in the image {self._attempt.image!r}: {why}", code) from None

    def _start(self, has_init: bool) -> str:
        attempt = self._attempt
        identifier: str = self._client.create_container(
            attempt.image,
            entrypoint=list(attempt.command) or None,
            command=list(attempt.args) or None,
            environment=dict(attempt.environ),
            user=self._plan.user,
            labels=self._executor.labels(self._attempt.stage),
            host_config=self._host_config(has_init),
        )["Id"]
        try:
            # Attach before the start, so that no output is missed, however quickly the container ends.
            self._output = self._client.attach(identifier, stdout=True, stderr=True, stream=True)
            with self._lock:
                if self._stopped:
                    raise _ended()
                self._client.start(identifier)
                self._container = identifier
        except BaseException:
            if self._output is not None:
                self._close_output()
            self._remove(identifier)
            raise
        return identifier

    def _follow(self, identifier: str) -> int:
        try:
            for data in self._output:
                self._write(data)
            # No timeout: a container may close its output and continue.
            code = int(self._client.wait(identifier, timeout=None)["StatusCode"])
            if code != 0:
                state = self._client.inspect_container(identifier)["State"]
                self._out_of_memory = bool(state.get("OOMKilled"))
        finally:
            with self._lock:
                self._container = None
            self._close_output()
            self._remove(identifier)
        return _signal_or_code(code)

    def _host_config(self, has_init: bool) -> Any:
        from docker.types import DeviceRequest, Mount

        plan, limits = self._plan, self._plan.limits
        options: dict[str, Any] = {}
        if limits.cpus:
            cpus = min(limits.cpus, self._executor.cpus) if self._executor.cpus else limits.cpus
            options["nano_cpus"] = int(cpus * 10**9)
        if limits.memory:
            # The limit with swap is the same, since Kubernetes has no swap.
            options["mem_limit"] = options["memswap_limit"] = max(limits.memory, _LEAST_MEMORY)
        if limits.accelerators and self._executor.has_gpus:
            options["device_requests"] = [DeviceRequest(count=limits.accelerators, capabilities=[["gpu"]])]
        mounts = [Mount(mount.target, mount.source, type="bind", read_only=mount.read_only) for mount in plan.mounts]
        mounts += [
            Mount(path, None, type="tmpfs", tmpfs_size=size, tmpfs_mode=0o1777)
            for path, size in plan.memory_folders.items()
        ]
        return self._client.create_host_config(
            mounts=mounts,
            shm_size=plan.shared_memory,
            # As with KFP's launcher, the application is then not the container's first process, so signals have their
            # usual effect.
            init=has_init or None,
            # Otherwise, its root could create device files in folders of this machine that it writes to.
            cap_drop=["MKNOD"],
            # The runner reads the output while the container runs, and keeps it in the run's folder.
            log_config={"Type": "none"},
            # SELinux blocks mounts unless they are relabelled.
            security_opt=["label=disable"],
            **options,
        )

    def _end(self, name: str) -> None:
        from docker.errors import DockerException

        with self._lock:
            self._stopped = True
            self._wake.set()
            if self._container is not None:
                # The container, or the engine, may have ended.
                with contextlib.suppress(DockerException, OSError):
                    self._client.kill(self._container, name)

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        # If the reader is gone, the container continues without a log.
        with contextlib.suppress(BrokenPipeError):
            while rest:
                rest = rest[os.write(self._write_end, rest) :]

    def _close_output(self) -> None:
        # The connection now belongs to the container, not to a pool. The stream's own ``close`` fails if the engine
        # closed the connection first.
        self._output._response.close()

    def _remove(self, identifier: str) -> None:
        from docker.errors import DockerException

        # The engine removes it at the end of the run if this fails.
        with contextlib.suppress(DockerException, OSError):
            self._client.remove_container(identifier, force=True, v=True)


def _ended() -> StartError:
    return StartError("was not started: the run was ended")


def _signal_or_code(code: int) -> int:
    """Return the negative number of a signal, which engines report as shells do, or the exit code."""
    try:
        return -signal.Signals(code - 128)
    except ValueError:
        return code
