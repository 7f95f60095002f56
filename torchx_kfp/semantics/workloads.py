"""The objects that the launchers of distributed stages create on a cluster, as far as they are known before a run.

The launcher itself makes them here, from the compiled command. What only a run knows is named in angle brackets.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import yaml

from torchx_kfp.carried import engine_object, replica_roles
from torchx_kfp.contract import protocol
from torchx_kfp.contract.inputs import RUN_ID
from torchx_kfp.contract.specification import Specification
from torchx_kfp.pipeline.known import known_stages
from torchx_kfp.pipeline.spec import Pipeline
from torchx_kfp.semantics.distributed import takes_config

_PLACEHOLDER = re.compile(r"\{\{\$\.(?:inputs|outputs)\.(?:parameters|artifacts)\[(['\"])(.+?)\1\].*?\}\}")
_WORKFLOW = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "<workflow>", "uid": "<workflow-uid>"}


@dataclass(frozen=True)
class Workload:
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


def workloads(pipeline: Pipeline, arguments: Mapping[str, Any]) -> Iterator[Workload]:
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
            notes.append("What is set on the task (resources, tolerations, volumes, ...) is added to the pods.")
        yield Workload(place.path, notes, objects)


class _Attempt(SimpleNamespace):
    """An attempt of a stage, of which only a run knows the other attributes."""

    def __getattr__(self, name: str) -> str:
        return f"<{name}>"


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
    stage = _Attempt(
        spec=specification.to_json(),
        words=words,
        counts=counts,
        config={},
        name=f"{specification.stage}-<hash>",
        account="<service-account>",
        run_id=run_id,
    )
    around = dict(os.environ)
    try:
        # The launcher hands on what it has in its own environment.
        for name in specification.protocol:
            os.environ.pop(name, None)
        os.environ.update(environ)
        made = engine_object.Stage.manifest(stage, [_WORKFLOW])  # type: ignore[arg-type]
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
