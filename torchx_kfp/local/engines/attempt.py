"""One attempt at a stage, as it is given to an engine."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchx_kfp import protocol
from torchx_kfp.local.engines.containers import MADE, ContainerPlan
from torchx_kfp.pipeline.artifacts import Artifact


@dataclass(frozen=True)
class AttemptPlan:
    """An attempt at a stage that is ready to be started."""

    stage: str
    pod_name: str
    folder: Path
    #: In which it runs.
    directory: Path
    command: Sequence[str]
    environ: Mapping[str, str]
    #: Output parameters: their types, and the files in which the stage leaves them.
    output_types: Mapping[str, str]
    output_files: Mapping[str, str]
    #: Output artifacts as the stage is told them, and the file in which it may report otherwise.
    artifacts: Mapping[str, Artifact]
    report: str
    #: Input parameters, for those who watch.
    inputs: Mapping[str, Any] = field(default_factory=dict)
    #: Of a Python component: its function, the file that gets its source, and what it has pip install.
    function: str = ""
    source: tuple[str, str] | None = None
    #: Files on other storage, by their URLs, and where the stage finds copies of them.
    copies: Mapping[str, str] = field(default_factory=dict)
    #: The folder of the run that all stages share.
    workspace: str = ""
    installs: Sequence[Sequence[str]] = ()
    #: Of a stage that runs in a container.
    container: ContainerPlan | None = None
    #: Seconds that it may take.
    time_limit: float | None = None

    @property
    def log_file(self) -> Path:
        return self.folder / "log.txt"

    def copies_root(self, path: str) -> str:
        """Return the folder that must contain a copy: the attempt's own, or the workspace."""
        own = str(self.folder)
        return own if path.startswith(os.path.join(own, "")) else self.workspace

    @property
    def tracker_base(self) -> str | None:
        """The tracker base that the command of a tracked stage sets."""
        name = f"{protocol.TRACKER_BASE}="
        return next((word.removeprefix(name) for word in self.command if word.startswith(name)), None)

    @property
    def made(self) -> str:
        """The folder for the stage's outputs, which is the only one that a container may write to."""
        return str(self.folder / MADE)

    @property
    def root(self) -> str | None:
        """The folder that must contain all files of the stage; None if it runs with the runner's own rights."""
        return self.made if self.container is not None else None
