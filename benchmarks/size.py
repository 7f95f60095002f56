"""How many stages fit into one run on KFP, compared to the same pipeline written by hand with KFP's SDK.

    python -m benchmarks.size

There are four pipelines of 250 stages in chains of ten, each stage with one read and one result: tracked stages that
carry the program that publishes, the same stages with a workspace, tracked stages whose image has torchx-kfp, and
components of KFP's SDK that pass on the result by value, without a tracker. ``torchx_kfp.execution.model.workflow``
is the model of Argo's workflow. Exits with 1 if a stage takes more than its goal: in the level, or in the workflow
with its state, when all stages have ended.
"""

import functools
import hashlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from torchx_kfp import task_from_app
from torchx_kfp.execution.model.workflow import LEVEL_LIMIT, go_json, measure

STAGES, CHAINS = 250, 25
#: The bytes of a task in its level; those of a stage at the end of the run, from an image and with the program.
LEVEL, IMAGE, INLINE = 420, 4_100, 4_600
#: The bytes of a stage's workspace, which are part of the others.
WORKSPACE = 400
URL = f"s3://bucket/results/.torchx_kfp/workspaces/{hashlib.sha256(b'code').hexdigest()}.tar"


def make_app(number: int) -> AppDef:
    arguments = ["-m", "app.train", "--fold", str(number)]
    return AppDef(
        f"stage-{number}", roles=[Role("trainer", image="example/app:1", entrypoint="python", args=arguments)]
    )


def tracked(tracker_base: str = "s3://bucket/results", **options: Any) -> None:
    made: list[Any] = [None] * CHAINS
    for number in range(STAGES):
        before = made[-CHAINS]
        made.append(
            task_from_app(make_app(number), tracker_base=tracker_base, reads=before, results={"x": float}, **options)
        )


def image(tracker_base: str = "s3://bucket/results") -> None:
    tracked(tracker_base, inline=False)


def inline(tracker_base: str = "s3://bucket/results") -> None:
    tracked(tracker_base)


def workspace(tracker_base: str = "s3://bucket/results", workspace: str = URL) -> None:
    tracked(tracker_base, workspace=workspace)


def component(name: str) -> Any:
    def stage(fold: int, previous: float, base: str, x: dsl.OutputPath(float)):
        words = ["python", "-m", "app.train", "--fold", fold, "--previous", previous, "--base", base, "--x", x]
        return dsl.ContainerSpec(image="example/app:1", command=words)

    stage.__name__ = name
    return dsl.container_component(stage)


def by_hand(base: str = "s3://bucket/results") -> None:
    made: list[Any] = [0.0] * CHAINS
    for number in range(STAGES):
        made.append(component(f"stage-{number}")(fold=number, previous=made[-CHAINS], base=base).outputs["x"])


@functools.cache
def compiled(function: Callable[..., None]) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(dsl.pipeline(name="pipeline")(function), str(path))
        return path.read_text(encoding="utf-8")


def main() -> None:
    missed = False
    ends: dict[str, float] = {}
    for function, goal in ((by_hand, None), (image, IMAGE), (inline, INLINE), (workspace, INLINE + WORKSPACE)):
        text = compiled(function)
        size = measure(text)
        level = len(go_json(next(yaml.safe_load_all(text))["root"]).encode()) / STAGES
        end = (size.workflow + size.state) / STAGES
        print(
            f"{function.__name__:9} {level:4.0f} bytes a task in the level: {STAGES * LEVEL_LIMIT // size.level} fit; "
            f"at the end {end:5,.0f} bytes a stage ({size.workflow / STAGES:,.0f} and {size.state / STAGES:,.0f} of "
            f"state): {STAGES / size.share:.0f} fit"
        )
        ends[function.__name__] = end
        # A workspace is one more input.
        missed |= goal is not None and (level > LEVEL + 70 * (function is workspace) or end > goal)
    print(f"a workspace takes {ends['workspace'] - ends['inline']:.0f} bytes a stage")
    missed |= ends["workspace"] - ends["inline"] > WORKSPACE
    sys.exit(missed)


if __name__ == "__main__":
    main()
