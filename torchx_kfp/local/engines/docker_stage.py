"""Stages as containers: each container's life, from pulling its image to its removal."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from torchx_kfp.local.engines.docker import Host, reason_of
from torchx_kfp.local.engines.engine import RunningStage, StartError, missing_module
from torchx_kfp.runs.result import describe_exit
from torchx_kfp.safe_files import UnfitFileError

if TYPE_CHECKING:
    from torchx_kfp.local.engines.containers import ContainerPlan
    from torchx_kfp.local.engines.engine import AttemptPlan

# One of these names is in the errors of Docker and Podman if the init is not installed.
_INITS = ("docker-init", "catatonit", "container-init")
_MEGABYTE = 10**6
#: A shell's exit code for a missing command, and a list of the commands that a stage starts with.
_NOT_FOUND = 127
_NEEDS = "an image needs sh, env and mkdir, and the commands that the application calls"
# Engines do not create containers with less. On KFP, a stage with less memory would not start, either.
_LEAST_MEMORY = 6 * 1024**2


class DockerEngine(Host):
    """Runs attempts as containers."""

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Return the attempt's container. ``wait`` creates and starts it, since its image may have to be pulled."""
        return ContainerStage(self, attempt)


class ContainerStage:
    """A container that ``wait`` creates, starts, and removes when it has ended. ``pipe`` is its output."""

    def __init__(self, host: Host, attempt: AttemptPlan) -> None:
        assert attempt.container is not None
        self._host = host
        self._client = host.client
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
            image = self._host.provide_image(self, self._plan.image, self._plan.pull)
            self._host.share_folders(self._attempt, (image.get("Config") or {}).get("User") or "")
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
        if code == _NOT_FOUND:
            return f"{describe_exit(code)}: its image lacks a command; {_NEEDS}"
        if self._out_of_memory:
            return f"{describe_exit(code)}: it was out of memory{limited}"
        if code == -signal.SIGKILL and limit and not self._stopped:
            # Podman does not always notice.
            return f"{describe_exit(code)}: perhaps it was out of memory{limited}"
        if module := missing_module(last_line):
            return f"{describe_exit(code)}: its image has no Python module {module!r}"
        return describe_exit(code)

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
            has_init = self._host.has_init
            try:
                return self._start(has_init)
            except APIError as error:
                if has_init and any(name in str(error) for name in _INITS):
                    self._host.has_init = False
                    continue
                code = _shell_code(error)
                why = f"{reason_of(error)}; {_NEEDS}" if code == _NOT_FOUND else reason_of(error)
                raise StartError(f"could not be started in the image {self._plan.image!r}: {why}", code) from None

    def _start(self, has_init: bool) -> str:
        plan = self._plan
        identifier: str = self._client.create_container(
            plan.image,
            entrypoint=list(plan.command) or None,
            command=list(plan.args) or None,
            environment=dict(plan.environ),
            user=plan.user,
            labels=self._host.labels(self._attempt),
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
            # No timeout: a container may close its output and go on.
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
            cpus = min(limits.cpus, self._host.cpus) if self._host.cpus else limits.cpus
            options["nano_cpus"] = int(cpus * 10**9)
        if limits.memory:
            # The limit with swap is the same, since Kubernetes has no swap.
            options["mem_limit"] = options["memswap_limit"] = max(limits.memory, _LEAST_MEMORY)
        if limits.accelerators and self._host.has_gpus:
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
        # If the reader is gone, the container goes on without a log.
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


def _shell_code(error: Exception) -> int | None:
    """Return a shell's exit code for a command that cannot be started."""
    text = str(error)
    if "not found" in text or "no such file" in text:
        return _NOT_FOUND
    return 126 if "permission denied" in text else None


def _signal_or_code(code: int) -> int:
    """Return the negative number of a signal, which engines report as shells do, or the exit code."""
    try:
        return -signal.Signals(code - 128)
    except ValueError:
        return code
