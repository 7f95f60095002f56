"""A replay as a shell script: everything that it needs, but for the values of secrets."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

from torchx_kfp.common.text import printable
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.execution.local.replay_plan import ReplayPlan
from torchx_kfp.execution.local.transfer import storage_url, verify_source

_COPY = (
    "import fsspec, sys; store, path = fsspec.core.url_to_fs(sys.argv[1]); store.get(path, sys.argv[2], recursive=True)"
)
#: The end of a run id: each run of the script makes its own.
_NOW = "$(date +%Y%m%d-%H%M%S)-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \\n')"


def script_of(plan: ReplayPlan, notice: Sequence[str]) -> str:
    """Return the text of a script for sh.

    Args:
        plan: the replay.
        notice: lines that say what is not as it was.

    Raises:
        UnavailableError: it would copy a file that must not be copied.
    """
    return "\n".join(["#!/bin/sh", *(f"# {printable(line)}" for line in notice), *_Script(plan).lines(), ""])


def _is_plain(name: str) -> bool:
    """Tell whether a shell can have a variable with this name."""
    return name.isascii() and name.isidentifier()


class _Script:
    def __init__(self, plan: ReplayPlan) -> None:
        self._plan = plan
        #: The run id, which is a part of paths and variables.
        self._run = plan.attempt.folder.parent.name

    def lines(self) -> Iterator[str]:
        attempt = self._plan.attempt
        yield "set -eu"
        yield f"run={shlex.quote(self._run.rsplit('-', 3)[0])}-{_NOW}"
        yield from self._files()
        for name in sorted(filter(_is_plain, self._plan.secret)):
            yield f': "${{{name}:?is a secret: set it}}"'
        if attempt.container is not None:
            yield f"exec {' '.join(self._docker())}"
            return
        for name in sorted(filter(_is_plain, self._plan.removed)):
            yield f"unset {name}"
        # A shell cannot export names with dots.
        words = [] if all(map(_is_plain, self._plan.environ)) else ["env"]
        for name, value in sorted(self._plan.environ.items()):
            if name in self._plan.secret:
                continue
            if _is_plain(name):
                yield f"export {name}={shlex.quote(value) if name == 'PATH' else self._quoted(value)}"
            else:
                words.append(f"{name}={value}")
        if attempt.python is not None:
            for packages in attempt.python.installs:
                yield f"# Needs: python3 -m pip install {printable(shlex.join(packages))}"
        yield f"cd {shlex.quote(str(attempt.directory))}"
        yield f"exec {self._joined([*words, *self._plan.words])}"

    def _files(self) -> Iterator[str]:
        attempt, plan = self._plan.attempt, self._plan
        made = [*attempt.facts.output_files.values(), *(one.path for one in attempt.facts.output_artifacts.values())]
        source = attempt.python.source if attempt.python is not None and attempt.container is None else None
        texts = {} if source is None else {str(attempt.source_file): source}
        if plan.run_id:
            texts[attempt.facts.output_files[RUN_ID]] = plan.run_id
        paths = [*made, *texts, *attempt.copies.values(), plan.command_file]
        for folder in dict.fromkeys(map(os.path.dirname, paths)):
            yield f"mkdir -p {self._quoted(folder)}"
        for path, text in texts.items():
            yield f"printf %s {self._quoted(text)} >{self._quoted(path)}"
        for url, path in attempt.copies.items():
            verify_source(url, attempt.named)
            yield f"python3 -c {shlex.quote(_COPY)} {shlex.quote(storage_url(url))} {self._quoted(path)}"

    def _docker(self) -> Iterator[str]:
        attempt, container = self._plan.attempt, self._plan.attempt.container
        assert container is not None
        yield "docker run --rm --init -i $([ ! -t 0 ] || echo -t) --cap-drop MKNOD"
        if container.user:
            yield f"--user {shlex.quote(container.user)}"
        if container.limits.memory:
            yield f"--memory {container.limits.memory}"
        if container.limits.cpus:
            yield f"--cpus {container.limits.cpus:g}"
        if container.limits.accelerators:
            yield f"--gpus {container.limits.accelerators}"
        if container.shared_memory:
            yield f"--shm-size {container.shared_memory}"
        for mount in container.mounts:
            if mount.source in container.files:
                target = shlex.quote(f":{mount.target}:ro")
                yield f'-v "${{SECRET_FILES:?is the folder with the files of the secrets}}"{target}'
                continue
            if mount.source.startswith(str(attempt.folder)):
                continue  # below
            yield f"-v {self._quoted(str(mount))}"
        yield f"-v {self._quoted(str(attempt.folder))}:{self._quoted(str(attempt.folder))}"
        for name, value in sorted(attempt.environ.items()):
            yield f"-e {self._quoted(name if name in self._plan.secret else f'{name}={value}')}"
        words = self._plan.words
        yield f"--entrypoint {self._quoted(words[0])} {shlex.quote(attempt.image)} {self._joined(words[1:])}"

    def _joined(self, words: Sequence[str]) -> str:
        return " ".join(map(self._quoted, words))

    def _quoted(self, text: str) -> str:
        """Return the text for a shell, with the script's own run id."""
        parts = text.split(self._run)
        return '"$run"'.join(shlex.quote(part) if part or len(parts) == 1 else "" for part in parts)
