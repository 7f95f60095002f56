"""Distributed stages: which settings on their tasks reach the replicas, and the objects that their launchers create.

KFP 2.15 and newer hand a component what is set on its task (``dsl.TaskConfig``), and the launcher gives it to the
replicas. Pipelines that an older kfp has compiled lack the input for that, and some settings are never handed on.

The launcher makes the objects here, from the compiled command. Values that only a run knows are in angle brackets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from torchx_kfp.contract import protocol
from torchx_kfp.contract.carried import engine_object, replica_roles
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.specification import ReplicaRole, Specification
from torchx_kfp.execution.model.findings import Kind
from torchx_kfp.execution.pipeline.spec import Component, Pipeline
from torchx_kfp.execution.pipeline.walk import known_stages

#: The type of the input through which a component gets what is set on its task.
_CONFIG_TYPE = "TASK_CONFIG"
#: Kubernetes settings that ``dsl.TaskConfig`` has.
_HANDED_ON = {
    "nodeSelector": "node selectors",
    "nodeAffinity": "affinities",
    "tolerations": "tolerations",
    "configMapAsEnv": "variables",
    "configMapAsVolume": "volumes",
    "secretAsVolume": "volumes",
}
#: Those that it does not have (kubeflow/pipelines, backend/src/v2/driver/k8s.go).
_KEPT = {
    "emptyDirMounts": "empty volumes",
    "genericEphemeralVolume": "ephemeral volumes",
    "podAffinity": "pod affinities",
    "enabledSharedMemory": "shared memory",
    "imagePullPolicy": "the image pull policy",
    "imagePullSecret": "image pull secrets",
    "securityContext": "the security context",
}
_PLACEHOLDER = re.compile(r"\{\{\$\.(?:inputs|outputs)\.(?:parameters|artifacts)\[(['\"])(.+?)\1\].*?\}\}")
_WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "<workflow>", "uid": "<workflow-uid>"}


def of_launcher(component: Component) -> Iterator[tuple[Kind, str]]:
    """Yield what is set on the task of a distributed stage and does not reach its replicas."""
    roles = component.facts.replica_roles
    if not roles:
        return
    if not takes_config(component) and (lost := list(dict.fromkeys(_lost(component, roles)))):
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(lost)} on the task of a distributed stage. They do not reach its replicas, only the "
            "pod that starts them, because kfp 2.14 has compiled the pipeline. Compile it with kfp 2.15 or newer, for "
            "a backend of 2.15 or newer, or put them into the AppDef (resource, env, mounts, metadata['kubernetes'])",
        )
    if kept := [text for key, text in _KEPT.items() if component.platform.get(key)]:
        yield (
            Kind.CHANGED,
            f"sets {' and '.join(kept)} on the task of a distributed stage. KFP does not hand that on to its replicas. "
            "Put it into metadata['kubernetes'] of the role, too, such as {'spec': {'imagePullSecrets': [...]}}",
        )


def takes_config(component: Component) -> bool:
    """Tell whether the component gets what is set on its task."""
    return any(parameter.type == _CONFIG_TYPE for parameter in component.inputs.values())


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
    for key, text in _HANDED_ON.items():
        if component.platform.get(key):
            yield text


@dataclass(frozen=True)
class StageObjects:
    """The objects of a distributed stage.

    Attributes:
        stage: the path of its task.
        notes: sentences about what the objects do not show.
        objects: the manifests, the one that runs the replicas first.
    """

    stage: str
    notes: Sequence[str]
    objects: Sequence[Mapping[str, Any]]

    def __str__(self) -> str:
        comments = "".join(f"# {note}\n" for note in (f"The stage {self.stage!r} creates:", *self.notes))
        return comments + "---\n".join(
            yaml.safe_dump(it, sort_keys=False, allow_unicode=True, width=120) for it in self.objects
        )


def workloads(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[StageObjects]:
    """Yield the objects of each distributed stage of the pipeline.

    Args:
        pipeline: the pipeline.
        arguments: the values of its parameters, as far as they are known.
    """
    for stage in known_stages(pipeline, arguments):
        specification = stage.facts.specification
        if specification is None:
            continue
        place, facts = stage.place, stage.facts
        variables = {name: _shown(value) for name, value in facts.variables.items()}
        if facts.tracker_base is not None:
            variables[protocol.TRACKER_BASE] = _shown(facts.tracker_base)
        run_id = "<run-id>" if RUN_ID in place.component.outputs else ""
        notes, objects = _objects(specification, [_shown(word) for word in facts.replica_words], variables, run_id)
        if takes_config(place.component):
            notes.append("Settings of the task (resources, tolerations, volumes, ...) are added to the pods.")
        yield StageObjects(place.path, notes, objects)


class _Attempt(engine_object.Stage):
    """An attempt of a stage before its run, with names for everything that only a run knows."""

    def __init__(self, specification: Specification, words: Sequence[str], counts: Sequence[int], run_id: str) -> None:
        # The launcher reads the other attributes from its pod.
        self.spec, self.words, self.counts, self.run_id = specification.to_json(), words, counts, run_id
        self.name, self.account, self.config = f"{specification.stage}-<hash>", "<service-account>", {}
        self.digest, self.attempt = "<digest>", "<attempt>"


def _objects(
    specification: Specification, words: Sequence[str], environ: Mapping[str, str], run_id: str
) -> tuple[list[str], list[Any]]:
    """Return the sentences and the manifests; ``environ`` has the launcher's variables."""
    notes, counts = ["<...> is known only when the stage runs."], []
    for role, data in zip(specification.replica_roles(words), specification.roles, strict=True):
        try:
            counts.append(replica_roles.count(data.to_json(), words))
        except replica_roles.Failure:
            counts.append(role.most)
            notes.append(
                f"The role {role.name!r} has {role.count} replicas, from {role.least} to {role.most}. Shown are "
                f"{role.most}."
            )
    stage = _Attempt(specification, words, counts, run_id)
    around = dict(os.environ)
    try:
        # The launcher hands on what it has in its own environment.
        for name in specification.protocol:
            os.environ.pop(name, None)
        os.environ.update(environ)
        made = stage.manifest([_WORKFLOW])
    finally:
        os.environ.clear()
        os.environ.update(around)
    owner = {"apiVersion": made["apiVersion"], "kind": made["kind"], "name": stage.name, "uid": "<uid>"}
    companions = [one for _, _, one in stage.companions]
    for one in companions:
        one["metadata"]["ownerReferences"] = [owner]
    return notes, [made, *companions]


def _shown(text: str) -> str:
    return _PLACEHOLDER.sub(r"<\2>", text)
