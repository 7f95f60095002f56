"""Applications and pipelines for tests of searches: their trials are quick, and record results without a library."""
# No `from __future__ import annotations`: KFP reads the types of parameters.

from typing import Any

from kfp import dsl
from torchx.specs import AppDef, Role

from torchx_kfp import Stages, hpo, task_from_app

#: Records the squared distance of lr from 0.1, and fails with 3 for the third layer.
TRIAL = """
import json, os, sys
lr, layers = float(sys.argv[1]), int(sys.argv[2])
if layers == 3:
    sys.exit(3)
path = os.path.join(os.environ["TORCHX_TRACKER_BASE"], os.environ["TORCHX_JOB_ID"])
os.makedirs(os.path.dirname(path), exist_ok=True)
with open(path, "w") as file:
    json.dump({"loss": (lr - 0.1) ** 2, "size": layers}, file)
"""
SPACES = {"lr": hpo.log(1e-4, 1.0), "layers": hpo.int(1, 3)}


@dsl.component(base_image="python:3.12")
def squared(x: float) -> float:
    return x * x


def python(code: str, *args: str, name: str = "train", **fields: Any) -> AppDef:
    role = Role(name, image="train:1", entrypoint="python", args=["-c", code, *args], **fields)
    return AppDef(name, roles=[role])


def train(p: hpo.Parameters) -> AppDef:
    return python(TRIAL, f"{p.lr}", f"{p.layers}")


def searching(trial: Any = train, parameters: Any = SPACES, **options: Any) -> Any:
    """Return a pipeline with a search."""
    usual = {"minimize": "loss", "rounds": 2, "trials": 3}

    @dsl.pipeline(name="searching")
    def pipeline(tracker_base: str):
        hpo.search(trial, parameters, tracker_base=tracker_base, **{**usual, **options})

    return pipeline


def searching_tasks(follow: Any = lambda task: task, **options: Any) -> Any:
    """Return a pipeline with a search whose trials are tasks; ``follow`` may let them follow others."""

    @dsl.pipeline(name="searching")
    def pipeline(tracker_base: str):
        stages = Stages(tracker_base=tracker_base, secrets={"s3": {"key": "AWS_SECRET_ACCESS_KEY"}})
        usual = {"minimize": "loss", "rounds": 1, "trials": 2, "tracker_base": tracker_base}
        hpo.search(lambda p: follow(stages.task(train(p))), SPACES, **usual, **options)

    return pipeline


def searching_stages(prepare: Any, fit: Any) -> Any:
    """Return a pipeline with a search, in a loop, whose trials are two functions."""

    @dsl.pipeline(name="searching")
    def pipeline(tracker_base: str):
        stages = Stages(tracker_base=tracker_base)
        with dsl.ParallelFor([0.5]) as scale:

            def trial(p: hpo.Parameters) -> dsl.PipelineTask:
                prepared = stages.python(prepare, image="i", lr=p.lr)
                options = {"image": "i", "lr": p.lr, "layers": p.layers, "scale": scale}
                return stages.python(fit, reads=prepared, may_fail=True, **options)

            spaces = {"lr": hpo.choice(0.125), "layers": hpo.int(1, 3)}
            best = hpo.search(trial, spaces, minimize="loss", optimizer="grid", tracker_base=tracker_base)
            stages.task(python("import sys; print(sys.argv[1])", f"{best.outputs['layers']}", name="deploy"))

    return pipeline


def program_of(spec: Any, stage: str) -> tuple[str, str]:
    """Return the program of a stage of a compiled search, and its argument: a constant of its task, or a word."""
    program, words = spec["deploymentSpec"]["executors"][f"exec-{stage}"]["container"]["command"][-2:]
    task = spec["root"]["dag"]["tasks"][stage]
    return program, words or task["inputs"]["parameters"]["stage"]["runtimeValue"]["constant"].partition("|")[2]


@dsl.pipeline(name="with-search")
def with_search(tracker_base: str):
    """A search with what comes after it."""
    best = hpo.search(train, SPACES, minimize="loss", rounds=2, trials=3, seed=0, tracker_base=tracker_base)
    show = (
        "import os, sys; print(*sys.argv[1:]); "
        "from torchx_kfp.tracking import current_run as r; print(r().parents['best'].results()); "
        "print(r().parents['model'].results())"
    )
    app = python(show, f"{best.outputs['lr']}", f"{best.outputs['layers']}", f"{best.outputs['loss']}", name="deploy")
    task_from_app(app, tracker_base=tracker_base, reads={"best": best, "model": best.outputs["trial"]})
