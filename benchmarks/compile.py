"""The time to compile 300 tracked stages, compared to the same pipeline written by hand with dsl.container_component.

    python -m benchmarks.compile

Both pipelines have the same tasks, inputs, outputs, commands and pod settings. Each component has its own name: with
one name for many, KFP's time grows faster than quadratically. A third pipeline has no pod settings, to show their cost.

At the end, the benchmark shows how the time grows to 1,000 and 2,000 stages, with ``torchx-kfp compile`` and with KFP.
"""

import functools
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl, kubernetes
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app
from torchx_kfp.authoring.options import StageSettings
from torchx_kfp.authoring.plan import plan_stage
from torchx_kfp.common.sdk import quick_sdk

STAGES = 300
ROUNDS = 5
GROWTH = 1.5
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


adapted = chain(STAGES)


#: One stage as the package plans it, to be copied by hand.
PLAN = plan_stage(make_app("stage-1", 0.1), StageSettings(tracker_base=(BASE,), sources={"previous": "a/b/c"}))
COMMAND = [
    word.replace(BASE, "{{$.inputs.parameters['tracker_base']}}")
    .replace("a/b/c", "{{$.inputs.parameters['previous']}}")
    .replace("0.1", "{{$.inputs.parameters['lr']}}")
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


def with_pod_settings(task: dsl.PipelineTask) -> dsl.PipelineTask:
    for name, path in PLAN.field_paths.items():
        kubernetes.use_field_path_as_env(task, name, path)
    return task


def bare(tracker_base: str = BASE, lr: float = 0.1) -> None:
    previous = component_by_hand(0)(tracker_base=tracker_base, lr=lr)
    for number in range(1, STAGES):
        previous = component_by_hand(number)(tracker_base=tracker_base, lr=lr, previous=previous.outputs["run_id"])


def by_hand(tracker_base: str = BASE, lr: float = 0.1) -> None:
    previous = with_pod_settings(component_by_hand(0)(tracker_base=tracker_base, lr=lr))
    for number in range(1, STAGES):
        component = component_by_hand(number)
        previous = with_pod_settings(component(tracker_base=tracker_base, lr=lr, previous=previous.outputs["run_id"]))


def seconds(function: Callable[..., None], clock: Callable[[], float] = time.perf_counter) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = clock()
        pipeline = dsl.pipeline(name="pipeline")(function)
        compiler.Compiler().compile(pipeline, str(Path(folder, "pipeline.yaml")))
        return clock() - start


def growth() -> bool:
    """Tell whether each of 1,000 stages takes at most 1.5 times as long as each of 300, and print KFP's own time."""
    found = {}
    for stages in (STAGES, 1000, 2000):
        with quick_sdk():
            found[stages] = seconds(chain(stages), time.process_time)
        ratio = found[stages] / found[STAGES] * STAGES / stages
        alone = seconds(chain(stages), time.process_time)
        print(
            f"{stages} stages: torchx-kfp compile {found[stages]:.2f} s of the CPU, {ratio:.2f} of linear (limit "
            f"{GROWTH:g} at 1000); without help for KFP's SDK {alone:.2f} s"
        )
    return found[1000] / found[STAGES] * STAGES / 1000 <= GROWTH


def main() -> None:
    warnings.simplefilter("ignore")
    times: dict[Callable[..., None], list[float]] = {adapted: [], by_hand: [], bare: []}
    for function in times:
        seconds(function)
    for _ in range(ROUNDS):
        for function, measured in times.items():
            measured.append(seconds(function))
    ours, peer, least = (statistics.median(measured) for measured in times.values())
    print(f"{STAGES} stages: torchx-kfp {ours:.2f} s, by hand {peer:.2f} s, ratio {ours / peer:.2f}")
    print(f"By hand without pod settings {least:.2f} s, ratio {ours / least:.2f}")
    sys.exit(not growth() or ours / peer > 1.2)


if __name__ == "__main__":
    main()
