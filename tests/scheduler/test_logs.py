"""The lines of one replica."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchx import specs

from tests.facts import says
from torchx_kfp.errors import ArgumentError
from torchx_kfp.runs.events import StageStarted
from torchx_kfp.scheduler.logs import Replica, find_replica, lines_of
from torchx_kfp.scheduler.roles import StageRoles

ROLES = {"train": StageRoles([specs.Role("trainer", "i", num_replicas=2), specs.Role("ps", "i")], is_distributed=True)}
ALONE = {"echo": StageRoles([specs.Role("echo", "i")])}


@dataclass
class Growing:
    """A run whose log files grow, and which ends, at each look."""

    folder: Path
    stage: str
    #: The text that each look adds to the files of the attempts.
    looks: list[list[str]]
    fetched: list[set[str]] = field(default_factory=list)

    def read(self) -> Any:
        """Return the run."""
        started = [StageStarted(self.stage, "pod", n, log_file=self.folder / f"{n}.log") for n in (1, 2)]
        return SimpleNamespace(run=SimpleNamespace(attempts={self.stage: started}), is_running=len(self.looks) > 1)

    look = read

    def follow(self) -> Iterator[Any]:
        """Nothing: the lines of a log do not change the run."""
        yield self.read()

    def fetch(self, stages: Collection[str]) -> bool:
        """Write what is new; return True."""
        self.fetched.append(set(stages))
        for number, text in enumerate(self.looks.pop(0) if self.looks else (), 1):
            with (self.folder / f"{number}.log").open("a") as file:
                file.write(text)
        return True


def lines(source: Growing, roles: Any, replica: Replica, **more: Any) -> list[str]:
    return list(lines_of(source, roles, replica, interval=0, **more))


def test_lines_come_when_they_are_whole_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    source = Growing(tmp_path, "echo", [["a\nb"], ["c\n"], [""], ["\td\r\n\ne", "again\n"]])
    found = lines(source, ALONE, Replica("echo", 0), should_tail=True)
    assert found == ["a\n", "bc\n", "\td\r\n", "\n", "e\n", "again\n"]
    assert source.fetched == [{"echo"}] * 4


def test_without_tail_the_lines_so_far(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "echo", [["a\nb"], ["c\n"]]), ALONE, Replica("echo", 0)) == ["a\n"]


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        (Replica("trainer", 0), ["torchx-kfp: 3 of 3 replicas run\n", "one\n"]),
        (Replica("trainer", 1), ["two | three\n", "\r50%\r100%\n"]),
        (Replica("ps", 0), ["\n"]),
    ],
)
def test_a_replica_of_a_distributed_stage(tmp_path: Path, replica: Replica, expected: list[str]) -> None:
    text = (
        "torchx-kfp: 3 of 3 replicas run\ntrainer/0 | one\ntrainer/1 | two | three\nps/0 | \n"
        "trainer/1 | \rtrainer/1 | 50%\rtrainer/1 | 100%\n"
    )
    assert lines(Growing(tmp_path, "train", [[text]]), ROLES, replica) == expected


def test_the_lines_of_one_pod_are_not_taken_for_those_of_replicas(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "echo[2]", [["echo/0 | x\n"]]), ALONE, Replica("echo", 0)) == ["echo/0 | x\n"]


def test_unknown_replicas() -> None:
    assert find_replica(ROLES, "trainer", 1) == Replica("trainer", 1)
    with pytest.raises(ArgumentError, match=says("'trianer'", "'trainer'", "ps")):
        find_replica(ROLES, "trianer", 0)
    with pytest.raises(ArgumentError, match=says("'trainer'", "replica 2", "2")):
        find_replica(ROLES, "trainer", 2)
