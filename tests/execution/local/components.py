"""Components from which the tests of the local runner build their pipelines."""

# No postponed annotations: kfp reads annotations as types.
import inspect
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler, dsl

from tests.documents import documents
from torchx_kfp.local import Pipeline, RunResult, load_pipeline

WRITE = 'printf %s "$1" > "$2"'


def text_of(type_: Any, name: str = "text-of") -> Any:
    """Return a component that writes the text of its input ``x`` of this type, as in the command, into ``out``."""

    def function(x: Any, out: Any) -> Any:
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", WRITE, "sh"], args=[x, out])

    return _component(function, name, {"x": type_, "out": dsl.OutputPath(str)})


def produce(type_: Any, name: str = "produce") -> Any:
    """Return a component that writes the STRING ``text`` into its output ``out`` of this type."""

    def function(text: Any, out: Any) -> Any:
        return dsl.ContainerSpec(image="busybox", command=["sh", "-c", WRITE, "sh"], args=[text, out])

    return _component(function, name, {"text": str, "out": dsl.OutputPath(type_)})


def _component(function: Any, name: str, annotations: dict[str, Any]) -> Any:
    function.__name__ = name.replace("-", "_")
    function.__annotations__ = annotations
    function.__signature__ = inspect.Signature(
        [
            inspect.Parameter(key, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=value)
            for key, value in annotations.items()
        ]
    )
    return dsl.container_component(function)


write = text_of(str, "write")


@dsl.container_component
def shell(script: str):
    """Runs a script, with any exit code."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c"], args=[script])


@dsl.container_component
def shell_out(script: str, out: dsl.OutputPath(str)):
    """Runs a script, whose standard output is ``$0``."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c"], args=[script, out])


@dsl.container_component
def python(code: str):
    """Runs Python code."""
    return dsl.ContainerSpec(image="python", command=["python", "-c"], args=[code])


def scripts(*texts: str, chained: bool = False) -> Any:
    """Return a pipeline that runs these scripts, one after another if ``chained``."""

    @dsl.pipeline
    def pipeline():
        before: list[Any] = []
        for text in texts:
            task = shell(script=text)
            before = [task.after(*before)] if chained else []

    return pipeline


def load(changed: list[dict[str, Any]], folder: Path) -> Pipeline:
    """Return the pipeline of these documents."""
    path = folder / "p.yaml"
    path.write_text(yaml.safe_dump_all(changed, sort_keys=False))
    return load_pipeline(path)


def ir(folder: Path) -> list[dict[str, Any]]:
    """Return a small compiled pipeline as documents, for tests to change in ways that kfp's compiler does not."""

    @dsl.pipeline
    def pipeline(x: str = "v"):
        with dsl.ParallelFor(["a"]) as item:
            write(x=item)

    path = folder / "small.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return documents(path.read_text())


def states(result: RunResult) -> dict[str, str]:
    """Return the states of the stages by their names."""
    return {stage.name: str(stage.state) for stage in result.stages}
