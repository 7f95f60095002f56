"""The program between the rounds of a search: what it tells, what it asks for, and what it records."""

from __future__ import annotations

import json
import math
import runpy
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pytest

from tests.authoring.apps import compile_pipeline
from tests.documents import documents
from tests.facts import says
from tests.hpo.apps import program_of, python, searching
from tests.proxy import Proxy
from tests.s3 import S3Server
from tests.tracking.stages import application, environ
from torchx_kfp import hpo
from torchx_kfp.tracking import FsspecResultTracker, Run

PARAMETERS = {"lr": hpo.log(1e-4, 1.0), "layers": hpo.int(1, 3), "act": hpo.choice("relu", "gelu")}


class Pipeline:
    """The stages of a compiled search, whose program runs here."""

    def __init__(self, base: str, monkeypatch: pytest.MonkeyPatch, folder: Path, **changes: Any) -> None:
        self.tracker = FsspecResultTracker(base)
        self._monkeypatch = monkeypatch
        self._folder = folder
        usual = {"parameters": PARAMETERS, "seed": 7}
        pipeline = searching(lambda p: python("", *(f"{p[name]}" for name in p)), **{**usual, **changes})
        self.spec = documents(compile_pipeline(pipeline))[0]

    def ask(self, name: str, before: str = "", *trials: str) -> Run:
        run = Run(f"run/{name}/1", self.tracker)
        reads: Any = {"search": f"run/{before}/1", "trials": trials} if before else {}
        for variable, value in environ(self.tracker.tracker_base, run.id, reads).items():
            self._monkeypatch.setenv(variable, value)
        program, words = program_of(self.spec, "search-best" if name == "best" else "search-ask-1")
        (self._folder / "program.py").write_text(program)
        self._monkeypatch.setattr(sys, "argv", ["-c", words])
        runpy.run_path(str(self._folder / "program.py"), run_name="__main__")
        return run

    def trial(self, number: int, **results: Any) -> str:
        run_id = f"run/train/{number}"
        if results:
            self.tracker[run_id] = results
        return run_id

    def said(self, run: Run) -> Any:
        """Return what is stored of the search."""
        filesystem, path = fsspec.core.url_to_fs(self.tracker.tracker_base)
        files = filesystem.find(f"{path}/.torchx_kfp/runs/{run.id}")
        found = json.loads(filesystem.cat_file(max(file for file in files if file.endswith(".search"))))["search"]
        return SimpleNamespace(**{**found, "trials": [SimpleNamespace(**trial) for trial in found["trials"]]})


@pytest.fixture
def search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Pipeline]:
    """Compile a search."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return lambda base=str(tmp_path / "results"), **changes: Pipeline(base, monkeypatch, tmp_path, **changes)


def test_each_round_is_told_of_the_one_before(
    search: Callable[..., Pipeline], capfd: pytest.CaptureFixture[str]
) -> None:
    it = search()
    first = it.ask("ask-1")
    asked = first.metadata()["trials"]
    assert (it.said(first).round, it.said(first).trials, it.said(first).asked) == (1, [], asked)
    assert first.results() == {"round": 1}
    assert first.sources() == []

    trials = [it.trial(0, loss=0.5, exit_code=0), it.trial(1, loss=0.1, exit_code=3), it.trial(2, loss=0.3, other="x")]
    second = it.ask("ask-2", "ask-1", *trials)
    told = it.said(second).trials
    assert [trial.parameters for trial in told] == asked
    assert [(trial.round, trial.index, trial.run_id) for trial in told] == [(1, i, trials[i]) for i in range(3)]
    assert [(trial.results, trial.exit_code, trial.failed) for trial in told] == [
        ({"loss": 0.5}, 0, False),
        ({"loss": 0.1}, 3, True),
        ({"loss": 0.3}, 0, False),
    ]
    assert second.results() == {"round": 2, "loss": 0.3}, "the best so far, for people who watch"
    assert [(source.run_id, source.alias) for source in second.sources()] == [
        ("run/ask-1/1", "search"),
        *((trial, "trials") for trial in trials),
    ]
    asked = [*asked, *second.metadata()["trials"]]
    assert len({json.dumps(trial) for trial in asked}) == 6

    more = [it.trial(3, loss=math.nan), it.trial(4, los=1), it.trial(5, loss=2)]
    best = it.ask("best", "ask-2", *more)
    assert best.results() == {**asked[2], "loss": 0.3, "trial": "run/train/2"}
    assert [trial.failed for trial in it.said(best).trials[3:]] == [True, True, False]
    assert (it.said(best).round, it.said(best).asked) == (3, [])
    assert it.said(best).trials[3].results == {}, "NaN is not JSON"
    assert best.metadata() == {}
    assert capfd.readouterr().err.splitlines()[1:] == [
        "torchx-kfp: 1 of 3 trials of round 1 failed:",
        "  run/train/1: exit code 3",
        f"torchx-kfp: best of 3 trials: loss=0.3 {shown(asked[2])} (run/train/2)",
        f"torchx-kfp: round 2 of 2: {asked[3]} {asked[4]} {asked[5]}",
        "torchx-kfp: 2 of 3 trials of round 2 failed:",
        "  run/train/3: loss is nan",
        "  run/train/4: loss is missing, recorded los",
        f"torchx-kfp: best of 6 trials: loss=0.3 {shown(asked[2])} (run/train/2)",
    ]


def shown(parameters: Any) -> str:
    return " ".join(f"{name}={value}" for name, value in parameters.items())


def test_all_trials_of_a_round_fail(search: Callable[..., Pipeline]) -> None:
    it = search(trials=4)
    it.ask("ask-1")
    trials = [it.trial(0, exit_code=1), it.trial(1), it.trial(2, loss="low"), it.trial(3, loss=10**309)]
    with pytest.raises(SystemExit) as ended:
        it.ask("ask-2", "ask-1", *trials)
    assert str(ended.value.code).splitlines() == [
        "torchx-kfp: 4 of 4 trials of round 1 failed:",
        "  run/train/0: exit code 1",
        "  run/train/1: loss is missing, recorded nothing",
        "  run/train/2: loss is 'low'",
        f"  run/train/3: loss is 1{309 * '0'}",
        "Their logs: torchx-kfp logs run/0",
        "To try again, run the pipeline again; on KFP, with --no-cache, because its cache has these trials.",
    ]
    assert [trial.exit_code for trial in it.said(Run("run/ask-2/1", it.tracker)).trials] == [1, 0, 0, 0], (
        "for the report"
    )


def test_a_round_that_fails_does_not_lose_the_trials_before_it(
    search: Callable[..., Pipeline], capfd: pytest.CaptureFixture[str]
) -> None:
    it = search(trials=1, rounds=2)
    it.ask("ask-1")
    it.ask("ask-2", "ask-1", it.trial(0, loss=0.5, exit_code="mine"))
    best = it.ask("best", "ask-2", it.trial(1, exit_code=1))
    assert (best.results()["loss"], best.results()["trial"]) == (0.5, "run/train/0")
    assert [(trial.exit_code, trial.failed) for trial in it.said(best).trials] == [(0, False), (1, True)]
    said = capfd.readouterr().err.splitlines()
    assert said[-3:-1] == ["torchx-kfp: 1 of 1 trials of round 2 failed:", "  run/train/1: exit code 1"]


def test_trials_that_were_not_asked_for_are_not_told(search: Callable[..., Pipeline]) -> None:
    it = search()
    it.ask("ask-1")
    with pytest.raises(SystemExit, match="3 trials were requested, but 1 ended"):
        it.ask("ask-2", "ask-1", it.trial(0, loss=1))


def test_several_objectives_have_a_front(search: Callable[..., Pipeline]) -> None:
    it = search(rounds=1, trials=4, minimize="test/loss", maximize="accuracy")
    asked = it.ask("ask-1").metadata()["trials"]
    values = [(0.5, 0.9), (0.1, 0.4), (0.5, 0.8), (0.1, 0.5)]
    trials = [it.trial(i, **{"test/loss": loss, "accuracy": accuracy}) for i, (loss, accuracy) in enumerate(values)]
    best = it.ask("best", "ask-1", *trials)
    assert best.results() == {**asked[3], "test/loss": 0.1, "accuracy": 0.5, "trial": "run/train/3"}
    assert best.metadata() == {
        "front": [{**asked[i], "test_loss": values[i][0], "accuracy": values[i][1], "trial": trials[i]} for i in (3, 0)]
    }


def ask_mine(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer of this module, which has no more to ask for in the third round."""
    count = (state or {"count": 0})["count"] + 1
    return [{"lr": count / 10, "layers": 1, "act": "relu"}] * (9 if count < 3 else 0), {"count": count}


def test_an_optimizer_of_the_image(search: Callable[..., Pipeline]) -> None:
    it = search(optimizer="tests.hpo.test_ask:ask_mine", image="i", rounds=3)
    asked = it.ask("ask-1").metadata()["trials"]
    assert asked == [{"lr": 0.1, "layers": 1, "act": "relu"}] * 3, "never more than it was asked for"
    trials = [it.trial(number, loss=1) for number in range(9)]
    assert it.ask("ask-2", "ask-1", *trials[:3]).metadata()["trials"][0]["lr"] == 0.2
    drawn = it.ask("ask-3", "ask-2", *trials[3:6]).metadata()["trials"]
    assert len(drawn) == 1, "KFP fails a loop without iterations"
    again = it.ask("again", "ask-2", *trials[3:6]).metadata()["trials"]
    assert again == drawn, "the seed decides"


GOOD = {"lr": 0.1, "layers": 1, "act": "relu"}


def ask_carelessly(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer that changes what it was given, and its state, and asks for what it was told."""
    for trial in told:
        trial["results"] = {"loss": 301 - trial["results"]["loss"]}
        trial["parameters"].clear()
    told.reverse()
    definition["objectives"] = {"loss": "maximize"}
    definition["parameters"].clear()
    state = state if state is not None else []
    state.append(number)
    return [dict(GOOD) for _ in range(number)], state


def test_an_optimizer_cannot_change_the_search(search: Callable[..., Pipeline]) -> None:
    it = search(optimizer="tests.hpo.test_ask:ask_carelessly", image="i", rounds=2, trials=2)
    it.ask("ask-1")
    second = it.ask("ask-2", "ask-1", it.trial(0, loss=300.0), it.trial(1, loss=1.0))
    assert [trial.results["loss"] for trial in it.said(second).trials] == [300, 1]
    best = it.ask("best", "ask-2", it.trial(2, loss=7.0), it.trial(3, loss=9.0))
    assert best.results() == {**GOOD, "loss": 1, "trial": "run/train/1"}


def ask_for_one(definition: Any, told: Any, state: Any, number: int) -> Any:
    """An optimizer that forgets parameters."""
    return [{"lr": 0.1}], None


@pytest.mark.parametrize(
    ("optimizer", "facts"),
    [
        (f"{__name__}:ask_for_one", ["ask_for_one asks for {'lr': 0.1}", "lr, layers, act"]),
        (f"{__name__}:anser", ["optimizer=", "no attribute 'anser'", "PYTHONPATH"]),
        ("jsno:answer", ["optimizer=", "No module named 'jsno'", "PYTHONPATH"]),
        ("imports_nothing:answer", ["optimizer=", "No module named 'nothing_at_all'"]),
    ],
)
def test_an_optimizer_that_does_not_fit(
    optimizer: str, facts: list[str], search: Callable[..., Pipeline], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imports_nothing.py").write_text("import nothing_at_all")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SystemExit, match=says("torchx-kfp: ", *facts)):
        search(optimizer=optimizer, image="i").ask("ask-1")


@pytest.mark.s3
def test_a_stage_that_asks_waits_for_storage(
    search: Callable[..., Pipeline], s3_server: S3Server, s3_base: str, tmp_path: Path
) -> None:
    """It gave up after five seconds."""
    program, words = program_of(search(s3_base).spec, "search-ask-1")
    with Proxy(s3_server.url, otherwise="cut") as proxy:
        threading.Timer(8, lambda: setattr(proxy, "otherwise", None)).start()
        variables = {**environ(s3_base, "run/ask-1/1"), "AWS_ENDPOINT_URL": proxy.url}
        application(program, variables, words, cwd=tmp_path, check=True)
    assert FsspecResultTracker(s3_base).get("run/ask-1/1") == {"round": 1}
