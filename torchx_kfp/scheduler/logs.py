"""The lines of one replica of an app, while it runs and afterwards."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torchx_kfp.errors import ArgumentError
from torchx_kfp.pipeline.names import without_indices
from torchx_kfp.runs.growing import GrowingFile
from torchx_kfp.runs.source import Source
from torchx_kfp.scheduler.roles import StageRoles
from torchx_kfp.text import did_you_mean, listed

_SEPARATOR = " | "


@dataclass(frozen=True)
class Replica:
    """A replica of a role, as TorchX names it."""

    role: str
    number: int

    def __str__(self) -> str:
        return f"{self.role}/{self.number}"


def find_replica(roles: Mapping[str, StageRoles], role: str, number: int) -> Replica:
    """Return the replica.

    Raises:
        ArgumentError: the app has no such replica.
    """
    names = [name for stage in roles.values() for name in stage.replicas]
    if str(Replica(role, number)) in names:
        return Replica(role, number)
    known = list(dict.fromkeys(name.rpartition("/")[0] for name in names))
    if role not in known:
        raise ArgumentError(f"The app has no role {role!r}.{did_you_mean(role, known)} Its roles: {listed(known)}.")
    count = sum(name.rpartition("/")[0] == role for name in names)
    raise ArgumentError(f"The role {role!r} has no replica {number}: it has {count}, and the first is 0.")


def lines_of(
    source: Source,
    roles: Mapping[str, StageRoles],
    replica: Replica,
    *,
    should_tail: bool = False,
    interval: float = 1.0,
) -> Iterator[str]:
    """Yield the replica's lines, each with its line break, those of all attempts in turn.

    Args:
        source: the run.
        roles: the roles of its stages.
        replica: one of its replicas.
        should_tail: whether to wait for more lines until the run has ended.
        interval: the seconds between two looks at the run.
    """
    files: dict[Path, GrowingFile] = {}
    while True:
        record = source.look()
        mine = {
            name: stage
            for name in record.run.attempts
            if (stage := roles.get(without_indices(name))) and str(replica) in stage.replicas
        }
        source.fetch(mine)
        for name, stage in mine.items():
            for attempt in record.run.attempts[name]:
                if attempt.log_file is not None:
                    file = files.setdefault(attempt.log_file, GrowingFile(attempt.log_file))
                    new = file.read_new(is_whole=not record.is_running)
                    yield from _selected([f"{line.decode('utf-8', 'replace')}\n" for line in new], stage, replica)
        if not (should_tail and record.is_running):
            return
        time.sleep(interval)


def _selected(lines: list[str], stage: StageRoles, replica: Replica) -> Iterator[str]:
    """Yield those of a stage's lines that belong to the replica; the launcher's own are the first replica's."""
    if not stage.is_distributed:
        yield from lines
        return
    names = stage.replicas
    for line in lines:
        name, separator, text = line.partition(_SEPARATOR)
        if separator and name in names:
            if name == str(replica):
                yield text.replace(f"\r{name}{_SEPARATOR}", "\r")
        elif str(replica) == names[0]:
            yield line
