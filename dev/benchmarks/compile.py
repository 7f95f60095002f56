"""The time to compile tracked stages, beside the same pipeline written by hand with dsl.container_component.

Both pipelines have the same tasks, inputs, outputs, commands and pod settings. Each component has its own name: with
one name for many, KFP's time grows faster than quadratically.
"""

import functools
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Role

from dev.benchmarks import medians, show, timed
from torchx_kfp import task_from_app
from torchx_kfp.authoring.options import StageOptions
from torchx_kfp.authoring.plan import plan_stage

STAGES = 300
BASE = "/tmp/results"


def make_app(name: str, lr: Any) -> AppDef:
    arguments = ["-m", "app.train", "--lr", f"{lr}"]
    return AppDef(name, roles=[Role("trainer", image="example/app:1", entrypoint="python", args=arguments)])


def chain(stages: int) -> Callable[..., None]:
    def function(tracker_base: str = BASE, lr: float = 0.1) -> None:
        previous = task_from_app(make_app("stage-0", lr), tracker_base=tracker_base)
        for number in range(1, stages):
            app = make_app(f"stage-{number}", lr)
            previous = task_from_app(app, tracker_base=tracker_base, reads={"previous": previous})

    return function


#: One stage as the package plans it, to be copied by hand.
PLAN = plan_stage(make_app("stage-1", 0.1), StageOptions(tracker_base=BASE, reads={"previous": "a/b/c"}))
PLACES = {"/tmp/results": "tracker_base", "a/b/c": "previous", "0.1": "lr"}
COMMAND = [
    re.sub("|".join(PLACES), lambda found: f"{{{{$.inputs.parameters['{PLACES[found[0]]}']}}}}", word)
    for word in PLAN.command
]


def component_by_hand(number: int) -> Any:
    def first(stage: str, tracker_base: str, lr: float, run_id: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="example/app:1", command=COMMAND)

    def later(stage: str, tracker_base: str, lr: float, previous: str, run_id: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="example/app:1", command=COMMAND)

    function = later if number else first
    function.__name__ = f"stage-{number}"
    return functools.partial(dsl.container_component(function), stage=f"stage-{number}")


def by_hand(tracker_base: str = BASE, lr: float = 0.1) -> None:
    reads = {}
    for number in range(STAGES):
        task = component_by_hand(number)(tracker_base=tracker_base, lr=lr, **reads)
        for name, path in PLAN.pod.field_paths.items():
            kubernetes.use_field_path_as_env(task, name, path)
        reads = {"previous": task.outputs["run_id"]}


def seconds(function: Callable[..., None]) -> float:
    with tempfile.TemporaryDirectory() as folder:

        def whole() -> None:
            compiler.Compiler().compile(dsl.pipeline(name="pipeline")(function), str(Path(folder, "pipeline.yaml")))

        return timed(whole, time.process_time)


def main() -> None:
    seconds(chain(1))
    ours, peer = medians(3, lambda: seconds(chain(STAGES)), lambda: seconds(by_hand))
    show(f"{STAGES} stages, of the CPU", ours, "s", most=1.05 * peer, peer=("by hand", peer))
    few, many = seconds(chain(STAGES)), seconds(chain(1000))
    show("1,000 stages, of the CPU", many, "s", peer=("as 300", few * 1000 / STAGES))
