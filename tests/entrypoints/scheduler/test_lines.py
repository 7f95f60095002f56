"""The lines of a replica while the log of its stage grows."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchx_kfp.entrypoints.scheduler.app_run import StageRoles, find_replica, lines_of
from torchx_kfp.execution.runs.state import RunState
from torchx_kfp.local import StageStarted

pytestmark = pytest.mark.versions

ROLES = {
    "train": StageRoles({"trainer": 2, "ps": 1}, is_distributed=True),
    "report": StageRoles({"report": 1}),
}


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
        run = RunState()
        for attempt in (1, 2):
            run.on_event(StageStarted(self.stage, "pod", attempt, log_file=self.folder / f"{attempt}.log"))
        return SimpleNamespace(run=run, is_running=len(self.looks) > 1)

    def follow(self, *, closely: bool = False) -> Iterator[Any]:
        """Yield the run at each look: the lines of a log do not change it."""
        assert closely
        while (record := self.read()).is_running:
            yield record
        yield record

    def fetch(self, stages: Collection[str]) -> bool:
        """Write what is new; return True."""
        self.fetched.append(set(stages))
        for number, text in enumerate(self.looks.pop(0) if self.looks else (), 1):
            with (self.folder / f"{number}.log").open("a") as file:
                file.write(text)
        return True


def lines(source: Growing, roles: Any, replica: str, **more: Any) -> list[str]:
    return list(lines_of(source, roles, replica, **more))


def test_lines_come_when_they_are_whole_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    source = Growing(tmp_path, "report", [["a\nb"], ["c\n"], [""], ["\td\r\n\ne", "again\n"]])
    found = lines(source, ROLES, "report/0", should_tail=True)
    assert found == ["a\n", "bc\n", "\td\r\n", "\n", "e\n", "again\n"]
    assert source.fetched == [{"report"}] * 4


def test_without_tail_the_lines_so_far(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "report", [["a\nb"], ["c\n"]]), ROLES, "report/0") == ["a\n"]


@pytest.mark.parametrize(
    ("replica", "expected"),
    [
        ("trainer/0", ["torchx-kfp: 3 of 3 replicas run\n", "one\n"]),
        ("trainer/1", ["two | three\n", "\r50%\r100%\n"]),
        ("ps/0", ["\n"]),
    ],
)
def test_a_replica_of_a_distributed_stage(tmp_path: Path, replica: str, expected: list[str]) -> None:
    text = (
        "torchx-kfp: 3 of 3 replicas run\ntrainer/0 | one\ntrainer/1 | two | three\nps/0 | \n"
        "trainer/1 | \rtrainer/1 | 50%\rtrainer/1 | 100%\n"
    )
    assert lines(Growing(tmp_path, "train", [[text]]), ROLES, replica) == expected


def test_the_lines_of_one_pod_are_not_taken_for_those_of_replicas(tmp_path: Path) -> None:
    assert lines(Growing(tmp_path, "report[2]", [["report/0 | x\n"]]), ROLES, "report/0") == ["report/0 | x\n"]


def test_a_role_of_several_stages_has_the_replicas_of_all() -> None:
    roles = {"train": StageRoles({"trainer": 3}, is_distributed=True), "again": StageRoles({"trainer": 1})}
    assert find_replica(roles, "trainer", 2) == "trainer/2"
