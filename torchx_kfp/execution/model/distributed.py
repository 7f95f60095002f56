"""Distributed stages: which settings on their tasks reach the replicas.

KFP 2.15 and newer hand a component what is set on its task (``dsl.TaskConfig``), and the launcher gives it to the
replicas. Pipelines that an older kfp has compiled lack the input for that, and some settings are never handed on.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchx_kfp.contract.specification import ReplicaRole
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.pod_settings import POD_SETTINGS
from torchx_kfp.execution.pipeline.spec import Component

#: The type of the input through which a component gets what is set on its task.
_CONFIG_TYPE = "TASK_CONFIG"


def of_launcher(component: Component) -> Iterator[tuple[Kind, str]]:
    """Yield what is set on the task of a distributed stage and does not reach its replicas."""
    roles = component.decoded.replica_roles
    if not roles:
        return
    takes_config = any(parameter.type == _CONFIG_TYPE for parameter in component.inputs.values())
    if not takes_config and (lost := list(dict.fromkeys(_lost(component, roles)))):
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(lost)} on the task of a distributed stage. They do not reach its replicas, only the "
            "pod that starts them, because kfp 2.14 has compiled the pipeline. Compile it with kfp 2.15 or newer, for "
            "a backend of 2.15 or newer, or put them into the AppDef (resource, env, mounts, metadata['kubernetes'])",
        )
    if kept := list(_handed_on(component, False)):
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(kept)} on the task of a distributed stage. KFP does not hand that on to its replicas. "
            "Put it into metadata['kubernetes'] of the role, too, such as {'spec': {'imagePullSecrets': [...]}}",
        )


def _lost(component: Component, roles: list[ReplicaRole]) -> Iterator[str]:
    """Yield the kinds of settings that an author has added to those that the AppDef and its secrets make."""
    assert component.container is not None
    if component.container.resources:
        yield "resources"
    secrets = component.platform.get("secretAsEnv") or ()
    added = {pair.get("envVar") for secret in secrets for pair in secret.get("keyToEnv") or ()}
    of_roles = {entry.get("name") for role in roles for entry in role.pod["containers"][0].get("env") or ()}
    if component.container.env or added - of_roles:
        yield "variables"
    if {mount["mountPath"] for mount in component.platform.get("pvcMount") or ()} - set(roles[0].mounts):
        yield "volumes"
    yield from _handed_on(component, True)


def _handed_on(component: Component, is_handed_on: bool) -> Iterator[str]:
    """Yield what the component sets of the settings that ``dsl.TaskConfig`` has, or of those that it lacks."""
    for key, setting in POD_SETTINGS.items():
        if setting.handed_on is is_handed_on and component.platform.get(key):
            yield setting.words
    if not is_handed_on:
        yield from sorted(component.platform.keys() - POD_SETTINGS.keys())
