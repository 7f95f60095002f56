"""The bytes that a stage takes in the Argo workflow, compared to the same chain written by hand with KFP's SDK.

    python -m benchmarks.size

There are three chains of 300 stages, each with one read and one result: tracked stages that carry the program that
publishes, tracked stages whose image has torchx-kfp, and components of KFP's SDK that pass on the result by value,
without a tracker. ``torchx_kfp.semantics.workflow`` is the model of the workflow. Exits with 1 if a stage takes more
than 2,400 bytes.
"""

import functools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app
from torchx_kfp.semantics.workflow import LIMIT, measure

STAGES = 300
GOAL = 2_400


def make_app(number: int) -> AppDef:
    arguments = ["-m", "app.train", "--fold", str(number)]
    return AppDef(
        f"stage-{number}", roles=[Role("trainer", image="example/app:1", entrypoint="python", args=arguments)]
    )


def tracked(tracker_base: str = "s3://bucket/results", *, inline: bool = True) -> None:
    previous: Any = None
    for number in range(STAGES):
        previous = task_from_app(
            make_app(number), tracker_base=tracker_base, reads=previous, results={"x": float}, inline=inline
        )


def image(tracker_base: str = "s3://bucket/results") -> None:
    tracked(tracker_base, inline=False)


def inline(tracker_base: str = "s3://bucket/results") -> None:
    tracked(tracker_base)


def component(name: str) -> Any:
    def stage(fold: int, previous: float, base: str, x: dsl.OutputPath(float)):
        words = ["python", "-m", "app.train", "--fold", fold, "--previous", previous, "--base", base, "--x", x]
        return dsl.ContainerSpec(image="example/app:1", command=words)

    stage.__name__ = name
    return dsl.container_component(stage)


def by_hand(base: str = "s3://bucket/results") -> None:
    previous: Any = 0.0
    for number in range(STAGES):
        previous = component(f"stage-{number}")(fold=number, previous=previous, base=base).outputs["x"]


@functools.cache
def compiled(function: Callable[..., None]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(dsl.pipeline(name="pipeline")(function), str(path))
        return path.read_text(encoding="utf-8")


def main() -> None:
    sizes = {function: measure(compiled(function)) for function in (by_hand, image, inline)}
    least = sizes[by_hand].workflow
    for function, size in sizes.items():
        print(
            f"{function.__name__:8} {size.workflow / STAGES:6,.0f} bytes a stage, ratio {size.workflow / least:.2f}; "
            f"about {STAGES / size.share:.0f} stages run to their end within {LIMIT:,} bytes"
        )
    sys.exit(max(size.workflow for size in sizes.values()) / STAGES > GOAL)


if __name__ == "__main__":
    main()
