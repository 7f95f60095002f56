"""Pipelines with each promise about stages, and how they end."""

# Annotations are not postponed: kfp reads them as types.
import importlib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from kfp import dsl
from torchx.specs import AppDef, Role

from components.echo.component import echo
from tests.execution.local.corpus import FAMILIES, load_cases
from tests.execution.local.corpus.recorded import CHOICES, NOT_RUN
from torchx_kfp import Stages, hpo
from torchx_kfp.execution.pipeline.load import load_pipeline


@dataclass(frozen=True)
class Proof:
    """A pipeline that runs there and here.

    Attributes:
        name: its name in the report.
        make: makes the pipeline.
        arguments: those of the pipeline, without the tracker base and the workspace.
        results: results of some stages, by stage and name: neither place may have others.
        state: how the run ends.
        expected: why it ends in another way there; empty if it does not.
        missing: what it needs that a cluster may not have; empty if it needs nothing.
        packages: what its image must have besides: see ``PACKAGES``.
        varying: results that differ from run to run, such as times and places.
        refused: whether it is refused before it starts.
    """

    name: str
    make: Callable[[], Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    state: str = "succeeded"
    expected: str = ""
    missing: str = ""
    packages: tuple[str, ...] = ()
    varying: Set[str] = frozenset()
    refused: bool = False


PROOFS: list[Proof] = []


def proof(**expected: Any) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Decorate a function that makes a pipeline, to add it to the proofs."""

    def decorate(make: Callable[[], Any]) -> Callable[[], Any]:
        PROOFS.append(Proof(f"stages.{make.__name__}", make, **expected))
        return make

    return decorate


def app(name: str, *words: str, **role: Any) -> AppDef:
    """Return an application of ``code/stage.py``; ``Place.fit`` replaces its image."""
    return AppDef(
        name, [Role(name, image="python:3.11", entrypoint="python3", args=["-m", "stage", name, *words], **role)]
    )


#: What examples import, and an image may lack.
PACKAGES = ("sklearn", "torch", "torchx")


@dsl.pipeline(name="packages")
def packages(tracker_base: str, workspace: str = ""):
    Stages(tracker_base=tracker_base, workspace=workspace).task(app("packages", *PACKAGES))


def examples() -> Iterator[Proof]:
    """Yield the pipelines in the folder ``pipelines``; the trials are a part of the digits."""

    def made(name: str) -> Callable[[], Any]:
        return lambda: getattr(importlib.import_module(f"pipelines.{name}"), name)

    places = frozenset({"data", "artifacts", "model", "fit_seconds"})
    settings: dict[str, dict[str, Any]] = {
        # Other versions of torch round in another way.
        "ddp": {
            "packages": ("sklearn", "torch"),
            "arguments": {"epochs": 5, "bound": 1.0},
            "varying": {"loss", "accuracy"},
        },
        "digits": {"packages": ("sklearn", "torchx"), "varying": places},
        "experiments": {"missing": "a server of MLflow"},
        "functions": {"missing": "an image with the folder components: a component takes no workspace"},
        "hello": {"missing": "a volume at the tracker base"},
        "search": {"packages": ("sklearn",), "varying": places},
        "sized": {"arguments": {"image": "python:3.11"}},
    }
    for name, more in settings.items():
        yield Proof(f"examples.{name}", made(name), **more)


def corpus() -> Iterator[Proof]:
    """Yield the pipelines of the corpus."""

    def made(function: Any) -> Callable[[], Any]:
        return lambda: load_pipeline(function)

    for family in FAMILIES:
        for case in load_cases(family).values():
            yield Proof(
                case.name,
                made(case.pipeline),
                case.arguments,
                state=case.state,
                expected=CHOICES.get(case.name, ""),
                missing=NOT_RUN.get(case.name, ""),
                refused=bool(case.refused),
            )


@proof(results={"second": {"double": 0.5, "letters": 24}})
def results_reach_the_next_stage() -> Any:
    @dsl.pipeline(name="chain")
    def chain(tracker_base: str, workspace: str = "") -> float:
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        first = stages.task(app("first"), results={"number": float, "text": str, "flag": bool})
        with dsl.If(first.outputs["flag"] == True):  # noqa: E712 (KFP's conditions)
            second = app("second", f"{first.outputs['number']}", f"{first.outputs['text']}")
            stages.task(second, reads=first)
        with dsl.Else():
            stages.task(app("fails"), name="never")
        return first.outputs["number"]

    return chain


@proof(results={"collect": {"squares": '[["a", 1], ["b", 4], ["c", 9]]'}})
def a_list_drives_a_loop() -> Any:
    @dsl.pipeline(name="list")
    def loop(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        made = stages.task(app("items"), results={"items": list})
        with dsl.ParallelFor(made.outputs["items"]) as item:
            squared = stages.task(app("square", f"{item.x}", f"{item.letter}"))
        stages.task(app("collect"), reads={"squares": dsl.Collected(squared.outputs["run_id"])})

    return loop


@proof(results={"fails": {"before": 1, "exit_code": 3}, "code": {"code": 3}})
def a_failure_that_may_happen() -> Any:
    @dsl.pipeline(name="may-fail")
    def may_fail(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        failed = stages.task(app("fails"), may_fail=True)
        stages.task(app("code"), reads=failed)

    return may_fail


@proof(state="failed")
def a_failure_ends_the_run() -> Any:
    @dsl.pipeline(name="fails")
    def failing(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        with dsl.ExitHandler(stages.task(app("first"), name="last")):
            failed = stages.task(app("fails"), results={"before": int})
            stages.task(app("fails", f"{failed.outputs['before']}"), name="never", reads=failed)

    return failing


@proof(results={"second": {"late": 1}})
def a_second_attempt() -> Any:
    @dsl.pipeline(name="retries")
    def retries(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        stages.task(app("second_try", max_retries=2), name="second")

    return retries


@proof()
def an_artifact() -> Any:
    @dsl.container_component
    def show(model: dsl.Input[dsl.Model], out: dsl.OutputPath(str)):
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'cp "$0" "$1"', model.path, out])

    @dsl.pipeline(name="artifact")
    def artifact(tracker_base: str, workspace: str = "") -> str:
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        saved = stages.task(app("save", "model.txt"), artifacts={"model": dsl.Model})
        return show(model=saved.outputs["model"]).outputs["out"]

    return load_pipeline(artifact)


@proof()
def a_search() -> Any:
    @dsl.pipeline(name="search")
    def search(tracker_base: str, workspace: str = ""):
        hpo.search(
            lambda p: app("trial", f"{p.x}"),
            {"x": hpo.choice(1.0, 2.0, 4.0)},
            minimize="loss",
            optimizer="grid",
            tracker_base=tracker_base,
            workspace=workspace,
        )

    return search


@proof(arguments={"words": "no code, no Python"})
def an_image_with_a_shell() -> Any:
    @dsl.pipeline(name="shell")
    def shell(words: str, workspace: str = ""):
        Stages(workspace=workspace).task(echo(words, image="busybox"), name="echo")

    return load_pipeline(shell)


def replicas(engine: str) -> Any:
    """Return a pipeline with a stage of two replicas."""

    @dsl.pipeline(name=f"replicas-{engine}")
    def distributed(tracker_base: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        stages.task(app("replica", num_replicas=2), engine=engine, results={"replicas": int})

    return distributed


@dsl.container_component
def asleep():
    """Sleeps until it is ended."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", "echo asleep; sleep 600"])


@dsl.pipeline(name="sleeping")
def sleeping():
    asleep().set_caching_options(False)


def mended() -> Any:
    """Return a pipeline whose second stage fails until a file is under the tracker base."""

    @dsl.pipeline(name="mended")
    def pipeline(tracker_base: str, marker: str, workspace: str = ""):
        stages = Stages(tracker_base=tracker_base, workspace=workspace)
        first = stages.task(app("first"), results={"number": float})
        stages.task(app("once_mended", marker), name="mended", reads=first)

    return pipeline
