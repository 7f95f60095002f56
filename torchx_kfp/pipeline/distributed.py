"""Distributed stages in compiled pipelines: what their command says of the replicas, and what its program prints.

The command carries the launcher (``carried.launcher``) and its specification, whose manifest has the replicas' pods.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

#: TorchX's macro for the index of a replica.
REPLICA = "${replica_id}"
#: The word after the specification.
EXECUTOR_INPUT = "{{$}}"
#: The label of Kueue's queue, and the ``ttl`` of an engine without one.
_QUEUE = "kueue.x-k8s.io/queue-name"
_TTL = 86400
#: What the launcher prints whenever the number of running replicas has changed. Lines of a replica begin with its name.
_COUNT = re.compile(r"torchx-kfp: (\d+) of (\d+) replicas run\b")


@dataclass(frozen=True)
class ReplicaRole:
    """A role of a distributed stage.

    ``image`` may contain placeholders; ``pod`` is the spec of its pods. ``count`` is the number of its replicas if
    it is known only at run time, as text with a placeholder; it must be from ``least`` to ``most``. ``command`` is its
    command line, and ``env`` has its variables, except those that all roles get; ``${replica_id}`` in them is the index
    of the replica.
    """

    name: str
    image: str
    pod: Mapping[str, Any]
    count: str = ""
    least: int = 1
    most: int = 1
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> list[Mapping[str, Any]]:
        """The entries of its environment that are not filled in by the launcher."""
        return [one for one in self.pod["containers"][0].get("env") or () if "name" in one]

    @property
    def mounts(self) -> list[str]:
        """The paths of its mounts, but for the shared memory that each pod gets."""
        mounts = self.pod["containers"][0].get("volumeMounts") or ()
        return [mount["mountPath"] for mount in mounts if mount["mountPath"] != "/dev/shm"]


def replica_roles(words: Sequence[str]) -> list[ReplicaRole]:
    """Return the roles of the distributed stage that has this command; none if the stage is not distributed.

    Args:
        words: a command as it was compiled, with its placeholders.
    """
    for spec, following in specifications(words):
        # Another program's argument may look like it.
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            return _roles(spec, following)
    return []


def engine_options(words: Sequence[str]) -> list[str]:
    """Return the options of the stage's engine that matter to the cluster only, and that the pipeline sets.

    Args:
        words: see ``replica_roles``.
    """
    for spec, _ in specifications(words):
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            manifest = spec["object"]
            is_set = {
                "logs": spec["logs"] != "all",
                "queue": _QUEUE in manifest["metadata"].get("labels", {}) or "queue" in manifest["spec"],
                "ttl": manifest["spec"]["ttlSecondsAfterFinished"] != _TTL,
            }
            return [option for option, there in is_set.items() if there]
    return []


def specifications(words: Sequence[str]) -> Iterator[tuple[Any, Sequence[str]]]:
    """Yield what may be a launcher's specification, with the words after it."""
    for place, (word, following) in enumerate(itertools.pairwise(words)):
        # The program that publishes results is called in the same way.
        if following == EXECUTOR_INPUT and word.startswith("{"):
            with contextlib.suppress(ValueError):
                spec = json.loads(word)
                if {"object", "roles"} <= spec.keys():
                    yield spec, words[place + 2 :]


def replicas_in(line: str) -> tuple[int, int] | None:
    """Return how many replicas run, and of how many, if a line of a distributed stage's output tells it."""
    found = _COUNT.match(line)
    return None if found is None else (int(found[1]), int(found[2]))


def _roles(spec: Any, words: Sequence[str]) -> list[ReplicaRole]:
    pods = {pod["containers"][0]["name"]: pod for pod in _pods(spec["object"])}
    return [
        ReplicaRole(
            role["name"],
            "".join(words[number] for number in role["image"])
            if "image" in role
            else pods[role["name"]]["containers"][0]["image"],
            pods[role["name"]],
            words[role["count"]] if "count" in role else "",
            role.get("least", 1),
            role.get("most", 1),
            tuple(_text(parts, words) for parts in role["command"]),
            {name: _text(parts, words) for name, parts in role["env"] if parts is not None},
        )
        for role in spec["roles"]
    ]


def _text(parts: Sequence[int | None], words: Sequence[str]) -> str:
    return "".join(REPLICA if part is None else words[part] for part in parts)


def _pods(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the specs of pods in a manifest."""
    if isinstance(node, Mapping):
        if "containers" in node:
            yield node
            return
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from _pods(item)
