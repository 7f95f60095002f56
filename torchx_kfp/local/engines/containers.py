"""The stages of a run that run in containers, and the container of each attempt."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.engines.mounts import (
    Mount,
    artifact_mounts,
    combine,
    copied_mounts,
    holds,
    source_of,
    tracker_bases,
)
from torchx_kfp.local.platform.settings import pod_user
from torchx_kfp.local.platform.volumes import memory_folders, shared_memory, temporary_folders
from torchx_kfp.pipeline.names import without_indices
from torchx_kfp.pipeline.placeholders import Facts
from torchx_kfp.pipeline.resources import NO_LIMITS, Limits, read_limits
from torchx_kfp.pipeline.spec import Component, Pipeline
from torchx_kfp.pipeline.walk import walk
from torchx_kfp.text import did_you_mean, listed
from torchx_kfp.tracking.statements.kinds import FOLDERS
from torchx_kfp.tracking.stores.keys import PRIVATE

#: The folder of an attempt to which its stage writes its outputs.
MADE = "made"


@dataclass(frozen=True)
class ContainerPlan:
    """The container of one attempt. ``command`` replaces the image's ENTRYPOINT, ``args`` its CMD."""

    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    #: Folders in memory: their paths in the container, and their sizes in bytes (None for no limit).
    memory_folders: Mapping[str, int | None] = field(default_factory=dict)
    #: Folders to create on this machine that the container's user, whoever that is, must be able to write to. Each is
    #: mapped to the folder beneath which it is opened: only the runner can have made links in that folder's path.
    shared_folders: Mapping[str, str] = field(default_factory=dict)
    #: Files that exist only while the container runs: names and contents, by the folder's path on this machine.
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    shared_memory: int | None = None
    user: str | None = None
    #: Kubernetes's image pull policy; empty if the pipeline sets none.
    pull: str = ""

    def mount_of(self, path: str) -> tuple[Mount, str] | None:
        """Return the mount that shows a path of the container, and the path on this machine."""
        path = os.path.normpath(path)
        shown = [(mount, source) for mount in self.mounts if (source := source_of(path, mount)) is not None]
        return max(shown, key=lambda found: len(found[0].target), default=None)


@dataclass(frozen=True)
class Containers:
    """The stages that run in containers, by their names without loop indices, and the settings that they share."""

    names: frozenset[str] = frozenset()
    mounts: tuple[Mount, ...] = ()
    #: Paths of this machine that the user has named as arguments: a pipeline cannot open any others.
    named: frozenset[str] = frozenset()
    #: Whether the engine can give GPUs to containers.
    has_gpus: bool = False

    def __contains__(self, stage: str) -> bool:
        return without_indices(stage) in self.names

    def plan(
        self,
        component: Component,
        image: str,
        words: tuple[Sequence[str], Sequence[str]],
        facts: Facts,
        folder: Path,
        environ: Mapping[str, str],
        files: Mapping[str, Mapping[str, str]],
        copies: Mapping[str, str],
    ) -> ContainerPlan:
        """Return the container of an attempt.

        Args:
            component: the stage's component.
            image: its image.
            words: its command and its args, with their placeholders filled in.
            facts: the values that filled them in.
            folder: the attempt's folder, inside the run's folder.
            environ: the variables of the stage's pod. They include variables of this machine only where the pipeline
                takes them from a secret or a config map.
            files: secrets and config maps that the stage mounts as files: names and contents, by the folder's path.
            copies: paths on this machine of files from other storage, by their URLs.

        Raises:
            ValueError: the stage needs something that a container cannot be given.
        """
        container, platform = component.container, component.platform
        assert container is not None
        command, args = words
        bases = tracker_bases((*command, *args), facts.parameters, self.named, self.mounts)
        runs = str(folder.parent.parent)
        for base in bases:
            if holds(base, runs):
                raise ValueError(f"records results at {base}, which contains {_keeps_runs(runs)}")
        made, inputs = str(folder / MADE), str(folder / "inputs")
        volumes = {str(folder / "volumes" / name): target for name, target in temporary_folders(platform).items()}
        secrets = {str(folder / "secrets" / str(index)): target for index, target in enumerate(files)}
        workspace = facts.workspace
        has_workspace = os.path.isdir(workspace)
        mounts = [
            *([Mount(workspace, workspace)] if has_workspace else ()),
            *artifact_mounts(facts.parameters, self.named, self.mounts, workspace),
            *([Mount(inputs, inputs, read_only=True)] if _any_below(copies.values(), inputs) else ()),
            *copied_mounts(copies),
            *(Mount(base, base) for base in bases),
            Mount(made, made),
            *(Mount(source, target) for source, target in volumes.items()),
            *(Mount(source, target, read_only=True) for source, target in secrets.items()),
            *self.mounts,
        ]
        hidden = [place for mount in self.mounts if (place := _place_of(runs, mount)) is not None]
        return ContainerPlan(
            image=image,
            command=command,
            args=args,
            environ=environ,
            mounts=combine(mounts),
            memory_folders={**memory_folders(platform), **dict.fromkeys(hidden)},
            shared_folders={
                **{path: str(folder) for path in (made, f"{made}/outputs", f"{made}/artifacts", *volumes)},
                **({workspace: workspace} if has_workspace else {}),
                **{str(path): base for base in bases for path in _written_folders(Path(base), folder.parent.name)},
            },
            files={source: files[target] for source, target in secrets.items()},
            limits=read_limits(container.resources, facts),
            shared_memory=shared_memory(platform),
            user=pod_user(platform),
            pull=str(platform.get("imagePullPolicy") or ""),
        )


def verify_private(containers: Containers, runs: str, workspace: str | None) -> None:
    """Raise ArgumentError if containers could write to the folder of runs: a resumed run trusts its files.

    Args:
        containers: the run's containers.
        runs: the folder of runs.
        workspace: the run's workspace, if it has one.
    """
    if not containers.names:
        return
    for mount in containers.mounts:
        if not mount.read_only and holds(mount.source, runs):
            raise ArgumentError(
                f"The mount {str(mount)!r} contains {_keeps_runs(runs)}, or mount it read-only ({mount}:ro)."
            )
    if workspace is not None and holds(workspace, runs):
        raise ArgumentError(f"The workspace {workspace!r} contains {_keeps_runs(runs)}.")


def _keeps_runs(runs: str) -> str:
    return f"the folder of runs ({runs}). Containers must not write there: keep runs elsewhere (--output-dir)"


def _place_of(runs: str, mount: Mount) -> str | None:
    """Return the path in the container at which a mount would show the folder of runs; None if it does not."""
    if not holds(mount.source, runs):
        return None
    return os.path.normpath(
        os.path.join(mount.target, os.path.relpath(os.path.realpath(runs), os.path.realpath(mount.source)))
    )


def _any_below(paths: Iterable[str], folder: str) -> bool:
    return any(path.startswith(os.path.join(folder, "")) for path in paths)


#: For runs in which no stage runs in a container.
NO_CONTAINERS = Containers()


def _written_folders(base: Path, run_id: str) -> list[Path]:
    """Return the folders below a tracker base to which stages of a run write."""
    return [base / run_id, *(base / PRIVATE / kind for kind in FOLDERS)]


def choose_containers(
    pipeline: Pipeline, docker: bool | Collection[str], mounts: Iterable[Mount] = (), named: Iterable[str] = ()
) -> Containers:
    """Return the stages that run in containers.

    Args:
        pipeline: the pipeline.
        docker: True for all stages, or the names of some: a task's name (``train``) selects it in every nested
            pipeline, a path (``inner/train``) in one of them.
        mounts: folders and files of this machine that their containers see.
        named: other paths of this machine that the user has named.

    Raises:
        ArgumentError: there is no stage with such a name.
    """
    known = [place.name for place in walk(pipeline) if place.component.container is not None]
    if isinstance(docker, bool):
        return Containers(frozenset(known if docker else ()), tuple(mounts), frozenset(named))
    chosen: set[str] = set()
    for wanted in docker:
        found = [name for name in known if name == wanted or name.rpartition("/")[2] == wanted]
        if not found:
            raise ArgumentError(
                f"There is no stage {wanted!r} in {pipeline.name!r} to run in a container."
                f"{did_you_mean(wanted, known)} Name one without the indices of loops: {listed(known)}."
            )
        chosen.update(found)
    return Containers(frozenset(chosen), tuple(mounts), frozenset(named))
