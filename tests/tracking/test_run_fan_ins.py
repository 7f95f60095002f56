"""A stage that reads many runs: in any order, after a fork, as a pickle, and when one of them cannot be read."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from tests.facts import says
from tests.tracking.stages import stage
from torchx_kfp.errors import RefusedError
from torchx_kfp.tracking import FanIn, FsspecResultTracker, Run

COUNT = 300
KEYS = [f"p1/train/{number:03}" for number in range(COUNT)]


def fan_in(base: object, keys: list[str] = KEYS) -> FanIn:
    found = stage(base, "p1/use/1", {"trials": tuple(keys)}).parents["trials"]
    assert isinstance(found, FanIn)
    return found


@pytest.fixture
def trials(tmp_path: Path) -> FanIn:
    for number, key in enumerate(KEYS):
        path = tmp_path / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'{{"number": {number}}}')
    return fan_in(tmp_path)


def test_a_fan_in_in_any_order_and_more_than_once(trials: FanIn, tmp_path: Path) -> None:
    runs = list(trials)
    assert [run.results()["number"] for run in reversed(runs)] == list(reversed(range(COUNT)))
    (tmp_path / KEYS[5]).write_text('{"number": "new"}')
    assert runs[5].results() == {"number": "new"}, "what was taken is read anew"
    assert [run.results()["number"] for run in fan_in(tmp_path, [KEYS[1], KEYS[1], KEYS[0]])] == [1, 1, 0]


def test_results_are_fetched_when_the_first_are_needed(trials: FanIn, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched: list[int] = []
    get_many = FsspecResultTracker.get_many

    def counting(self: FsspecResultTracker, run_ids: Collection[str]) -> Any:
        fetched.append(len(run_ids))
        return get_many(self, run_ids)

    monkeypatch.setattr(FsspecResultTracker, "get_many", counting)
    runs = list(trials)
    assert [run.id for run in runs] == KEYS
    assert pickle.loads(pickle.dumps(runs[7])).results() == {"number": 7}
    assert not fetched
    assert [run.results()["number"] for run in runs] == list(range(COUNT))
    assert fetched == [COUNT]


def test_one_that_cannot_be_read_is_an_error_of_its_own(trials: FanIn, tmp_path: Path) -> None:
    (tmp_path / KEYS[10]).unlink()
    (tmp_path / KEYS[10] / "below").mkdir(parents=True)
    read = 0
    for number, run in enumerate(trials):
        if number == 10:
            with pytest.raises(RefusedError, match=says(f"'{KEYS[10]}'", "folder")):
                run.results()
        else:
            assert run.results() == {"number": number}
            read += 1
    assert read == COUNT - 1


def test_a_fan_in_and_its_runs_survive_pickling(trials: FanIn) -> None:
    copy = pickle.loads(pickle.dumps(trials))
    assert type(copy) is FanIn
    assert copy == trials
    assert [run.results()["number"] for run in copy] == list(range(COUNT))
    run: Run = next(iter(trials))
    run.results()
    assert pickle.loads(pickle.dumps(run)).results() == {"number": 0}
