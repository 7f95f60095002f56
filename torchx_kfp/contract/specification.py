"""The specification for the launcher of a distributed stage, and its line about replicas.

``carried.launcher`` reads the JSON form. It imports nothing, so it names the keys again.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

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
#: A text of a role: in authoring, a tuple of constants and references; in a decoded command, a str.
_Text = TypeVar("_Text")


class ReplicaCount(NamedTuple):
    """The numbers of running and of all replicas."""

    running: int
    total: int

    @classmethod
    def parse(cls, line: str) -> ReplicaCount | None:
        """Return the numbers of replicas in a line of a distributed stage's output, if any."""
        match = _COUNT.match(line)
        return None if match is None else cls(int(match[1]), int(match[2]))


@dataclass(frozen=True, kw_only=True)
class RoleSpec(Generic[_Text]):
    """A role of a distributed stage.

    It has ``most`` replicas, or ``count`` if the number is known only at run time, at least ``fewest``. ``env`` are its
    variables, and ``inherited`` those with the launcher's values, if any. ``pod`` is the template of its pods, with a
    marker if ``image`` is known only at run time. In a decoded text, ``REPLICA`` is the index of the replica.
    """

    name: str
    pod: Mapping[str, Any]
    image: _Text
    most: int = 1
    fewest: int = 1
    inherited: Sequence[str] = ()
    env: Mapping[str, _Text] = field(default_factory=dict)
    ports: Sequence[int] = ()
    restarts: int | None = None
    command: Sequence[_Text] = ()
    count: _Text | None = None

    def encode(self, place: Callable[[_Text], list[int | None]]) -> dict[str, Any]:
        """Return the JSON form; ``place`` returns the numbers of the words of a text."""
        fields = {
            "name": self.name,
            "pod": self.pod,
            "most": self.most,
            "fewest": self.fewest if self.fewest > 1 else None,
            "env": [[name, None] for name in self.inherited] + [[name, place(text)] for name, text in self.env.items()],
            "ports": self.ports,
            "restarts": self.restarts,
            "image": place(self.image) if isinstance(self.container["image"], Mapping) else None,
            "command": [*map(place, self.command)],
            "count": None if self.count is None else place(self.count)[0],
        }
        return _without_none(fields)

    @staticmethod
    def decode(fields: Any, text: Callable[[Sequence[int | None]], str]) -> RoleSpec[str]:
        """Return the role in this JSON; ``text`` returns the text of the words with these numbers."""
        pod, env = fields["pod"], fields["env"]
        decoded = {
            "most": int(fields["most"]),
            "fewest": int(fields.get("fewest", 1)),
            "image": text(fields["image"]) if "image" in fields else pod["spec"]["containers"][0]["image"],
            "inherited": [name for name, parts in env if parts is None],
            "env": {name: text(parts) for name, parts in env if parts is not None},
            "command": [*map(text, fields["command"])],
            "count": text([fields["count"]]) if "count" in fields else None,
        }
        return RoleSpec(**{**fields, **decoded})

    @property
    def container(self) -> Mapping[str, Any]:
        """The container of its pods."""
        return self.pod["spec"]["containers"][0]  # type: ignore[no-any-return]  # of JSON

    @property
    def variables(self) -> list[Mapping[str, Any]]:
        """The entries of its environment that the launcher does not fill in."""
        return [one for one in self.container.get("env") or () if "name" in one]

    @property
    def mounts(self) -> list[str]:
        """The paths of its mounts, except the shared memory of each pod."""
        mounts = self.container.get("volumeMounts") or ()
        return [mount["mountPath"] for mount in mounts if mount["mountPath"] != "/dev/shm"]


@dataclass(frozen=True, kw_only=True)
class LauncherSpec(Generic[_Text]):
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
    roles: Sequence[RoleSpec[_Text]] = ()
    failure: int | None = None

    def encode(self, replica: Any) -> tuple[dict[str, Any], list[tuple[Any, ...]]]:
        """Return the JSON form, and the words of the launcher's command line, to which it refers by number.

        ``replica`` is the part of a text that is the index of the replica.
        """
        words: list[tuple[Any, ...]] = []

        def place(text: Any) -> list[int | None]:
            """Return the numbers of the words that the text consists of, with None for the index of the replica."""
            placed: list[int | None] = []
            for is_index, run in itertools.groupby(text, lambda part: part == replica):
                word = tuple(run)
                if is_index:
                    placed += [None for _ in word]
                    continue
                if word not in words:
                    words.append(word)
                placed.append(words.index(word))
            return placed

        roles = [role.encode(place) for role in self.roles]
        return _without_none({**vars(self), "roles": roles}), words

    @staticmethod
    def decode(data: Any, words: Sequence[str]) -> LauncherSpec[str]:
        """Return the specification in this JSON; ``words`` are the launcher's.

        Raises:
            TypeError: it is not a specification.
            LookupError, AttributeError, ValueError: likewise.
        """

        def text(parts: Sequence[int | None]) -> str:
            return "".join(REPLICA if part is None else words[part] for part in parts)

        roles = [RoleSpec.decode(role, text) for role in data["roles"]]
        decoded = LauncherSpec(**{**data, "roles": roles})
        # What is derived from a malformed one raises here, not in its readers.
        _ = decoded.engine_options, [(role.variables, role.mounts) for role in roles]
        return decoded

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


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
