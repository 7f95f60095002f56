"""Run stages as containers: from pulling the image to removing the container."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torchx_kfp.errors import explain
from torchx_kfp.execution.local.executors.engine import MARK_LABEL, POLL, RUN_LABEL, Engine, EngineError, ask
from torchx_kfp.execution.local.executors.executor import (
    NEEDS,
    NOT_FOUND,
    AttemptError,
    AttemptPlan,
    ContainerPlan,
    RunningStage,
    describe_end,
    is_terminal,
)
from torchx_kfp.execution.local.executors.mounts import (
    Mount,
    copied_mounts,
    tracker_bases,
    unseen_artifact,
)
from torchx_kfp.execution.local.executors.process import start_error
from torchx_kfp.execution.local.kubernetes import memory_folders, pod_user, shared_memory, temporary_folders
from torchx_kfp.execution.local.output import Log
from torchx_kfp.execution.pipeline.placeholders import read_limits
from torchx_kfp.execution.runs.result import describe_exit
from torchx_kfp.tracking.record_tracker import written_folders

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
# What Podman's init, catatonit, says if the image lacks the command.
_NOT_THERE = re.compile(r"\bfailed to exec pid1: No such file")
# Podman takes a name that ends with a star for all variables of this machine that begin like it.
_NAME = re.compile(r"[\w.-]+")
# Seconds for which a container that is about to start is asked to end.
_ENDING = 10.0


class Containers:
    """Run the attempts of one run in containers. ``close`` removes the remaining ones."""

    def __init__(self, engine: Engine, run_id: str, mounts: Sequence[Mount]) -> None:
        """Prepare them.

        Args:
            engine: the engine.
            run_id: the run's id.
            mounts: the user's mounts.
        """
        self.engine = engine
        self.run_id = run_id
        self._mounts = mounts
        #: The mark of the run's folder: see ``process.run_mark``.
        self.mark = ""
        #: The pulled images, why others could not be pulled, and their locks: each is pulled once, however many
        #: stages wait for it.
        self._pulled: set[str] = set()
        self._refused: dict[str, EngineError] = {}
        self._pulling: dict[str, threading.Lock] = defaultdict(threading.Lock)

    def place(self, plan: AttemptPlan, files: Mapping[str, Mapping[str, str]]) -> ContainerPlan:
        """Return the container of an attempt.

        Args:
            plan: the attempt, whose folder is inside the run's folder.
            files: secrets and config maps mounted as files: names and contents, by folder.

        Raises:
            ValueError: the stage needs something that containers lack.
        """
        container, platform = plan.component.container, plan.component.platform
        placeholders, folder = plan.placeholders, plan.folder
        assert container is not None
        bases = tracker_bases(plan.words, placeholders.parameters)
        written = [str(path) for base in bases for path in written_folders(Path(base), folder.parent.name)]
        volumes = {str(folder / "volumes" / name): target for name, target in temporary_folders(platform).items()}
        secrets = {str(folder / "secrets" / str(index)): target for index, target in enumerate(files)}
        workspace = [placeholders.workspace] if os.path.isdir(placeholders.workspace) else []
        mounts = [
            *(Mount(path, path) for path in (str(folder), *workspace, *bases)),
            *copied_mounts(plan.copies),
            *(Mount(source, target) for source, target in volumes.items()),
            *(Mount(source, target, read_only=True) for source, target in secrets.items()),
            *self._mounts,
        ]
        if (unseen := unseen_artifact(placeholders.parameters, mounts)) is not None:
            raise ValueError(
                f"takes an artifact from {unseen.uri}, which containers do not see. Give it: --mount {unseen.path}:ro"
            )
        made = plan.made
        return ContainerPlan(
            # The last one of each place; engines mount outer ones first.
            mounts=tuple({mount.target: mount for mount in mounts}.values()),
            memory_folders=memory_folders(platform),
            shared_folders=(made, f"{made}/outputs", f"{made}/artifacts", *volumes, *workspace, *written),
            files={source: files[target] for source, target in secrets.items()},
            limits=read_limits(container.resources, placeholders.parameters),
            shared_memory=shared_memory(platform),
        )

    @contextlib.contextmanager
    def prepare(
        self, plan: AttemptPlan, verify_wanted: Callable[[], None], say: Callable[[str], None]
    ) -> Iterator[Callable[[], RunningStage]]:
        """Create an attempt's container, pull its image if necessary, and remove the container at the end.

        Args:
            plan: the attempt's plan.
            verify_wanted: raises AttemptError if the attempt was ended.
            say: writes a line into its log.

        Yields:
            Starts the container when called.

        Raises:
            AttemptError: it cannot be created, or the attempt was ended.
        """
        assert plan.container is not None
        with contextlib.ExitStack() as stack:
            for folder, contents in plan.container.files.items():
                stack.callback(shutil.rmtree, folder, ignore_errors=True)
                os.makedirs(folder)
                for name, text in contents.items():
                    Path(folder, name).write_bytes(text.encode("utf-8", "surrogateescape"))
            try:
                image = self._provide(plan.image, plan.component.platform.get("imagePullPolicy"), verify_wanted, say)
                user = pod_user(plan.component.platform) or (image.get("Config") or {}).get("User") or ""
                self._share_folders(plan.container, user)
                container = self._create(plan)
            except OSError as error:
                raise _lost(self.engine, error) from None
            stack.callback(self.engine.remove, container)
            yield lambda: ContainerStage(self.engine, container, plan)

    def image_id(self, image: str) -> str:
        """Return the current id of the image with this name: a rebuilt image has another id."""
        return str((self.engine.inspect("image", image) or {}).get("Id", ""))

    def close(self) -> None:
        """Remove every container of the run, such as those of a runner that was killed."""
        with contextlib.suppress(EngineError, OSError):
            self.engine.remove_all(self.run_id, self.mark)

    def _provide(
        self, image: str, policy: str | None, verify_wanted: Callable[[], None], say: Callable[[str], None]
    ) -> dict[str, Any]:
        """Return the engine's description of the image, which is pulled if it is missing."""
        before, description = self._refused.get(image), self.engine.inspect("image", image)
        if policy == "Never" and description is None:
            raise AttemptError(
                f"could not be started: the image {image!r} does not exist locally, and its image pull policy is "
                "Never. Build or pull it"
            )
        if policy == "Always" or description is None:
            if image not in self._pulled:
                say(f"Pulling the image {image}.")
            pulling = self._pulling[image]
            while not pulling.acquire(timeout=POLL):
                verify_wanted()
            try:
                if image not in self._pulled:
                    refused = self._refused.get(image)
                    if refused is not None and refused is not before:  # while this stage waited
                        raise refused
                    ask(self.engine.program, "pull", "--quiet", "--", image, verify_wanted=verify_wanted)
                    self._pulled.add(image)
            except EngineError as error:
                self._refused[image] = error
                missing = "does not exist locally and " if description is None else ""
                raise AttemptError(
                    f"could not be started: the image {image!r} {missing}cannot be pulled: {error}. Build it, or "
                    "correct its name"
                ) from None
            finally:
                pulling.release()
            description = self.engine.inspect("image", image)
        return description or {}

    def _share_folders(self, plan: ContainerPlan, user: str) -> None:
        """Let the container's user and this process's user write to the same folders, unless both are root."""
        # Rootless engines run a container's root as their own user.
        is_root = user.partition(":")[0] in ("", "0", "root") and (os.geteuid() == 0 or self.engine.is_rootless)
        for folder in plan.shared_folders:
            os.makedirs(folder, exist_ok=True)
            if not is_root:
                with contextlib.suppress(OSError):  # it is another user's
                    os.chmod(folder, 0o777)

    def _create(self, plan: AttemptPlan) -> str:
        """Create the container, and return its id."""
        command = plan.replaces if plan.replaces is not None else plan.words if plan.command else []
        # The value of a secret is no word, which other users of this machine could see; all others are public.
        values = plan.environ
        secrets = {name: values[name] for name in plan.secrets if name in values}
        for name in secrets:
            if _OF_PROGRAM.fullmatch(name) or not _NAME.fullmatch(name):
                raise AttemptError(
                    f"could not be started: {self.engine.program} itself would read the variable {name!r}, which the "
                    "stage gets from a secret. Name it differently, or mount the secret as a file"
                )
        variables = [f"--env={name}" if name in secrets else f"--env={name}={value}" for name, value in values.items()]
        words = ["create", *self._options(plan), *variables]
        words += [f"--entrypoint={command[0]}"] if command else []
        words += ["--", plan.image, *command[1:]]
        if not command:
            words += plan.args
        try:
            return ask(self.engine.program, *words, environ={**os.environ, **secrets}).split()[-1]
        except EngineError as error:
            # Podman's package only recommends its init.
            more = ". Install catatonit" if "catatonit" in str(error) else ""
            raise AttemptError(f"could not be started: the container engine reports: {error}{more}") from None
        except (OSError, ValueError) as error:
            raise start_error([self.engine.program, *words], error) from None

    def _options(self, plan: AttemptPlan) -> list[str]:
        container = plan.container
        assert container is not None
        limits, labels = container.limits, {RUN_LABEL: self.run_id, MARK_LABEL: self.mark, STAGE_LABEL: plan.stage}
        options = [f"--label={name}={value}" for name, value in labels.items()]
        # As with KFP's launcher, the application is not the container's first process, so signals have their usual
        # effect. The runner reads the output while the container runs, and keeps it in the run's folder. SELinux blocks
        # mounts unless they are relabelled.
        options += ["--init", "--log-driver=none", "--security-opt=label=disable", "--pull=never"]
        if plan.replaces is not None:
            has_terminal = is_terminal(sys.stdin) and is_terminal(sys.stdout)
            options += ["--interactive", *(["--tty"] if has_terminal else [])]
        if user := pod_user(plan.component.platform):
            options.append(f"--user={user}")
        if limits.cpus:
            cpus = min(limits.cpus, self.engine.cpus) if self.engine.cpus else limits.cpus
            options.append(f"--cpus={cpus:.9f}")
        if limits.memory:
            # The limit with swap is the same, since Kubernetes has no swap.
            memory = max(limits.memory, _LEAST_MEMORY)
            options += [f"--memory={memory}b", f"--memory-swap={memory}b"]
        if plan.gpus is not None:
            options += self.engine.gpu_options(plan.gpus.names)
        elif limits.gpus and self.engine.has_gpus and not self.engine.is_podman:
            # Those of another machine are not known locally.
            options.append(f"--gpus={limits.gpus}")
        if container.shared_memory is not None:
            options.append(f"--shm-size={container.shared_memory}b")
        mounts = [
            ("type=bind", f"source={it.source}", f"target={it.target}", *(["readonly"] if it.read_only else []))
            for it in container.mounts
            if os.path.exists(it.source)  # a stage need not make its artifacts
        ]
        mounts += [
            ("type=tmpfs", f"target={path}", "tmpfs-mode=1777", *([] if size is None else [f"tmpfs-size={size}"]))
            for path, size in container.memory_folders.items()
        ]
        return [*options, *(f"--mount={_csv(fields)}" for fields in mounts)]


class ContainerStage(RunningStage):
    """A created container, from its start to its end."""

    def __init__(self, engine: Engine, container: str, plan: AttemptPlan) -> None:
        """Start it. No output is lost: the program attaches before the start."""
        assert plan.container is not None
        self._engine, self._container = engine, container
        self._image, self._limit = plan.image, plan.container.limits.memory
        self._was_asked = self._out_of_memory = False
        attached = plan.replaces is not None
        # With the usual keys, Ctrl-P would wait for another one.
        options = ["--interactive", "--detach-keys=ctrl-@,ctrl-^"] if attached else []
        try:
            super().__init__([engine.program, "start", "--attach", *options, container], attached=attached)
        except OSError as error:
            raise _lost(engine, error) from None

    def wait(self, log: Log) -> int:
        """Copy the output to the log until the container ends, and return its exit code, negative for a signal.

        Raises:
            AttemptError: it could not be started, or the engine lost it.
        """
        log.read(self.pipe, lambda: self.process.poll() is not None)
        code = self.process.wait()
        if code == 0:
            return 0
        try:
            state = (self._engine.inspect("container", self._container) or {}).get("State") or {}
        except OSError as error:
            raise _lost(self._engine, error) from None
        if not state or state.get("Running"):
            raise AttemptError("was lost: the container engine no longer knows it, or did not answer")
        self._out_of_memory = bool(state.get("OOMKilled"))
        why = str(state.get("Error") or "")
        if why and str(state.get("StartedAt", "")).startswith("0001"):
            # A shell's exit code for a command that cannot be started.
            lacks = "not found" in why or "no such file" in why
            exit_code = NOT_FOUND if lacks else 126 if "permission denied" in why else None
            more = f"; {NEEDS}" if lacks else ""
            raise AttemptError(f"could not be started in the image {self._image!r}: {why}{more}", exit_code)
        return _signal_or_code(int(state.get("ExitCode", code)))

    def send(self, number: signal.Signals) -> None:
        """Send the container a signal; the caller kills it if it does not end."""
        self._was_asked = True
        threading.Thread(target=self._send, args=(number,), daemon=True).start()

    def describe(self, code: int, last_line: str) -> str:
        """Describe the end of a container, given its exit code and last line."""
        limited = f" (its limit is {self._limit / _MEGABYTE:.0f} MB)" if self._limit else ""
        if self._out_of_memory:
            return f"{describe_exit(code)}: it ran out of memory{limited}"
        if code == -signal.SIGKILL and self._limit and not self._was_asked:
            # Podman does not always notice.
            return f"{describe_exit(code)}: perhaps it ran out of memory{limited}"
        if _NOT_THERE.search(last_line):
            return f"{describe_exit(code)}: its image lacks the command; {NEEDS}"
        return describe_end(code, last_line, is_process=False)

    def _send(self, number: signal.Signals) -> None:
        """Signal the container as soon as it has started."""
        deadline = time.monotonic() + _ENDING
        while self.process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(EngineError, OSError):
                ask(self._engine.program, "kill", f"--signal={number.name}", self._container)
                return
            time.sleep(POLL)


def _lost(engine: Engine, error: OSError) -> AttemptError:
    return AttemptError(f"was lost: {engine.program} cannot be started: {explain(error)}")


def _csv(fields: Sequence[str]) -> str:
    """Return the fields of a mount as one word: a path may have a comma."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow(fields)
    return out.getvalue()


def _signal_or_code(code: int) -> int:
    """Return the negative number of a signal, which engines report as shells do, or the exit code."""
    try:
        return -signal.Signals(code - 128)
    except ValueError:
        return code
