"""The specification for the launcher of a distributed stage, and its line about replicas.

``carried.launcher`` reads the JSON form. It imports nothing, so it names the keys again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

#: TorchX's macro for the index of a replica.
REPLICA = "${replica_id}"
#: The label of an object that names its queue of Kueue.
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
#: The default of the option ``ttl`` of engines, in seconds.
DEFAULT_TTL = 24 * 60 * 60
#: The launcher's line whenever the number of running replicas has changed. Lines of a replica begin with its name.
_COUNT = re.compile(r"torchx-kfp: (\d+) of (\d+) replicas run\b")

#: The end of the launcher's line about the replica that has failed first, before that replica's last lines.
LAST_LINES_FOLLOW = "; its last lines:"
#: A text: numbers of the launcher's words, which are joined, and None for the index of the replica.
WordNumbers = Sequence["int | None"]


class ReplicaCount(NamedTuple):
    """The numbers of running and of all replicas."""

    running: int
    total: int

    @classmethod
    def parse(cls, line: str) -> ReplicaCount | None:
        """Return the numbers of replicas in a line of a distributed stage's output, if any."""
        found = _COUNT.match(line)
        return None if found is None else cls(int(found[1]), int(found[2]))


@dataclass(frozen=True, kw_only=True)
class RoleSpec:
    """A role for the launcher.

    It has ``most`` replicas, or the number in the word ``count``, at least ``fewest``. A
    variable without text has the launcher's value, if any. ``pod`` is the template of its pods; it has the image,
    unless ``image`` has it.
    """

    name: str
    pod: dict[str, Any]
    most: int = 1
    fewest: int | None = None
    env: Sequence[tuple[str, WordNumbers | None]] = ()
    ports: Sequence[int] = ()
    restarts: int | None = None
    command: Sequence[WordNumbers] = ()
    count: int | None = None
    image: WordNumbers | None = None


@dataclass(frozen=True, kw_only=True)
class LauncherSpec:
    """The launcher's input: the engine's object, the location of its state, and the roles.

    ``api`` and ``plural`` name the collection of ``object``; ``companions`` are objects that it owns, as (api, plural,
    manifest). ``succeeded`` is the condition of an object that has succeeded. ``host`` is the name of replica 0 of the
    first role, as a format for ``%``. ``retries`` is how often the launcher replaces a failed object.
    ``container`` is the name of the replicas' containers, if it is not that of their role. With ``ends``, the stage
    ends with the first failed container, even if the controller restarts it. ``success`` names the roles that must
    succeed. ``config`` names the input with the settings of the task; ``claims`` are the paths of the AppDef's volumes
    in the launcher. ``failure`` is the exit code if the launcher itself fails.
    """

    stage: str
    engine: str
    needs: str
    api: str
    plural: str
    object: Mapping[str, Any]
    companions: Sequence[tuple[str, str, Mapping[str, Any]]] = ()
    succeeded: str
    host: str
    config: str
    logs: str = "all"
    retries: int = 0
    container: str | None = None
    ends: bool | None = None
    claims: Sequence[str] = ()
    success: Sequence[str] = ()
    roles: Sequence[RoleSpec] = ()
    failure: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form, without the fields that are None."""
        return asdict(self, dict_factory=lambda fields: {name: value for name, value in fields if value is not None})

    @classmethod
    def from_json(cls, data: Any) -> LauncherSpec:
        """Return the specification in this JSON.

        Raises:
            TypeError: it is not a specification.
            KeyError: likewise.
        """
        return cls(**{**data, "roles": [RoleSpec(**role) for role in data["roles"]]})

    def replica_roles(self, words: Sequence[str]) -> list[ReplicaRole]:
        """Return the roles; ``words`` are the launcher's."""

        def text(parts: WordNumbers) -> str:
            return "".join(REPLICA if part is None else words[part] for part in parts)

        return [
            ReplicaRole(
                role.name,
                role.pod["spec"]["containers"][0]["image"] if role.image is None else text(role.image),
                role.pod["spec"],
                "" if role.count is None else words[role.count],
                role.fewest or 1,
                role.most,
                tuple(map(text, role.command)),
                {name: text(parts) for name, parts in role.env if parts is not None},
            )
            for role in self.roles
        ]

    @property
    def engine_options(self) -> list[str]:
        """The options of the stage's engine that are set and matter only on the cluster."""
        metadata, spec = self.object["metadata"], self.object["spec"]
        is_set = {
            "logs": self.logs != "all",
            "queue": QUEUE_LABEL in metadata.get("labels", {}),
            "ttl": spec.get("ttlSecondsAfterFinished", DEFAULT_TTL) != DEFAULT_TTL,
        }
        return [option for option, there in is_set.items() if there]


@dataclass(frozen=True)
class ReplicaRole:
    """A role of a distributed stage, with its text.

    ``image`` may contain placeholders; ``pod`` is the spec of its pods. ``count`` is the number of its replicas if
    it is known only at run time, as text with a placeholder; it must be from ``fewest`` to ``most``. ``command`` is its
    command line, ``env`` its own variables; in both, ``${replica_id}`` is the replica's index.
    """

    name: str
    image: str
    pod: Mapping[str, Any]
    count: str = ""
    fewest: int = 1
    most: int = 1
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> list[Mapping[str, Any]]:
        """The entries of its environment without values from the launcher."""
        return [one for one in self.pod["containers"][0].get("env") or () if "name" in one]

    @property
    def mounts(self) -> list[str]:
        """The paths of its mounts, except shared memory."""
        mounts = self.pod["containers"][0].get("volumeMounts") or ()
        return [mount["mountPath"] for mount in mounts if mount["mountPath"] != "/dev/shm"]
