"""Which stages of a run are containers, and what is asked of an engine for each."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchx_kfp.errors import ArgumentError
from torchx_kfp.local.kubernetes import memory_folders, pod_user, shared_memory, temporary_folders
from torchx_kfp.local.mounts import Mount, artifact_mounts, combine, copied_mounts, parse_mount, tracker_bases
from torchx_kfp.local.names import join_names, without_indices
from torchx_kfp.local.outline import stages_in
from torchx_kfp.local.placeholders import Facts, resolve_command, resolve_text
from torchx_kfp.local.resources import NO_LIMITS, Limits, read_limits
from torchx_kfp.local.spec import Component, Pipeline
from torchx_kfp.tracking.entries import KINDS
from torchx_kfp.tracking.keys import PRIVATE


@dataclass(frozen=True)
class ContainerPlan:
    """What is asked of an engine for one attempt. ``command`` replaces the image's ENTRYPOINT, ``args`` its CMD."""

    image: str
    command: Sequence[str] = ()
    args: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    mounts: Sequence[Mount] = ()
    #: Folders in memory: their paths in the container, and their sizes in bytes (None: no limit).
    memory_folders: Mapping[str, int | None] = field(default_factory=dict)
    #: Folders of this machine that are made, and that the container's user must be able to write to, whoever that is.
    shared_folders: Sequence[str] = ()
    #: Files that are there while the container runs: names and contents, by the folder's path on this machine.
    files: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    limits: Limits = NO_LIMITS
    shared_memory: int | None = None
    user: str | None = None
    #: Kubernetes's image pull policy; empty where the pipeline has none.
    pull: str = ""


@dataclass(frozen=True)
class Containers:
    """The stages of a run that are containers: their names without indices of loops; and what all of them are given."""

    names: frozenset[str] = frozenset()
    mounts: tuple[Mount, ...] = ()
    #: Whether the engine can give containers GPUs.
    has_gpus: bool = False

    def __contains__(self, stage: str) -> bool:
        return without_indices(stage) in self.names

    def plan(
        self,
        component: Component,
        facts: Facts,
        folder: Path,
        environ: Mapping[str, str],
        files: Mapping[str, Mapping[str, str]],
        copies: Mapping[str, str],
    ) -> ContainerPlan:
        """What an engine is asked for.

        Args:
            folder: of the attempt, inside of the run's folder.
            environ: what the stage has from its pod. This machine's variables are added only where the pipeline
                takes them from a secret or a config map.
            files: secrets and config maps that it has as files: names and contents, by the folder's path.
            copies: where files of other storage are on this machine, by their URLs.

        Raises:
            ValueError: the stage cannot be given what it asks for.
        """
        container, platform = component.container, component.platform
        assert container is not None
        command, args = resolve_command(container.command, facts), resolve_command(container.args, facts)
        bases = tracker_bases((*command, *args), facts.parameters)
        volumes = {str(folder / "volumes" / name): target for name, target in temporary_folders(platform).items()}
        secrets = {str(folder / "secrets" / str(index)): target for index, target in enumerate(files)}
        workspace = facts.constants.get("workspace_path", "")
        mounts = [
            *([Mount(workspace, workspace)] if os.path.isdir(workspace) else ()),
            *artifact_mounts(facts.parameters, str(folder.parent)),
            *copied_mounts(copies),
            *(Mount(base, base) for base in bases),
            Mount(str(folder.parent), str(folder.parent)),
            *(Mount(source, target) for source, target in volumes.items()),
            *(Mount(source, target, read_only=True) for source, target in secrets.items()),
            *self.mounts,
        ]
        return ContainerPlan(
            image=resolve_text(container.image, facts),
            command=command,
            args=args,
            environ=environ,
            mounts=combine(mounts),
            memory_folders=memory_folders(platform),
            shared_folders=(
                *(str(path) for path in (folder, folder / "outputs", folder / "artifacts")),
                *volumes,
                *([workspace] if os.path.isdir(workspace) else ()),
                *(str(path) for base in bases for path in _written_folders(Path(base), folder.parent.name)),
            ),
            files={source: files[target] for source, target in secrets.items()},
            limits=read_limits(container.resources, facts),
            shared_memory=shared_memory(platform),
            user=pod_user(platform),
            pull=str(platform.get("imagePullPolicy") or ""),
        )


#: No stage runs in a container.
NO_CONTAINERS = Containers()


def _written_folders(base: Path, run_id: str) -> list[Path]:
    """Where the stages of a run write below a tracker base."""
    return [base / run_id, *(base / PRIVATE / kind for kind in KINDS)]


def choose_containers(
    pipeline: Pipeline, docker: bool | Collection[str], mounts: Sequence[str | Mount] = ()
) -> Containers:
    """The stages that shall run in containers.

    Args:
        docker: all of them, or some by name: a task's (``train``), with those of its nested pipelines where it is not
            in one alone (``inner/train``).
        mounts: what their containers see of this machine, as ``SRC[:DST][:ro]``.

    Raises:
        ArgumentError: there is no stage of such a name, or a mount is wrong.
    """
    if not isinstance(docker, bool) and (isinstance(docker, (str, bytes)) or not isinstance(docker, Collection)):
        raise ArgumentError(f"docker must be True, or a list of stages' names, and is {docker!r}.")
    if isinstance(mounts, (str, bytes)) or not isinstance(mounts, Sequence):
        raise ArgumentError(f"mounts must be a list such as ['/data:/data:ro'], and is {mounts!r}.")
    given = tuple(mount if isinstance(mount, Mount) else parse_mount(mount) for mount in mounts)
    if given and not docker:
        raise ArgumentError(
            "Mounts are for stages in containers, and there are none: processes see all of this machine. Add --docker "
            "(docker=True), or leave the mounts out."
        )
    known = [stage.name for stage in stages_in(pipeline, pipeline.root) if stage.component.container is not None]
    if isinstance(docker, bool):
        return Containers(frozenset(known if docker else ()), given)
    chosen: set[str] = set()
    for wanted in docker:
        found = [name for name in known if name == wanted or name.rpartition("/")[2] == wanted]
        if not found:
            near = difflib.get_close_matches(str(wanted), known, n=3) or known[:10]
            raise ArgumentError(
                f"There is no stage {wanted!r} in {pipeline.name!r} to run in a container. Name one without the "
                f"indices of loops, for example {join_names(near)}."
            )
        chosen.update(found)
    return Containers(frozenset(chosen), given)
