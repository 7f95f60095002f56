"""Roles of an app, as far as the pipeline of a run tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchx import specs

from torchx_kfp.contract.specification import ReplicaRole
from torchx_kfp.pipeline.known import KnownStage, known_stages
from torchx_kfp.pipeline.placeholders import Facts, resolve_value
from torchx_kfp.pipeline.resources import parse_quantity, read_limits
from torchx_kfp.pipeline.spec import Container, Pipeline

#: The label with the role's name that TorchX's schedulers set.
_ROLE_NAME = "torchx.pytorch.org/role-name"
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class StageRoles:
    """The roles of a stage: one, unless an engine runs its replicas."""

    roles: Sequence[specs.Role]
    is_distributed: bool = False

    @property
    def replicas(self) -> list[str]:
        """The names with which the lines of replicas begin: ``trainer/3``."""
        return [f"{role.name}/{number}" for role in self.roles for number in range(role.num_replicas)]


def roles_by_stage(pipeline: Pipeline, arguments: Mapping[str, Any]) -> dict[str, StageRoles]:
    """Return the roles of each stage that is a container, by the stage's name without indices of loops.

    A run that TorchX has not submitted has a role for each stage.

    Args:
        pipeline: the pipeline of the run.
        arguments: those of the run.
    """
    defaults = {name: one.default for name, one in pipeline.root.inputs.items() if one.has_default}
    stages = known_stages(pipeline, {**defaults, **arguments})
    return {stage.place.name: _roles(stage) for stage in stages if stage.place.is_stage}


def _roles(stage: KnownStage) -> StageRoles:
    place, container, command = stage.place, stage.container, stage.facts
    facts = Facts(parameters=stage.inputs)
    env = {**dict(container.env), **command.variables}
    distributed = command.replica_roles
    if distributed:
        return StageRoles([_of_replicas(role, env, facts) for role in distributed], is_distributed=True)
    labels = (place.component.platform.get("podMetadata") or {}).get("labels") or {}
    role = specs.Role(
        name=str(labels.get(_ROLE_NAME) or place.name),
        image=str(resolve_value(container.image, facts)),
        entrypoint=command.application[0] if command.application else specs.MISSING,
        args=list(command.application[1:]),
        env=env,
        max_retries=command.retries,
        resource=_resource(container, facts),
    )
    return StageRoles([role])


def _resource(container: Container, facts: Facts) -> specs.Resource:
    try:
        limits = read_limits(container.resources, facts)
    except ValueError:
        return specs.Resource(cpu=-1, gpu=-1, memMB=-1)
    gpus = limits.accelerators if limits.accelerator_type == _GPU else 0
    others = {limits.accelerator_type: limits.accelerators} if limits.accelerators and not gpus else {}
    return _torchx_resource(limits.cpus, limits.memory, gpus, others)


def _torchx_resource(cpus: float | None, memory: float | None, gpus: int, devices: Mapping[str, int]) -> specs.Resource:
    cpu: Any = -1 if cpus is None else int(cpus) if cpus == int(cpus) else cpus
    return specs.Resource(
        cpu=cpu, gpu=gpus or -1, memMB=-1 if memory is None else int(memory // 10**6), devices=dict(devices)
    )


def _of_replicas(role: ReplicaRole, shared: Mapping[str, str], facts: Facts) -> specs.Role:
    limits: dict[str, Any] = dict((role.pod["containers"][0].get("resources") or {}).get("limits") or {})
    amounts = {name: float(parse_quantity(str(value))) for name, value in limits.items()}
    cpus, memory = amounts.pop("cpu", None), amounts.pop("memory", None)
    gpus = int(amounts.pop(_GPU, 0))
    devices = {name: int(count) for name, count in amounts.items() if "/" in name}
    return specs.Role(
        name=role.name,
        image=str(resolve_value(role.image, facts)),
        entrypoint=role.command[0] if role.command else specs.MISSING,
        args=list(role.command[1:]),
        env={**shared, **role.env},
        num_replicas=role.most,
        resource=_torchx_resource(cpus, memory, gpus, devices),
    )
