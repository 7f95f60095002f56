"""Artifacts: files and folders, metadata, types, URIs, optional ones, from Python and container components."""

from typing import List, NamedTuple, Optional

from kfp import dsl

from tests.cases import case
from tests.cases.parts import component, echo, make, read


@component
def train(data: dsl.Input[dsl.Dataset], model: dsl.Output[dsl.Model], metrics: dsl.Output[dsl.Metrics]) -> float:
    model.metadata["framework"] = "none"
    model.metadata["seen"] = data.metadata
    with open(data.path) as source, open(model.path, "w") as target:
        target.write(source.read().upper())
    metrics.log_metric("loss", 0.25)
    return 0.25


@component
def inspect(model: dsl.Input[dsl.Model], metrics: dsl.Input[dsl.Metrics]) -> str:
    with open(model.path) as file:
        text = file.read()
    seen = model.metadata["seen"]["length"]
    return f"{text} {model.metadata['framework']} {seen} {metrics.metadata['loss']} {type(model).__name__}"


class TrainAndInspect(NamedTuple):
    said: str
    model: dsl.Model
    metrics: dsl.Metrics


@case(
    state="failed",
    artifacts={"model": "ABC"},
    stages={"train": {"Output": 0.25}, "inspect": "failed"},
)
def metadata() -> TrainAndInspect:
    trained = train(data=make(text="abc").outputs["out"])
    model, metrics = trained.outputs["model"], trained.outputs["metrics"]
    return TrainAndInspect(inspect(model=model, metrics=metrics).output, model, metrics)


@component
def make_folder(folder: dsl.Output[dsl.Artifact]):
    import os

    os.makedirs(os.path.join(folder.path, "inner"))
    for name in ("a.txt", "inner/b.txt"):
        with open(os.path.join(folder.path, name), "w") as file:
            file.write(name)


@component
def list_folder(folder: dsl.Input[dsl.Artifact]) -> List[str]:
    import os

    return sorted(
        os.path.relpath(os.path.join(at, name), folder.path) for at, _, names in os.walk(folder.path) for name in names
    )


@case(outputs={"Output": ["a.txt", "inner/b.txt"]})
def folders() -> List[str]:
    return list_folder(folder=make_folder().outputs["folder"]).output


@component
def make_by_path(out: dsl.OutputPath("Dataset")):
    with open(out, "w") as file:
        file.write("by path")


@component
def read_by_path(data: dsl.InputPath("Dataset")) -> str:
    with open(data) as file:
        return file.read()


@case(outputs={"Output": "by path"})
def by_path() -> str:
    return read_by_path(data=make_by_path().outputs["out"]).output


@component
def make_and_return() -> dsl.Dataset:
    data = dsl.Dataset(uri=dsl.get_uri(), metadata={"name": "mine"})
    with open(data.path, "w") as file:
        file.write("returned")
    return data


@component
def read_pythonic(data: dsl.Dataset) -> str:
    with open(data.path) as file:
        return f"{file.read()} {data.metadata['name']}"


@case(outputs={"Output": "returned mine"})
def pythonic() -> str:
    return read_pythonic(data=make_and_return().output).output


@component
def read_optional(data: Optional[dsl.Input[dsl.Dataset]] = None) -> str:
    if data is None:
        return "nothing"
    with open(data.path) as file:
        return file.read()


@case(
    expected="an artifact that is given to Optional[dsl.Input[...]] works here; the check warns",
    outputs={"Output": "nothing"},
    stages={"read-optional-2": {"Output": "x"}},
)
def optional() -> str:
    nothing = read_optional()
    read_optional(data=make(text="x").outputs["out"])
    return nothing.output


@component
def point_elsewhere(out: dsl.Output[dsl.Dataset]):
    out.uri = "s3://bucket/data"
    out.metadata["rows"] = "7"


@component
def uri_of(data: dsl.Input[dsl.Dataset]) -> str:
    return f"{data.uri} {data.metadata['rows']}"


@case(
    state="failed",
    stages={"point-elsewhere": "failed", "uri-of": "not run"},
)
def uri_of_its_own() -> str:
    return uri_of(data=point_elsewhere().outputs["out"]).output


@component
def empty(out: dsl.Output[dsl.Dataset]):
    pass


@component
def exists(data: dsl.Input[dsl.Dataset]) -> bool:
    import os

    return os.path.exists(data.path)


@case(stages={"exists": {}})
def that_was_not_written():
    exists(data=empty().outputs["out"])


@component
def evaluate(
    curve: dsl.Output[dsl.ClassificationMetrics],
    page: dsl.Output[dsl.HTML],
    note: dsl.Output[dsl.Markdown],
    scores: dsl.Output[dsl.Metrics],
):
    scores.log_metric("accuracy", 0.5)
    scores.log_metric("epochs", 3)
    curve.log_roc_curve([0.0, 1.0], [0.0, 1.0], [1.0, 0.5])
    curve.log_confusion_matrix(["a", "b"], [[1, 2], [3, 4]])
    for out, text in ((page, "<p>hi</p>"), (note, "# hi")):
        with open(out.path, "w") as file:
            file.write(text)


class Evaluation(NamedTuple):
    page: dsl.HTML
    note: dsl.Markdown
    curve: dsl.ClassificationMetrics
    scores: dsl.Metrics


@case(artifacts={"page": "<p>hi</p>", "note": "# hi"}, stages={"evaluate": {}})
def of_the_user_interface() -> Evaluation:
    made = evaluate()
    return Evaluation(made.outputs["page"], made.outputs["note"], made.outputs["curve"], made.outputs["scores"])


@dsl.container_component
def make_in_container(text: str, out: dsl.Output[dsl.Dataset]):
    return dsl.ContainerSpec(
        image="busybox", command=["sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$0" > "$1"', text, out.path]
    )


@dsl.container_component
def read_in_container(data: dsl.Input[dsl.Dataset], out: dsl.OutputPath(str)):
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", 'cp "$0" "$1"', data.path, out])


@case(outputs={"Output": "abc"}, stages={"read": {"Output": "abc"}})
def through_containers() -> str:
    made = make_in_container(text="abc")
    read(data=made.outputs["out"])
    return read_in_container(data=made.outputs["out"]).outputs["out"]


@dsl.container_component
def metadata_in_container(data: dsl.Input[dsl.Dataset], out: dsl.OutputPath(str)):
    script = 'printf %s "$0" > "$1"'
    return dsl.ContainerSpec(image="busybox", command=["sh", "-c", script, data.metadata["length"], out])


@case(outputs={"Output": "{{$.inputs.artifacts['data'].metadata['length']}}"})
def metadata_in_containers() -> str:
    return metadata_in_container(data=make(text="abc").outputs["out"]).outputs["out"]


@case(refused="takes an artifact")
def as_pipeline_input(data: dsl.Input[dsl.Dataset]):
    echo(text=read(data=data).output)


@component
def change(data: dsl.Input[dsl.Dataset]) -> str:
    with open(data.path, "a") as file:
        file.write(" and changed")
    with open(data.path) as file:
        return file.read()


@component
def read_after(data: dsl.Input[dsl.Dataset], before: str) -> str:
    with open(data.path) as file:
        return f"{before}; {file.read()}"


@case(outputs={"Output": "x and changed; x"})
def changed() -> str:
    data = make(text="x").outputs["out"]
    return read_after(data=data, before=change(data=data).output).output


@component
def write_beside(data: dsl.Output[dsl.Dataset]):
    for path in (data.path, f"{data.path}.csv"):
        with open(path, "w") as file:
            file.write("x")


@component
def read_beside(data: dsl.Input[dsl.Dataset]):
    with open(f"{data.path}.csv"):
        pass


@case(state="failed", stages={"write-beside": {}, "read-beside": "failed"})
def beside():
    read_beside(data=write_beside().outputs["data"])
