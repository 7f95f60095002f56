"""Experiments of Ax whose trials are TorchX apps that really run."""

from __future__ import annotations

import os
import re
import runpy
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests import pages
from tests.facts import says
from tests.fake_kfp import KfpHost
from tests.hpo.ax import components
from tests.hpo.ax.components import runner_of
from tests.modules import needs
from torchx_kfp.errors import NotRecordedError
from torchx_kfp.tracking import FsspecResultTracker

pytestmark = [
    needs("ax", "needs Ax, which `make test-ax` installs"),
    pytest.mark.ax,
    pytest.mark.usefixtures("torchx_of_its_own"),
    # Of Ax and the libraries below it.
    pytest.mark.filterwarnings("ignore:TypeDecorator", "ignore:Encountered a `MultiObjective`"),
    *(pytest.mark.filterwarnings(f"ignore::{name}") for name in ("DeprecationWarning", "FutureWarning", "UserWarning")),
]


def client_of(objective: str, low: int = 0, high: int = 9, **storage: Any) -> Any:
    """Return a client that draws x between these bounds, each once."""
    from ax.api.client import Client
    from ax.api.configs import RangeParameterConfig

    client = Client(random_seed=0, **storage)
    client.configure_experiment([RangeParameterConfig("x", (low, high), "int")], name="old")
    client.configure_optimization(objective)
    client.configure_generation_strategy("random_search", initialization_random_seed=0)
    return client


def metrics(*names: str) -> list[Any]:
    from torchx_kfp.hpo.ax import TorchXMetric

    return [TorchXMetric(name) for name in names]


def by_x(client: Any) -> dict[int, dict[str, Any]]:
    """Return the rows of the summary by the value of x."""
    return {int(row["x"]): row for row in client.summarize().to_dict("records")}


def test_a_saved_experiment_goes_on_in_a_new_process(tmp_path: Path) -> None:
    """It has two objectives, a trial that fails, and one that records nothing."""
    from ax.api.client import Client

    from torchx_kfp.hpo.ax.runner import torchx_runner

    first = client_of("-loss, size")
    first.configure_runner(runner_of(components.quadratic, tmp_path / "base", constants={"scale": 2.0}))
    first.configure_metrics(metrics("loss", "size"))
    first.run_trials(max_trials=6, parallelism=3, tolerated_trial_failure_rate=0.9)
    assert {row["trial_status"] for row in by_x(first).values()} <= {"COMPLETED", "FAILED", "ABANDONED"}
    first.save_to_json_file(str(tmp_path / "saved.json"))
    torchx_runner.cache_clear()

    client = Client.load_from_json_file(str(tmp_path / "saved.json"))
    client.configure_runner(runner_of(components.quadratic, tmp_path / "base", constants={"scale": 2.0}))
    client.run_trials(max_trials=4, parallelism=4, tolerated_trial_failure_rate=0.9)
    rows = by_x(client)
    assert set(rows) >= {5, 7, 8}
    statuses = {7: "FAILED", 8: "ABANDONED"}
    assert {x: row["trial_status"] for x, row in rows.items()} == {x: statuses.get(x, "COMPLETED") for x in rows}
    good = {x: row for x, row in rows.items() if x not in statuses}
    assert {x: (row["loss"], row["size"]) for x, row in good.items()} == {x: (2.0 * (x - 3) ** 2, x) for x in good}
    assert re.search(says("torchx log local_cwd://torchx/", "FAILED"), rows[7]["status_reason"])
    front = {trial["x"] for trial, *_ in client.get_pareto_frontier(use_model_predictions=False)}
    # Ax leaves out trials that are far worse than others in one objective.
    assert {3, 4} <= front <= {x for x in good if x >= 3}
    # Another process reads outcomes by what Ax has stored of a trial: text alone.
    trial = client._experiment.trials[int(rows[5]["trial_index"])]
    assert {type(value) for value in trial.run_metadata.values()} == {str}
    loss, size, *_ = metrics("loss", "size")
    assert loss.fetch(trial.index, trial.run_metadata) == (0, (8.0, 0.5))
    assert [(type(value), value) for value in size.fetch(trial.index, trial.run_metadata)] == [(int, 0), (float, 5.0)]


def test_a_trial_is_watched_and_stopped_and_its_experiment_is_in_a_database(tmp_path: Path) -> None:
    from ax.api.client import Client
    from ax.api.configs import StorageConfig
    from ax.core.trial_status import TrialStatus
    from ax.storage.sqa_store.db import create_all_tables, get_engine, init_engine_and_session_factory

    url = f"sqlite:///{tmp_path / 'ax.db'}"
    init_engine_and_session_factory(url=url)
    create_all_tables(get_engine())
    client = client_of("-loss", storage_config=StorageConfig(url=url))
    runner, [metric] = runner_of(components.slow, tmp_path / "base"), metrics("loss")
    client.configure_runner(runner)
    client.configure_metrics([metric])
    [(index, parameters)] = client.get_next_trials(1).items()
    started = runner.run_trial(index, parameters)
    deadline = time.monotonic() + 60
    while (runner.poll_trial(index, started), _fetched(metric, index, started)) != (TrialStatus.RUNNING, (2, 3.0)):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    client.attach_data(index, {"loss": 3.0}, progression=2)
    runner.stop_trial(index, started)
    assert runner.poll_trial(index, started) is TrialStatus.ABANDONED
    runner.stop_trial(index, started)
    client.mark_trial_early_stopped(index)

    loaded = Client.load_from_database("old", StorageConfig(url=url))
    assert loaded._experiment.trials[index].status is TrialStatus.EARLY_STOPPED
    assert type(loaded._experiment.metrics["loss"]) is type(metric)
    assert type(loaded._experiment.runner) is type(runner)
    assert runner.poll_trial(index, {**started, "torchx_app_handle": "local_cwd://torchx/gone"}) is TrialStatus.FAILED


def _fetched(metric: Any, index: int, metadata: Any) -> Any:
    try:
        return metric.fetch(index, metadata)
    except NotRecordedError:  # not yet
        return None


def test_the_guide_says_what_its_program_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = pages.REPOSITORY / "docs" / "guides" / "ax.md"
    pages.write_files(page, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(pages.REPOSITORY))
    runpy.run_path("tune.py", run_name="__main__")
    printed = capsys.readouterr().out
    assert f"$ python tune.py\n{printed}```\n" in page.read_text(encoding="utf-8")
    # With the fifth trial, which is the last one that needs no model, and therefore no minute.
    more = Path("go_on.py")
    more.write_text(more.read_text().replace("max_trials=4, parallelism=2", "max_trials=1"))
    monkeypatch.delitem(sys.modules, "component")
    client = runpy.run_path("go_on.py")["client"]
    assert [row["trial_status"] for row in client.summarize().to_dict("records")] == ["COMPLETED"] * 5


@needs("sklearn", "the extra `examples` has scikit-learn")
def test_the_search_for_a_network_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from components.nas.search import main

    monkeypatch.chdir(pages.REPOSITORY)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    words = ["--tracker-base", str(tmp_path / "base"), "--saved", str(tmp_path / "nas.json"), "--method=random_search"]
    for _ in range(2):
        main([*words, "--trials=1"])
    # The first trial is the center of the space. The second call has found that there is nothing left to do.
    _, first, second = capsys.readouterr().out.split("1 trials, of which 0 failed.")
    assert first == second
    assert ", 4,671 weights (hidden_1=45, hidden_2=31" in first
    assert len(FsspecResultTracker(tmp_path / "base").keys(None)) == 1


@pytest.mark.usefixtures("scheduler_kfp")
def test_trials_run_on_kfp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with KfpHost(tmp_path / "host") as host:
        monkeypatch.setenv("TORCHX_KFP_HOST", host.url)
        client, volume = client_of("-loss", low=6, high=7), {"volume": str(tmp_path / "base")}
        client.configure_runner(
            runner_of(components.quadratic, tmp_path / "base", "kfp", cfg={"name": "a trial"}, constants=volume)
        )
        client.configure_metrics(metrics("loss"))
        client.run_trials(max_trials=2, parallelism=2)
        rows = by_x(client)
    assert (rows[6]["trial_status"], rows[6]["loss"]) == ("COMPLETED", 9.0)
    assert rows[7]["trial_status"] == "FAILED"
    assert ": trial ended with exit code 7 (torchx log kfp://torchx/" in rows[7]["status_reason"]
    [key] = FsspecResultTracker(tmp_path / "base").keys(None)
    assert rows[6]["torchx_app_handle"] == f"kfp://torchx/{key.partition('/')[0]}"
    assert not (set(client._experiment.trials[0].run_metadata) - {"torchx_app_handle", "torchx_tracker_base"})
