"""Stages that record lists and dicts, and loops over them: numbers arrive as KFP writes them."""

import json
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app
from torchx_kfp.local import RunResult

TRIALS = [
    {"lr": 0.1, "layers": 2, "act": "relu", "on": True, "sizes": [1.0, 2]},
    {"lr": 1e-05, "layers": 3, "act": "a b'\"$", "on": False, "sizes": []},
    {"lr": 1e22, "layers": 0, "act": "ü{}", "on": True, "sizes": [{"n": 0.5}]},
]
#: As on KFP 2.17.
SEEN = [
    ["0.1", "2", "relu", "true", "[1,2]"],
    ["0.00001", "3", "a b'\"$", "false", "[]"],
    ["10000000000000000000000", "0", "ü{}", "true", '[{"n":0.5}]'],
]

ASK = f"""
from torchx_kfp.tracking import current_run
run = current_run()
run.put(n=3)
run.add_metadata(trials={TRIALS!r}, settings={{"epochs": 3.0}})
"""
TRIAL = """
import os, sys
from torchx_kfp.tracking import current_run
current_run().put(seen="\\n".join([*sys.argv[1:], os.environ["SIZES"]]), epochs=os.environ["SETTINGS"])
"""
BEST = """
import json, sys
from torchx_kfp.tracking import current_run
run = current_run()
trials = [trial.results() for trial in run.parents["trials"]]
run.add_metadata(best=json.loads(sys.argv[1])[1], seen=[trial["seen"].split("\\n") for trial in trials])
run.put(epochs=trials[0]["epochs"])
"""


def python(code: str, *args: str, image: str = "image:1", **env: str) -> AppDef:
    words = ["-c", textwrap.dedent(code), *args]
    return AppDef("app", [Role("app", image=image, entrypoint="python", args=words, env=env)])


@pytest.mark.versions
def test_a_list_drives_a_loop_and_its_fields_are_channels(execute: Callable[..., RunResult], tmp_path: Path) -> None:
    @dsl.pipeline
    def pipeline(base: str):
        declared: dict[str, Any] = {"trials": list, "settings": dict, "n": int}
        ask = task_from_app(python(ASK), name="ask", tracker_base=base, results=declared)
        with dsl.ParallelFor(ask.outputs["trials"], parallelism=2) as x:
            settings = f"{ask.outputs['settings']}"
            app = python(
                TRIAL,
                f"{x.lr}",
                f"{x.layers}",
                f"{x.act}",
                f"{x.on}",
                SIZES=f"{x.sizes}",
                SETTINGS=settings,
                image=f"image:{x.layers}",
            )
            trial = task_from_app(app, name="trial", tracker_base=base)
        task_from_app(
            python(BEST, f"{ask.outputs['trials']}"),
            name="best",
            tracker_base=base,
            reads={"trials": dsl.Collected(trial.outputs["run_id"])},
            results={"best": dict, "seen": list, "epochs": str},
        )

    result = execute(pipeline, {"base": str(tmp_path / "results")})
    assert result["ask"].outputs["trials"] == TRIALS
    assert result["ask"].outputs["settings"] == {"epochs": 3.0}
    best = result["best"].outputs
    assert best["seen"] == SEEN
    assert best["best"] == TRIALS[1]
    assert json.loads(best["epochs"]) == {"epochs": 3}


def test_a_stage_that_kfp_would_not_understand_says_so(
    execute_failing: Callable[..., RunResult], tmp_path: Path
) -> None:
    @dsl.pipeline
    def pipeline(base: str):
        code = "from torchx_kfp.tracking import current_run; current_run().add_metadata(trials=[{'name': 'a'}])"
        task_from_app(python(code), name="ask", tracker_base=base, results={"trials": list, "best": dict})

    (stage,) = execute_failing(pipeline, {"base": str(tmp_path / "results")}).stages
    assert "ask" in stage.name
    assert "has the field 'name' in trials, which KFP's loop items have, too: rename it" in stage.reason
    assert "declares the result 'best' as dict but recorded trials" in stage.reason
