"""Pipelines whose stages note that they run, and fail while a file of their name exists."""

# No postponed annotations: kfp reads annotations as types.
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import dsl

from torchx_kfp.local import RunResult, Watch, run

_NOTE = 'echo "$1" >> "$2/notes"; test ! -e "$2/fail-$1" || exit 1; '


@dsl.container_component
def stage(tag: str, text: str, folder: str, out: dsl.OutputPath(str)):
    """Makes a text of its tag and its input."""
    return dsl.ContainerSpec(
        image="busybox", command=["sh", "-ec", _NOTE + 'printf %s "$1($3)" > "$0"', out, tag, folder, text]
    )


@dsl.container_component
def items(tag: str, folder: str, out: dsl.OutputPath(list)):
    """Makes a list of two texts."""
    script = _NOTE + 'printf \'["%s.x", "%s.y"]\' "$1" "$1" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", script, out, tag, folder])


@dsl.container_component
def joined(tag: str, texts: list[str], folder: str, out: dsl.OutputPath(str)):
    """Makes a text of its tag and a list."""
    script = _NOTE + 'printf %s "$1$3" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", script, out, tag, folder, texts])


@dsl.container_component
def save(tag: str, text: str, folder: str, data: dsl.Output[dsl.Dataset]):
    """Makes a file."""
    script = _NOTE + 'mkdir -p "${0%/*}"; printf %s "$1($3)" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", script, data.path, tag, folder, text])


@dsl.container_component
def load(tag: str, folder: str, data: dsl.Input[dsl.Dataset], out: dsl.OutputPath(str)):
    """Makes a text of its tag and a file."""
    script = _NOTE + 'printf %s "$1<$(cat "$3")>" > "$0"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", script, out, tag, folder, data.path])


@dsl.container_component
def clean(tag: str, folder: str):
    """Makes nothing."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", _NOTE, "sh", tag, folder])


@dsl.container_component
def tell(tag: str, folder: str, status: dsl.PipelineTaskFinalStatus):
    """An exit task that is told how the others have ended."""
    return dsl.ContainerSpec(image="busybox", command=["sh", "-ec", _NOTE, "sh", tag, folder, status])


@dsl.pipeline
def inner(tag: str, text: str, folder: str) -> str:
    first = stage(tag=tag, text=text, folder=folder)
    return stage(tag="last", text=first.output, folder=folder).output


def everything(versions: dict[str, str] | None = None) -> Callable[..., Any]:
    """Return a pipeline with each kind of task, inside an exit handler; ``versions`` changes tags."""
    tag = {name: name for name in "abcdefghijkmn"} | (versions or {})

    @dsl.pipeline(name="everything", description="The author's own words.")
    def pipeline(folder: str, text: str = "t") -> str:
        with dsl.ExitHandler(tell(tag="exit", folder=folder)):
            first = stage(tag=tag["a"], text=text, folder=folder)
            several = items(tag=tag["b"], folder=folder)
            with dsl.ParallelFor(several.output) as item:
                each = stage(tag=tag["c"], text=item, folder=folder)
            both = joined(tag=tag["d"], texts=dsl.Collected(each.output), folder=folder)
            with dsl.If(first.output == "a(t)"):
                yes = stage(tag=tag["e"], text=first.output, folder=folder)
            with dsl.Else():
                no = stage(tag=tag["f"], text="no", folder=folder)
            chosen = dsl.OneOf(yes.output, no.output)
            file = save(tag=tag["g"], text=both.output, folder=folder)
            nested = inner(tag=tag["h"], text=text, folder=folder)
            fails = load(tag=tag["i"], folder=folder, data=file.outputs["data"])
            last = joined(tag=tag["j"], texts=dsl.Collected(each.output), folder=folder).after(fails)
            stage(tag=tag["k"], text=chosen, folder=folder).after(last)
            with dsl.ParallelFor(several.output) as item:
                stage(tag=tag["m"], text=nested.output, folder=folder).after(last)
        return stage(tag=tag["n"], text="out", folder=folder).output

    return pipeline


class Runs:
    """Runs of pipelines in a folder, with what their stages have noted."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []

    def fail(self, *tags: str) -> None:
        for tag in tags:
            (self.folder / f"fail-{tag}").touch()

    def mend(self) -> None:
        for file in self.folder.glob("fail-*"):
            file.unlink()

    def run(self, pipeline: Any, arguments: dict[str, Any] | None = None, **options: Any) -> RunResult:
        """Run a pipeline; ``notes`` are the tags of its stages that have run, sorted."""
        notes = self.folder / "notes"
        notes.unlink(missing_ok=True)
        given = {"folder": str(self.folder), **(arguments or {})}
        result = run(pipeline, given, output_dir=self.folder / "runs", watch=Watch(), **options)
        self.notes = sorted(notes.read_text().split()) if notes.exists() else []
        return result


def made(result: RunResult) -> dict[str, Any]:
    """Return what each stage has made, by its name: its output, or the content of its file."""
    found: dict[str, Any] = {}
    for one in result.stages:
        if not one.state.is_success:
            continue
        files = {name: Path(artifact.path).read_text() for name, artifact in one.artifacts.items()}
        found[one.name] = {**one.outputs, **files}
    return found
