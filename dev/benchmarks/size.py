"""How many stages fit into one run on KFP, beside the same pipeline written by hand.

There are four pipelines of 250 stages in chains of ten, each stage with one read and one result: tracked stages whose
image has torchx-kfp, those that carry the program that publishes, the same with a workspace, and components of KFP's
SDK that pass on the result by value. ``torchx_kfp.execution.model.workflow`` is the model of Argo's workflow.
"""

import hashlib
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from torchx.specs import AppDef, Role

from dev.benchmarks import show
from torchx_kfp import task_from_app
from torchx_kfp.execution.model.workflow import LEVEL_LIMIT, go_json, measure
from torchx_kfp.execution.pipeline.load import load_pipeline

STAGES, CHAINS = 250, 25
#: How many stages must fit, from an image and with the program; the bytes of a task in its level, and of a workspace.
IMAGE, INLINE = 250, 210
LEVEL, WORKSPACE = 420, 400
URL = f"s3://bucket/results/.torchx_kfp/workspaces/{hashlib.sha256(b'code').hexdigest()}.tar"


def make_app(number: int) -> AppDef:
    arguments = ["-m", "app.train", "--fold", str(number)]
    return AppDef(
        f"stage-{number}", roles=[Role("trainer", image="example/app:1", entrypoint="python", args=arguments)]
    )


def tracked(**options: Any) -> Callable[..., None]:
    """Return a pipeline whose parameters have the tracker base and, if it is an option, the workspace."""
    places = {"tracker_base": "s3://bucket/results", **({"workspace": URL} if options.pop("workspace", False) else {})}

    def pipeline(*values: str) -> None:
        made: list[Any] = [None] * CHAINS
        words = {**options, **dict(zip(places, values, strict=True)), "results": {"x": float}}
        for number in range(STAGES):
            made.append(task_from_app(make_app(number), reads=made[-CHAINS], **words))

    parameter = inspect.Parameter
    its = [parameter(name, parameter.POSITIONAL_OR_KEYWORD, default=it, annotation=str) for name, it in places.items()]
    pipeline.__signature__ = inspect.Signature(its)  # KFP reads it
    return pipeline


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


def measured(what: str, function: Callable[..., None], fit: int = 0, level: int | None = None) -> float:
    """Return the bytes of a stage at the end of the run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pipeline.yaml")
        compiler.Compiler().compile(dsl.pipeline(name="pipeline")(function), str(path))
        compiled = load_pipeline(path)
    size = measure(compiled)
    end = (size.workflow + size.state) / STAGES
    task = len(go_json(compiled.documents[0]["root"]).encode()) / STAGES
    show(f"{what}, a task in its level, of which {STAGES * LEVEL_LIMIT // size.level} fit", task, "bytes", most=level)
    most = STAGES * end / size.share / fit if fit else None
    show(f"{what}, a stage at the end, of which {STAGES / size.share:.0f} fit", end, "bytes", most=most)
    return end


def main() -> None:
    measured("by hand", by_hand)
    measured("from an image", tracked(inline=False), IMAGE, LEVEL)
    plain = measured("with the program", tracked(), INLINE, LEVEL)
    more = measured("with a workspace", tracked(workspace=True), 0, LEVEL + 70) - plain  # one more input
    show("a workspace, for each stage", more, "bytes", most=WORKSPACE)
