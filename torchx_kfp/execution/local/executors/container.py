"""Stages as containers: each container's life, from pulling its image to its removal."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from torchx_kfp.common.safe_files import UnfitFileError, make_folder
from torchx_kfp.errors import explain
from torchx_kfp.execution.local.executors.engine import MARK_LABEL, RUN_LABEL, Engine, EngineError, finish, start
from torchx_kfp.execution.local.executors.executor import NEEDS, NOT_FOUND, AttemptError, RunningStage, describe_end
from torchx_kfp.execution.local.executors.mounts import share
from torchx_kfp.execution.local.executors.process import start_error
from torchx_kfp.execution.runs.result import describe_exit

if TYPE_CHECKING:
    from torchx_kfp.execution.local.executors.executor import AttemptPlan, ContainerPlan

#: The label of a container with the name of its stage.
STAGE_LABEL = "torchx-kfp.stage"
_MEGABYTE = 10**6
# Engines do not create containers with less. On KFP, a stage with less memory would not start, either.
_LEAST_MEMORY = 6 * 1024**2
# Variables that change what the engine's program does, which a secret must not. Those of SSH are for the ssh that
# Docker starts for an address ssh://, and could name another program of this machine.
_OF_PROGRAM = re.compile(
    r"DOCKER_(HOST|CONTEXT|CONFIG|TLS\w*|CERT_PATH|API_VERSION|CONTENT_TRUST\w*|DEFAULT_PLATFORM|CUSTOM_HEADERS|CLI\w*)"
    r"|CONTAINERS?_(HOST|CONNECTION|SSHKEY|CONF\w*|STORAGE\w*|REGISTRIES\w*)|(PODMAN|BUILDAH|XDG|LD|SSH|_CONTAINERS)_\w+"
    r"|GO(DEBUG|GC|MAXPROCS|TRACEBACK|MEMLIMIT)|SSL_CERT_\w+|STORAGE_\w+|PATH|HOME|TMPDIR|(http|https|no|all)_proxy",
    re.IGNORECASE,
)
# Podman takes a name that ends with a star for all variables of this machine that begin like it.
_NAME = re.compile(r"[\w.-]+")
# Seconds for which a container that is about to start is asked to end.
_ENDING = 10.0


class ContainerExecutor:
    """Runs the attempts of one run as containers. ``close`` removes those that are left."""

    def __init__(self, engine: Engine, run_id: str) -> None:
        self.engine = engine
        self.run_id = run_id
        #: The mark of the run's folder: see ``process.run_mark``.
        self.mark = ""
        self.images = Images(engine)

    def start(self, attempt: AttemptPlan) -> RunningStage:
        """Return the attempt's container. ``wait`` creates and starts it, since its image may have to be pulled."""
        return ContainerStage(self, attempt)

    def image_id(self, image: str) -> str:
        """Return the id of the image that has this name now: an image that is rebuilt gets another id."""
        return str((self.engine.inspect("image", image) or {}).get("Id", ""))

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
            if is_root and (os.geteuid() == 0 or self.engine.is_rootless):
                os.close(make_folder(folder, root))
            else:
                share(folder, root)

    def labels(self, stage: str) -> dict[str, str]:
        """Return the labels of a stage's container."""
        return {RUN_LABEL: self.run_id, MARK_LABEL: self.mark, STAGE_LABEL: stage}

    def close(self) -> None:
        """Remove every container of the run, such as those of a runner that was killed."""
        self.images.close()
        with contextlib.suppress(EngineError):
            self.engine.remove_all(self.run_id, self.mark)


class Images:
    """The engine's images. Each is pulled once, however many stages wait for it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._pulls: dict[str, Future[None]] = {}
        self._processes: list[subprocess.Popen[bytes]] = []

    def provide(self, stage: ContainerStage, image: str, policy: str) -> dict[str, Any]:
        """Return the engine's description of the image, which is pulled if it is missing, while the stage waits.

        Raises:
            AttemptError: the image cannot be provided, or the stage was ended meanwhile.
        """
        found = self._engine.inspect("image", image)
        if policy == "Never" and found is None:
            raise AttemptError(
                f"could not be started: the image {image!r} is not here, and its image pull policy is Never. Build or "
                "pull it"
            )
        if policy == "Always" or found is None:
            missing = "is not here and " if found is None else ""
            try:
                self._pull(stage, image)
            except EngineError as error:
                raise AttemptError(
                    f"could not be started: the image {image!r} {missing}cannot be pulled: {error}. Build it, or "
                    "correct its name"
                ) from None
            found = self._engine.inspect("image", image)
        return found or {}

    def close(self) -> None:
        """End what is still being pulled."""
        with self._lock:
            for process in self._processes:
                process.kill()

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
        try:
            process = start(self._engine.program, "pull", "--quiet", "--", image)
            with self._lock:
                self._processes.append(process)
            finish(process)
        except BaseException as error:
            pull.set_exception(error)
        else:
            pull.set_result(None)


class ContainerStage:
    """A container that ``wait`` creates, starts, and removes when it has ended. ``pipe`` is its output."""

    def __init__(self, executor: ContainerExecutor, attempt: AttemptPlan) -> None:
        assert attempt.container is not None
        self._executor = executor
        self._engine = executor.engine
        self._attempt = attempt
        self._plan: ContainerPlan = attempt.container
        self.pipe, self._write_end = os.pipe()
        self._lock = threading.Lock()
        #: Set when a waiting stage has to check its state.
        self._wake = threading.Event()
        self._stopped = False
        self._container = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._out_of_memory = False

    def wait(self, output_closed: threading.Event) -> int:
        """Run the container to its end, remove it, and return its exit code, negative for a signal.

        Raises:
            AttemptError: it could not be started, or the engine lost it.
        """
        try:
            image = self._executor.images.provide(self, self._attempt.image, self._plan.pull)
            self._executor.share_folders(self._attempt, (image.get("Config") or {}).get("User") or "")
            self._container = self._create()
            with self._lock:
                if self._stopped:
                    raise _ended()
                self._process = self._begin()
            return self._end_of(self._process)
        except UnfitFileError as error:
            raise AttemptError(f"could not be started: {error}") from None
        except OSError as error:
            raise AttemptError(f"was lost: {self._engine.program} cannot be started: {explain(error)}") from None
        finally:
            os.close(self._write_end)
            if self._container:
                self._engine.remove(self._container)

    def terminate(self, grace: float) -> None:
        """Ask the container to end, or prevent its start; the caller kills it if it does not end."""
        self._stop(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the container, or prevent its start."""
        self._stop(signal.SIGKILL)

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
        # If the reader is gone, the container continues without a log.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write_end, f"{line}\n".encode())

    def wait_for(self, future: Future[None]) -> None:
        """Wait until the future is done, and raise its exception; raise AttemptError if the stage is ended first."""
        future.add_done_callback(lambda _: self._wake.set())
        self._wake.wait()
        if self._stopped:
            raise _ended()
        self._wake.clear()
        future.result()

    def _create(self) -> str:
        """Create the container, and return its id."""
        command = self._words()
        # The value of a secret is no word, which other users of this machine could see; all others are public.
        values = self._attempt.environ
        secrets = {name: values[name] for name in self._attempt.secrets if name in values}
        for name in secrets:
            if _OF_PROGRAM.fullmatch(name) or not _NAME.fullmatch(name):
                raise AttemptError(
                    f"could not be started: {self._engine.program} itself would read the variable {name!r}, which the "
                    "stage gets from a secret. Name it differently, or mount the secret as a file"
                )
        variables = [f"--env={name}" if name in secrets else f"--env={name}={value}" for name, value in values.items()]
        words = ["create", *self._options(), *variables]
        words += [f"--entrypoint={command[0]}"] if command else []
        words += ["--", self._attempt.image, *command[1:]]
        if not command:
            words += self._attempt.args
        try:
            return self._engine.ask(*words, environ={**os.environ, **secrets}).split()[-1]
        except EngineError as error:
            raise AttemptError(f"could not be started: the container engine says: {error}") from None
        except (OSError, ValueError) as error:
            raise start_error([self._engine.program, *words], error) from None

    def _words(self) -> Sequence[str]:
        """Return what replaces the image's entrypoint, and its arguments; nothing if the image's own is kept."""
        return [*self._attempt.command, *self._attempt.args] if self._attempt.command else []

    def _begin(self) -> subprocess.Popen[bytes]:
        """Start the container; all of its output is seen, because the program attaches before the start."""
        return subprocess.Popen(
            [self._engine.program, "start", "--attach", self._container],
            stdin=subprocess.DEVNULL,
            stdout=self._write_end,
            stderr=self._write_end,
            start_new_session=True,
        )

    def _end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Wait for the end of the container, and return its exit code, negative for a signal."""
        code = process.wait()
        if code == 0:
            return 0
        state = (self._engine.inspect("container", self._container) or {}).get("State") or {}
        if not state or state.get("Running"):
            raise AttemptError("was lost: the container engine does not know it any more, or has not answered")
        self._out_of_memory = bool(state.get("OOMKilled"))
        why = str(state.get("Error") or "")
        if why and str(state.get("StartedAt", "")).startswith("0001"):
            raise self._not_started(why)
        return _signal_or_code(int(state.get("ExitCode", code)))

    def _not_started(self, why: str) -> AttemptError:
        # A shell's exit code for a command that cannot be started.
        code = 126 if "permission denied" in why else None
        if "not found" in why or "no such file" in why:
            code = NOT_FOUND
        more = f"; {NEEDS}" if code == NOT_FOUND else ""
        return AttemptError(f"could not be started in the image {self._attempt.image!r}: {why}{more}", code)

    def _options(self) -> list[str]:
        plan, limits = self._plan, self._plan.limits
        options = [f"--label={name}={value}" for name, value in self._executor.labels(self._attempt.stage).items()]
        # As with KFP's launcher, the application is not the container's first process, so signals have their usual
        # effect. Without MKNOD, its root cannot create device files in folders of this machine that it writes to. The
        # runner reads the output while the container runs, and keeps it in the run's folder. SELinux blocks mounts
        # unless they are relabelled.
        options += ["--init", "--cap-drop=MKNOD", "--log-driver=none", "--security-opt=label=disable", "--pull=never"]
        if plan.user:
            options.append(f"--user={plan.user}")
        if limits.cpus:
            cpus = min(limits.cpus, self._engine.cpus) if self._engine.cpus else limits.cpus
            options.append(f"--cpus={cpus:.9f}")
        if limits.memory:
            # The limit with swap is the same, since Kubernetes has no swap.
            memory = max(limits.memory, _LEAST_MEMORY)
            options += [f"--memory={memory}b", f"--memory-swap={memory}b"]
        if limits.accelerators and self._engine.has_gpus:
            options.append(f"--gpus={limits.accelerators}")
        if plan.shared_memory is not None:
            options.append(f"--shm-size={plan.shared_memory}b")
        mounts = [
            ("type=bind", f"source={it.source}", f"target={it.target}", *(["readonly"] if it.read_only else []))
            for it in plan.mounts
        ]
        mounts += [
            ("type=tmpfs", f"target={path}", "tmpfs-mode=1777", *([] if size is None else [f"tmpfs-size={size}"]))
            for path, size in plan.memory_folders.items()
        ]
        return [*options, *(f"--mount={_csv(fields)}" for fields in mounts)]

    def _stop(self, number: signal.Signals) -> None:
        with self._lock:
            self._stopped = True
            self._wake.set()
            if self._process is not None:
                threading.Thread(target=self._signal, args=(self._process, number), daemon=True).start()

    def _signal(self, process: subprocess.Popen[bytes], number: signal.Signals) -> None:
        """Signal the container, which may not have begun yet, unless it ends before."""
        deadline = time.monotonic() + _ENDING
        while process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(EngineError, OSError):
                self._engine.ask("kill", f"--signal={number.name}", self._container)
                return
            time.sleep(0.1)


def _csv(fields: Sequence[str]) -> str:
    """Return the fields of a mount as one word: a path may have a comma."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()


def _ended() -> AttemptError:
    return AttemptError("was not started: the run was ended")


def _signal_or_code(code: int) -> int:
    """Return the negative number of a signal, which engines report as shells do, or the exit code."""
    try:
        return -signal.Signals(code - 128)
    except ValueError:
        return code
