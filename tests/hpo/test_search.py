"""Searches in a pipeline: what they compile to, and what happens when they run here."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torchx.specs import AppDef, Role, VolumeMount

from tests.authoring.apps import compile_pipeline
from tests.documents import documents
from tests.facts import says
from tests.hpo.apps import TRIAL, python, searching, searching_stages, searching_tasks, squared, train, with_search
from torchx_kfp import Stages, hpo
from torchx_kfp.errors import AppDefError
from torchx_kfp.local import RunResult, Watch, run
from torchx_kfp.tracking import FsspecResultTracker


def lr_and_layers(lr: float, layers: int) -> AppDef:
    """A component, which is not a trial."""
    return python(TRIAL, f"{lr}", f"{layers}")


def execute(pipeline: Any, folder: Path, **options: Any) -> RunResult:
    options.setdefault("watch", Watch())
    return run(pipeline, {"tracker_base": str(folder / "tracker")}, output_dir=folder / "runs", **options)


def trials_of(result: RunResult, folder: Path) -> list[Any]:
    """Return what the last stage of a search has stored of its trials."""
    (run_id,) = (str(found.execution_id) for found in result.stages if found.name == "search-best")
    [file] = (folder / "tracker/.torchx_kfp/runs" / run_id).glob("*.search")
    return [SimpleNamespace(**trial) for trial in json.loads(file.read_text())["search"]["trials"]]


@pytest.mark.versions
def test_a_search_runs(tmp_path: Path) -> None:
    """One trial fails, others go on; later stages get the best values, and read the best trial."""
    done = execute(with_search, tmp_path)
    done.raise_for_failure()
    trials = trials_of(done, tmp_path)
    assert [trial.exit_code for trial in trials].count(3) == [trial.failed for trial in trials].count(True)
    assert any(trial.failed for trial in trials)
    best = min((trial for trial in trials if not trial.failed), key=lambda trial: trial.results["loss"])
    stages = {stage.name: stage for stage in done.stages}
    outputs = {**best.parameters, **best.results, "trial": best.run_id}
    assert {name: stages["search-best"].outputs[name] for name in outputs} == outputs
    printed = stages["deploy"].last_lines()
    assert [*map(float, printed[0].split())] == [*best.parameters.values(), best.results["loss"]]
    assert printed[1:] == [str({**best.parameters, **best.results, "trial": best.run_id}), printed[2]]
    assert f"'size': {best.parameters['layers']}" in printed[2]

    again = execute(with_search, tmp_path)
    asked = [trial.parameters for trial in trials_of(again, tmp_path)]
    assert asked == [trial.parameters for trial in trials], "with a seed, it asks for the same trials"
    codes = {stage.name: stage.results["exit_code"] for stage in done.stages if "exit_code" in (stage.results or {})}
    cached = {stage.name for stage in again.stages if stage.state == "cached"} & {*codes}
    assert cached == {name for name, code in codes.items() if code == 0}, "those that failed ran again"


def test_values_arrive_as_they_are(tmp_path: Path) -> None:
    echo = """
import json, os, sys
path = os.path.join(os.environ["TORCHX_TRACKER_BASE"], os.environ["TORCHX_JOB_ID"])
os.makedirs(os.path.dirname(path), exist_ok=True)
json.dump({"score": 1, "got": sys.argv[1:]}, open(path, "w"))
"""
    texts = ["-x 'a' \"b\"", " ", "$HOME\n`id` äß漢\n%s"]
    parameters = {"text": hpo.choice(*texts), "on": hpo.choice(True), "x": hpo.choice(1e-05), "n": hpo.choice(2)}
    trial = lambda p: python(echo, *(f"{p[name]}" for name in p))  # noqa: E731 (as users write it)
    grid = {"minimize": [], "maximize": "score", "rounds": None, "trials": None, "optimizer": "grid"}
    done = execute(searching(trial, parameters, **grid), tmp_path)
    done.raise_for_failure()
    trials = trials_of(done, tmp_path)
    tracker = FsspecResultTracker(tmp_path / "tracker")
    assert [tracker[trial.run_id]["got"] for trial in trials] == [[text, "true", "0.00001", "2"] for text in texts]
    assert [trial.parameters["text"] for trial in trials] == texts
    assert done.stages[-1].outputs["on"] is True


def test_without_may_fail_a_trial_is_a_stage_like_any_other() -> None:
    usual, strict = (compile_pipeline(searching(**options)) for options in ({}, {"may_fail": False}))
    assert ("may_fail" in usual, "may_fail" in strict) == (True, False)


def test_what_a_search_compiles_to() -> None:
    text = compile_pipeline(searching(rounds=3, parallelism=2, reads={"data": "run/prepare/1"}))
    root = documents(text)[0]["root"]["dag"]["tasks"]
    assert root["for-loop-1"]["iteratorPolicy"] == {"parallelismLimit": 2}
    assert {task["cachingOptions"].get("enableCache", False) for name, task in root.items() if "search" in name} == {
        False
    }
    seeded = documents(compile_pipeline(searching(seed=1)))[0]["root"]["dag"]["tasks"]
    assert all(task["cachingOptions"]["enableCache"] for name, task in seeded.items() if "search" in name)


def test_the_stages_that_ask_have_what_the_storage_needs() -> None:
    """They run with the image, the variables and the volumes of the trials."""

    def trial(p: hpo.Parameters) -> AppDef:
        env = {"AWS_ENDPOINT_URL": "http://minio:9000", "LR": f"{p.lr}"}
        mounts = [VolumeMount("results", "/results")]
        return python("", f"{p.layers}", env=env, mounts=mounts)

    secrets = {"s3": {"key": "AWS_SECRET_ACCESS_KEY"}}
    set_variable = lambda task: task.set_env_variable("FROM", "configure")  # noqa: E731 (as users write it)
    pipeline = searching(trial, rounds=1, secrets=secrets, inline=False, configure=set_variable)
    spec, platform = documents(compile_pipeline(pipeline))
    executors = spec["deploymentSpec"]["executors"]
    assert [name for name, found in executors.items() if "configure" in str(found)] == ["exec-train"]
    container = executors["exec-search-ask-1"]["container"]
    assert container["image"] == "train:1"
    words = " ".join(container["command"])
    assert "env AWS_ENDPOINT_URL= python3" in words
    assert "ask.main(*sys.argv[1:])" in str(spec)
    settings = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert len(settings) == 3
    for setting in settings.values():
        assert setting["pvcMount"][0]["mountPath"] == "/results"
        assert setting["secretAsEnv"][0]["secretName"] == "s3"
    text = compile_pipeline(searching(optimizer="ax", rounds=1, image="ask:1"))
    assert documents(text)[0]["deploymentSpec"]["executors"]["exec-search-ask-1"]["container"]["image"] == "ask:1"


def test_the_parameters_are_arguments_of_a_component() -> None:
    def component(lr: str, layers: str) -> AppDef:
        return python(TRIAL, f"{lr}", f"{layers}")

    def trial(p: hpo.Parameters) -> AppDef:
        assert (len(p), repr(p), p["lr"] is p.lr) == (2, "Parameters(lr, layers)", True)
        assert (copy.copy(p)["lr"], hasattr(p, "_repr_html_")) == (p.lr, False)
        assert getattr(p, "__wrapped__", getattr(p, "name", "none")) == "none", "whatever asks for attributes may go on"
        return component(**p)

    assert compile_pipeline(searching(trial)) == compile_pipeline(searching())


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (
            {"trial": train(hpo.Parameters({"lr": "1", "layers": "2"}))},
            ["not a callable", "function of one argument"],
        ),
        (
            {"trial": lambda p: {"loss": p.lr}},
            ["trial() returns {'loss'", "of type dict", "stages.python(fit,"],
        ),
        (
            {"trial": lambda p: f"{p.lr}{p.layers}"},
            ["trial() returns '{{channel", "of type str"],
        ),
        ({"trial": lambda p: python("", f"{p.lr}")}, ["does not use 'layers'", "{p.layers}", "leave it out"]),
        ({"trial": lambda lr: python("", f"{lr}")}, ["does not use 'lr', 'layers'", "lambda p: train(lr=p.lr)"]),
        ({"trial": lr_and_layers}, ["'layers'", "function of one argument", "train(**p)"]),
        ({"trial": lambda: python("")}, ["too many positional", "function of one argument"]),
        ({"trial": lambda p: python("", f"{p.layer}")}, ["'layer'", "Did you mean 'layers'?"]),
        ({"parallelism": 0}, ["parallelism is 0", "1 or more"]),
        ({"parallelism": "2"}, ["parallelism is '2'", "1 or more"]),
        *(
            ({what: wrong}, [f"{what} is {wrong!r}"])
            for what in ("rounds", "trials")
            for wrong in (2.5, 2.0, "4", True)
        ),
        *(({"seed": wrong}, [f"seed is {wrong!r}"]) for wrong in ("x", 1.5)),
        *(({"minimize": wrong}, ["minimize has", "loss"]) for wrong in (None, [5])),
        (
            {"trial": lambda p: Stages(tracker_base="/data").task(train(p))},
            ["'train'", "search's tracker base", "Stages(tracker_base=tracker_base)"],
        ),
        ({"trial": lambda p: Stages().task(train(p))}, ["'train'", "search's tracker base"]),
        ({"trial": lambda p: squared(x=1.0)}, ["'squared'", "search's tracker base"]),
        ({"trial": lambda p: [squared(x=1.0), train(p)][1]}, ["makes the task 'squared'", "does not depend on it"]),
        ({"optimizer": None}, ["optimizer is None", "'random'"]),
        ({"optimizer": "ax"}, ["'ax'", "torchx-kfp[ax]", "image="]),
        ({"optimizer": "mine.search:ask"}, ["torchx-kfp and mine.search", "image="]),
        ({"trial": lambda p: AppDef("a", [Role("a", f"a:{p.lr}", args=[f"{p.layers}"])])}, ["image", "image="]),
    ],
)
def test_wrong_arguments(arguments: Any, facts: list[str]) -> None:
    with pytest.raises((AppDefError, AttributeError), match=says(*facts)):
        compile_pipeline(searching(**arguments))


def test_options_that_do_not_exist() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'results'"):
        compile_pipeline(searching(results={"loss": float}))
    with pytest.raises(TypeError, match="'paralelism'"):
        compile_pipeline(searching(paralelism=1))


def test_trials_with_an_engine_may_have_claims_that_are_read_only() -> None:
    """The stages that ask have no engine, and do not need these."""

    def trial(p: hpo.Parameters) -> AppDef:
        app = python(TRIAL, f"{p.lr}", f"{p.layers}")
        app.roles[0].mounts = [VolumeMount("data", "/data", read_only=True), VolumeMount("results", "/results")]
        return app

    compiled = compile_pipeline(searching(trial, engine="job"))
    assert "mountPath: /data" not in compiled
    assert "mountPath: /results" in compiled


def test_trials_are_tasks_of_several_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is a Python function, which reads what another stage of its own trial has recorded."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code/trials.py").write_text(
        "def prepare(lr: float) -> float:\n"
        "    return lr * 2\n\n"
        "def fit(prepare: float, lr: float, layers: int, scale: float) -> dict:\n"
        "    assert layers < 3, 'too many'\n"
        "    return {'loss': prepare / lr * layers * scale}\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "code")
    import trials  # type: ignore[import-not-found]  # just written

    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    done = execute(searching_stages(trials.prepare, trials.fit), tmp_path)
    done.raise_for_failure()
    found = {stage.name: stage for stage in done.stages}
    trial = ["[0,0]", "[0,1]", "[0,2]"]
    names = [*(f"{name}{place}" for name in ("fit", "prepare") for place in trial), "search-ask-1[0]", "search-best[0]"]
    assert sorted(found) == ["deploy[0]", *names]
    assert found["search-best[0]"].outputs["loss"] == 1.0
    assert found["deploy[0]"].last_lines() == ["1"]


def test_a_trials_task_may_follow_another_one_without_reading_it() -> None:
    spec, _ = documents(compile_pipeline(searching_tasks(lambda task: task.after(squared(x=1.0)))))
    assert spec["components"]["comp-for-loop-1"]["dag"]["tasks"]["train"]["dependentTasks"] == ["squared"]


def test_the_stages_that_ask_have_the_options_of_the_trials_task() -> None:
    _, platform = documents(compile_pipeline(searching_tasks()))
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert {name for name, it in executors.items() if "secretAsEnv" in it} == {
        "exec-search-ask-1",
        "exec-search-best",
        "exec-train",
    }
    with pytest.raises(AppDefError, match=says("'engine'", "task")):
        compile_pipeline(searching_tasks(engine="job"))
